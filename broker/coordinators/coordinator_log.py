"""The log of a coordinator: partitions of an internal topic, behind the ReplicaManager."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from broker.replication.replica_manager import ReplicaManager
from cluster.coordinators.results import TransactionalProducer
from cluster.metadata_image import MetadataImage
from cluster.replication.partition import ACKS_ALL, Partition
from environment.contract import Executor
from protocol.errors import ApiError, ErrorCode, detached
from protocol.records.batch import Record, build_batch
from protocol.records.compression import CompressionType
from protocol.topic_partition import TopicPartition
from storage.log.log_appender import LogAppendInfo
from storage.log.log_validator import AppendOrigin
from storage.log.unified_log import UnifiedLog

logger = logging.getLogger("kafka.coordinator.CoordinatorLoader")

_MAY_BE_COMMITTED = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND})


class ReplicatedCoordinatorLog:
    """A `CoordinatorLog` (see broker.coordinators.coordinator_runtime) in this broker's replicas of `topic`.

    `configured_partitions` is the partition count until the topic exists. Loading reads `load_buffer_bytes` at a time.
    A batch that is not committed within `commit_timeout_ms` fails with REQUEST_TIMED_OUT, but may still be committed
    later.
    """

    def __init__(
        self,
        topic: str,
        replica_manager: ReplicaManager,
        metadata: Callable[[], MetadataImage],
        executor: Executor,
        *,
        configured_partitions: int,
        load_buffer_bytes: int,
        commit_timeout_ms: int,
        compression: CompressionType = CompressionType.NONE,
    ) -> None:
        self._topic = topic
        self._replica_manager = replica_manager
        self._metadata = metadata
        self._executor = executor
        self._configured_partitions = configured_partitions
        self._load_buffer_bytes = load_buffer_bytes
        self._commit_timeout_ms = commit_timeout_ms
        self._compression = compression

    def partition_count(self) -> int:
        """See CoordinatorLog."""
        topic = self._metadata().topics.get(self._topic)
        return self._configured_partitions if topic is None else len(topic.partitions)

    def append(
        self, partition: int, records: Sequence[Record], producer: TransactionalProducer | None = None
    ) -> asyncio.Future[int]:
        """See CoordinatorLog. A record is committed once the high watermark is above it."""
        topic_partition = TopicPartition(self._topic, partition)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        batch = memoryview(bytearray(self._batch(records, producer)))
        try:
            info = self._replica_manager.append(
                topic_partition,
                batch,
                required_acks=ACKS_ALL,
                origin=AppendOrigin.COORDINATOR,
                guard=None if producer is None else producer.guard,
            )
        except ApiError as error:
            future.set_exception(detached(error))
            return future
        if not info.is_acknowledged:
            return asyncio.ensure_future(self._when_acknowledged(topic_partition, info))
        future.set_result(info.first_offset)
        return future

    def _batch(self, records: Sequence[Record], producer: TransactionalProducer | None) -> bytes:
        if producer is None:
            return build_batch(records, compression=self._compression)
        return build_batch(
            records,
            compression=CompressionType.NONE if producer.ends else self._compression,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            is_transactional=True,
            is_control=producer.ends,
        )

    async def _when_acknowledged(self, topic_partition: TopicPartition, info: LogAppendInfo) -> int:
        (error,) = await self._replica_manager.when_acknowledged(
            [(topic_partition, info.last_offset)],
            tuple,
            required_acks=ACKS_ALL,
            timeout_ms=self._commit_timeout_ms,
        )
        if error is not None:
            raise detached(error)
        return info.first_offset

    def is_empty(self, partition: int) -> bool:
        """See CoordinatorLog."""
        log = self._replica_manager.partition(TopicPartition(self._topic, partition)).log
        return log.log_start_offset == log.log_end_offset

    def most_record_bytes(self, partition: int) -> int:
        """See CoordinatorLog."""
        try:
            log = self._replica_manager.partition(TopicPartition(self._topic, partition)).log
        except ApiError as error:
            raise ApiError(ErrorCode.NOT_COORDINATOR, str(error)) from error
        return log.config.max_message_bytes

    async def load(self, partition: int, take: Callable[[memoryview], int | None]) -> None:
        """See CoordinatorLog. Reads, checks and decodes off the loop. Does not load records that a newer leader appends
        meanwhile. Skips damaged records: serving an older state is better than serving none. Returns once everything
        loaded is committed, so the next leader will have whatever clients learn from this one.
        """
        replica = self._replica_manager.partition(TopicPartition(self._topic, partition))
        offset, end_offset = replica.log.log_start_offset, replica.log.log_end_offset
        await self._read(replica, offset, end_offset, take)
        await self._until_committed(replica, end_offset)

    async def _until_committed(self, replica: Partition, end_offset: int) -> None:
        """Wait for a leader's high watermark to reach `end_offset`. Stops if the ISR is smaller than
        min.insync.replicas, because the high watermark cannot rise then; as in Kafka, the broker serves what it has.
        Raises ApiError.
        """
        while replica.high_watermark < end_offset and not replica.is_under_min_isr:
            (error,) = await self._replica_manager.when_acknowledged(
                [(replica.topic_partition, end_offset - 1)],
                tuple,
                required_acks=ACKS_ALL,
                timeout_ms=self._commit_timeout_ms,
            )
            if error is not None and error.error_code not in _MAY_BE_COMMITTED:
                raise detached(error)

    async def _read(
        self, replica: Partition, offset: int, end_offset: int, take: Callable[[memoryview], int | None]
    ) -> None:
        next_offset: int | None
        has_missed = False
        while offset < end_offset:
            log = replica.log  # the replica may move to another log directory meanwhile
            try:
                next_offset = await self._executor.run(
                    _take_chunk, log, offset, self._load_buffer_bytes, end_offset, take
                )
            except ApiError as error:
                next_offset = log.offset_after_corrupt_range(offset)
                if next_offset is None:
                    raise
                logger.error(
                    "Loading of %s-%d continues at offset %d: %s",
                    replica.topic_partition.topic,
                    replica.topic_partition.partition,
                    next_offset,
                    error,
                )
            except OSError as error:
                if isinstance(error, FileNotFoundError) and not has_missed:
                    # The file was just being renamed.
                    has_missed = True
                    continue
                raise log.local.read_failed(error) from error
            if next_offset is None:
                return
            offset = next_offset


def _take_chunk(
    log: UnifiedLog, offset: int, max_bytes: int, end_offset: int, take: Callable[[memoryview], int | None]
) -> int | None:
    """Pass one chunk, starting at `offset`, to `take`. Only one chunk of a partition is in memory at a time."""
    info = log.read(offset, max_bytes, end_offset)
    if info.file is None:
        return None
    return take(memoryview(info.file.pread(info.position, info.size)))
