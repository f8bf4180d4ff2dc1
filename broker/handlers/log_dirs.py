"""AlterReplicaLogDirs and DescribeLogDirs (KIP-113): the location and size of replicas, and moves between
directories.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from broker.network.registry import RequestContext, api
from broker.network.shares import Split
from broker.replication.replica_manager import ReplicaManager
from broker.security.rights import ClientRequest, OnCluster
from environment.contract import Clock
from environment.slices import in_slices
from protocol.acl_types import AclOperation
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, ErrorCode
from protocol.messages.log_dirs import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from protocol.topic_partition import TopicPartition
from storage.directory.log_directory import LogDirectory
from storage.io.file_system import FileSystem
from storage.log.unified_log import UnifiedLog
from storage.log_manager import LogManager

logger = logging.getLogger("kafka.server.ReplicaManager")

INVALID_OFFSET_LAG = -1
"""The offset lag of a future replica whose log is not available."""

Result = DescribeLogDirsResponse.DescribeLogDirsResult
Topic = DescribeLogDirsResponse.DescribeLogDirsTopic
Partition = DescribeLogDirsResponse.DescribeLogDirsPartition
AlteredTopic = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult
AlteredPartition = AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult


def _refuse_to_alter(asked: ClientRequest[AlterReplicaLogDirsRequest], code: ErrorCode) -> AlterReplicaLogDirsResponse:
    """Every partition gets the error."""
    return AlterReplicaLogDirsResponse(
        throttle_time_ms=0,
        results=[
            AlteredTopic(
                topic_name=topic.name,
                partitions=[AlteredPartition(partition_index=index, error_code=code) for index in topic.partitions],
            )
            for directory in asked.request.dirs
            for topic in directory.topics
        ],
    )


class LogDirHandlers:
    """Describes log directories, including failed ones, and moves replicas between them."""

    def __init__(
        self,
        file_system: FileSystem,
        log_manager: LogManager,
        replica_manager: ReplicaManager,
        alter: Callable[[TopicPartition, str], None],
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._file_system = file_system
        self._log_manager = log_manager
        self._replica_manager = replica_manager
        self._alter = alter

    @api(
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        versions=(0, 2),
        right=OnCluster(AclOperation.ALTER, refusal=_refuse_to_alter),
        splits=[Split("dirs.topics.partitions")],
    )
    def alter_replica_log_dirs(
        self,
        context: RequestContext,  # noqa: ARG002
        request: AlterReplicaLogDirsRequest,
    ) -> AlterReplicaLogDirsResponse:
        """Start the moves; they continue after the reply. If a partition appears twice, the last directory wins."""
        targets = {
            TopicPartition(topic.name, index): directory.path
            for directory in request.dirs
            for topic in directory.topics
            for index in topic.partitions
        }
        results: dict[str, list[AlteredPartition]] = defaultdict(list)
        for topic_partition, path in targets.items():
            results[topic_partition.topic].append(
                AlteredPartition(
                    partition_index=topic_partition.partition, error_code=self._error_of(topic_partition, path)
                )
            )
        return AlterReplicaLogDirsResponse(
            throttle_time_ms=0,
            results=[AlteredTopic(topic_name=name, partitions=each) for name, each in results.items()],
        )

    def _error_of(self, topic_partition: TopicPartition, path: str) -> ErrorCode:
        try:
            self._alter(topic_partition, path)
        except ApiError as error:
            logger.warning("Unable to alter log dirs for %s: %s", topic_partition, error)
            # Clients know this older code for it.
            missing = error.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
            return ErrorCode.REPLICA_NOT_AVAILABLE if missing else error.error_code
        return ErrorCode.NONE

    @api(
        ApiKey.DESCRIBE_LOG_DIRS,
        versions=(0, 4),
        right=OnCluster(
            AclOperation.DESCRIBE,
            refusal=lambda _, code: DescribeLogDirsResponse(throttle_time_ms=0, error_code=code, results=[]),
        ),
        reads_only=True,
        whole="its array is a filter",
    )
    async def describe_log_dirs(
        self,
        context: RequestContext,  # noqa: ARG002
        request: DescribeLogDirsRequest,
    ) -> DescribeLogDirsResponse:
        """Return one result per directory. Null topics mean all; partitions without a replica here are left out."""
        wanted: set[TopicPartition] | None = None
        if request.topics is not None:
            wanted = set()
            async for topic, index in in_slices(_partitions(request.topics), self._clock):
                wanted.add(TopicPartition(topic, index))
        return DescribeLogDirsResponse(
            throttle_time_ms=0,
            error_code=ErrorCode.NONE,
            results=[await self._describe(directory, wanted) for directory in self._log_manager.directories],
        )

    async def _describe(self, directory: LogDirectory, wanted: set[TopicPartition] | None) -> Result:
        failed = Result(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=directory.path, topics=[])
        if directory.failure is not None:
            return failed
        try:
            total_bytes, usable_bytes = self._file_system.disk_space(directory.path)
        except OSError as error:
            logger.error("The free space of %s is unknown: %s", directory.path, error)
            return failed
        return Result(
            error_code=ErrorCode.NONE,
            log_dir=directory.path,
            topics=await self._topics_in(directory, wanted),
            total_bytes=total_bytes,
            usable_bytes=usable_bytes,
        )

    async def _topics_in(self, directory: LogDirectory, wanted: set[TopicPartition] | None) -> list[Topic]:
        topics: dict[str, list[Partition]] = defaultdict(list)
        async for log, offset_lag, is_future in in_slices(self._replicas(), self._clock):
            name, index = topic_partition = log.topic_partition
            if log.directory is not directory or (wanted is not None and topic_partition not in wanted):
                continue
            topics[name].append(
                Partition(
                    partition_index=index,
                    partition_size=log.size_bytes,
                    offset_lag=offset_lag,
                    is_future_key=is_future,
                )
            )
        return [Topic(name=name, partitions=each) for name, each in topics.items()]

    def _replicas(self) -> Iterator[tuple[UnifiedLog, int, bool]]:
        """Every replica and future replica, with its lag behind the high watermark or the replica. The set may change
        during iteration.
        """
        for partition in list(self._replica_manager):
            yield partition.log, max(0, partition.high_watermark - partition.log.log_end_offset), False
        for topic_partition, future in list(self._log_manager.futures.logs.items()):
            log = self._log_manager.logs.get(topic_partition)
            lag = INVALID_OFFSET_LAG if log is None else log.log_end_offset - future.log_end_offset
            yield future, lag, True


def _partitions(topics: Iterable[DescribeLogDirsRequest.DescribableLogDirTopic]) -> Iterator[tuple[str, int]]:
    return ((topic.topic, index) for topic in topics for index in topic.partitions)
