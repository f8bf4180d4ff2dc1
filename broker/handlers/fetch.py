"""Fetch: records from the log, immediately or when enough have arrived (KIP-227, KIP-320, KIP-516)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import cast

from broker.handlers.leader_hints import hint_readers
from broker.network.client_quotas import ClientQuotas, Stopwatch
from broker.network.registry import RequestContext, Waiting, api
from broker.network.reply_writer import FileSlice
from broker.network.shares import JoinedAnswers, Split
from broker.replication.delayed_fetch import CachedPartition, FetchResult, PartitionData
from broker.replication.fetch_session import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    INVALID_SESSION_ID,
    ErrorFetchContext,
    FetchContext,
    FetchSessionCache,
    PartitionResult,
    is_from_follower,
)
from broker.replication.replica_manager import ReplicaManager
from broker.security.access import OPEN, Access, Client
from broker.security.rights import CHECKED_BY_HANDLER
from cluster.replication.isr import UNKNOWN_BROKER_EPOCH
from cluster.replication.reads import CONSUMER_REPLICA_ID, FetchParams, IsolationLevel, LogReadInfo
from environment.contract import Clock
from environment.sliced import Sliced, never, run_to_end
from environment.slices import Slices, in_slices
from protocol.acl_types import AclOperation, ResourceType
from protocol.api_keys import ApiKey
from protocol.errors import NO_ERROR, ApiError, ErrorCode
from protocol.messages.fetch import FetchRequest, FetchResponse
from protocol.topic_partition import TopicPartition

UNKNOWN_OFFSET = -1
FIRST_VERSION_OF_ZSTD = 10
FIRST_VERSION_OF_RACKS = 11
"""KIP-392: older consumers only read from leaders."""
PARTITIONS_AT_ONCE = 5_000
"""Larger full fetches of consumers are read in shares. If one can be answered immediately, it does not get a
session.
"""
PARTITIONS_PER_SHARE = 200
REFUSED_UNREAD = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    }
)
"""Errors that Kafka finds before it reads a partition."""

_PARTITIONS = Split("topics.partitions")
_DENIED = ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

AbortedTransaction = FetchResponse.AbortedTransaction
TopicResponse = FetchResponse.FetchableTopicResponse


class FetchHandlers:
    """Serves reads of consumers and followers. `max_response_bytes` is the broker's limit (fetch.max.bytes)."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        sessions: FetchSessionCache,
        max_response_bytes: int,
        quotas: ClientQuotas,
        clock: Clock,
        access: Access = OPEN,
    ) -> None:
        self._clock = clock
        self._quotas = quotas
        self._replica_manager = replica_manager
        self._access = access
        self._sessions = sessions
        self._max_response_bytes = max_response_bytes

    @api(
        ApiKey.FETCH,
        versions=(4, 17),
        right=CHECKED_BY_HANDLER,
        reads_only=True,
        lazy="topics.partitions",
        whole="its sessions and sizes are those of all",
    )
    def fetch(
        self, context: RequestContext, request: FetchRequest
    ) -> FetchResponse | Waiting[FetchResponse] | Awaitable[FetchResponse]:
        """Reply immediately if enough bytes are available, a partition failed or the client does not wait; otherwise
        when enough bytes have arrived. Followers need CLUSTER_ACTION (CVE-2018-1288), others READ on each topic. A
        consumer over its quota gets an empty response.
        """
        if _is_large(request) and not is_from_follower(request):
            return self._fetch_in_slices(context, request)
        return self._fetch_timed(context, request)

    async def _fetch_in_slices(self, context: RequestContext, request: FetchRequest) -> FetchResponse:
        """Read some partitions at a time. If the request can be answered immediately, the response does not open a
        session.
        """
        joined = JoinedAnswers(_PARTITIONS, FetchResponse, context.api_version)
        endpoints: dict[int, FetchResponse.NodeEndpoint] = {}
        slices = Slices(self._clock)
        max_bytes = min(request.max_bytes, self._max_response_bytes)
        size = 0
        is_complete = request.max_wait_ms <= 0
        for share in _PARTITIONS.shares(request, PARTITIONS_PER_SHARE, slices.should_yield):
            if slices.should_yield():
                await slices.pause()
            if not isinstance(share, FetchRequest):
                continue
            part = share.replace(session_epoch=FINAL_EPOCH, max_wait_ms=0, max_bytes=max(max_bytes - size, 0))
            outcome = self._fetch_timed(context, part, min_one_message=size == 0)
            response = await outcome.future if isinstance(outcome, Waiting) else outcome
            if response.error_code or response.throttle_time_ms:
                return response
            for topic in response.responses:
                for each in topic.partitions:
                    size += len(each.records or b"")
                    is_complete = is_complete or bool(each.error_code) or each.preferred_read_replica >= 0
                    is_complete = is_complete or each.diverging_epoch is not None
            endpoints |= {each.node_id: each for each in response.node_endpoints}
            response.node_endpoints = []
            joined.add(response)
        if is_complete or size >= min(request.min_bytes, max_bytes):
            answer = cast("FetchResponse", joined.response())
            answer.node_endpoints = list(endpoints.values())
            return answer
        outcome = self._fetch_timed(context, request)
        return await outcome.future if isinstance(outcome, Waiting) else outcome

    def _fetch_timed(
        self, context: RequestContext, request: FetchRequest, *, min_one_message: bool = True
    ) -> FetchResponse | Waiting[FetchResponse]:
        if not self._quotas.is_limited or is_from_follower(request):
            return self._fetch(context, request, min_one_message=min_one_message)
        work = Stopwatch(self._quotas.now_s)
        response = self._fetch(context, request, work, min_one_message=min_one_message)
        self._quotas.count_time(context, work.stop())
        return response

    def _fetch(
        self,
        context: RequestContext,
        request: FetchRequest,
        work: Stopwatch | None = None,
        *,
        min_one_message: bool = True,
    ) -> FetchResponse | Waiting[FetchResponse]:
        replica = request.replica_state
        replica_id = request.replica_id if replica is None else replica.replica_id
        client = None if self._access.is_open else self._access.client(context, "Fetch")
        if client is not None and (replica_id >= 0 or self._sessions.is_of_follower(request.session_id)):
            # Checked before the session is opened: other clients must not change or end a follower's session.
            if not client.may_in_cluster(AclOperation.CLUSTER_ACTION):
                return self._refuse_follower(context, request)
            client = client if replica_id < 0 else None
        slices = Slices(self._clock)
        opening = self._sessions.open(
            request, context.api_version, self._replica_manager.topic_name, slices.should_yield
        )
        try:
            next(opening)
        except StopIteration as end:
            fetch: FetchContext = end.value
        else:
            read = partial(self._read, context, request, client, work, slices, min_one_message=min_one_message)
            opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            return Waiting(asyncio.ensure_future(_open_and_read(opening, read, slices, opened)), effective=opened)
        return self._read(context, request, client, work, slices, fetch, min_one_message=min_one_message)

    def _read(
        self,
        context: RequestContext,
        request: FetchRequest,
        client: Client | None,
        work: Stopwatch | None,
        slices: Slices,
        fetch: FetchContext,
        *,
        min_one_message: bool,
    ) -> FetchResponse | Waiting[FetchResponse]:
        """Read the partitions of the opened `fetch`, on behalf of `client` unless it may read all."""
        if isinstance(fetch, ErrorFetchContext) or not (fetch.partitions or fetch.watch):
            return self._answer(context, fetch, (), work)(())
        wanted, refused = (fetch.partitions, []) if client is None else _readable(client, fetch.partitions)
        answer = self._answer(context, fetch, refused, work)
        if refused and not wanted:
            return answer(())
        replica = request.replica_state
        replica_id = request.replica_id if replica is None else replica.replica_id
        max_bytes = min(request.max_bytes, self._max_response_bytes)
        if work is not None:
            max_bytes = int(min(max_bytes, self._quotas.max_fetch_bytes(context)))
        isolation = IsolationLevel.of(request.isolation_level)
        is_consumer = replica_id == CONSUMER_REPLICA_ID
        params = FetchParams(
            isolation if is_consumer else IsolationLevel.READ_UNCOMMITTED,
            reads_zstd=context.api_version >= FIRST_VERSION_OF_ZSTD,
            max_wait_ms=request.max_wait_ms,
            min_bytes=min(request.min_bytes, max_bytes),
            max_bytes=max_bytes,
            replica_id=replica_id,
            replica_epoch=UNKNOWN_BROKER_EPOCH if replica is None else replica.replica_epoch,
            leader_only=replica_id >= 0 or context.api_version < FIRST_VERSION_OF_RACKS,
            client_rack=request.rack_id if is_consumer else "",
            listener_name=context.listener_name,
            min_one_message=min_one_message,
        )
        response = self._replica_manager.fetch(params, wanted, answer, slices, fetch.watch)
        return Waiting(response) if isinstance(response, asyncio.Future) else response

    def _refuse_follower(self, context: RequestContext, request: FetchRequest) -> FetchResponse:
        """Reject a client that poses as a follower. It gets neither a session nor influence on high watermarks."""
        request.session_id, request.session_epoch = INVALID_SESSION_ID, FINAL_EPOCH
        opening = self._sessions.open(request, context.api_version, self._replica_manager.topic_name, never)
        fetch = run_to_end(opening)
        denied = [(each, _DENIED) for each in fetch.partitions]
        return self._answer(context, fetch, denied, None)(())

    def _answer(
        self, context: RequestContext, fetch: FetchContext, denied: Sequence[FetchResult], work: Stopwatch | None
    ) -> _FetchResponseBuilder:
        return _FetchResponseBuilder(self._replica_manager, self._quotas, context, fetch, denied, work)


