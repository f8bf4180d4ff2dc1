"""AddPartitionsToTxn, AddOffsetsToTxn and EndTxn for producers (KIP-98), the verification of transactions for other
brokers (KIP-890), and WriteTxnMarkers, which ends a transaction in the logs of its partitions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

from broker.groups.group_coordinator_service import GroupCoordinatorService
from broker.network.registry import RequestContext, api
from broker.network.shares import Split
from broker.security.rights import All, ClientRequest, OnCluster, OnGroup, OnTransactionalId, Outcome
from broker.transactions.marker_writer import Marker, MarkerResults, MarkerWriter
from broker.transactions.transaction_coordinator_service import TransactionCoordinatorService
from broker.transactions.transaction_guards import TransactionVerifier, VerificationRequest
from cluster.coordinators.results import PendingResponse
from cluster.metadata_image import MetadataImage
from environment.slices import Slices, in_slices
from protocol.acl_types import AclOperation, ResourceType
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, ErrorCode
from protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from protocol.topic_partition import CONSUMER_OFFSETS, TopicPartition, by_topic, is_internal
from protocol.wire.wire_types import SMALL_ELEMENTS

FIRST_VERSION_WITH_PRODUCER_FENCED: Final = 2
FIRST_VERSION_OF_BROKERS: Final = 4

_Transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
_Result = AddPartitionsToTxnResponse.AddPartitionsToTxnResult
_TopicResult = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
_PartitionResult = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult

_Marked = WriteTxnMarkersResponse.WritableTxnMarkerResult
_MarkedTopic = WriteTxnMarkersResponse.WritableTxnMarkerTopicResult
_MarkedPartition = WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult

_Codes = Mapping[TopicPartition, ErrorCode]


def fenced_error(context: RequestContext, error_code: ErrorCode, first_version: int) -> ErrorCode:
    """Replace PRODUCER_FENCED for clients before `first_version`, which do not know it (KIP-588)."""
    if error_code is ErrorCode.PRODUCER_FENCED and context.api_version < first_version:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error_code


def _refuse_markers(asked: ClientRequest[WriteTxnMarkersRequest], code: ErrorCode) -> WriteTxnMarkersResponse:
    """Every partition of every producer gets the error."""
    return WriteTxnMarkersResponse(
        markers=[
            _Marked(
                producer_id=marker.producer_id,
                topics=[
                    _MarkedTopic(
                        name=topic.name,
                        partitions=[
                            _MarkedPartition(partition_index=index, error_code=code)
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in asked.request.markers
        ]
    )


def _refuse_offsets(_: ClientRequest[AddOffsetsToTxnRequest], code: ErrorCode) -> AddOffsetsToTxnResponse:
    return AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=code)


def _refuse_to_end(_: ClientRequest[EndTxnRequest], code: ErrorCode) -> EndTxnResponse:
    return EndTxnResponse(throttle_time_ms=0, error_code=code)


class TransactionHandlers:
    """Handles the transactional ids coordinated here. `image` returns the metadata."""

    def __init__(
        self,
        service: TransactionCoordinatorService,
        groups: GroupCoordinatorService,
        verifier: TransactionVerifier,
        image: Callable[[], MetadataImage],
    ) -> None:
        self._service = service
        self._groups = groups
        self._verifier = verifier
        self._image = image

    def _guard_partitions(self, asked: ClientRequest[AddPartitionsToTxnRequest]) -> Outcome:
        """CLUSTER_ACTION for brokers; for clients, WRITE on the transactional id and on each topic. If some partitions
        are refused, none is added.
        """
        client, context, request = asked.client, asked.context, asked.request
        if context.api_version >= FIRST_VERSION_OF_BROKERS:
            if client.may_in_cluster(AclOperation.CLUSTER_ACTION):
                return asked.proceed()
            return AddPartitionsToTxnResponse(
                throttle_time_ms=0, error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, results_by_transaction=[]
            )
        topics = request.v3_and_below_topics
        partitions = [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]
        transactional_id = request.v3_and_below_transactional_id
        if not client.may(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
            return _response(dict.fromkeys(partitions, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
        names = [each.topic for each in partitions if not is_internal(each.topic)]
        denied = client.denied(AclOperation.WRITE, ResourceType.TOPIC, names)
        if not denied:
            return asked.proceed()
        refused = self._refusals(context, partitions)
        refused |= {each: ErrorCode.TOPIC_AUTHORIZATION_FAILED for each in partitions if each.topic in denied}
        return _response({each: refused.get(each, ErrorCode.OPERATION_NOT_ATTEMPTED) for each in partitions})

    @api(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        versions=(0, 5),
        right=_guard_partitions,
        splits=[Split("transactions")],
        whole="all partitions of a transaction are added, or none",
    )
    def add_partitions_to_txn(
        self, context: RequestContext, request: AddPartitionsToTxnRequest
    ) -> AddPartitionsToTxnResponse | Awaitable[AddPartitionsToTxnResponse]:
        """Add all partitions to a transaction, or none: if some are refused, the others get OPERATION_NOT_ATTEMPTED."""
        if context.api_version >= FIRST_VERSION_OF_BROKERS:
            return self._add_for_brokers(context, request.transactions)
        transaction = _Transaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
        codes = self._add(context, transaction)
        if isinstance(codes, Mapping):
            return _response(codes)
        return self._respond_later(codes)

    async def _respond_later(self, codes: Awaitable[_Codes]) -> AddPartitionsToTxnResponse:
        results = await self._topic_results(await codes)
        return AddPartitionsToTxnResponse(throttle_time_ms=0, results_by_topic_v3_and_below=results)

    async def _add_for_brokers(
        self, context: RequestContext, transactions: Sequence[_Transaction]
    ) -> AddPartitionsToTxnResponse:
        outcomes = [self._add(context, transaction) for transaction in transactions]
        results = []
        for transaction, outcome in zip(transactions, outcomes, strict=True):
            codes = outcome if isinstance(outcome, Mapping) else await outcome
            topic_results = await self._topic_results(codes)
            results.append(_Result(transactional_id=transaction.transactional_id, topic_results=topic_results))
        return AddPartitionsToTxnResponse(throttle_time_ms=0, results_by_transaction=results)

    def _add(self, context: RequestContext, transaction: _Transaction) -> _Codes | Awaitable[_Codes]:
        topics = transaction.topics
        if len(topics) > SMALL_ELEMENTS or sum(len(topic.partitions) for topic in topics) > SMALL_ELEMENTS:
            return self._add_many(context, transaction)
        partitions = [TopicPartition(topic.name, index) for topic in transaction.topics for index in topic.partitions]
        refused = self._refusals(context, partitions)
        if refused:
            return {each: refused.get(each, ErrorCode.OPERATION_NOT_ATTEMPTED) for each in partitions}
        return self._add_existing(context, transaction, partitions)

    async def _add_many(self, context: RequestContext, transaction: _Transaction) -> _Codes:
        """Like `_add`, in slices. Existing partitions are added in one go: their number is limited by the cluster's
        size.
        """
        slices = Slices(self._service.clock)
        partitions: list[TopicPartition] = []
        refused: dict[TopicPartition, ErrorCode] = {}
        async for topic in in_slices(transaction.topics, slices):
            async for index in in_slices(topic.partitions, slices):
                partitions.append(TopicPartition(topic.name, index))
                refused |= self._refusals(context, partitions[-1:])
        if not refused:
            codes = self._add_existing(context, transaction, partitions)
            return codes if isinstance(codes, Mapping) else await codes
        async for each in in_slices(partitions, slices):
            refused.setdefault(each, ErrorCode.OPERATION_NOT_ATTEMPTED)
        return refused

    def _add_existing(
        self, context: RequestContext, transaction: _Transaction, partitions: Sequence[TopicPartition]
    ) -> _Codes | Awaitable[_Codes]:
        transactional_id = transaction.transactional_id
        producer_id, producer_epoch = transaction.producer_id, transaction.producer_epoch
        if transaction.verify_only:
            return self._verifier.answer(VerificationRequest(transactional_id, producer_id, producer_epoch, partitions))
        outcome = self._add_to(transactional_id, producer_id, producer_epoch, partitions)
        return self._service.responses.respond(outcome, partial(_codes_of_all, context, partitions))

    async def _topic_results(self, codes: _Codes) -> list[_TopicResult]:
        results: dict[str, _TopicResult] = {}
        async for each, error_code in in_slices(codes.items(), self._service.clock):
            _add_result(results, each, error_code)
        return list(results.values())

    def _refusals(
        self, context: RequestContext, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        image, is_client = self._image(), context.api_version < FIRST_VERSION_OF_BROKERS
        refused = {}
        for each in partitions:
            if is_client and is_internal(each.topic):
                refused[each] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif image.partition(each) is None:
                refused[each] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return refused

    def _add_to(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[TopicPartition]
    ) -> ErrorCode | PendingResponse[ErrorCode]:
        try:
            runtime = self._service.runtime_of(transactional_id)
        except ApiError as error:
            return error.error_code
        event = runtime.shard.transactions.add_partitions
        return runtime.handle(event, transactional_id, producer_id, producer_epoch, partitions)

    @api(
        ApiKey.ADD_OFFSETS_TO_TXN,
        versions=(0, 4),
        right=All(OnTransactionalId(AclOperation.WRITE, _refuse_offsets), OnGroup(AclOperation.READ, _refuse_offsets)),
    )
    def add_offsets_to_txn(
        self, context: RequestContext, request: AddOffsetsToTxnRequest
    ) -> AddOffsetsToTxnResponse | Awaitable[AddOffsetsToTxnResponse]:
        """Add the partition of __consumer_offsets that keeps the group's offsets to the transaction."""
        offsets = TopicPartition(CONSUMER_OFFSETS, self._groups.partition_of(request.group_id))
        outcome = self._add_to(request.transactional_id, request.producer_id, request.producer_epoch, [offsets])

        def response(error_code: ErrorCode) -> AddOffsetsToTxnResponse:
            client_error = fenced_error(context, error_code, FIRST_VERSION_WITH_PRODUCER_FENCED)
            return AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=client_error)

        return self._service.responses.respond(outcome, response)

    @api(
        ApiKey.END_TXN,
        versions=(0, 4),
        right=OnTransactionalId(AclOperation.WRITE, _refuse_to_end),
    )
    def end_txn(self, context: RequestContext, request: EndTxnRequest) -> EndTxnResponse | Awaitable[EndTxnResponse]:
        """Reply when the outcome of the transaction is decided, before its markers are written."""

        def response(error_code: ErrorCode) -> EndTxnResponse:
            client_error = fenced_error(context, error_code, FIRST_VERSION_WITH_PRODUCER_FENCED)
            return EndTxnResponse(throttle_time_ms=0, error_code=client_error)

        transactional_id, producer_id = request.transactional_id, request.producer_id
        try:
            runtime = self._service.runtime_of(transactional_id)
        except ApiError as error:
            return response(error.error_code)
        end = runtime.shard.transactions.end
        outcome = runtime.handle(end, transactional_id, producer_id, request.producer_epoch, commit=request.committed)
        return self._service.responses.respond(outcome, response)


