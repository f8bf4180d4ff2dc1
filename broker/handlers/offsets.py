"""Offsets of partitions: ListOffsets, OffsetForLeaderEpoch, DeleteRecords."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeAlias

from broker.network.registry import ANYTHING, RequestContext, Waiting, api
from broker.network.shares import Split
from broker.replication.replica_manager import ReplicaManager
from broker.security.rights import OnTopics
from cluster.replication.partition import Partition
from cluster.replication.reads import CONSUMER_REPLICA_ID, DEBUGGING_REPLICA_ID, IsolationLevel
from environment.contract import Executor
from protocol.acl_types import AclOperation
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, ErrorCode, detached
from protocol.messages.offsets import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from protocol.messages.topics import DeleteRecordsRequest, DeleteRecordsResponse
from protocol.topic_partition import TopicPartition, is_internal
from storage.segment.indexes import TimestampAndOffset

logger = logging.getLogger("kafka.server.ReplicaManager")

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL_TIMESTAMP = -4
LATEST_TIERED_TIMESTAMP = -5

FIRST_VERSION_OF_TIMESTAMP = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL_TIMESTAMP: 8, LATEST_TIERED_TIMESTAMP: 9}
"""KIP-734, KIP-405: the first version of each special negative timestamp."""

UNKNOWN = -1
LONG_MAX = 2**63 - 1
FIRST_VERSION_WITH_LEADER_EPOCH = 4
FIRST_VERSION_OF_OFFSET_NOT_AVAILABLE = 5
FIRST_VERSION_WITH_ONE_OFFSET = 1
"""KIP-79: version 0 lists base offsets of segments instead."""

AskedPartition = ListOffsetsRequest.ListOffsetsPartition
ListedTopic = ListOffsetsResponse.ListOffsetsTopicResponse
ListedPartition = ListOffsetsResponse.ListOffsetsPartitionResponse
EpochEnd = OffsetForLeaderEpochResponse.EpochEndOffset
EpochTopic = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
DeletedTopic = DeleteRecordsResponse.DeleteRecordsTopicResult
DeletedPartition = DeleteRecordsResponse.DeleteRecordsPartitionResult
Found: TypeAlias = dict[TopicPartition, TimestampAndOffset | ApiError | None]
"""The result of each search by timestamp, or its error."""


def _not_listed(topic: ListOffsetsRequest.ListOffsetsTopic, code: ErrorCode) -> ListedTopic:
    return ListedTopic(
        name=topic.name, partitions=[_listed(each.partition_index, error_code=code) for each in topic.partitions]
    )


def _without_epochs(topic: OffsetForLeaderEpochRequest.OffsetForLeaderTopic, code: ErrorCode) -> EpochTopic:
    return EpochTopic(
        topic=topic.topic,
        partitions=[
            EpochEnd(error_code=code, partition=each.partition, leader_epoch=UNKNOWN, end_offset=UNKNOWN)
            for each in topic.partitions
        ],
    )


def _not_deleted(topic: DeleteRecordsRequest.DeleteRecordsTopic, code: ErrorCode) -> DeletedTopic:
    return DeletedTopic(
        name=topic.name,
        partitions=[
            DeletedPartition(partition_index=each.partition_index, low_watermark=UNKNOWN, error_code=code)
            for each in topic.partitions
        ],
    )


class OffsetHandlers:
    """Reads and changes offsets of partitions led by this broker."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        executor: Executor,
        persist_log_starts: Callable[[], Awaitable[None]],
    ) -> None:
        """`persist_log_starts` returns once the current log start offsets are on disk."""
        self._replica_manager = replica_manager
        self._executor = executor
        self._persist_log_starts = persist_log_starts

    # -- ListOffsets ---------------------------------------------------------------------------------------------------

    @api(
        ApiKey.LIST_OFFSETS,
        versions=(0, 9),
        right=OnTopics(AclOperation.DESCRIBE, _not_listed),
        reads_only=True,
        splits=[Split("topics.partitions", unique=("name", "partition_index"))],
    )
    def list_offsets(
        self, context: RequestContext, request: ListOffsetsRequest
    ) -> ListOffsetsResponse | Awaitable[ListOffsetsResponse]:
        """List offsets by timestamp, or by the special timestamps -1 (latest) to -5. Only searches touch the disk."""
        listing = _Listing(self._replica_manager, context.api_version, request)
        searches = listing.searches()
        return self._search(listing, searches) if searches else listing.response()

    async def _search(self, listing: _Listing, searches: list[tuple[str, AskedPartition]]) -> ListOffsetsResponse:
        """Search on another thread, because that may read and check a lot of data from disk; then respond."""
        for topic, asked in searches:
            topic_partition = TopicPartition(topic, asked.partition_index)
            try:
                log = listing.replica(topic_partition, asked.current_leader_epoch).log
                if asked.timestamp == MAX_TIMESTAMP:
                    listing.found[topic_partition] = await self._executor.run(log.offset_of_max_timestamp)
                else:
                    listing.found[topic_partition] = await self._executor.run(log.offset_for_timestamp, asked.timestamp)
            except ApiError as error:
                listing.found[topic_partition] = detached(error)
        return listing.response()

    # -- OffsetForLeaderEpoch ------------------------------------------------------------------------------------------

    @api(
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        versions=(0, 4),
        # Followers have CLUSTER_ACTION.
        right=OnTopics(AclOperation.DESCRIBE, _without_epochs, name="topic", unless=AclOperation.CLUSTER_ACTION),
        reads_only=True,
        splits=[Split("topics.partitions")],
    )
    def offset_for_leader_epoch(
        self,
        context: RequestContext,  # noqa: ARG002
        request: OffsetForLeaderEpochRequest,
    ) -> OffsetForLeaderEpochResponse:
        """Find the largest epoch not above the requested one, and its end offset (KIP-101, KIP-279)."""
        topics = []
        for topic in request.topics:
            result = EpochTopic(topic=topic.topic, partitions=[])
            for asked in topic.partitions:
                end = EpochEnd(
                    error_code=ErrorCode.NONE, partition=asked.partition, leader_epoch=UNKNOWN, end_offset=UNKNOWN
                )
                try:
                    partition = self._replica_manager.leader_of(
                        TopicPartition(topic.topic, asked.partition), asked.current_leader_epoch
                    )
                    end.leader_epoch, end.end_offset = partition.log.end_offset_for_epoch(asked.leader_epoch)
                except ApiError as error:
                    end.error_code = error.error_code
                result.partitions.append(end)
            topics.append(result)
        return OffsetForLeaderEpochResponse(topics=topics)

    # -- DeleteRecords -------------------------------------------------------------------------------------------------

    @api(
        ApiKey.DELETE_RECORDS,
        versions=(0, 2),
        right=OnTopics(AclOperation.DELETE, _not_deleted),
        splits=[Split("topics.partitions")],
    )
    def delete_records(
        self,
        context: RequestContext,  # noqa: ARG002
        request: DeleteRecordsRequest,
    ) -> Waiting[DeleteRecordsResponse]:
        """Advance log start offsets durably (KIP-107): after the response, deleted records do not come back, whichever
        replica leads.
        """
        effective: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return Waiting(asyncio.ensure_future(self._delete_records(request, effective)), ANYTHING, effective)

    async def _delete_records(
        self, request: DeleteRecordsRequest, effective: asyncio.Future[None]
    ) -> DeleteRecordsResponse:
        try:
            topics, moved = self._delete_here(request)
            await self._persist(moved)
        finally:
            effective.set_result(None)
        waiting = [each for each in moved if each.result.low_watermark < each.offset and not each.result.error_code]
        if waiting:
            deletions = [(each.partition.topic_partition, each.offset) for each in waiting]
            outcome = await self._replica_manager.when_deleted(deletions, request.timeout_ms)
            for each, low_watermark in zip(waiting, outcome, strict=True):
                if not isinstance(low_watermark, ApiError):
                    each.result.low_watermark = low_watermark
                    continue
                each.result.error_code = low_watermark.error_code
                if low_watermark.error_code is not ErrorCode.REQUEST_TIMED_OUT:
                    each.result.low_watermark = UNKNOWN
        return DeleteRecordsResponse(throttle_time_ms=0, topics=topics)

    def _delete_here(self, request: DeleteRecordsRequest) -> tuple[list[DeletedTopic], list[_Deletion]]:
        topics = []
        moved: list[_Deletion] = []
        for topic in request.topics:
            deleted = DeletedTopic(name=topic.name, partitions=[])
            for asked in topic.partitions:
                result = DeletedPartition(
                    partition_index=asked.partition_index, low_watermark=UNKNOWN, error_code=ErrorCode.NONE
                )
                try:
                    if is_internal(topic.name):
                        raise ApiError(
                            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot delete records of internal topic {topic.name}"
                        )
                    name = TopicPartition(topic.name, asked.partition_index)
                    offset = self._replica_manager.delete_records_before(name, asked.offset)
                    result.low_watermark = self._replica_manager.low_watermark(name)
                    moved.append(_Deletion(self._replica_manager.partition(name), offset, result))
                except ApiError as error:
                    result.error_code = error.error_code
                deleted.partitions.append(result)
            topics.append(deleted)
        return topics, moved

    async def _persist(self, moved: Sequence[_Deletion]) -> None:
        is_durable = True
        try:
            if moved:
                await self._persist_log_starts()
        except ApiError as error:
            logger.warning("The log starts of %d partitions could not be written: %s", len(moved), error)
            is_durable = False
        for partition, _, result in moved:
            if not is_durable or partition.log.directory.failure is not None:
                result.low_watermark, result.error_code = UNKNOWN, ErrorCode.KAFKA_STORAGE_ERROR


