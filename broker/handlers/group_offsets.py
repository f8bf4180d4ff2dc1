"""Committed offsets: OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from broker.groups.group_coordinator_service import GroupCoordinatorService
from broker.network.registry import Later, RequestContext, api
from broker.network.shares import Split
from broker.security.access import Client
from broker.security.rights import All, ClientRequest, OnGroup, OnTopics, Outcome, then
from cluster.coordinators.results import PendingResponse
from cluster.groups.membership_events import GroupMember
from cluster.groups.offset_events import NO_OFFSET, OffsetDeletion, Offsets, PartitionErrors
from cluster.groups.records import CommittedOffset
from cluster.metadata_image import MetadataImage
from environment.slices import in_slices
from protocol.acl_types import AclOperation, ResourceType
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, ErrorCode
from protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from protocol.topic_partition import TopicPartition
from protocol.wire.wire_types import SMALL_ELEMENTS

FIRST_FETCH_WITH_GROUP_ERROR: Final = 2
FIRST_FETCH_OF_MANY_GROUPS: Final = 8

_COMMITS: Final = frozenset({ApiKey.OFFSET_COMMIT})

CommittedTopic = OffsetCommitRequest.OffsetCommitRequestTopic
Asked = list[tuple[str, list[int]]]
"""Topic names, with partitions."""
Found = dict[TopicPartition, CommittedOffset | ErrorCode]

GROUP_DENIED: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED
TOPIC_DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED

T = TypeVar("T")


def _refuse_to_commit(asked: ClientRequest[OffsetCommitRequest], code: ErrorCode) -> OffsetCommitResponse:
    return OffsetCommitResponse(topics=[_not_committed(topic, code) for topic in asked.request.topics])


def _not_committed(topic: CommittedTopic, code: ErrorCode) -> OffsetCommitResponse.OffsetCommitResponseTopic:
    partition = OffsetCommitResponse.OffsetCommitResponsePartition
    return OffsetCommitResponse.OffsetCommitResponseTopic(
        name=topic.name,
        partitions=[partition(partition_index=each.partition_index, error_code=code) for each in topic.partitions],
    )


def _refuse_to_delete(_: ClientRequest[OffsetDeleteRequest], code: ErrorCode) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(error_code=code, throttle_time_ms=0, topics=[])


def _not_deleted(
    topic: OffsetDeleteRequest.OffsetDeleteRequestTopic, code: ErrorCode
) -> OffsetDeleteResponse.OffsetDeleteResponseTopic:
    partition = OffsetDeleteResponse.OffsetDeleteResponsePartition
    return OffsetDeleteResponse.OffsetDeleteResponseTopic(
        name=topic.name,
        partitions=[partition(partition_index=each.partition_index, error_code=code) for each in topic.partitions],
    )


class GroupOffsetHandlers:
    """Handles offsets of the groups coordinated here. `metadata` returns the current image.

    Version 0 of OffsetCommit and OffsetFetch, whose offsets Kafka keeps in ZooKeeper, is not supported.
    """

    def __init__(self, service: GroupCoordinatorService, metadata: Callable[[], MetadataImage]) -> None:
        self._service = service
        self._metadata = metadata

    # -- OffsetCommit --------------------------------------------------------------------------------------------------

    @api(
        ApiKey.OFFSET_COMMIT,
        versions=(1, 9),
        right=All(OnGroup(AclOperation.READ, _refuse_to_commit), OnTopics(AclOperation.READ, _not_committed)),
        splits=[Split("topics.partitions")],
    )
    def offset_commit(
        self,
        context: RequestContext,  # noqa: ARG002
        request: OffsetCommitRequest,
    ) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse] | Later[OffsetCommitResponse]:
        """Reply when the offsets are committed; unknown partitions are refused. The client's next commit may start
        before that, because it comes later in the log.
        """
        asked, outcome = self._commit(request)
        return self._service.responses.respond_at_once(outcome, partial(_commit_response, asked), _COMMITS)

    def _commit(
        self, request: OffsetCommitRequest
    ) -> tuple[list[TopicPartition], PartitionErrors | PendingResponse[PartitionErrors]]:
        """Commit offsets. Returns the requested partitions, and the result of the existing ones."""
        asked: list[TopicPartition] = []
        offsets: Offsets = {}
        for topic in request.topics:
            self._add_offsets(topic, asked, offsets)
        if not offsets:
            return asked, {}
        try:
            runtime = self._service.runtime_of(request.group_id, may_be_empty=True)
        except ApiError as error:
            return asked, dict.fromkeys(offsets, error.error_code)
        who = GroupMember(request.member_id, request.generation_id_or_member_epoch, request.group_instance_id)
        commit = runtime.shard.offsets.commit
        return asked, runtime.handle(commit, request.group_id, who, offsets, request.retention_time_ms)

    def _add_offsets(self, topic: CommittedTopic, asked: list[TopicPartition], offsets: Offsets) -> None:
        """Add the partitions of `topic` to `asked`, and the offsets of existing ones to `offsets`."""
        name = topic.name
        image = self._metadata().topics.get(name)
        for each in topic.partitions:
            topic_partition = TopicPartition(name, each.partition_index)
            if topic_partition not in offsets:  # as in Kafka, only unknown partitions are repeated in the response
                asked.append(topic_partition)
            if image is not None and image.partition(each.partition_index) is not None:
                offsets[topic_partition] = CommittedOffset(
                    each.committed_offset,
                    each.committed_leader_epoch,
                    each.committed_metadata or "",
                    each.commit_timestamp,
                )

    # -- OffsetFetch ---------------------------------------------------------------------------------------------------

    def _guard_fetch(self, asked: ClientRequest[OffsetFetchRequest]) -> Outcome:
        """DESCRIBE on each group and topic. A request for all topics returns those that the client may describe."""
        client, request, version = asked.client, asked.request, asked.context.api_version
        if version >= FIRST_FETCH_OF_MANY_GROUPS:
            return _fetch_allowed_groups(asked)
        if not client.may(AclOperation.DESCRIBE, ResourceType.GROUP, request.group_id):
            if version >= FIRST_FETCH_WITH_GROUP_ERROR:
                return OffsetFetchResponse(error_code=GROUP_DENIED, topics=[])
            return OffsetFetchResponse(topics=[])  # as in Kafka, whose response cannot carry the error here
        topics = request.topics
        if topics is None:
            return then(asked.proceed(), lambda response: _visible(client, response, [response]))
        denied = client.denied(AclOperation.DESCRIBE, ResourceType.TOPIC, [topic.name for topic in topics])
        refusals = [_not_fetched(topic, TOPIC_DENIED) for topic in topics if topic.name in denied]
        return asked.without("topics", lambda topic: topic.name in denied, refusals, "topics")

    @api(
        ApiKey.OFFSET_FETCH,
        versions=(1, 9),
        right=_guard_fetch,
        reads_only=True,
        splits=[Split("topics.partition_indexes"), Split("groups.topics.partition_indexes")],
    )
    def offset_fetch(
        self, context: RequestContext, request: OffsetFetchRequest
    ) -> OffsetFetchResponse | Awaitable[OffsetFetchResponse]:
        """Reply from memory."""
        if context.api_version >= FIRST_FETCH_OF_MANY_GROUPS:
            return self._fetch_groups(request)
        topics = None if request.topics is None else [(each.name, each.partition_indexes) for each in request.topics]
        error_code, found = self._find(request.group_id, topics, request.require_stable)
        if error_code and context.api_version < FIRST_FETCH_WITH_GROUP_ERROR:
            found = {TopicPartition(name, index): error_code for name, indexes in topics or () for index in indexes}
        if len(found) > SMALL_ELEMENTS:  # all offsets of the group
            return self._respond_in_slices(error_code, found)
        translated: dict[str, list[OffsetFetchResponse.OffsetFetchResponsePartition]] = {}
        for each in found.items():
            _add_found(OffsetFetchResponse.OffsetFetchResponsePartition, each, translated)
        return _response_of_one_group(error_code, translated)

    async def _respond_in_slices(self, error_code: ErrorCode, found: Found) -> OffsetFetchResponse:
        translated = await self._translated(OffsetFetchResponse.OffsetFetchResponsePartition, found)
        return _response_of_one_group(error_code, translated)

    async def _translated(self, item: Callable[..., T], found: Found) -> dict[str, list[T]]:
        topics: dict[str, list[T]] = {}
        async for each in in_slices(found.items(), self._service.clock):
            _add_found(item, each, topics)
        return topics

    async def _fetch_groups(self, request: OffsetFetchRequest) -> OffsetFetchResponse:
        response = OffsetFetchResponse(groups=[])
        async for asked in in_slices(request.groups, self._service.clock):
            wanted = None if asked.topics is None else [(each.name, each.partition_indexes) for each in asked.topics]
            error_code, found = self._find(asked.group_id, wanted, request.require_stable)
            topics = await self._translated(OffsetFetchResponse.OffsetFetchResponsePartitions, found)
            response.groups.append(
                OffsetFetchResponse.OffsetFetchResponseGroup(
                    group_id=asked.group_id,
                    error_code=error_code,
                    topics=[
                        OffsetFetchResponse.OffsetFetchResponseTopics(name=name, partitions=each)
                        for name, each in topics.items()
                    ],
                )
            )
        return response

    def _find(self, group_id: str, topics: Asked | None, require_stable: bool) -> tuple[ErrorCode, Found]:
        """The offsets of a group, or the error. No `topics` means all."""
        partitions = None
        if topics is not None:
            partitions = [TopicPartition(name, index) for name, indexes in topics for index in indexes]
        try:
            offsets = self._service.runtime_of(group_id, may_be_empty=True).shard.offsets
        except ApiError as error:
            return error.error_code, {}
        return ErrorCode.NONE, offsets.fetch(group_id, partitions, require_stable=require_stable)

    # -- OffsetDelete --------------------------------------------------------------------------------------------------

    @api(
        ApiKey.OFFSET_DELETE,
        versions=(0, 0),
        right=All(OnGroup(AclOperation.DELETE, _refuse_to_delete), OnTopics(AclOperation.READ, _not_deleted)),
        splits=[Split("topics.partitions")],
    )
    def offset_delete(
        self,
        context: RequestContext,  # noqa: ARG002
        request: OffsetDeleteRequest,
    ) -> OffsetDeleteResponse | Awaitable[OffsetDeleteResponse]:
        """Reply when the deletion is committed."""
        asked = [
            TopicPartition(topic.name, each.partition_index) for topic in request.topics for each in topic.partitions
        ]
        return self._service.responses.respond(self._delete(request.group_id, asked), partial(_delete_response, asked))

    def _delete(
        self, group_id: str, asked: Sequence[TopicPartition]
    ) -> OffsetDeletion | PendingResponse[OffsetDeletion]:
        image = self._metadata()
        known = [each for each in asked if image.partition(each) is not None]
        try:
            runtime = self._service.runtime_of(group_id)
            return runtime.handle(runtime.shard.offsets.delete, group_id, known)
        except ApiError as error:
            return OffsetDeletion(error.error_code)


def _commit_response(asked: list[TopicPartition], results: PartitionErrors) -> OffsetCommitResponse:
    topics: dict[str, list[OffsetCommitResponse.OffsetCommitResponsePartition]] = {}
    for topic_partition in asked:
        topic, index = topic_partition
        error_code = results.get(topic_partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        result = OffsetCommitResponse.OffsetCommitResponsePartition(partition_index=index, error_code=error_code)
        if topic in topics:
            topics[topic].append(result)
        else:
            topics[topic] = [result]
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponse.OffsetCommitResponseTopic(name=name, partitions=each) for name, each in topics.items()
        ]
    )


def _fetch_allowed_groups(asked: ClientRequest[OffsetFetchRequest]) -> Outcome:
    client, request = asked.client, asked.request
    group_ids = [group.group_id for group in request.groups]
    denied = client.denied(AclOperation.DESCRIBE, ResourceType.GROUP, group_ids)
    order = {group_id: number for number, group_id in enumerate(group_ids)}
    refused = [
        OffsetFetchResponse.OffsetFetchResponseGroup(group_id=group_id, error_code=GROUP_DENIED, topics=[])
        for group_id in group_ids
        if group_id in denied
    ]
    request.groups = [group for group in request.groups if group.group_id not in denied]
    of_all = {group.group_id for group in request.groups if group.topics is None}
    refused_topics: dict[str, list[OffsetFetchResponse.OffsetFetchResponseTopics]] = {}
    for group in request.groups:
        topics = group.topics or []
        hidden = _hidden(client, topics)
        if hidden:
            refused_topics[group.group_id] = [
                OffsetFetchResponse.OffsetFetchResponseTopics(
                    name=topic.name,
                    partitions=_failed(OffsetFetchResponse.OffsetFetchResponsePartitions, topic, TOPIC_DENIED),
                )
                for topic in topics
                if topic.name in hidden
            ]
            group.topics = [topic for topic in topics if topic.name not in hidden]

    def add(response: OffsetFetchResponse) -> OffsetFetchResponse:
        _visible(client, response, [group for group in response.groups if group.group_id in of_all])
        for group in response.groups:
            if not group.error_code:
                group.topics = [*group.topics, *refused_topics.get(group.group_id, ())]
        response.groups = sorted([*response.groups, *refused], key=lambda group: order[group.group_id])
        return response

    return then(asked.proceed(), add) if refused or refused_topics or of_all else asked.proceed()


def _visible(client: Client, response: OffsetFetchResponse, holders: Iterable[Any]) -> OffsetFetchResponse:
    """Remove topics that the client may not describe from each holder."""
    for holder in holders:
        hidden = _hidden(client, holder.topics)
        holder.topics = [topic for topic in holder.topics if topic.name not in hidden]
    return response


def _hidden(client: Client, topics: Iterable[Any]) -> frozenset[str]:
    return client.denied(AclOperation.DESCRIBE, ResourceType.TOPIC, [topic.name for topic in topics])


def _not_fetched(
    topic: OffsetFetchRequest.OffsetFetchRequestTopic, code: ErrorCode
) -> OffsetFetchResponse.OffsetFetchResponseTopic:
    return OffsetFetchResponse.OffsetFetchResponseTopic(
        name=topic.name, partitions=_failed(OffsetFetchResponse.OffsetFetchResponsePartition, topic, code)
    )


def _failed(item: Callable[..., T], topic: Any, code: ErrorCode) -> list[T]:
    return [_found(item, index, code) for index in topic.partition_indexes]


def _response_of_one_group(
    error_code: ErrorCode, topics: Mapping[str, list[OffsetFetchResponse.OffsetFetchResponsePartition]]
) -> OffsetFetchResponse:
    """Build a response below version 8, which uses different structs."""
    return OffsetFetchResponse(
        error_code=error_code,
        topics=[
            OffsetFetchResponse.OffsetFetchResponseTopic(name=name, partitions=partitions)
            for name, partitions in topics.items()
        ],
    )


def _add_found(
    item: Callable[..., T], found: tuple[TopicPartition, CommittedOffset | ErrorCode], topics: dict[str, list[T]]
) -> None:
    """Add a partition's result to its topic, as an `item`."""
    (topic, partition), outcome = found
    topics.setdefault(topic, []).append(_found(item, partition, outcome))


def _found(item: Callable[..., T], partition: int, outcome: CommittedOffset | ErrorCode) -> T:
    if isinstance(outcome, ErrorCode):
        offset, error_code = NO_OFFSET, outcome
    else:
        offset, error_code = outcome, ErrorCode.NONE
    return item(
        partition_index=partition,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        error_code=error_code,
    )


def _delete_response(asked: list[TopicPartition], outcome: OffsetDeletion) -> OffsetDeleteResponse:
    topics: dict[str, list[OffsetDeleteResponse.OffsetDeleteResponsePartition]] = defaultdict(list)
    for topic_partition in () if outcome.error_code else asked:
        topics[topic_partition.topic].append(
            OffsetDeleteResponse.OffsetDeleteResponsePartition(
                partition_index=topic_partition.partition,
                error_code=outcome.partitions.get(topic_partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            )
        )
    deleted = OffsetDeleteResponse.OffsetDeleteResponseTopic
    return OffsetDeleteResponse(
        error_code=outcome.error_code,
        throttle_time_ms=0,
        topics=[deleted(name=name, partitions=each) for name, each in topics.items()],
    )
