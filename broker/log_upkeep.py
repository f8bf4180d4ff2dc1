"""What the logs need from time to time: flushes, checkpoints, removal of files, expiration of producers.

What to do is decided on the event loop, which owns the logs; the disk is waited for on the executor's threads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from broker.seams import Clock, Executor
from broker.supervisor import Supervisor
from config.broker_config import BrokerConfig
from protocol.errors import ApiError
from protocol.topic_partition import TopicPartition
from storage.log_manager import LogManager

FLUSH_CHECK_MS = 1_000
"""How often sealed segments and logs whose flush.ms is over are looked for."""

FILE_DELETION_CHECK_MS = 1_000
"""How often files whose file.delete.delay.ms is over are looked for."""


class _DiskTask(Protocol):
    """What storage hands out: `run` on any thread, then `complete` by the logs' owner."""

    def run(self) -> None: ...

    def complete(self) -> None: ...


class LogUpkeep:
    """The rounds, each a job of the supervisor's. A checkpoint file has one writer: its own round, and never two of
    them at a time.
    """

    def __init__(
        self,
        log_manager: LogManager,
        high_watermarks: Callable[[], Mapping[TopicPartition, int]],
        clock: Clock,
        executor: Executor,
    ) -> None:
        self._log_manager = log_manager
        self._high_watermarks = high_watermarks
        self._clock = clock
        self._executor = executor

    def schedule(self, supervisor: Supervisor, config: BrokerConfig) -> None:
        """Begin all rounds, at Kafka's intervals."""
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

    async def flush(self) -> None:
        """Make sealed segments and logs whose flush.ms is over safe from a power cut."""
        for task in self._log_manager.flush_tasks(self._clock.now_ms()):
            await self._executor.run(task.run)
            with contextlib.suppress(ApiError):  # the directory is offline now, and its owner has been told
                task.complete(self._clock.now_ms())

    async def delete_files(self) -> None:
        """Remove what was deleted file.delete.delay.ms ago."""
        await self._do(self._log_manager.expired_deletions(self._clock.now_ms()))

    async def checkpoint_recovery_points(self) -> None:
        """Write recovery-point-offset-checkpoint of every log directory."""
        await self._do(self._log_manager.recovery_point_tasks())

    async def checkpoint_log_start_offsets(self) -> None:
        """Write log-start-offset-checkpoint of every log directory."""
        await self._do(self._log_manager.log_start_offset_tasks())

    async def checkpoint_high_watermarks(self) -> None:
        """Write replication-offset-checkpoint of every log directory."""
        await self._do(self._log_manager.high_watermark_tasks(self._high_watermarks()))

    async def expire_producers(self) -> None:
        """Forget idempotent producers that were silent for producer.id.expiration.ms."""
        self._log_manager.remove_expired_producers(self._clock.now_ms())

    async def _do(self, tasks: Sequence[_DiskTask]) -> None:
        for task in tasks:
            await self._executor.run(task.run)
            task.complete()
