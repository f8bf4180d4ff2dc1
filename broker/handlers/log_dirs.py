"""DescribeLogDirs (KIP-113): what lies where, and how large it is."""

from __future__ import annotations

from broker.registry import RequestContext, api
from broker.replica_manager import ReplicaManager
from protocol.api_keys import ApiKey
from protocol.errors import ErrorCode
from protocol.messages import DescribeLogDirsRequest, DescribeLogDirsResponse
from protocol.topic_partition import TopicPartition
from storage.file_system import FileSystem
from storage.log_manager import LogManager

Result = DescribeLogDirsResponse.DescribeLogDirsResult
Topic = DescribeLogDirsResponse.DescribeLogDirsTopic


class LogDirHandlers:
    """Describes log directories, failed ones included."""

    def __init__(self, file_system: FileSystem, log_manager: LogManager, replica_manager: ReplicaManager) -> None:
        self._file_system = file_system
        self._log_manager = log_manager
        self._replica_manager = replica_manager

    @api(ApiKey.DESCRIBE_LOG_DIRS, versions=(0, 4))
    def describe_log_dirs(
        self,
        context: RequestContext,  # noqa: ARG002
        request: DescribeLogDirsRequest,
    ) -> DescribeLogDirsResponse:
        """One result a directory; topics null means all, and partitions that are not here are left out."""
        wanted: set[TopicPartition] | None = None
        if request.topics is not None:
            wanted = {TopicPartition(topic.topic, index) for topic in request.topics for index in topic.partitions}
        results = []
        for directory in self._log_manager.directories:
            if directory.failure is not None:
                results.append(Result(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=directory.path, topics=[]))
                continue
            total_bytes, usable_bytes = self._file_system.disk_space(directory.path)
            results.append(
                Result(
                    error_code=ErrorCode.NONE,
                    log_dir=directory.path,
                    topics=self._topics_in(directory.path, wanted),
                    total_bytes=total_bytes,
                    usable_bytes=usable_bytes,
                )
            )
        return DescribeLogDirsResponse(throttle_time_ms=0, error_code=ErrorCode.NONE, results=results)

    def _topics_in(self, path: str, wanted: set[TopicPartition] | None) -> list[Topic]:
        topics: dict[str, Topic] = {}
        for partition in self._replica_manager:
            log = partition.log
            if log.directory.path != path or (wanted is not None and partition.topic_partition not in wanted):
                continue
            name, index = partition.topic_partition
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = Topic(name=name, partitions=[])
            topic.partitions.append(
                DescribeLogDirsResponse.DescribeLogDirsPartition(
                    partition_index=index,
                    partition_size=log.size_bytes,
                    offset_lag=max(0, partition.high_watermark - log.log_end_offset),
                    is_future_key=False,
                )
            )
        return list(topics.values())
