"""Moves replicas between the log directories of this broker (KIP-113; Kafka classes `ReplicaAlterLogDirsManager` and
`ReplicaAlterLogDirsThread`).

One task cycles through the moves, one bounded step at a time. The executor's threads copy; the work on the event loop
at the end of a move is bounded, too (`storage.relocation.future_logs.LAST_BYTES`).

All moves together copy no more than replica.alter.log.dirs.io.max.bytes.per.second. Kafka reads a megabyte and then
waits until the last eleven seconds are below the rate; here a step copies no more than a fraction of a second's share.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

from broker.logs.disk_tasks import run_disk_tasks
from broker.logs.log_cleaner import LogCleaner
from broker.logs.log_maintenance import LogMaintenance
from broker.replication.replica_manager import ReplicaManager
from environment.contract import Clock, Executor
from protocol.errors import ApiError, ErrorCode, detached
from protocol.topic_partition import TopicPartition
from storage.io.file_system import RateLimiter
from storage.log.unified_log import UnifiedLog
from storage.log_manager import LogManager
from storage.relocation.future_log_tasks import CopyTask
from storage.relocation.future_logs import check_name

logger = logging.getLogger("kafka.server.ReplicaAlterLogDirsManager")

STEP_BYTES = 8 << 20
"""Bytes of one partition copied before the next partition's turn."""

STEP_S = 0.25
"""Under a limit, a step copies the bytes allowed in this time, but at least one batch."""

RETRY_S = 1.0
"""Pause of a move that could not continue, for example because the disk is full."""

GIVEN_UP_AFTER = frozenset({ErrorCode.CORRUPT_MESSAGE})
"""Errors that a retry cannot fix."""


