"""Committed offsets: OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from broker.groups.group_coordinator_service import GroupCoordinatorService
from broker.network.registry import Later, RequestContext, api
from broker.network.slices import in_slices
from broker.zookeeper.zookeeper_offsets import ZookeeperOffsets
from cluster.coordinators.results import Reply
from cluster.groups.membership_events import GroupMember
from cluster.groups.offset_events import NO_OFFSET, OffsetDeletion, Offsets, PartitionErrors, metadata_length
from cluster.groups.records import CommittedOffset
from cluster.metadata_image import MetadataImage
from cluster.zookeeper.coordination import CoordinationError
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

VERSION_OF_ZOOKEEPER_OFFSETS: Final = 0
FIRST_FETCH_WITH_GROUP_ERROR: Final = 2
FIRST_FETCH_OF_MANY_GROUPS: Final = 8

PARTITIONS_PER_SLICE: Final = 500
"""A request of more is worked on in slices of so many: some 5 ms of work."""

_COMMITS: Final = frozenset({ApiKey.OFFSET_COMMIT})

CommittedTopic = OffsetCommitRequest.OffsetCommitRequestTopic
Topics = list[tuple[str, list[int]]]
"""Names of topics with partitions."""
Found = dict[TopicPartition, CommittedOffset | ErrorCode]

S = TypeVar("S")
T = TypeVar("T")


class GroupOffsetHandlers:
    """Answers for the offsets of groups that this broker coordinates. `metadata` gives the current image.

    Version 0 of OffsetCommit and OffsetFetch is about other offsets, those in the coordination tree.
    """

    def __init__(
        self,
        service: GroupCoordinatorService,
        metadata: Callable[[], MetadataImage],
        zookeeper_offsets: ZookeeperOffsets,
        metadata_max_bytes: int,
    ) -> None:
        self._service = service
        self._metadata = metadata
        self._zookeeper_offsets = zookeeper_offsets
        self._metadata_max_bytes = metadata_max_bytes

    # -- OffsetCommit --------------------------------------------------------------------------------------------------

    @api(ApiKey.OFFSET_COMMIT, versions=(0, 9))
    def offset_commit(
        self, context: RequestContext, request: OffsetCommitRequest
    ) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse] | Later[OffsetCommitResponse]:
        """Answered when the offsets are committed; partitions that do not exist are refused. The next commit of the
        client may be taken up before: it stands behind this one in the log.
        """
        if context.api_version == VERSION_OF_ZOOKEEPER_OFFSETS:
            return self._commit_to_znodes(request)
        if sum(len(topic.partitions) for topic in request.topics) > PARTITIONS_PER_SLICE:
            return self._commit_in_slices(request)
        asked, outcome = self._commit(request, request.topics)
        return self._service.responses.respond_at_once(outcome, partial(_commit_response, asked), _COMMITS)

    async def _commit_in_slices(self, request: OffsetCommitRequest) -> OffsetCommitResponse:
        """Commit some partitions at a time, and answer when all are committed. Each slice is a batch of its own and can
        fail alone; Kafka writes one batch.
        """
        answers: list[asyncio.Future[OffsetCommitResponse] | OffsetCommitResponse] = []
        for share in _shares([(topic, topic.partitions) for topic in request.topics]):
            topics = [CommittedTopic(name=topic.name, partitions=partitions) for topic, partitions in share]
            asked, outcome = self._commit(request, topics)
            answers.append(self._service.responses.respond(outcome, partial(_commit_response, asked)))
            await asyncio.sleep(0)
        merged: dict[str, OffsetCommitResponse.OffsetCommitResponseTopic] = {}
        for answer in answers:
            response = answer if isinstance(answer, OffsetCommitResponse) else await answer
            for topic in response.topics:
                if merged.setdefault(topic.name, topic) is not topic:
                    merged[topic.name].partitions += topic.partitions
        return OffsetCommitResponse(topics=list(merged.values()))

    def _commit(
        self, request: OffsetCommitRequest, topics: Iterable[CommittedTopic]
    ) -> tuple[list[TopicPartition], PartitionErrors | Reply[PartitionErrors]]:
        """Commit the offsets of `topics`; gives the partitions that were named, and what becomes of the existing."""
        asked: list[TopicPartition] = []
        offsets: Offsets = {}
        for topic in topics:
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
        """Add the partitions of `topic` to `asked`, and the offsets of those that exist to `offsets`."""
        name = topic.name
        image = self._metadata().topics.get(name)
        for each in topic.partitions:
            topic_partition = TopicPartition(name, each.partition_index)
            if topic_partition not in offsets:  # As in Kafka, only what does not exist is answered again and again.
                asked.append(topic_partition)
            if image is not None and image.partition(each.partition_index) is not None:
                offsets[topic_partition] = CommittedOffset(
                    each.committed_offset,
                    each.committed_leader_epoch,
                    each.committed_metadata or "",
                    each.commit_timestamp,
                )

    async def _commit_to_znodes(self, request: OffsetCommitRequest) -> OffsetCommitResponse:
        asked: list[TopicPartition] = []
        offsets: Offsets = {}
        for share in _shares([(topic, topic.partitions) for topic in request.topics]):
            for topic, partitions in share:
                self._add_offsets(CommittedTopic(name=topic.name, partitions=partitions), asked, offsets)
            await asyncio.sleep(0)
        group_id, results = request.group_id, dict[TopicPartition, ErrorCode]()
        for topic_partition, offset in offsets.items():
            if metadata_length(offset.metadata) > self._metadata_max_bytes:
                results[topic_partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            try:
                await self._zookeeper_offsets.commit(group_id, topic_partition, offset.offset)
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
        if context.api_version == VERSION_OF_ZOOKEEPER_OFFSETS:
            return self._fetch_from_znodes(request)
        if context.api_version >= FIRST_FETCH_OF_MANY_GROUPS:
            return self._fetch_groups(request)
        topics = None if request.topics is None else [(each.name, each.partition_indexes) for each in request.topics]
        if sum(len(indexes) for _, indexes in topics or ()) > PARTITIONS_PER_SLICE:
            return self._fetch_in_slices(context, request, topics or [])
        error_code, found = self._find(request.group_id, topics, request.require_stable)
        if error_code and context.api_version < FIRST_FETCH_WITH_GROUP_ERROR:
            found = {TopicPartition(name, index): error_code for name, indexes in topics or () for index in indexes}
        if len(found) <= PARTITIONS_PER_SLICE:
            translated = _by_topic(OffsetFetchResponse.OffsetFetchResponsePartition, found.items(), {})
            return _response_of_one_group(error_code, translated)
        return self._respond_in_slices(error_code, found)

    async def _fetch_in_slices(
        self, context: RequestContext, request: OffsetFetchRequest, topics: Topics
    ) -> OffsetFetchResponse:
        error_code, found = await self._found(request.group_id, topics, request.require_stable)
        if error_code and context.api_version < FIRST_FETCH_WITH_GROUP_ERROR:
            async for share in in_slices(_shares(topics), self._service.clock):
                found |= {TopicPartition(name, index): error_code for name, indexes in share for index in indexes}
        return await self._respond_in_slices(error_code, found)

    async def _found(self, group_id: str, topics: Topics | None, require_stable: bool) -> tuple[ErrorCode, Found]:
        """As `_find`, in slices."""
        if topics is None:
            return self._find(group_id, topics, require_stable)
        error_code, found = self._find(group_id, [], require_stable)
        async for share in in_slices(_shares(topics), self._service.clock):
            error_code, part = self._find(group_id, share, require_stable)
            if error_code:
                return error_code, {}
            found |= part
        return error_code, found

    async def _respond_in_slices(self, error_code: ErrorCode, found: Found) -> OffsetFetchResponse:
        translated = await self._translated(OffsetFetchResponse.OffsetFetchResponsePartition, found)
        return _response_of_one_group(error_code, translated)

    async def _translated(self, item: Callable[..., T], found: Found) -> dict[str, list[T]]:
        topics: dict[str, list[T]] = {}
        items = list(found.items())
        for start in range(0, len(items), PARTITIONS_PER_SLICE):
            if start:
                await asyncio.sleep(0)
            _by_topic(item, items[start : start + PARTITIONS_PER_SLICE], topics)
        return topics

    async def _fetch_groups(self, request: OffsetFetchRequest) -> OffsetFetchResponse:
        response = OffsetFetchResponse(groups=[])
        async for asked in in_slices(request.groups, self._service.clock):
            wanted = None if asked.topics is None else [(each.name, each.partition_indexes) for each in asked.topics]
            error_code, found = await self._found(asked.group_id, wanted, request.require_stable)
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
                    offset = await self._zookeeper_offsets.fetch(request.group_id, topic_partition)
                except CoordinationError as error:
                    logger.warning("Offset of %s in %r is not read: %s", topic_partition, request.group_id, error)
                    found[topic_partition] = ErrorCode.UNKNOWN_SERVER_ERROR
                    continue
                if offset is not None:
                    found[topic_partition] = NO_OFFSET.replace(offset=offset)
        topics = _by_topic(OffsetFetchResponse.OffsetFetchResponsePartition, found.items(), {})
        return _response_of_one_group(ErrorCode.NONE, topics)

    def _find(self, group_id: str, topics: Topics | None, require_stable: bool) -> tuple[ErrorCode, Found]:
        """The offsets of a group, or why there are none to give. No `topics` means all."""
        partitions = None
        if topics is not None:
            partitions = [TopicPartition(name, index) for name, indexes in topics for index in indexes]
        try:
            offsets = self._service.runtime_of(group_id, may_be_empty=True).shard.offsets
        except ApiError as error:
            return error.error_code, {}
        return ErrorCode.NONE, offsets.fetch(group_id, partitions, require_stable=require_stable)

    # -- OffsetDelete --------------------------------------------------------------------------------------------------

    @api(ApiKey.OFFSET_DELETE, versions=(0, 0))
    def offset_delete(
        self,
        context: RequestContext,  # noqa: ARG002
        request: OffsetDeleteRequest,
    ) -> OffsetDeleteResponse | Awaitable[OffsetDeleteResponse]:
        """Answered when the deletion is committed."""
        if sum(len(topic.partitions) for topic in request.topics) > PARTITIONS_PER_SLICE:
            return self._delete_in_slices(request)
        asked = [
            TopicPartition(topic.name, each.partition_index) for topic in request.topics for each in topic.partitions
        ]
        return self._service.responses.respond(self._delete(request.group_id, asked), partial(_delete_response, asked))

    async def _delete_in_slices(self, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
        answers: list[asyncio.Future[OffsetDeleteResponse] | OffsetDeleteResponse] = []
        for share in _shares([(topic, topic.partitions) for topic in request.topics]):
            asked = [TopicPartition(topic.name, each.partition_index) for topic, part in share for each in part]
            outcome = self._delete(request.group_id, asked)
            answers.append(self._service.responses.respond(outcome, partial(_delete_response, asked)))
            await asyncio.sleep(0)
        merged: dict[str, OffsetDeleteResponse.OffsetDeleteResponseTopic] = {}
        for answer in answers:
            response = answer if isinstance(answer, OffsetDeleteResponse) else await answer
            if response.error_code:
                return response
            for topic in response.topics:
                if merged.setdefault(topic.name, topic) is not topic:
                    merged[topic.name].partitions += topic.partitions
        return OffsetDeleteResponse(error_code=ErrorCode.NONE, throttle_time_ms=0, topics=list(merged.values()))

    def _delete(self, group_id: str, asked: Sequence[TopicPartition]) -> OffsetDeletion | Reply[OffsetDeletion]:
        image = self._metadata()
        known = [each for each in asked if image.partition(each) is not None]
        try:
            runtime = self._service.runtime_of(group_id)
            return runtime.handle(runtime.shard.offsets.delete, group_id, known)
        except ApiError as error:
            return OffsetDeletion(error.error_code)


def _shares(topics: Iterable[tuple[T, list[S]]]) -> Iterator[list[tuple[T, list[S]]]]:
    """The topics with PARTITIONS_PER_SLICE partitions at a time; a topic with more is divided."""
    share: list[tuple[T, list[S]]] = []
    room = PARTITIONS_PER_SLICE
    for topic, partitions in topics:
        start = 0
        while start < len(partitions):
            part = partitions[start : start + room]
            share.append((topic, part))
            start += len(part)
            room -= len(part)
            if not room:
                yield share
                share, room = [], PARTITIONS_PER_SLICE
    if share:
        yield share


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


def _response_of_one_group(
    error_code: ErrorCode, topics: Mapping[str, list[OffsetFetchResponse.OffsetFetchResponsePartition]]
) -> OffsetFetchResponse:
    """For versions below 8, whose structs are of their own."""
    return OffsetFetchResponse(
        error_code=error_code,
        topics=[
            OffsetFetchResponse.OffsetFetchResponseTopic(name=name, partitions=partitions)
            for name, partitions in topics.items()
        ],
    )


def _by_topic(
    item: Callable[..., T],
    found: Iterable[tuple[TopicPartition, CommittedOffset | ErrorCode]],
    topics: dict[str, list[T]],
) -> dict[str, list[T]]:
    """Add what was found to `topics`, each as an `item`; gives them."""
    for (topic, partition), outcome in found:
        if isinstance(outcome, ErrorCode):
            offset, error_code = NO_OFFSET, outcome
        else:
            offset, error_code = outcome, ErrorCode.NONE
        topics.setdefault(topic, []).append(
            item(
                partition_index=partition,
                committed_offset=offset.offset,
                committed_leader_epoch=offset.leader_epoch,
                metadata=offset.metadata,
                error_code=error_code,
            )
        )
    return topics


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
