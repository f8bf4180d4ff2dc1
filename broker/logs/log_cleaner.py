"""Selection and scheduling of compaction (Kafka classes `LogCleaner`, `LogCleanerManager`).

The event loop, which owns the logs, chooses the dirtiest one and installs the result; log.cleaner.threads workers
(`broker.logs.cleaner_worker`) do the rest. A failure marks only its partition as uncleanable, until the broker
restarts; the cleaner continues with the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping

from broker.broker_environment import CleanerWorker
from broker.logs.cleaner_thread import MOST_MAP_BYTES, CleanerThread, bytes_per_second, map_capacity, read_bytes
from broker.logs.cleaner_worker import FailureKind, WorkerDiedError, WorkerFailure
from broker.logs.disk_tasks import run_disk_tasks
from config.broker_config import BrokerConfig
from environment.contract import Clock, Executor
from environment.slices import in_slices
from protocol.errors import ApiError
from protocol.topic_partition import TopicPartition
from protocol.value import Value, field
from storage.compaction.clean_task import CleanResult, CleanTask
from storage.compaction.cleanable_log import CleanableLog, cleanable_log, filthiest, plan_cleaning
from storage.compaction.segment_replacement import ReplacementTask, is_unchanged
from storage.directory.log_directory import LogDirectory
from storage.log.unified_log import UnifiedLog
from storage.log_manager import LogManager
from storage.recovery.scrub import SegmentCheck
from storage.segment.batch_walk import Place
from storage.segment.log_segment import segment_index

logger = logging.getLogger("kafka.log.LogCleaner")

CHECK_BYTES = 8 << 20
"""Bytes of a damaged segment that are checked at a time."""
MOST_DEATHS = 3
"""A partition that kills this many workers in a row is marked uncleanable."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Uncleanable(Value):
    """The uncleanable partitions of a log directory, and their cleanable bytes."""

    partitions: int
    bytes: int


class CleanerNumbers(Value, frozen=False):
    """The values of the metrics. They are replaced as a whole, never changed in place, because another thread reads
    them.
    """

    max_dirty_percent: int = 0
    max_compaction_delay_s: int = 0
    uncleanable: Mapping[str, Uncleanable] = field(default_factory=dict)
    last_run_ms: int | None = None


