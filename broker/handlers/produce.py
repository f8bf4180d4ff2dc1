"""Produce (KIP-98 record format and later)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, cast

from broker.handlers.leader_hints import hint_producers
from broker.handlers.refused_batches import refuse_whole_flight
from broker.network.registry import CloseConnection, RequestContext, Waiting, api
from broker.network.shares import JoinedAnswers, Split
from broker.replication.replica_manager import ReplicaManager
from broker.security.rights import DENIAL_MESSAGES, All, ClientRequest, InShares, OnTopics, Outcome
from broker.transactions.transaction_guards import Guards, VerificationGuards, Write
from environment.contract import Clock
from environment.slices import Slices, in_slices
from protocol.acl_types import AclOperation, ResourceType
from protocol.api_keys import ApiKey
from protocol.errors import NO_ERROR, ApiError, ErrorCode, detached
from protocol.messages.produce import ProduceRequest, ProduceResponse
from protocol.records.batch import RecordBatch
from protocol.records.compression import CompressionType
from protocol.records.record_format import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    HEADER_BYTES,
    NO_PRODUCER_ID,
    is_transactional,
)
from protocol.records.record_validation import RecordValidationError
from protocol.topic_partition import TopicPartition, is_internal
from protocol.value import maker
from protocol.wire.decode_compiler import LazyArray
from protocol.wire.wire_types import SMALL_ELEMENTS
from storage.directory.disk_reserve import DiskReserveError
from storage.log.log_validator import NotOneBatchError, VerificationGuard

ADMIN_CLIENT_ID = "__admin_client"
"""The only client id that may write to internal topics, as in Kafka (AdminUtils.ADMIN_CLIENT_ID)."""

FIRST_VERSION_OF_MAGIC_2 = 3
FIRST_VERSION_OF_ZSTD = 7
FIRST_VERSION_WITH_ABORTABLE = 11
VALID_ACKS = (-1, 0, 1)
NO_OFFSET = -1
LETS_PRODUCE_PASS: Final = frozenset({ApiKey.PRODUCE})
"""APIs that may be handled while an earlier produce is unacknowledged. Any other API would have to see its records."""
PARTITIONS_AT_ONCE = 100
"""Batches appended per turn of the event loop: about 4 ms of work."""
_PARTITIONS: Final = Split("topic_data.partition_data")

RETRIABLE_VERDICTS: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)

Topic = ProduceResponse.TopicProduceResponse
Partition = ProduceResponse.PartitionProduceResponse
make_response = maker(ProduceResponse)
make_topic = maker(Topic)
make_partition = maker(Partition)
PartitionData = ProduceRequest.PartitionProduceData


class NotVerifiedError(ApiError):
    """The transaction of a batch is not verified, so the log was not consulted. The client gets `client_message`."""

    def __init__(self, error_code: ErrorCode, client_message: str | None) -> None:
        super().__init__(error_code, client_message or "the transaction does not have the partition")
        self.client_message = client_message


_AnyGuards = Guards | NotVerifiedError
"""The guards for the batches of a request, or the error of all."""


class _Unacknowledged(NamedTuple):
    """An append that is not acknowledged yet, and its index in the results of its topic."""

    answers: list[Partition]
    place: int
    topic_partition: TopicPartition
    last_offset: int


def _not_produced(topic: ProduceRequest.TopicProduceData, code: ErrorCode, message: str | None = None) -> Topic:
    return Topic(
        name=topic.name,
        partition_responses=[
            Partition(
                index=data.index,
                error_code=code,
                base_offset=NO_OFFSET,
                log_append_time_ms=-1,
                log_start_offset=NO_OFFSET,
                error_message=message,
            )
            for data in topic.partition_data
        ],
    )


class ProduceHandlers:
    """Appends batches of clients.

    Versions 0-2 are advertised because librdkafka before 2.11.1 turns compression off without them (KAFKA-18659). Their
    message formats 0 and 1 are refused with UNSUPPORTED_FOR_MESSAGE_FORMAT.
    """

    def __init__(self, replica_manager: ReplicaManager, transactions: VerificationGuards, clock: Clock) -> None:
        self._replica_manager = replica_manager
        self._clock = clock
        self._transactions = transactions

    def _guard_transactional(self, asked: ClientRequest[ProduceRequest]) -> Outcome:
        """WRITE on the transactional id if any batch is transactional, regardless of the request's own claim
        (CVE-2018-17196).
        """
        request, transactional_id = asked.request, asked.request.transactional_id
        if not any(is_transactional(data.records) for topic in request.topic_data for data in topic.partition_data):
            return asked.proceed()
        if transactional_id is not None and asked.client.may(
            AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
        ):
            return asked.proceed()
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if not request.acks:
            raise CloseConnection(f"a produce request with acks=0 failed with {code.name}")
        message = DENIAL_MESSAGES[code]
        return ProduceResponse(responses=[_not_produced(topic, code, message) for topic in request.topic_data])

    @api(
        ApiKey.PRODUCE,
        versions=(0, 11),
        right=InShares(
            All(
                _guard_transactional,
                OnTopics(AclOperation.WRITE, _not_produced, array="topic_data", results="responses"),
            ),
            "topic_data.partition_data",
            "responses.partition_responses",
            lambda: ProduceResponse(responses=[]),
        ),
        lazy="topic_data.partition_data",
        whole="its answer waits once for all replicas",
    )
    def produce(
        self, context: RequestContext, request: ProduceRequest
    ) -> ProduceResponse | Waiting[ProduceResponse | None] | None:
        """Append the batch of every partition. With acks=0 nothing is sent; a failure closes the connection."""
        topic_data = request.topic_data
        # A lazy array is decoded on every iteration, so iterate in slices.
        is_large = isinstance(topic_data, LazyArray)
        if is_large:
            batches = 0
        elif len(topic_data) == 1:  # nearly every request; a sum takes 3 % of its time
            batches = len(topic_data[0].partition_data)
        else:
            batches = sum([len(data.partition_data) for data in topic_data])
        guards: _AnyGuards | Awaitable[Guards] | None = None
        if request.transactional_id is not None and not is_large:
            writes = [
                _write(data, part)
                for data in topic_data
                for part in data.partition_data
                if is_transactional(part.records)
            ]
            guards = self._guards(context, request.transactional_id, writes)
        many = is_large or batches > PARTITIONS_AT_ONCE or len(topic_data) > PARTITIONS_AT_ONCE
        if many or (guards is not None and isinstance(guards, Awaitable)):
            # The dispatcher has copied larger requests already.
            if not is_large and len(topic_data) + batches <= SMALL_ELEMENTS:
                _keep_records(request)
            appended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            answer = asyncio.ensure_future(self._produce_in_slices(context, request, appended, guards))
            return Waiting(answer, LETS_PRODUCE_PASS, effective=appended)
        topics: list[Topic] = []
        waiting: list[_Unacknowledged] = []
        for data in topic_data:
            if data.partition_data:
                answers: list[Partition] = []
                self._append(context, request.acks, data.name, data.partition_data, answers, waiting, guards)
                topics.append(make_topic(name=data.name, partition_responses=answers))
        if waiting:
            return Waiting(self._when_acknowledged(context, request, topics, waiting), LETS_PRODUCE_PASS)
        if not request.acks:
            _close_after_failure(topics)
            return None
        return self._response(context, topics)

    def _guards(
        self, context: RequestContext, transactional_id: str, writes: Sequence[Write]
    ) -> _AnyGuards | Awaitable[Guards]:
        """Check that the producer's transaction includes the partitions of its batches (KIP-890)."""
        producers = {
            (write.producer_id, write.producer_epoch) for write in writes if write.producer_id != NO_PRODUCER_ID
        }
        if len(producers) > 1:
            message = "Transactional records contained more than one producer ID"
            return NotVerifiedError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, message)
        supports_abortable = context.api_version >= FIRST_VERSION_WITH_ABORTABLE
        return self._transactions.begin(transactional_id, writes, supports_abortable=supports_abortable)

    async def _guards_in_slices(
        self, context: RequestContext, transactional_id: str, request: ProduceRequest
    ) -> _AnyGuards:
        slices = Slices(self._clock)
        writes = [
            _write(data, part)
            async for data in in_slices(request.topic_data, slices)
            async for part in in_slices(data.partition_data, slices)
            if is_transactional(part.records)
        ]
        guards = self._guards(context, transactional_id, writes)
        return await guards if isinstance(guards, Awaitable) else guards

    def _response(self, context: RequestContext, topics: list[Topic]) -> ProduceResponse:
        response = make_response(responses=topics)
        for topic in topics:
            for answer in topic.partition_responses:
                if answer.error_code:
                    hint_producers(context, self._replica_manager, response)
                    return response
        return response

    async def _produce_in_slices(
        self,
        context: RequestContext,
        request: ProduceRequest,
        appended: asyncio.Future[None],
        guards: _AnyGuards | Awaitable[Guards] | None,
    ) -> ProduceResponse | None:
        answers = _ManyAnswers(partial(self._response, context), context.api_version, request.acks)
        try:
            if isinstance(guards, Awaitable):
                guards = await guards
            elif guards is None and request.transactional_id is not None:
                guards = await self._guards_in_slices(context, request.transactional_id, request)
            waiting = await self._append_in_slices(context, request, guards, answers)
        finally:
            appended.set_result(None)
        if waiting:
            await self._when_acknowledged(context, request, [], waiting)
        return await answers.response(Slices(self._clock))

    async def _append_in_slices(
        self, context: RequestContext, request: ProduceRequest, guards: _AnyGuards | None, answers: _ManyAnswers
    ) -> list[_Unacknowledged]:
        waiting: list[_Unacknowledged] = []
        slices = Slices(self._clock)
        size = self._clock.elements_at_once(PARTITIONS_AT_ONCE)
        for share in _PARTITIONS.shares(request, size, slices.should_yield):
            topics: list[Topic] = []
            for data in share.topic_data if isinstance(share, ProduceRequest) else ():
                partitions: list[Partition] = []
                async for part in in_slices(data.partition_data, slices):
                    self._append(context, request.acks, data.name, (part,), partitions, waiting, guards)
                if partitions:
                    topics.append(make_topic(name=data.name, partition_responses=partitions))
            answers.add(topics, is_complete=not waiting)
            if slices.should_yield():
                await slices.pause()
        return waiting

    def _append(
        self,
        context: RequestContext,
        acks: int,
        topic: str,
        partition_data: Sequence[PartitionData],
        answers: list[Partition],
        waiting: list[_Unacknowledged],
        guards: _AnyGuards | None,
    ) -> None:
        """Append to some partitions of a topic, and add the results to `answers`."""
        is_unusual = context.api_version < FIRST_VERSION_OF_ZSTD or acks not in VALID_ACKS or is_internal(topic)
        append = self._replica_manager.append
        for data in partition_data:
            topic_partition = TopicPartition(topic, data.index)
            records = data.records
            if not isinstance(records, memoryview):
                records = memoryview(records or b"")
            try:
                if is_unusual:
                    _check(context, acks, topic, records)
                if guards is None:
                    info = append(topic_partition, records, required_acks=acks)
                else:
                    info = append(topic_partition, records, required_acks=acks, guard=_guard(guards, topic_partition))
            except ApiError as error:
                error = refuse_whole_flight(context, topic_partition, records, error)
                answers.append(self._refusal(topic_partition, error))
                continue
            if not info.is_acknowledged:
                waiting.append(_Unacknowledged(answers, len(answers), topic_partition, info.last_offset))
            answers.append(
                make_partition(
                    index=data.index,
                    error_code=NO_ERROR,
                    base_offset=info.first_offset,
                    log_append_time_ms=info.log_append_time_ms,
                    log_start_offset=info.log_start_offset,
                )
            )

    def _when_acknowledged(
        self, context: RequestContext, request: ProduceRequest, topics: list[Topic], waiting: list[_Unacknowledged]
    ) -> asyncio.Future[ProduceResponse | None]:
        """Return a future of the response, done once each append is acknowledged or has failed."""
        answered = self._replica_manager.when_acknowledged(
            [(each.topic_partition, each.last_offset) for each in waiting],
            partial(self._complete, context, topics, waiting),
            required_acks=request.acks,
            timeout_ms=request.timeout_ms,
        )
        if request.acks:
            return answered
        return asyncio.ensure_future(_when_unanswered(answered, topics))

    def _complete(
        self,
        context: RequestContext,
        topics: list[Topic],
        waiting: list[_Unacknowledged],
        errors: Sequence[ApiError | None],
    ) -> ProduceResponse | None:
        for each, error in zip(waiting, errors, strict=True):
            if error is None:
                continue
            if error.error_code is ErrorCode.KAFKA_STORAGE_ERROR:
                # In Kafka the append itself fails here, because it waits for flush.messages.
                each.answers[each.place] = self._refusal(each.topic_partition, error)
            else:
                # The records are in the log; keep their offset in the response.
                each.answers[each.place].error_code = error.error_code
        return self._response(context, topics)

    def _refusal(self, topic_partition: TopicPartition, error: ApiError) -> Partition:
        refusal = Partition(
            index=topic_partition.partition,
            error_code=error.error_code,
            base_offset=NO_OFFSET,
            log_append_time_ms=NO_OFFSET,
            log_start_offset=NO_OFFSET,
        )
        if isinstance(error, NotVerifiedError):
            refusal.error_message = error.client_message
            return refusal
        refusal.log_start_offset = self._replica_manager.log_start_offset_after(error, topic_partition)
        if isinstance(error, DiskReserveError) or (
            isinstance(error, NotOneBatchError) and error.error_code is ErrorCode.CORRUPT_MESSAGE
        ):
            refusal.error_message = error.message
        if isinstance(error, RecordValidationError):
            refusal.error_message = error.message
            refusal.record_errors = [
                ProduceResponse.BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
                for index, message in error.record_errors
            ]
        return refusal