class _Deletion(NamedTuple):
    """A moved log start, the offset that the low watermark must reach, and the result for the client."""

    partition: Partition
    offset: int
    result: DeletedPartition


class _Listing:
    """One ListOffsets request."""

    def __init__(self, replica_manager: ReplicaManager, version: int, request: ListOffsetsRequest) -> None:
        self._replica_manager = replica_manager
        self._version = version
        self._request = request
        self._times = Counter(
            (topic.name, each.partition_index) for topic in request.topics for each in topic.partitions
        )
        self._isolation = IsolationLevel.of(request.isolation_level)
        # Other requesters are brokers, which also see records above the high watermark.
        self._is_consumer = request.replica_id == CONSUMER_REPLICA_ID
        self.found: Found = {}

    def replica(self, topic_partition: TopicPartition, current_leader_epoch: int) -> Partition:
        """The local replica. It must be the leader, except for the tool that compares replicas; see
        `ReplicaManager`.
        """
        if self._request.replica_id != DEBUGGING_REPLICA_ID:
            return self._replica_manager.leader_of(topic_partition, current_leader_epoch)
        partition = self._replica_manager.partition(topic_partition)
        partition.check_epoch(current_leader_epoch)
        return partition

    def searches(self) -> list[tuple[str, AskedPartition]]:
        """The partitions that require a search of their records."""
        if self._version < FIRST_VERSION_WITH_ONE_OFFSET:
            return []
        return [
            (topic.name, asked)
            for topic in self._request.topics
            for asked in topic.partitions
            if asked.timestamp >= 0 or asked.timestamp == MAX_TIMESTAMP
        ]

    def response(self) -> ListOffsetsResponse:
        """Build the response, partition by partition."""
        return ListOffsetsResponse(
            topics=[
                ListedTopic(name=topic.name, partitions=[self._listed(topic.name, asked) for asked in topic.partitions])
                for topic in self._request.topics
            ]
        )

    def _listed(self, topic: str, asked: AskedPartition) -> ListedPartition:
        try:
            if self._times[topic, asked.partition_index] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"{topic}-{asked.partition_index} is asked twice")
            found = self._list_partition(topic, asked)
        except ApiError as error:
            found = _listed(asked.partition_index, error_code=error.error_code)
        if self._version < FIRST_VERSION_WITH_LEADER_EPOCH:
            found.leader_epoch = UNKNOWN
        return found

    def _list_partition(self, topic: str, asked: AskedPartition) -> ListedPartition:
        timestamp = asked.timestamp
        version, isolation = self._version, self._isolation
        _check_timestamp(timestamp, version)
        if version < FIRST_VERSION_WITH_ONE_OFFSET:
            return self._list_segments(topic, asked)
        partition = self.replica(TopicPartition(topic, asked.partition_index), asked.current_leader_epoch)
        log = partition.log
        if timestamp == LATEST_TIMESTAMP:
            if not self._is_consumer:
                return _listed(asked.partition_index, log.log_end_offset, partition.leader_epoch)
            _check_high_watermark(partition, version)
            return _listed(asked.partition_index, partition.readable_end(isolation), partition.leader_epoch)
        if timestamp in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
            _, offset, leader_epoch = log.earliest()
            return _listed(asked.partition_index, offset, leader_epoch)
        if timestamp == LATEST_TIERED_TIMESTAMP:
            return _listed(asked.partition_index)
        found = self.found[partition.topic_partition]
        if isinstance(found, ApiError):
            raise detached(found)
        end_offset = partition.readable_end(isolation) if self._is_consumer else log.log_end_offset
        if found is None or found.offset >= end_offset:
            if self._is_consumer:
                _check_high_watermark(partition, version)
            return _listed(asked.partition_index)
        return _listed(asked.partition_index, found.offset, found.leader_epoch, timestamp=found.timestamp)

    def _list_segments(self, topic: str, asked: AskedPartition) -> ListedPartition:
        """Version 0: list up to `max_num_offsets` base offsets of segments, newest first, preceded by the end offset.

        Kafka compares `timestamp` with the modification time of a segment's file; this uses the segment's largest
        timestamp, which is equivalent unless the files were touched by hand.
        """
        partition = self._replica_manager.leader_of(TopicPartition(topic, asked.partition_index))
        log = partition.log
        candidates = [
            (max(segment.base_offset, log.log_start_offset), segment.max_timestamp_and_offset.timestamp)
            for segment in log.segments
        ]
        if log.active_segment.size:
            candidates.append((partition.high_watermark, LONG_MAX))
        if asked.timestamp == EARLIEST_TIMESTAMP:
            candidates = candidates[:1]
        elif asked.timestamp != LATEST_TIMESTAMP:
            candidates = [(offset, changed_ms) for offset, changed_ms in candidates if changed_ms <= asked.timestamp]
        offsets = [offset for offset, _ in reversed(candidates)][: max(asked.max_num_offsets, 0)]
        return ListedPartition(
            partition_index=asked.partition_index, error_code=ErrorCode.NONE, old_style_offsets=offsets
        )


