"""Committed offsets: OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Final

from broker.groups.group_coordinator_service import GroupCoordinatorService
from broker.network.registry import RequestContext, api
from broker.network.slices import in_slices
from broker.zookeeper.zookeeper_offsets import ZookeeperOffsets
from cluster.groups.committed_offsets import NO_OFFSET, OffsetDeletion, Offsets, PartitionErrors, metadata_length
from cluster.groups.membership_events import GroupMember
from cluster.groups.records import CommittedOffset
from cluster.groups.results import Reply
from cluster.metadata_image import MetadataImage
from cluster.zookeeper.contract import CoordinationError
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, ErrorCode
from protocol.messages import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from protocol.topic_partition import TopicPartition

logger = logging.getLogger("kafka.coordinator.group.GroupCoordinator")

VERSION_OF_ZNODE_OFFSETS: Final = 0
FIRST_FETCH_WITH_GROUP_ERROR: Final = 2
FIRST_FETCH_OF_MANY_GROUPS: Final = 8

MANY_PARTITIONS: Final = 500
"""From so many on, a request is worked on in slices."""

FetchedGroup = OffsetFetchResponse.OffsetFetchResponseGroup
Found = dict[TopicPartition, CommittedOffset | ErrorCode]


class GroupOffsetHandlers:
    """Answers for the offsets of groups that this broker coordinates. `metadata` gives the current image.

    Version 0 of OffsetCommit and OffsetFetch is about other offsets, those in the coordination tree.
    """

    def __init__(
        self,
        service: GroupCoordinatorService,
        metadata: Callable[[], MetadataImage],
        znode_offsets: ZookeeperOffsets,
        metadata_max_bytes: int,
    ) -> None:
        self._service = service
        self._metadata = metadata
        self._znode_offsets = znode_offsets
        self._metadata_max_bytes = metadata_max_bytes

    # -- OffsetCommit --------------------------------------------------------------------------------------------------

    @api(ApiKey.OFFSET_COMMIT, versions=(0, 9))
    def offset_commit(
        self, context: RequestContext, request: OffsetCommitRequest
    ) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
        """Answered when the offsets are committed; partitions that do not exist are refused."""
        if sum(len(topic.partitions) for topic in request.topics) > MANY_PARTITIONS:
            return self._commit_many(context, request)
        asked: list[TopicPartition] = []
        offsets: Offsets = {}
        for topic in request.topics:
            self._add_offsets(topic, asked, offsets)
        return self._commit(context, request, asked, offsets)

    async def _commit_many(self, context: RequestContext, request: OffsetCommitRequest) -> OffsetCommitResponse:
        asked: list[TopicPartition] = []
        offsets: Offsets = {}
        async for topic in in_slices(request.topics, self._service.clock):
            self._add_offsets(topic, asked, offsets)
        response = self._commit(context, request, asked, offsets)
        return response if isinstance(response, OffsetCommitResponse) else await response

    def _commit(
        self,
        context: RequestContext,
        request: OffsetCommitRequest,
        asked: list[TopicPartition],
        offsets: Offsets,
    ) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
        if not offsets:
            return _commit_response(asked, {})
        if context.api_version == VERSION_OF_ZNODE_OFFSETS:
            return self._commit_to_znodes(request.group_id, asked, offsets)
        try:
            runtime = self._service.runtime_of(request.group_id, may_be_empty=True)
        except ApiError as error:
            return _commit_response(asked, dict.fromkeys(offsets, error.error_code))
        who = GroupMember(request.member_id, request.generation_id_or_member_epoch, request.group_instance_id)
        outcome = runtime.handle(
            runtime.shard.offsets.commit, request.group_id, who, offsets, request.retention_time_ms
        )
        return self._service.responses.respond(outcome, partial(_commit_response, asked))

    def _add_offsets(
        self, topic: OffsetCommitRequest.OffsetCommitRequestTopic, asked: list[TopicPartition], offsets: Offsets
    ) -> None:
        """Add the partitions of `topic` to `asked`, and the offsets of those that exist to `offsets`."""
        image = self._metadata().topics.get(topic.name)
        for each in topic.partitions:
            topic_partition = TopicPartition(topic.name, each.partition_index)
            asked.append(topic_partition)
            if image is not None and image.partition(each.partition_index) is not None:
                offsets[topic_partition] = CommittedOffset(
                    each.committed_offset,
                    each.committed_leader_epoch,
                    each.committed_metadata or "",
                    each.commit_timestamp,
                )

    async def _commit_to_znodes(
        self, group_id: str, asked: list[TopicPartition], offsets: Offsets
    ) -> OffsetCommitResponse:
        results: PartitionErrors = {}
        for topic_partition, offset in offsets.items():
            if metadata_length(offset.metadata) > self._metadata_max_bytes:
                results[topic_partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            try:
                await self._znode_offsets.commit(group_id, topic_partition, offset.offset)
                results[topic_partition] = ErrorCode.NONE
            except CoordinationError as error:
                logger.warning("Offset of %s in %r is not stored: %s", topic_partition, group_id, error)
                results[topic_partition] = ErrorCode.UNKNOWN_SERVER_ERROR
        return _commit_response(asked, results)

    # -- OffsetFetch ---------------------------------------------------------------------------------------------------

    @api(ApiKey.OFFSET_FETCH, versions=(0, 9), reads_only=True)
    def offset_fetch(
        self, context: RequestContext, request: OffsetFetchRequest
    ) -> OffsetFetchResponse | Awaitable[OffsetFetchResponse]:
        """Answered from memory, but for version 0."""
        if context.api_version == VERSION_OF_ZNODE_OFFSETS:
            return self._fetch_from_znodes(request)
        if context.api_version >= FIRST_FETCH_OF_MANY_GROUPS:
            return OffsetFetchResponse(
                groups=[
                    self._fetch_group(
                        asked.group_id,
                        None
                        if asked.topics is None
                        else [(each.name, each.partition_indexes) for each in asked.topics],
                        request.require_stable,
                    )
                    for asked in request.groups
                ]
            )
        topics = None if request.topics is None else [(each.name, each.partition_indexes) for each in request.topics]
        group = self._fetch_group(request.group_id, topics, request.require_stable)
        if group.error_code and context.api_version < FIRST_FETCH_WITH_GROUP_ERROR:
            group.topics = _fetched_topics(
                {
                    TopicPartition(name, index): ErrorCode.of(group.error_code)
                    for name, indexes in topics or ()
                    for index in indexes
                }
            )
        return _response_of_one_group(group)

    async def _fetch_from_znodes(self, request: OffsetFetchRequest) -> OffsetFetchResponse:
        image = self._metadata()
        found: Found = {}
        for topic in request.topics or ():
            for index in topic.partition_indexes:
                topic_partition = TopicPartition(topic.name, index)
                found[topic_partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if topic.name not in image.topics:
                    continue
                try:
                    offset = await self._znode_offsets.fetch(request.group_id, topic_partition)
                except CoordinationError as error:
                    logger.warning("Offset of %s in %r is not read: %s", topic_partition, request.group_id, error)
                    found[topic_partition] = ErrorCode.UNKNOWN_SERVER_ERROR
                    continue
                if offset is not None:
                    found[topic_partition] = replace(NO_OFFSET, offset=offset)
        return _response_of_one_group(FetchedGroup(group_id=request.group_id, topics=_fetched_topics(found)))

    def _fetch_group(
        self, group_id: str, topics: list[tuple[str, list[int]]] | None, require_stable: bool
    ) -> FetchedGroup:
        partitions = None
        if topics is not None:
            partitions = [TopicPartition(name, index) for name, indexes in topics for index in indexes]
        try:
            offsets = self._service.runtime_of(group_id, may_be_empty=True).shard.offsets
        except ApiError as error:
            return FetchedGroup(group_id=group_id, topics=[], error_code=error.error_code)
        found = offsets.fetch(group_id, partitions, require_stable=require_stable)
        return FetchedGroup(group_id=group_id, topics=_fetched_topics(found))

    # -- OffsetDelete --------------------------------------------------------------------------------------------------

    @api(ApiKey.OFFSET_DELETE, versions=(0, 0))
    def offset_delete(
        self,
        context: RequestContext,  # noqa: ARG002
        request: OffsetDeleteRequest,
    ) -> OffsetDeleteResponse | Awaitable[OffsetDeleteResponse]:
        """Answered when the deletion is committed."""
        asked = [
            TopicPartition(topic.name, each.partition_index) for topic in request.topics for each in topic.partitions
        ]
        image = self._metadata()
        known = [each for each in asked if image.partition(each) is not None]
        outcome: OffsetDeletion | Reply[OffsetDeletion]
        try:
            runtime = self._service.runtime_of(request.group_id)
            outcome = runtime.handle(runtime.shard.offsets.delete, request.group_id, known)
        except ApiError as error:
            outcome = OffsetDeletion(error.error_code)
        return self._service.responses.respond(outcome, partial(_delete_response, asked))


def _commit_response(asked: list[TopicPartition], results: PartitionErrors) -> OffsetCommitResponse:
    topics: dict[str, list[OffsetCommitResponse.OffsetCommitResponsePartition]] = defaultdict(list)
    for topic_partition in asked:
        topics[topic_partition.topic].append(
            OffsetCommitResponse.OffsetCommitResponsePartition(
                partition_index=topic_partition.partition,
                error_code=results.get(topic_partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            )
        )
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponse.OffsetCommitResponseTopic(name=name, partitions=each) for name, each in topics.items()
        ]
    )


def _response_of_one_group(group: FetchedGroup) -> OffsetFetchResponse:
    """For versions below 8, whose structs are of their own."""
    return OffsetFetchResponse(
        error_code=group.error_code,
        topics=[
            OffsetFetchResponse.OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponse.OffsetFetchResponsePartition(
                        partition_index=each.partition_index,
                        committed_offset=each.committed_offset,
                        committed_leader_epoch=each.committed_leader_epoch,
                        metadata=each.metadata,
                        error_code=each.error_code,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in group.topics
        ],
    )


def _fetched_topics(found: Found) -> list[OffsetFetchResponse.OffsetFetchResponseTopics]:
    topics: dict[str, list[OffsetFetchResponse.OffsetFetchResponsePartitions]] = defaultdict(list)
    for topic_partition, outcome in found.items():
        if isinstance(outcome, ErrorCode):
            offset, error_code = NO_OFFSET, outcome
        else:
            offset, error_code = outcome, ErrorCode.NONE
        topics[topic_partition.topic].append(
            OffsetFetchResponse.OffsetFetchResponsePartitions(
                partition_index=topic_partition.partition,
                committed_offset=offset.offset,
                committed_leader_epoch=offset.leader_epoch,
                metadata=offset.metadata,
                error_code=error_code,
            )
        )
    return [OffsetFetchResponse.OffsetFetchResponseTopics(name=name, partitions=each) for name, each in topics.items()]


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