class _ManyAnswers:
    """The results of a large request, encoded once complete: half a million objects would take 200 MB."""

    def __init__(self, respond: Callable[[list[Topic]], ProduceResponse], version: int, acks: int) -> None:
        """`respond` builds a response from the results of some partitions."""
        self._respond = respond
        self._acks = acks
        self._joined = JoinedAnswers(_PARTITIONS, ProduceResponse, version)
        self._joined.add(make_response(responses=[]))
        self._endpoints: dict[int, ProduceResponse.NodeEndpoint] = {}
        self._incomplete: list[list[Topic]] = []

    def add(self, topics: list[Topic], *, is_complete: bool) -> None:
        """Append results. Incomplete ones may change until `response` is called."""
        if not is_complete or (self._incomplete and self._acks):
            self._incomplete.append(topics)
        elif self._acks:
            self._join(topics)
        elif not self._incomplete and _failure(topics):  # the client notices only the first failure, at the end
            self._incomplete.append(topics)

    def _join(self, topics: list[Topic]) -> None:
        if not self._acks:
            _close_after_failure(topics)
            return
        response = self._respond(topics)
        self._endpoints |= {each.node_id: each for each in response.node_endpoints}
        response.node_endpoints = []
        self._joined.add(response)

    async def response(self, slices: Slices) -> ProduceResponse | None:
        """Build the final response, after each append was acknowledged or has failed. Raises CloseConnection."""
        async for topics in in_slices(self._incomplete, slices):
            self._join(topics)
        if not self._acks:
            return None
        response = cast("ProduceResponse", self._joined.response())
        response.node_endpoints = list(self._endpoints.values())
        return response