class MarkerHandlers:
    """Writes markers for a coordinator on another broker."""

    def __init__(self, writer: MarkerWriter) -> None:
        self._writer = writer

    @api(
        ApiKey.WRITE_TXN_MARKERS,
        versions=(0, 1),
        right=OnCluster(AclOperation.ALTER, AclOperation.CLUSTER_ACTION, refusal=_refuse_markers),
        splits=[Split("markers.topics.partition_indexes")],
    )
    async def write_txn_markers(
        self,
        context: RequestContext,  # noqa: ARG002
        request: WriteTxnMarkersRequest,
    ) -> WriteTxnMarkersResponse:
        """Reply when each marker is replicated or has failed."""
        markers = [
            Marker(
                marker.producer_id,
                marker.producer_epoch,
                marker.transaction_result,
                marker.coordinator_epoch,
                [TopicPartition(topic.name, index) for topic in marker.topics for index in topic.partition_indexes],
            )
            for marker in request.markers
        ]
        if any(marker.producer_id < 0 or marker.producer_epoch < 0 for marker in markers):
            # Such a producer cannot have batches. Kafka also fails on it, before it writes any marker.
            outcome: MarkerResults = {
                (marker.producer_id, each): ErrorCode.UNKNOWN_SERVER_ERROR
                for marker in markers
                for each in marker.partitions
            }
        else:
            outcome = await self._writer.write(markers)
        by_producer: dict[int, list[TopicPartition]] = {}
        for producer_id, topic_partition in outcome:
            by_producer.setdefault(producer_id, []).append(topic_partition)
        return WriteTxnMarkersResponse(
            markers=[
                _Marked(
                    producer_id=producer_id,
                    topics=[
                        _MarkedTopic(
                            name=topic,
                            partitions=[
                                _MarkedPartition(
                                    partition_index=index,
                                    error_code=outcome[producer_id, TopicPartition(topic, index)],
                                )
                                for index in indexes
                            ],
                        )
                        for topic, indexes in by_topic(partitions).items()
                    ],
                )
                for producer_id, partitions in by_producer.items()
            ]
        )


def _response(codes: _Codes) -> AddPartitionsToTxnResponse:
    """The response to a client: one result per distinct partition, grouped by topic."""
    results: dict[str, _TopicResult] = {}
    for each, error_code in codes.items():
        _add_result(results, each, error_code)
    return AddPartitionsToTxnResponse(throttle_time_ms=0, results_by_topic_v3_and_below=list(results.values()))


def _add_result(results: dict[str, _TopicResult], partition: TopicPartition, error_code: ErrorCode) -> None:
    topic, index = partition
    if topic not in results:
        results[topic] = _TopicResult(name=topic, results_by_partition=[])
    result = _PartitionResult(partition_index=index, partition_error_code=error_code)
    results[topic].results_by_partition.append(result)


def _codes_of_all(context: RequestContext, partitions: Sequence[TopicPartition], error_code: ErrorCode) -> _Codes:
    return dict.fromkeys(partitions, fenced_error(context, error_code, FIRST_VERSION_WITH_PRODUCER_FENCED))