class _FetchResponseBuilder:
    """Builds the response to one fetch: the partitions that were read, and refusals of those `denied` unread."""

    __slots__ = ("_context", "_denied", "_fetch", "_quotas", "_refused", "_replica_manager", "_work")

    def __init__(
        self,
        replica_manager: ReplicaManager,
        quotas: ClientQuotas,
        context: RequestContext,
        fetch: FetchContext,
        denied: Sequence[FetchResult],
        work: Stopwatch | None,
    ) -> None:
        self._replica_manager = replica_manager
        self._quotas = quotas
        self._context = context
        self._fetch = fetch
        self._denied = denied
        self._work = work
        self._refused: list[tuple[TopicPartition, PartitionData]] = []

    def __call__(self, results: Sequence[FetchResult]) -> FetchResponse:
        """Build the response."""
        described = list(self._described(results))
        if self._work is not None and (throttled := self._throttled(self._work, described)) is not None:
            return throttled
        response = self._fetch.respond(described)
        return self._hinted(response) if self._refused else response

    async def in_slices(self, results: Sequence[FetchResult], slices: Slices) -> FetchResponse:
        """Like a call, in slices."""
        described = [result async for result in in_slices(self._described(results), slices)]
        if self._work is not None and (throttled := self._throttled(self._work, described)) is not None:
            return throttled
        noted = [result async for result in in_slices(described, slices) if self._fetch.note(*result)]
        await slices.pause()  # a new session is built in one go
        return self._hinted(self._fetch.response(noted))

    def _described(self, results: Sequence[FetchResult]) -> Iterator[PartitionResult]:
        for wanted, found in (*results, *self._denied) if self._denied else results:
            yield (
                wanted,
                _data(wanted.partition, found) if isinstance(found, LogReadInfo) else self._refuse(wanted, found),
            )

    def _refuse(self, wanted: CachedPartition, error: ApiError) -> PartitionData:
        data = _refusal(wanted.partition, error)
        if wanted.topic is not None:
            self._refused.append((TopicPartition(wanted.topic, wanted.partition), data))
        return data

    def _throttled(self, work: Stopwatch, described: Sequence[PartitionResult]) -> FetchResponse | None:
        """The empty response for a client over its quota, otherwise None."""
        size = partial(self._fetch.size, described, self._context.api_version)
        throttle_ms = self._quotas.charge_fetch(self._context, size, work.lap())
        return self._fetch.throttled(throttle_ms) if throttle_ms else None

    def _hinted(self, response: FetchResponse) -> FetchResponse:
        if self._refused:
            hint_readers(self._context, self._replica_manager, response, self._refused)
        return response