def _write(topic: ProduceRequest.TopicProduceData, data: PartitionData) -> Write:
    """Describe a transactional batch."""
    batch = RecordBatch(memoryview(data.records or b""))
    partition = TopicPartition(topic.name, data.index)
    return Write(partition, batch.producer_id, batch.producer_epoch, batch.base_sequence)


def _guard(guards: _AnyGuards, topic_partition: TopicPartition) -> VerificationGuard | None:
    """The guard of a batch, or None if it is not transactional. Raises ApiError if its transaction does not include the
    partition. If that may change, the error code is retriable.
    """
    guard = guards if isinstance(guards, ApiError) else guards.get(topic_partition)
    if not isinstance(guard, ApiError):
        return guard
    if isinstance(guard, NotVerifiedError):
        raise detached(guard)
    error_code, message = guard.error_code, None
    if error_code in RETRIABLE_VERDICTS:
        # Old producers know this code. It does not even make them refresh their metadata.
        message = (
            "Unable to verify the partition has been added to the transaction. Underlying error: " + error_code.name
        )
        error_code = ErrorCode.NOT_ENOUGH_REPLICAS
    elif error_code is ErrorCode.INVALID_TXN_STATE:
        message = "Partition was not added to the transaction"
    raise NotVerifiedError(error_code, message)