class ReplicaAlterLogDirsManager:
    """Owns the moves. `bytes_per_second` returns the current limit; `maintenance` and `cleaner` write the checkpoints
    of the directories, and the cleaner skips logs that are being moved.
    """

    def __init__(
        self,
        log_manager: LogManager,
        replica_manager: ReplicaManager,
        maintenance: LogMaintenance,
        cleaner: LogCleaner,
        bytes_per_second: Callable[[], int],
        clock: Clock,
        executor: Executor,
    ) -> None:
        self._logs = log_manager
        self._futures = log_manager.futures
        self._replicas = replica_manager
        self._maintenance = maintenance
        self._cleaner = cleaner
        self._bytes_per_second = bytes_per_second
        self._rate_limiter = RateLimiter(clock.monotonic_s, bytes_per_second())
        self._clock = clock
        self._executor = executor
        self._moves: dict[TopicPartition, ApiError | None] = {}
        """Partitions that are being moved, each with the error that currently blocks its move, if any."""
        self._begun: dict[TopicPartition, UnifiedLog] = {}
        """Future logs whose entry in their directory's cleaner checkpoint has been written."""
        self._flushed: dict[TopicPartition, UnifiedLog] = {}
        """Future logs that were flushed when they had caught up; only a small remainder is copied after that."""
        self._abandoned: set[TopicPartition] = set()
        """Failed moves; they are not retried until a client asks for them."""
        self.copied_bytes = 0
        """Bytes copied by all moves since the start."""
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False

    # -- requests ------------------------------------------------------------------------------------------------------

    def alter(self, topic_partition: TopicPartition, path: str) -> None:
        """Move the replica to the log directory at `path`; a move to another directory is cancelled.

        A replica that is not hosted yet will be created there. Raises ApiError: INVALID_TOPIC_EXCEPTION (the name is
        too long), LOG_DIR_NOT_FOUND, KAFKA_STORAGE_ERROR, and NOT_LEADER_OR_FOLLOWER or UNKNOWN_TOPIC_OR_PARTITION for
        a replica that is not hosted.
        """
        check_name(topic_partition)
        directory = self._futures.directory_at(path)
        now_ms = self._clock.now_ms()
        future = self._futures.logs.get(topic_partition)
        if future is not None and future.directory is not directory:
            self._futures.drop(topic_partition, now_ms)
            future = None
        if topic_partition not in self._logs.logs:
            self._futures.prefer(topic_partition, directory)
        log = self._replicas.partition(topic_partition).log
        if log.directory is directory:
            return
        if future is None:
            self._futures.create(log, directory, now_ms)
            self._cleaner.abort(topic_partition)
            logger.info("Moving %s from %s to %s", topic_partition, log.directory.path, path)
        self._begin(topic_partition)

    def resume(self) -> None:
        """Continue the moves that the last stop interrupted."""
        for topic_partition in self._futures.logs:
            self._begin(topic_partition)

    def _begin(self, topic_partition: TopicPartition) -> None:
        self._moves[topic_partition] = None
        self._abandoned.discard(topic_partition)
        if self._task is None and not self._is_closing:
            self._task = asyncio.create_task(self._run(), name="replica-alter-log-dirs")

    async def close(self) -> None:
        """Stop between two steps; the next start resumes the moves."""
        self._is_closing = True
        if self._task is not None:
            await self._task

    # -- metrics -------------------------------------------------------------------------------------------------------

    @property
    def max_lag(self) -> int:
        """The largest lag of a copy behind its log, in offsets."""
        logs, futures = self._logs.logs, self._futures.logs.items()
        return max((logs[at].log_end_offset - copy.log_end_offset for at, copy in futures if at in logs), default=0)

    @property
    def failed_partitions(self) -> int:
        """Number of failed moves that were not requested again."""
        return sum(each in self._futures.logs for each in self._abandoned)

    # -- moves ---------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while self._moves and not self._is_closing:
                moved = False
                for topic_partition in list(self._moves):
                    await self._keep_pace()
                    if not self._is_closing:
                        moved = await self._step(topic_partition) or moved
                if not moved:
                    await self._rest()
        finally:
            self._task = None

    async def _rest(self) -> None:
        for _ in range(10):
            if not self._is_closing:
                await asyncio.sleep(RETRY_S / 10)

    async def _keep_pace(self) -> None:
        """Return when more may be copied; a new limit applies at once."""
        while self._futures.logs and not self._is_closing:
            rate = self._bytes_per_second()
            if rate != self._rate_limiter.bytes_per_second:
                self._rate_limiter = RateLimiter(self._clock.monotonic_s, rate)
            wait_s = self._rate_limiter.wait_s()
            if not wait_s:
                return
            await asyncio.sleep(wait_s)

    def _note(self, size: int) -> None:
        self._rate_limiter.note(size)
        self.copied_bytes += size

    def _step_bytes(self) -> int:
        return max(min(STEP_BYTES, math.ceil(self._rate_limiter.bytes_per_second * STEP_S)), 1)

    async def _step(self, topic_partition: TopicPartition) -> bool:
        """Do one step. Returns whether the move progressed; a finished move is forgotten."""
        log = self._logs.logs.get(topic_partition)
        future = self._futures.logs.get(topic_partition)
        if log is None or future is None or log.directory.failure is not None:
            self._moves.pop(topic_partition, None)
            self._flushed.pop(topic_partition, None)
            self._begun.pop(topic_partition, None)
            return True
        source, target = log.directory.path, future.directory.path
        try:
            if future.directory.failure is not None:
                self._futures.drop(topic_partition, self._clock.now_ms())
                logger.error("%s is no longer moved to %s, which is offline", topic_partition, target)
                return True
            is_done = await self._copy(log, future)
        except ApiError as error:
            return self._failed(topic_partition, error)
        except Exception:  # a bug; the other moves continue
            logger.exception("The move of %s has stopped; the next request or start resumes it", topic_partition)
            self._moves.pop(topic_partition, None)
            self._abandoned.add(topic_partition)
            return False
        if is_done:
            if topic_partition not in self._futures.logs:  # the next move may have been requested already
                self._moves.pop(topic_partition, None)
            logger.info("%s has been moved from %s to %s", topic_partition, source, target)
        else:
            self._moves[topic_partition] = None
        return True

    def _failed(self, topic_partition: TopicPartition, error: ApiError) -> bool:
        if topic_partition not in self._futures.logs:  # the move was cancelled meanwhile
            return True
        if error.error_code is ErrorCode.OFFSET_OUT_OF_RANGE:  # the log start has advanced; the next step follows it
            return True
        known = self._moves.get(topic_partition)
        if known is None or known.message != error.message:
            logger.error("The move of %s is held up: %s", topic_partition, error)
        if error.error_code in GIVEN_UP_AFTER:
            self._moves.pop(topic_partition, None)
            self._abandoned.add(topic_partition)
        else:
            self._moves[topic_partition] = detached(error)
        return False

    async def _copy(self, log: UnifiedLog, future: UnifiedLog) -> bool:
        """Do one step. Returns whether it was the last."""
        topic_partition = log.topic_partition
        while (adjustment := self._futures.adjust(log, self._clock.now_ms())) is not None:
            await run_disk_tasks(self._executor, adjustment)
            if self._is_closing or self._futures.logs.get(topic_partition) is not future:
                return False
        if self._begun.get(topic_partition) is not future:
            self._begun[topic_partition] = future
            if future.cleaner_checkpoint is not None:
                await self._cleaner.checkpoint()
                return False
        step_bytes = self._step_bytes()
        task = CopyTask(log, future, step_bytes, self._clock.now_ms())
        await self._executor.run(task.run)
        self._note(task.copied_bytes)
        task.complete()
        if task.copied_bytes >= step_bytes:
            return False
        if self._flushed.get(topic_partition) is not future or future.durability.gaps_end > future.recovery_point:
            # Flush once, before the last bytes: then the old log can be dropped soon after the switch.
            await self._replicas.group_commit.wait(future, future.log_end_offset, urgent=False)
            await self._maintenance.checkpoint_recovery_points(future.directory)
            self._flushed[topic_partition] = future
            return False
        if self._is_closing or self._futures.logs.get(topic_partition) is not future:
            return False
        before = future.size_bytes
        is_complete = self._futures.catch_up(log, self._clock.now_ms())
        self._note(max(future.size_bytes - before, 0))
        if not is_complete:
            return False
        del self._flushed[topic_partition]
        del self._begun[topic_partition]
        self._replicas.hosted.use_log(topic_partition, self._logs.replace_with_future(topic_partition))
        await self._retire(log, future)
        return True

    async def _retire(self, old: UnifiedLog, new: UnifiedLog) -> None:
        """Drop the old log once all of its contents are on stable storage in the new one."""
        group_commit = self._replicas.group_commit
        try:
            await group_commit.wait(new, new.log_end_offset, urgent=False)
            await self._maintenance.checkpoint_log_start_offsets()
            await self._maintenance.checkpoint_high_watermarks(new.directory)
            await self._cleaner.checkpoint()
            if new.directory.failure is not None:
                raise new.directory.offline_error()
        except ApiError as error:
            logger.error("%s stays beside %s: %s", old.path, new.path, error)
            return
        try:
            # Producers may still wait for a flush of the old log.
            await group_commit.wait(old, old.local.flush_limit_offset)
        except ApiError as error:
            logger.error("%s could not be flushed: %s", old.path, error)
        try:
            directory = self._futures.retire(old.topic_partition, self._clock.now_ms())
        except ApiError as error:
            logger.error("%s could not be renamed: %s", old.path, error)
            return
        if directory is not None:
            await run_disk_tasks(self._executor, self._logs.directories.sync_task(directory))
        await self._cleaner.checkpoint()
        await self._maintenance.complete_deletions()