class LogCleaner:
    """See the module. `config` returns the current configuration, `high_watermarks` those of all hosted partitions."""

    def __init__(
        self,
        log_manager: LogManager,
        high_watermarks: Callable[[], Mapping[TopicPartition, int]],
        clock: Clock,
        executor: Executor,
        new_worker: Callable[[], CleanerWorker],
        config: Callable[[], BrokerConfig],
        checkpoint_recovery_points: Callable[[LogDirectory], Awaitable[None]],
    ) -> None:
        self._log_manager = log_manager
        self._high_watermarks = high_watermarks
        self._clock = clock
        self._executor = executor
        self._new_worker = new_worker
        self._config = config
        self._checkpoint_recovery_points = checkpoint_recovery_points
        self._threads: list[CleanerThread] = []
        self._ending: set[asyncio.Task[None]] = set()
        self._is_started = False
        self._changed = asyncio.Event()
        """Set briefly whenever the configuration changes, to end pauses that began under the old one."""
        self._choosing = asyncio.Lock()
        self._checkpointing = asyncio.Lock()
        self._in_progress: set[UnifiedLog] = set()
        self._deaths: defaultdict[UnifiedLog, int] = defaultdict(int)
        self.numbers = CleanerNumbers()

    # -- lifecycle -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start cleaning, unless log.cleaner.enable is false."""
        if self._config().log_cleaner_enable:
            logger.info("Starting the log cleaner")
            self._is_started = True
            self.config_changed(self._config())

    def config_changed(self, config: BrokerConfig) -> None:
        """Apply `config`: threads start or stop, rates and pauses change at once."""
        if not self._is_started:
            return
        if config.log_cleaner_dedupe_buffer_size // max(config.log_cleaner_threads, 1) > MOST_MAP_BYTES:
            logger.warning(
                "Cannot use more than 2G of cleaner buffer space per cleaner thread, ignoring excess buffer space..."
            )
        while len(self._threads) < config.log_cleaner_threads:
            thread = CleanerThread(len(self._threads), self._new_worker())
            thread.task = asyncio.get_running_loop().create_task(
                self._run(thread), name=f"kafka-log-cleaner-thread-{thread.number}"
            )
            self._threads.append(thread)
        while len(self._threads) > config.log_cleaner_threads:
            ending = asyncio.get_running_loop().create_task(self._threads.pop().end(), name="kafka-log-cleaner-end")
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
        for thread in self._threads:
            thread.worker.change_rate(bytes_per_second(config))
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def close(self) -> None:
        """Stop at once. Unfinished cleanings are repeated after the next start."""
        if self._is_started:
            logger.info("Shutting down the log cleaner.")
        self._is_started = False
        threads, self._threads = self._threads, []
        self._wake()
        await asyncio.gather(*(thread.end() for thread in threads), *self._ending)

    async def _run(self, thread: CleanerThread) -> None:
        while thread in self._threads:
            try:
                did_something = await self.clean_filthiest(thread)
            except Exception:
                logger.exception("Error due to")
                did_something = False
            if not did_something and thread in self._threads:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), self._config().log_cleaner_backoff_ms / 1000)

    def abort(self, topic_partition: TopicPartition) -> None:
        """Abort the cleaning of a log that is being moved (Kafka's `abortAndPauseCleaning`). It can be chosen again
        after the move.
        """
        for thread in self._threads:
            if thread.cleaning == topic_partition:
                thread.worker.abort()

    def _is_moved(self, log: UnifiedLog) -> bool:
        return log.topic_partition in self._log_manager.futures.logs

    # -- choosing ------------------------------------------------------------------------------------------------------

    async def _choose(self) -> CleanableLog | None:
        """The dirtiest log that is due, marked as in progress."""
        async with self._choosing:
            now_ms, high_watermarks = self._clock.now_ms(), self._high_watermarks()
            found: list[CleanableLog] = []
            uncleanable: defaultdict[str, Uncleanable] = defaultdict(lambda: Uncleanable(0, 0))
            async for log in in_slices(list(self._log_manager.logs.values()), self._clock):
                if log not in self._in_progress and log.config.is_compacted and not self._is_moved(log):
                    one = self._consider(log, high_watermarks.get(log.topic_partition, 0), now_ms)
                    if one is not None:
                        found.append(one)
                if log.uncleanable_reason is not None:
                    sum_of = uncleanable[log.directory.path]
                    uncleanable[log.directory.path] = Uncleanable(
                        sum_of.partitions + 1, sum_of.bytes + _dirty_bytes(log)
                    )
            self.numbers = CleanerNumbers(
                int(100 * max((one.cleanable_ratio for one in found), default=0)),
                max((one.max_compaction_delay_ms for one in found), default=0) // 1000,
                dict(uncleanable),
                now_ms,
            )
            # The disk may have failed, or a move begun, since a log was checked.
            usable = (one for one in found if one.log.directory.failure is None and not self._is_moved(one.log))
            chosen = filthiest(usable)
            if chosen is not None:
                self._in_progress.add(chosen.log)
            return chosen

    def _consider(self, log: UnifiedLog, high_watermark: int, now_ms: int) -> CleanableLog | None:
        try:
            found = cleanable_log(log, high_watermark, now_ms)
        except (ApiError, OSError) as error:
            self._set_aside(log, f"Failed to calculate log cleaning stats: {error}")
            return None
        if found is not None and found.warning is not None:
            logger.warning(found.warning)
        return found

    # -- cleaning ------------------------------------------------------------------------------------------------------

    async def clean_filthiest(self, thread: CleanerThread) -> bool:
        """Clean the dirtiest log. Returns whether there may be more to do at once."""
        chosen = await self._choose()
        return chosen is not None and await self._clean_chosen(thread, chosen)

    async def compact(self, logs: Iterable[UnifiedLog]) -> None:
        """Clean these logs now up to their active segments, however little of them is dirty."""
        thread = CleanerThread(-1, self._new_worker())
        try:
            for log in logs:
                high_watermark = self._high_watermarks().get(log.topic_partition, 0)
                chosen = self._consider(log, high_watermark, self._clock.now_ms())
                if chosen is not None and chosen.cleanable_bytes and log not in self._in_progress:
                    self._in_progress.add(log)
                    await self._clean_chosen(thread, chosen)
        finally:
            await thread.end()

    async def _clean_chosen(self, thread: CleanerThread, chosen: CleanableLog) -> bool:
        """Clean a log that is marked as in progress. Returns whether there may be more to do at once."""
        log = chosen.log
        try:
            config = self._config()
            task = plan_cleaning(chosen, self._clock.now_ms(), map_capacity(config), read_bytes(config))
            await self.checkpoint()
            if not await self._may_leave_gaps(log):
                return False
            began_s = self._clock.monotonic_s()
            result = await self._clean(thread, log, task)
            replacement = ReplacementTask(log, task, result)
            await run_disk_tasks(self._executor, replacement)
            await self.checkpoint()
            if replacement.is_used:  # else the log was truncated, moved or deleted meanwhile
                thread.is_dead = False
                self._deaths.pop(log, None)
                thread.note(log, task, result, self._clock.monotonic_s() - began_s)
        except ValueError as error:
            logger.error("Log cleaner thread %d cannot clean %s: %s", thread.number, log.topic_partition, error)
            return False
        except ApiError as error:  # the directory is offline now, and its owner has been notified
            logger.error("Log cleaner thread %d gave up %s: %s", thread.number, log.topic_partition, error)
        except WorkerFailure as failure:
            return await self._failed(log, task, failure)
        except WorkerDiedError as death:
            self._died(thread, log, death)
        except Exception as error:  # a bug, but otherwise this log would be chosen again and again, and no other
            logger.exception("Log cleaner thread %d failed", thread.number)
            self._set_aside(log, repr(error))
        else:
            return replacement.is_used
        finally:
            self._in_progress.discard(log)
        return True

    async def _clean(self, thread: CleanerThread, log: UnifiedLog, task: CleanTask) -> CleanResult:
        if not self._is_moved(log):
            thread.cleaning = log.topic_partition
            try:
                result = await thread.worker.clean(task, bytes_per_second(self._config()))
            finally:
                thread.cleaning = None
            if not self._is_moved(log):
                return result
        raise WorkerFailure("it is being moved to another log directory", FailureKind.ABORTED)

    async def _may_leave_gaps(self, log: UnifiedLog) -> bool:
        """Record for recovery that the log to be cleaned is on stable storage; otherwise recovery would take its gaps
        for lost records.
        """
        try:
            await self._checkpoint_recovery_points(log.directory)
        except ApiError as error:
            logger.warning("Cleaning of %s waits until there is disk space: %s", log.topic_partition, error)
            return False
        return True

    async def checkpoint(self) -> None:
        """Write cleaner-offset-checkpoint if it has changed."""
        async with self._checkpointing:
            await run_disk_tasks(self._executor, *self._log_manager.checkpoints.cleaner_offset_tasks())

    async def _failed(self, log: UnifiedLog, task: CleanTask, failure: WorkerFailure) -> bool:
        """Handle a worker's failure. Returns whether to continue at once."""
        if failure.kind is FailureKind.ABORTED or not is_unchanged(log, task):
            logger.info("The cleaning for partition %s is aborted: %s", log.topic_partition, failure)
            return self._is_moved(log)
        if failure.kind is FailureKind.DISK and failure.errno in _FULL:
            logger.warning("Cleaning of %s waits until there is disk space: %s", log.topic_partition, failure)
            return False
        if failure.kind is FailureKind.DISK:
            doing = f"Failed to clean up log for {log.topic_partition} in dir {log.directory.path} due to IOException"
            log.local.fail(OSError(failure.errno, str(failure)), doing)
        else:
            if failure.corrupt_range is not None:
                await self._examine(log, *failure.corrupt_range, str(failure))
            self._set_aside(log, str(failure))
        return True

    async def _examine(self, log: UnifiedLog, base_offset: int, position: int, message: str) -> None:
        """Scrub a segment that a worker found damaged, so that the damage is logged, counted once, and not served."""
        at = segment_index(log.segments, base_offset)
        segment = log.segments[at]
        if segment.base_offset != base_offset or segment is log.active_segment:
            return
        segment.batches.limit_offset = log.segments[at + 1].base_offset
        place: Place | None = None
        while place is None or place.position < segment.size:
            check = SegmentCheck(log, segment, place, CHECK_BYTES)
            await run_disk_tasks(self._executor, check)
            if check.place is None or check.place == place:
                break
            place = check.place
        if not segment.batches.corrupt_ranges:  # the worker also detects what a scrub misses, such as a gap at the end
            log.directory.report_corruption(segment.path, position, message)

    def _died(self, thread: CleanerThread, log: UnifiedLog, death: WorkerDiedError) -> None:
        if not self._is_started or thread not in self._threads:
            return  # it was ended on purpose
        thread.is_dead = True
        self._deaths[log] += 1
        logger.error("Log cleaner thread %d died while cleaning %s: %s", thread.number, log.topic_partition, death)
        if self._deaths.get(log, 0) >= MOST_DEATHS:
            del self._deaths[log]
            self._set_aside(log, f"{MOST_DEATHS} cleaners died of it, the last one: {death}")

    def _set_aside(self, log: UnifiedLog, reason: str) -> None:
        log.uncleanable_reason = reason
        logger.warning(
            "Unexpected exception thrown when cleaning log %s. Marking its partition (%s) as uncleanable: %s",
            log.path,
            log.topic_partition,
            reason,
        )

    # -- metrics -------------------------------------------------------------------------------------------------------

    @property
    def is_cleaning(self) -> bool:
        """Whether a log is cleaned now."""
        return bool(self._in_progress)

    @property
    def dead_threads(self) -> int:
        """Threads whose worker died and that have cleaned nothing since."""
        return sum(thread.is_dead for thread in self._threads)

    @property
    def max_clean_time_s(self) -> float:
        """The longest of the threads' last cleanings, in seconds."""
        return max((thread.clean_time_s for thread in self._threads), default=0.0)

    @property
    def recopy_percent(self) -> int:
        """Bytes kept as a percentage of the bytes read, over the last cleanings of all threads."""
        read = sum(each.bytes_read for each in self._threads)
        written = sum(each.bytes_written for each in self._threads)
        return 100 * written // max(read, 1)

    @property
    def max_buffer_utilization_percent(self) -> int:
        """The fullest map of the threads' last cleanings, in percent."""
        return int(100 * max((thread.map_utilization for thread in self._threads), default=0.0))

    @property
    def time_since_last_run_ms(self) -> int:
        """Milliseconds since logs were last considered for cleaning; 0 before the first time."""
        last_ms = self.numbers.last_run_ms
        return 0 if last_ms is None else max(self._clock.now_ms() - last_ms, 0)


def _dirty_bytes(log: UnifiedLog) -> int:
    """The bytes of `log` that could be cleaned if it were not marked uncleanable."""
    segments = log.segments
    first_dirty = log.log_start_offset if log.cleaner_checkpoint is None else log.cleaner_checkpoint
    return sum(segment.size for segment in segments[segment_index(segments, first_dirty) : -1])
