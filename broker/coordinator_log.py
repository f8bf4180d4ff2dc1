"""The partitions of __consumer_offsets as the group coordinators see them, on top of the ReplicaManager."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence

from broker.replica_manager import ReplicaManager
from broker.seams import Executor
from cluster.metadata_image import MetadataImage
from protocol.compression import CompressionType
from protocol.errors import ApiError
from protocol.records import Record, build_batch, read_batches
from protocol.topic_partition import CONSUMER_OFFSETS, TopicPartition
from storage.appendable_log import LogAppendInfo
from storage.producer_state import AppendOrigin

ALL_IN_SYNC_REPLICAS = -1

logger = logging.getLogger("kafka.coordinator.group.GroupMetadataManager")


class ReplicatedCoordinatorLog:
    """A `CoordinatorLog` (see broker.group_coordinator_service) in this broker's replicas.

    `configured_partitions` is offsets.topic.num.partitions; it counts until the topic exists. `load_buffer_bytes` is
    offsets.load.buffer.size.
    """

    def __init__(
        self,
        replica_manager: ReplicaManager,
        metadata: Callable[[], MetadataImage],
        executor: Executor,
        *,
        configured_partitions: int,
        load_buffer_bytes: int,
        compression: CompressionType = CompressionType.NONE,
    ) -> None:
        self._replica_manager = replica_manager
        self._metadata = metadata
        self._executor = executor
        self._configured_partitions = configured_partitions
        self._load_buffer_bytes = load_buffer_bytes
        self._compression = compression

    def partition_count(self) -> int:
        """See CoordinatorLog."""
        topic = self._metadata().topics.get(CONSUMER_OFFSETS)
        return self._configured_partitions if topic is None else len(topic.partitions)

    def append(self, partition: int, records: Sequence[Record]) -> asyncio.Future[int]:
        """See CoordinatorLog. With one in-sync replica a record is committed as soon as it is in the log, and on disk
        where the topic's flush.messages asks for that.
        """
        topic_partition = TopicPartition(CONSUMER_OFFSETS, partition)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        batch = memoryview(bytearray(build_batch(records, compression=self._compression)))
        try:
            info = self._replica_manager.append(
                topic_partition, batch, required_acks=ALL_IN_SYNC_REPLICAS, origin=AppendOrigin.COORDINATOR
            )
        except ApiError as error:
            future.set_exception(error)
            return future
        if info.awaits_flush:
            return asyncio.ensure_future(self._flushed(topic_partition, info))
        future.set_result(info.first_offset)
        return future

    async def _flushed(self, topic_partition: TopicPartition, info: LogAppendInfo) -> int:
        await self._replica_manager.when_flushed(topic_partition, info)
        return info.first_offset

    def is_empty(self, partition: int) -> bool:
        """See CoordinatorLog."""
        log = self._replica_manager.partition(TopicPartition(CONSUMER_OFFSETS, partition)).log
        return log.log_start_offset == log.log_end_offset

    async def read(self, partition: int) -> AsyncIterator[bytes]:
        """See CoordinatorLog. Bytes are read and checked off the loop; what a newer leader appends later is not ours to
        load.

        What is damaged is passed over: a group that goes on from an older commit is better than one that is not served.
        """
        replica = self._replica_manager.partition(TopicPartition(CONSUMER_OFFSETS, partition))
        offset, end_offset = replica.log.log_start_offset, replica.log.log_end_offset
        while offset < end_offset:
            log = replica.log  # it may be moved to another log directory meanwhile
            try:
                info = await self._executor.run(log.read, offset, self._load_buffer_bytes, end_offset)
            except ApiError as error:
                behind = log.offset_behind_damage(offset)
                if behind is None:
                    raise
                logger.error("Loading groups from %s-%d goes on at %d: %s", CONSUMER_OFFSETS, partition, behind, error)
                offset = behind
                continue
            if info.file is None:
                return
            chunk = bytes(await self._executor.run(info.file.pread, info.position, info.size))
            next_offset = offset
            for batch in read_batches(memoryview(chunk)):
                next_offset = batch.next_offset
            if next_offset == offset:
                return
            yield chunk
            offset = next_offset