def _check_high_watermark(partition: Partition, version: int) -> None:
    """Raise OFFSET_NOT_AVAILABLE, or another retriable error for old clients, while the high watermark is unknown."""
    if not partition.has_known_high_watermark:
        raise ApiError(
            ErrorCode.OFFSET_NOT_AVAILABLE
            if version >= FIRST_VERSION_OF_OFFSET_NOT_AVAILABLE
            else ErrorCode.LEADER_NOT_AVAILABLE,
            f"the high watermark {partition.high_watermark} of {partition.topic_partition} has not reached offset "
            f"{partition.leader_epoch_start_offset}, where its leader's epoch began",
        )


def _check_timestamp(timestamp: int, version: int) -> None:
    """Raise UNSUPPORTED_VERSION for a negative timestamp without a meaning in this version."""
    if timestamp < LATEST_TIERED_TIMESTAMP or version < FIRST_VERSION_OF_TIMESTAMP.get(timestamp, 0):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp} has no meaning in version {version}")


def _listed(
    index: int,
    offset: int = UNKNOWN,
    leader_epoch: int = UNKNOWN,
    *,
    timestamp: int = UNKNOWN,
    error_code: ErrorCode = ErrorCode.NONE,
) -> ListedPartition:
    return ListedPartition(
        partition_index=index, error_code=error_code, timestamp=timestamp, offset=offset, leader_epoch=leader_epoch
    )