async def _open_and_read(
    opening: Sliced[FetchContext],
    read: Callable[[FetchContext], FetchResponse | Waiting[FetchResponse]],
    slices: Slices,
    opened: asyncio.Future[None],
) -> FetchResponse:
    """Finish a request that takes long to open. Other requests may pass it once `opened` is done."""
    try:
        await slices.pause()
        answer = read(await slices.finish(opening))
    finally:
        opened.set_result(None)
    return await answer.future if isinstance(answer, Waiting) else answer


def _is_large(request: FetchRequest) -> bool:
    """Whether a full fetch has so many partitions that it is read in shares."""
    if request.session_epoch not in (INITIAL_EPOCH, FINAL_EPOCH):
        return False
    size = len(request.topics)
    return size > PARTITIONS_AT_ONCE or size + sum(len(each.partitions) for each in request.topics) > PARTITIONS_AT_ONCE


def _readable(
    client: Client, partitions: Sequence[CachedPartition]
) -> tuple[Sequence[CachedPartition], list[FetchResult]]:
    """Split into partitions that the client may read, and refusals of the others. Unknown topic ids are refused
    later.
    """
    names = [each.topic for each in partitions if each.topic is not None]
    denied = client.denied(AclOperation.READ, ResourceType.TOPIC, names)
    if not denied:
        return partitions, []
    refused: list[FetchResult] = [(each, _DENIED) for each in partitions if each.topic in denied]
    return [each for each in partitions if each.topic not in denied], refused


def _data(partition: int, info: LogReadInfo) -> PartitionData:
    records: bytes | memoryview = b""
    if info.records is not None and info.records.file is not None:
        # The encoder keeps this as a separate part; the connection sends it when the socket has room.
        records = cast("memoryview", FileSlice(info.records.file, info.records.position, info.records.size))
    data = PartitionData(
        partition_index=partition,
        error_code=NO_ERROR,
        high_watermark=info.high_watermark,
        last_stable_offset=info.last_stable_offset,
        log_start_offset=info.log_start_offset,
        aborted_transactions=None,
        preferred_read_replica=info.preferred_read_replica,
        records=records,
    )
    if info.aborted is not None:
        data.aborted_transactions = [
            AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset) for each in info.aborted
        ]
    if info.diverging_epoch is not None:
        epoch, end_offset = info.diverging_epoch
        data.diverging_epoch = FetchResponse.EpochEndOffset(epoch=epoch, end_offset=end_offset)
    return data


def _refusal(partition: int, error: ApiError) -> PartitionData:
    return PartitionData(
        partition_index=partition,
        error_code=error.error_code,
        high_watermark=UNKNOWN_OFFSET,
        last_stable_offset=UNKNOWN_OFFSET,
        log_start_offset=UNKNOWN_OFFSET,
        aborted_transactions=[] if error.error_code in REFUSED_UNREAD else None,
        records=b"",
    )
