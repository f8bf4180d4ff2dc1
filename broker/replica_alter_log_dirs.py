"""Moves replicas between the log directories of this broker (KIP-113; Kafka classes `ReplicaAlterLogDirsManager` and
`ReplicaAlterLogDirsThread`).

One task walks over the moves, a bounded step of one after the other. The copying is done on the executor's threads;
what the event loop's thread does at the end of a move is bounded too (`storage.future_logs.LAST_BYTES`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from broker.disk_tasks import run_disk_tasks
from broker.replica_manager import ReplicaManager
from broker.seams import Clock, Executor
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from storage.future_logs import CopyTask, check_name
from storage.log_manager import LogManager
from storage.unified_log import UnifiedLog

logger = logging.getLogger("kafka.server.ReplicaAlterLogDirsManager")

STEP_BYTES = 8 << 20
"""Bytes of one partition copied before the next partition's turn."""

RETRY_S = 1.0
"""How long a move rests that could not go on, because the disk is full, say."""

GIVEN_UP_AFTER = frozenset({ErrorCode.CORRUPT_MESSAGE})
"""Errors that trying again cannot mend."""


class ReplicaAlterLogDirsManager:
    """Owner of the moves. `checkpoint_log_starts` makes the log starts of this moment durable; `forget_places` has no
    checkpoint tell of a log that is no longer in its directory.
    """

    def __init__(
        self,
        log_manager: LogManager,
        replica_manager: ReplicaManager,
        checkpoint_log_starts: Callable[[], Awaitable[None]],
        forget_places: Callable[[], Awaitable[None]],
        clock: Clock,
        executor: Executor,
    ) -> None:
        self._logs = log_manager
        self._futures = log_manager.futures
        self._replicas = replica_manager
        self._checkpoint_log_starts = checkpoint_log_starts
        self._forget_places = forget_places
        self._clock = clock
        self._executor = executor
        self._moves: dict[TopicPartition, ApiError | None] = {}
        """What is being moved, and what is in the way now."""
        self._flushed: dict[TopicPartition, UnifiedLog] = {}
        """Future logs that had caught up and were flushed then; what came later is soon copied."""
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False

    # -- asking --------------------------------------------------------------------------------------------------------

    def alter(self, topic_partition: TopicPartition, path: str) -> None:
        """Have the replica moved to the log directory at `path`; a move to another one is given up.

        A replica that is not here yet will be made there. Raises ApiError: INVALID_TOPIC_EXCEPTION (the name is too
        long), LOG_DIR_NOT_FOUND, KAFKA_STORAGE_ERROR, and NOT_LEADER_OR_FOLLOWER or UNKNOWN_TOPIC_OR_PARTITION for a
        replica that is not here.
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
            logger.info("Moving %s from %s to %s", topic_partition, log.directory.path, path)
        self._begin(topic_partition)

    def resume(self) -> None:
        """Go on with the moves that the last stop interrupted."""
        for topic_partition in self._futures.logs:
            self._begin(topic_partition)

    def _begin(self, topic_partition: TopicPartition) -> None:
        self._moves[topic_partition] = None
        if self._task is None and not self._is_closing:
            self._task = asyncio.create_task(self._run(), name="replica-alter-log-dirs")

    async def close(self) -> None:
        """Stop between two steps; the next start goes on."""
        self._is_closing = True
        if self._task is not None:
            await self._task

    # -- moving --------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while self._moves and not self._is_closing:
                moved = False
                for topic_partition in list(self._moves):
                    if not self._is_closing:
                        moved = await self._step(topic_partition) or moved
                if not moved:
                    await self._rest()
        except Exception:
            logger.exception("Moves between log directories have stopped; they go on with the next request or start")
        finally:
            self._task = None

    async def _rest(self) -> None:
        for _ in range(10):
            if not self._is_closing:
                await asyncio.sleep(RETRY_S / 10)

    async def _step(self, topic_partition: TopicPartition) -> bool:
        """Whether the move got on; it is forgotten when it is over."""
        log = self._logs.logs.get(topic_partition)
        future = self._futures.logs.get(topic_partition)
        if log is None or future is None or log.directory.failure is not None:
            self._moves.pop(topic_partition, None)
            self._flushed.pop(topic_partition, None)
            return True
        if future.directory.failure is not None:
            self._futures.drop(topic_partition, self._clock.now_ms())
            logger.error("%s is no longer moved to %s, which is offline", topic_partition, future.directory.path)
            return True
        source, target = log.directory.path, future.directory.path
        try:
            is_done = await self._copy(log, future)
        except ApiError as error:
            return self._failed(topic_partition, error)
        if is_done:
            if topic_partition not in self._futures.logs:  # somebody may have asked for the next one already
                self._moves.pop(topic_partition, None)
            logger.info("%s has been moved from %s to %s", topic_partition, source, target)
        else:
            self._moves[topic_partition] = None
        return True

    def _failed(self, topic_partition: TopicPartition, error: ApiError) -> bool:
        if topic_partition not in self._futures.logs:  # it was given up meanwhile
            return True
        if error.error_code is ErrorCode.OFFSET_OUT_OF_RANGE:  # the log start has moved on; the next step follows it
            return True
        known = self._moves.get(topic_partition)
        if known is None or known.message != error.message:
            logger.error("Moving %s does not get on: %s", topic_partition, error)
        if error.error_code in GIVEN_UP_AFTER:
            self._moves.pop(topic_partition, None)
        else:
            self._moves[topic_partition] = error
        return False

    async def _copy(self, log: UnifiedLog, future: UnifiedLog) -> bool:
        """One step; whether it was the last."""
        topic_partition = log.topic_partition
        self._futures.adjust(log, self._clock.now_ms())
        task = CopyTask(log, future, STEP_BYTES, self._clock.now_ms())
        await self._executor.run(task.run)
        if task.error is not None:
            raise task.error
        if task.copied_bytes >= STEP_BYTES:
            return False
        if self._flushed.get(topic_partition) is not future:
            # Once, and before the last bytes: so the old log is not needed long after it was replaced.
            await self._replicas.group_commit.wait(future, future.log_end_offset, urgent=False)
            self._flushed[topic_partition] = future
            return False
        if self._is_closing or self._futures.logs.get(topic_partition) is not future:
            return False
        if not self._futures.catch_up(log, self._clock.now_ms()):
            return False
        del self._flushed[topic_partition]
        self._replicas.use_log(topic_partition, self._logs.replace_with_future(topic_partition))
        await self._retire(log, future)
        return True

    async def _retire(self, old: UnifiedLog, new: UnifiedLog) -> None:
        """Let the old log go once everything that it knows is on stable storage in the new one."""
        group_commit = self._replicas.group_commit
        try:
            await group_commit.wait(new, new.log_end_offset, urgent=False)
            await self._checkpoint_log_starts()
            if new.directory.failure is not None:
                raise new.directory.offline_error()
        except ApiError as error:
            logger.error("%s stays beside %s: %s", old.path, new.path, error)
            return
        try:
            # Producers may still wait for a flush of the old one.
            await group_commit.wait(old, old.flush_bound)
        except ApiError as error:
            logger.error("%s could not be flushed: %s", old.path, error)
        try:
            directory = self._futures.retire(old.topic_partition, self._clock.now_ms())
        except ApiError as error:
            logger.error("%s could not be renamed: %s", old.path, error)
            return
        if directory is not None:
            await run_disk_tasks(self._executor, self._logs.directory_sync_task(directory))
        await self._forget_places()
