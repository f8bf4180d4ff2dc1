"""TxnOffsetCommit: offsets of a group that take effect when a transaction commits (KIP-98, KIP-447)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from broker.groups.group_coordinator_service import GroupCoordinatorService
from broker.network.registry import RequestContext, api
from broker.network.shares import Split
from broker.security.rights import All, ClientRequest, OnGroup, OnTopics, OnTransactionalId
from broker.transactions.transaction_guards import VerificationGuards, Write
from cluster.coordinators.results import PendingResponse, TransactionalProducer
from cluster.groups.membership_events import GroupMember
from cluster.groups.offset_events import Offsets, PartitionErrors
from cluster.groups.records import NO_TIMESTAMP, CommittedOffset
from cluster.metadata_image import MetadataImage
from protocol.acl_types import AclOperation
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, ErrorCode
from protocol.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from protocol.records.batch import NO_SEQUENCE
from protocol.topic_partition import CONSUMER_OFFSETS, TopicPartition

FIRST_VERSION_WITH_LOAD_IN_PROGRESS: Final = 2
FIRST_VERSION_WITH_ABORTABLE: Final = 4

_Topic = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
_Partition = TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition


def _refuse(asked: ClientRequest[TxnOffsetCommitRequest], code: ErrorCode) -> TxnOffsetCommitResponse:
    topics = [_not_committed(topic, code) for topic in asked.request.topics]
    return TxnOffsetCommitResponse(throttle_time_ms=0, topics=topics)


def _not_committed(topic: TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic, code: ErrorCode) -> _Topic:
    return _Topic(
        name=topic.name,
        partitions=[_Partition(partition_index=each.partition_index, error_code=code) for each in topic.partitions],
    )


class TransactionalOffsetHandlers:
    """Commits offsets of groups coordinated here, as part of transactions."""

    def __init__(
        self, service: GroupCoordinatorService, guards: VerificationGuards, image: Callable[[], MetadataImage]
    ) -> None:
        """`image` returns the metadata."""
        self._service = service
        self._guards = guards
        self._image = image

    @api(
        ApiKey.TXN_OFFSET_COMMIT,
        versions=(0, 4),
        right=All(
            OnTransactionalId(AclOperation.WRITE, _refuse),
            OnGroup(AclOperation.READ, _refuse),
            OnTopics(AclOperation.READ, _not_committed),
        ),
        splits=[Split("topics.partitions")],
    )
    async def txn_offset_commit(
        self, context: RequestContext, request: TxnOffsetCommitRequest
    ) -> TxnOffsetCommitResponse:
        """Reply when the offsets are in the log. They are unstable until the transaction ends."""
        image = self._image()
        asked: list[TopicPartition] = []
        offsets: Offsets = {}
        for topic in request.topics:
            for each in topic.partitions:
                topic_partition = TopicPartition(topic.name, each.partition_index)
                asked.append(topic_partition)
                if image.partition(topic_partition) is not None:
                    offsets[topic_partition] = CommittedOffset(
                        each.committed_offset,
                        each.committed_leader_epoch,
                        each.committed_metadata or "",
                        NO_TIMESTAMP,
                    )
        results: PartitionErrors = {}
        if offsets:
            try:
                outcome = await self._commit(context, request, offsets)
            except ApiError as error:
                outcome = dict.fromkeys(offsets, error.error_code)
            answer = self._service.responses.respond(outcome, dict)
            results = answer if isinstance(answer, dict) else await answer
        return _response(context, asked, results)

    async def _commit(
        self, context: RequestContext, request: TxnOffsetCommitRequest, offsets: Offsets
    ) -> PartitionErrors | PendingResponse[PartitionErrors]:
        """Add offsets to a transaction. Raises ApiError if the group is coordinated elsewhere or the transaction does
        not include it.
        """
        group_id, producer_id, producer_epoch = request.group_id, request.producer_id, request.producer_epoch
        self._service.runtime_of(group_id)
        kept_in = TopicPartition(CONSUMER_OFFSETS, self._service.partition_of(group_id))
        guards = self._guards.begin(
            request.transactional_id,
            [Write(kept_in, producer_id, producer_epoch, NO_SEQUENCE)],
            supports_abortable=context.api_version >= FIRST_VERSION_WITH_ABORTABLE,
        )
        guard = (guards if isinstance(guards, Mapping) else await guards).get(kept_in)
        if isinstance(guard, ApiError):
            # Clients that do not expect NETWORK_EXCEPTION here must ask this coordinator again.
            is_unreached = guard.error_code is ErrorCode.NETWORK_EXCEPTION
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, guard.message) if is_unreached else guard
        runtime = self._service.runtime_of(group_id)
        who = GroupMember(request.member_id, request.generation_id, request.group_instance_id)
        producer = TransactionalProducer(producer_id, producer_epoch, guard)
        return runtime.handle(runtime.shard.offsets.commit, group_id, who, offsets, producer=producer)


def _response(
    context: RequestContext, asked: Sequence[TopicPartition], results: PartitionErrors
) -> TxnOffsetCommitResponse:
    topics: dict[str, list[_Partition]] = defaultdict(list)
    for topic_partition in asked:
        error_code = results.get(topic_partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        is_loading = error_code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if is_loading and context.api_version < FIRST_VERSION_WITH_LOAD_IN_PROGRESS:
            error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE  # such clients could crash otherwise (KAFKA-7296)
        topics[topic_partition.topic].append(
            _Partition(partition_index=topic_partition.partition, error_code=error_code)
        )
    return TxnOffsetCommitResponse(
        throttle_time_ms=0, topics=[_Topic(name=name, partitions=partitions) for name, partitions in topics.items()]
    )