def _keep_records(request: ProduceRequest) -> None:
    """Copy the records out of the receive buffer, which will be reused."""
    for topic in request.topic_data:
        for data in topic.partition_data:
            if data.records is not None:
                data.records = memoryview(bytearray(data.records))


def _check(context: RequestContext, acks: int, topic: str, records: memoryview) -> None:
    """Raise ApiError if the request or client may not append at all, whatever the log."""
    if acks not in VALID_ACKS:
        raise ApiError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={acks} is not one of -1, 0 and 1")
    if is_internal(topic) and context.client_id != ADMIN_CLIENT_ID:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {topic}")
    version = context.api_version
    if version < FIRST_VERSION_OF_MAGIC_2:
        raise ApiError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"Produce version {version} carries message format 0 or 1; this broker stores format 2 only",
        )
    codec = records[ATTRIBUTES_AT + 1] & CODEC_MASK if len(records) >= HEADER_BYTES else CompressionType.NONE
    if version < FIRST_VERSION_OF_ZSTD and codec == CompressionType.ZSTD:
        raise ApiError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"Produce requests with version {version} are not allowed to use ZStandard compression",
        )


async def _when_unanswered(answered: asyncio.Future[ProduceResponse | None], topics: Sequence[Topic]) -> None:
    await answered
    _close_after_failure(topics)


def _close_after_failure(topics: Sequence[Topic]) -> None:
    """Finish a request with acks=0. Raises CloseConnection if an append failed: these clients cannot notice anything
    else.
    """
    failure = _failure(topics)
    if failure:
        raise CloseConnection(f"a produce request with acks=0 failed with {ErrorCode(failure).name}")


def _failure(topics: Sequence[Topic]) -> int:
    """The first error code of the results, or 0."""
    return next((each.error_code for topic in topics for each in topic.partition_responses if each.error_code), 0)
