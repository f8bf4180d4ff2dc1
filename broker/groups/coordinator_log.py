"""The partitions of __consumer_offsets as the group coordinators see them, on top of the ReplicaManager."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from broker.environment.contract import Executor
from broker.replication.replica_manager import ReplicaManager
from cluster.metadata_image import MetadataImage
from cluster.replication.partition import ACKS_ALL
from protocol.errors import ApiError
from protocol.records.batch import Record, build_batch
from protocol.records.compression import CompressionType
from protocol.topic_partition import CONSUMER_OFFSETS, TopicPartition
from storage.log.log_append_info import LogAppendInfo
from storage.log.producer_state import AppendOrigin
from storage.log.unified_log import UnifiedLog

logger = logging.getLogger("kafka.coordinator.group.GroupMetadataManager")


class ReplicatedCoordinatorLog:
    """A `CoordinatorLog` (see broker.groups.coordinator_runtime) in this broker's replicas.

    `configured_partitions` is offsets.topic.num.partitions; it counts until the topic exists. `load_buffer_bytes` is
    offsets.load.buffer.size, `commit_timeout_ms` offsets.commit.timeout.ms.
    """

    def __init__(
        self,
        replica_manager: ReplicaManager,
        metadata: Callable[[], MetadataImage],
        executor: Executor,
        *,
        configured_partitions: int,
        load_buffer_bytes: int,
        commit_timeout_ms: int,
        compression: CompressionType = CompressionType.NONE,
    ) -> None:
        self._replica_manager = replica_manager
        self._metadata = metadata
        self._executor = executor
        self._configured_partitions = configured_partitions
        self._load_buffer_bytes = load_buffer_bytes
        self._commit_timeout_ms = commit_timeout_ms
        self._compression = compression

    def partition_count(self) -> int:
        """See CoordinatorLog."""
        topic = self._metadata().topics.get(CONSUMER_OFFSETS)
        return self._configured_partitions if topic is None else len(topic.partitions)

    def append(self, partition: int, records: Sequence[Record]) -> asyncio.Future[int]:
        """See CoordinatorLog. A record is committed once the high watermark is above it."""
        topic_partition = TopicPartition(CONSUMER_OFFSETS, partition)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        batch = memoryview(bytearray(build_batch(records, compression=self._compression)))
        try:
            info = self._replica_manager.append(
                topic_partition, batch, required_acks=ACKS_ALL, origin=AppendOrigin.COORDINATOR
            )
        except ApiError as error:
            future.set_exception(error)
            return future
        if not info.is_acknowledged:
            return asyncio.ensure_future(self._when_acknowledged(topic_partition, info))
        future.set_result(info.first_offset)
        return future

    async def _when_acknowledged(self, topic_partition: TopicPartition, info: LogAppendInfo) -> int:
        (error,) = await self._replica_manager.when_acknowledged(
            [(topic_partition, info.last_offset)],
            tuple,
            required_acks=ACKS_ALL,
            timeout_ms=self._commit_timeout_ms,
        )
        if error is not None:
            raise error
        return info.first_offset

    def is_empty(self, partition: int) -> bool:
        """See CoordinatorLog."""
        log = self._replica_manager.partition(TopicPartition(CONSUMER_OFFSETS, partition)).log
        return log.log_start_offset == log.log_end_offset

    async def load(self, partition: int, take: Callable[[memoryview], int | None]) -> None:
        """See CoordinatorLog. Bytes are read, checked and decoded off the loop. Records that a newer leader appends
        later are not loaded. Damaged records are skipped: a group that continues from an older commit is better than
        one that is not served.
        """
        replica = self._replica_manager.partition(TopicPartition(CONSUMER_OFFSETS, partition))
        offset, end_offset = replica.log.log_start_offset, replica.log.log_end_offset
        next_offset: int | None
        while offset < end_offset:
            log = replica.log  # it may be moved to another log directory meanwhile
            try:
                next_offset = await self._executor.run(
                    _take_chunk, log, offset, self._load_buffer_bytes, end_offset, take
                )
            except ApiError as error:
                next_offset = log.offset_after_corrupt_range(offset)
                if next_offset is None:
                    raise
                logger.error(
                    "Loading of groups from %s-%d continues at offset %d: %s",
                    CONSUMER_OFFSETS,
                    partition,
                    next_offset,
                    error,
                )
            except FileNotFoundError:  # the partition has been deleted meanwhile
                raise
            except OSError as error:
                raise log.local.read_failed(error) from error
            if next_offset is None:
                return
            offset = next_offset


def _take_chunk(
    log: UnifiedLog, offset: int, max_bytes: int, end_offset: int, take: Callable[[memoryview], int | None]
) -> int | None:
    """Give `take` one chunk from `offset` on. Only one chunk of a partition is in memory at a time."""
    info = log.read(offset, max_bytes, end_offset)
    if info.file is None:
        return None
    return take(memoryview(info.file.pread(info.position, info.size)))
