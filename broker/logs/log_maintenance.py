"""Periodic work on the logs: flushes, checkpoints, file deletion, producer expiration.

The event loop, which owns the logs, makes the decisions; executor threads wait for the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from broker.logs.disk_tasks import run_disk_tasks
from broker.logs.group_commit import GroupCommit
from broker.supervisor import Supervisor
from config.broker_config import BrokerConfig
from environment.contract import Clock, Executor
from environment.slices import Slices, in_slices
from protocol.errors import ApiError, detached
from protocol.topic_partition import TopicPartition
from storage.directory.checkpoints import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    CheckpointTask,
)
from storage.directory.log_directory import LogDirectory
from storage.log.unified_log import UnifiedLog
from storage.log_manager import LogManager

logger = logging.getLogger("kafka.log.LogManager")
log_logger = logging.getLogger("kafka.log.UnifiedLog")

FLUSH_CHECK_MS = 1_000
"""Interval of the check for sealed segments and logs past their flush.ms."""

FILE_DELETION_CHECK_MS = 1_000
"""Interval of the check for files past their file.delete.delay.ms."""

LOGS_PER_LOOKUP = 50
"""Logs whose timestamps one disk task looks up."""


class LogMaintenance:
    """The rounds, each a job of the supervisor. A checkpoint file has one writer at a time."""

    def __init__(
        self,
        log_manager: LogManager,
        high_watermarks: Callable[[], Mapping[TopicPartition, int]],
        clock: Clock,
        executor: Executor,
        group_commit: GroupCommit,
        log_start_moved: Callable[[UnifiedLog, str], None],
    ) -> None:
        """`log_start_moved` is called with each log whose start retention has moved, and the cause."""
        self._log_manager = log_manager
        self._high_watermarks = high_watermarks
        self._clock = clock
        self._executor = executor
        self._group_commit = group_commit
        self._log_start_moved = log_start_moved
        self._writing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def schedule(self, supervisor: Supervisor, config: BrokerConfig) -> None:
        """Start all rounds, at Kafka's intervals."""
        for interval_ms, name, work in (
            (min(config.log_flush_scheduler_interval_ms, FLUSH_CHECK_MS), "log-flusher", self.flush),
            (FILE_DELETION_CHECK_MS, "delete-files", self.delete_files),
            (
                config.log_flush_offset_checkpoint_interval_ms,
                "recovery-point-checkpoint",
                self.checkpoint_recovery_points,
            ),
            (
                config.log_flush_start_offset_checkpoint_interval_ms,
                "log-start-checkpoint",
                self.checkpoint_log_start_offsets,
            ),
            (
                config.replica_high_watermark_checkpoint_interval_ms,
                "high-watermark-checkpoint",
                self.checkpoint_high_watermarks,
            ),
            (config.producer_id_expiration_check_interval_ms, "producer-expiration", self.expire_producers),
        ):
            supervisor.every(interval_ms, name, work)
        supervisor.every(
            config.log_retention_check_interval_ms,
            "kafka-log-retention",
            self.delete_old_segments,
            initial_delay_ms=config.log_initial_task_delay_ms,
        )

    async def flush(self) -> None:
        """Flush sealed segments, and logs past their flush.ms."""
        for log, offset in self._log_manager.due_flushes(self._clock.now_ms()):
            self._group_commit.request(log, offset)

    async def delete_old_segments(self) -> None:
        """Delete segments that retention or DeleteRecords has released (Kafka's `LogManager.cleanupLogs`).

        Log start offsets are durable before the first file is renamed (see `UnifiedLog.delete_old_segments`).
        """
        now_ms = self._clock.now_ms()
        high_watermarks = self._high_watermarks()
        logs = [log for log in self._log_manager.online_logs() if log.topic_partition in high_watermarks]
        shortened: list[UnifiedLog] = []
        slices = Slices(self._clock)
        for start in range(0, len(logs), LOGS_PER_LOOKUP):
            part = logs[start : start + LOGS_PER_LOOKUP]
            lookup = self._log_manager.timestamp_lookup(part, now_ms)
            if lookup.is_needed:
                await run_disk_tasks(self._executor, lookup)
            looked_at = in_slices(part, slices)
            shortened += [
                log async for log in looked_at if self._expire(log, now_ms, high_watermarks[log.topic_partition])
            ]
        if not shortened:
            return
        # A full disk prevents the checkpoint. Free space is then worth more than the records that a power cut could
        # bring back.
        with contextlib.suppress(ApiError):
            await self.checkpoint_log_start_offsets()
        count = 0
        for log in shortened:
            with contextlib.suppress(ApiError):  # deleted meanwhile, or its directory is offline and its owner knows
                while log.delete_old_segments(1):
                    count += 1
                    if slices.should_yield():
                        await slices.pause()
        logger.info("Log cleanup completed. %d segments of %d partitions deleted", count, len(shortened))

    def _expire(self, log: UnifiedLog, now_ms: int, high_watermark: int) -> bool:
        """Move one log's start offset and log the reason. Returns whether it has segments to delete now."""
        if log.directory.failure is not None:  # deleted meanwhile, or offline
            return False
        before = log.log_start_offset
        try:
            expiry = log.expire_segments(now_ms, high_watermark)
        except ApiError as error:
            logger.error("Old segments of %s cannot be deleted: %s", log.topic_partition, error)
            return False
        for reason in expiry.reasons:
            log_logger.info("%s %s", _named(log), reason)
        if log.log_start_offset > before:
            self._log_start_moved(log, "segment deletion")
        if expiry.warning is not None:
            log_logger.debug("%s %s", _named(log), expiry.warning)
        return expiry.expired > 0

    async def delete_files(self) -> None:
        """Delete files that were marked for deletion file.delete.delay.ms ago, regardless of wall-clock changes."""
        passed_ms = round(self._clock.monotonic_s() * 1000)
        await run_disk_tasks(self._executor, *self._log_manager.directories.expired_deletions(passed_ms))

    async def checkpoint_recovery_points(self, needed_in: LogDirectory | None = None) -> None:
        """Write recovery-point-offset-checkpoint of every log directory. Afterwards the current recovery points of
        `needed_in` are durable.

        Raises ApiError KAFKA_STORAGE_ERROR when the disk of `needed_in` is full; a directory that fails goes offline.
        """
        await self._checkpoint(
            RECOVERY_POINT_CHECKPOINT, self._log_manager.checkpoints.recovery_point_tasks, [needed_in]
        )

    async def checkpoint_log_start_offsets(self) -> None:
        """Write log-start-offset-checkpoint of every log directory. Afterwards the current log start offsets are
        durable.

        Raises ApiError KAFKA_STORAGE_ERROR when a disk is full; a directory that fails goes offline.
        """
        all_of_them = self._log_manager.directories
        await self._checkpoint(
            LOG_START_OFFSET_CHECKPOINT, self._log_manager.checkpoints.log_start_offset_tasks, all_of_them
        )

    async def checkpoint_high_watermarks(self, needed_in: LogDirectory | None = None) -> None:
        """Like `checkpoint_recovery_points`, for replication-offset-checkpoint and the high watermarks."""

        def new_tasks() -> list[CheckpointTask]:
            return self._log_manager.checkpoints.high_watermark_tasks(self._high_watermarks())

        await self._checkpoint(HIGH_WATERMARK_CHECKPOINT, new_tasks, [needed_in])

    async def _checkpoint(
        self,
        name: str,
        new_tasks: Callable[[], Sequence[CheckpointTask]],
        needed_in: Sequence[LogDirectory | None],
    ) -> None:
        async with self._writing[name]:
            tasks = new_tasks()
            await run_disk_tasks(self._executor, *tasks)
        for task in tasks:
            if task.refusal is not None and task.directory in needed_in:
                raise detached(task.refusal)

    async def complete_deletions(self) -> None:
        """Forget deleted logs durably, before logs of the same names are created. Afterwards no checkpoint has entries
        for them, which a crash would apply to the new logs, and a power cut cannot bring back their directories.
        """
        await self.checkpoint_recovery_points()
        with contextlib.suppress(ApiError):  # a full disk; topics whose names it still knows are not created there
            await self.checkpoint_log_start_offsets()
        await self.checkpoint_high_watermarks()
        logs = self._log_manager
        online = [each for each in logs.directories if each.failure is None]
        await run_disk_tasks(self._executor, *map(logs.directories.sync_task, online))

    async def expire_producers(self) -> None:
        """Forget idempotent producers that were silent for producer.id.expiration.ms."""
        now_ms, expiration_ms = self._clock.now_ms(), self._log_manager.producer_id_expiration_ms
        async for log in in_slices(list(self._log_manager.logs.values()), self._clock):
            log.producers.remove_expired(now_ms, expiration_ms)


def log_incremented_start(log: UnifiedLog, cause: str) -> None:
    """Log Kafka's line about an incremented log start offset."""
    log_logger.info("%s Incremented log start offset to %d due to %s", _named(log), log.log_start_offset, cause)


def _named(log: UnifiedLog) -> str:
    return f"[UnifiedLog partition={log.topic_partition}, dir={log.directory.path}]"
