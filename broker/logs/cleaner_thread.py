"""A cleaner thread in Kafka's sense: a worker process, and the task that feeds it."""

from __future__ import annotations

import asyncio
import logging
import sys

from broker.broker_environment import CleanerWorker
from config.broker_config import BrokerConfig
from protocol.topic_partition import TopicPartition
from protocol.value import Value
from storage.compaction.clean_task import CleanResult, CleanTask
from storage.log.unified_log import UnifiedLog

logger = logging.getLogger("kafka.log.LogCleaner")

BYTES_A_KEY = 160
"""Measured memory per key of some 12 bytes in a worker's map: the key, its offset, and its slot in the hash table,
which grows. Kafka stores a 16-byte hash instead, 24 bytes in all.
"""
MOST_MAP_BYTES = 2**31 - 1


class CleanerThread(Value, frozen=False, eq=False):
    """A worker with its last cleaning (Kafka: a cleaner thread)."""

    number: int
    worker: CleanerWorker
    task: asyncio.Task[None] | None = None
    cleaning: TopicPartition | None = None
    """The log that the worker is cleaning."""
    is_dead: bool = False
    clean_time_s: float = 0.0
    bytes_read: int = 0
    bytes_written: int = 0
    map_utilization: float = 0.0

    def note(self, log: UnifiedLog, task: CleanTask, result: CleanResult, taken_s: float) -> None:
        """Record a finished cleaning, and log it in Kafka's words."""
        stats = result.stats
        self.map_utilization = stats.map_keys / task.map_capacity
        self.clean_time_s = taken_s
        self.bytes_read, self.bytes_written = stats.bytes_read, stats.bytes_written
        read, megabytes = stats.map_bytes_read + stats.bytes_read, 1024 * 1024
        logger.info(
            "Log cleaner thread %d cleaned log %s (dirty section = [%d, %d]): "
            "%.1f MB of log processed in %.1f seconds (%.1f MB/sec), buffer utilization %.1f%%, "
            "start size %.1f MB (%d messages), end size %.1f MB (%d messages)",
            self.number,
            log.topic_partition,
            task.first_dirty_offset,
            result.end_offset,
            read / megabytes,
            taken_s,
            read / megabytes / max(taken_s, 0.001),
            100 * self.map_utilization,
            stats.bytes_read / megabytes,
            stats.messages_read,
            stats.bytes_written / megabytes,
            stats.messages_written,
        )

    async def end(self) -> None:
        """Stop at once, and return once the worker has ended."""
        await self.worker.close()
        if self.task is not None:
            await self.task


def map_capacity(config: BrokerConfig) -> int:
    """How many keys a worker's map may hold."""
    share = min(config.log_cleaner_dedupe_buffer_size // max(config.log_cleaner_threads, 1), MOST_MAP_BYTES)
    return int(share // BYTES_A_KEY * min(config.log_cleaner_io_buffer_load_factor, 1.0))


def read_bytes(config: BrokerConfig) -> int:
    """Each worker's share of log.cleaner.io.buffer.size; half of the buffer is for writing."""
    return config.log_cleaner_io_buffer_size // max(config.log_cleaner_threads, 1) // 2


def bytes_per_second(config: BrokerConfig) -> float:
    """Each worker's share of log.cleaner.io.max.bytes.per.second; unlimited if that is not positive."""
    limit = config.log_cleaner_io_max_bytes_per_second
    return limit / max(config.log_cleaner_threads, 1) if limit > 0 else sys.float_info.max
