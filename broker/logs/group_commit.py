"""One fsync for all callers that wait for it (group commit): off the event loop, and never two at once for the same
log.

A log directory is flushed in rounds. A round takes the logs requested so far, up to their current ends, and fsyncs them
on threads. Requests that arrive meanwhile, for the same log or another, go into the next round. So the number of fsyncs
depends on the speed of the disk, not on the number of waiting producers and requests. A few threads share the logs of a
round: a journaling file system combines the commits of concurrent fsyncs.

Flushes without a waiting caller (sealed segments, flush.ms, a log that is moved) have separate rounds in parallel: they
may have gigabytes to write.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from environment.contract import Clock, Executor
from protocol.errors import ApiError, ErrorCode
from protocol.value import Value
from storage.directory.log_directory import LogDirectory
from storage.log.log_flush import FlushTask, run_together
from storage.log.unified_log import UnifiedLog
from storage.log_config import UNLIMITED

logger = logging.getLogger("kafka.log.LogManager")

URGENT_THREADS, BACKGROUND_THREADS = 4, 2
"""Executor threads per round. Four give nearly all of the gain and leave others for reads."""


class FlushStatistics(Value, frozen=False):
    """Counters since startup: rounds, the logs in them, and the total seconds that rounds took."""

    rounds: int = 0
    logs: int = 0
    total_time_s: float = 0.0


class _Waiter(NamedTuple):
    end_offset: int
    truncations: int
    future: asyncio.Future[None]


class _Rounds:
    """Consecutive rounds of one kind."""

    __slots__ = ("in_progress", "requested", "running", "threads", "waiting")

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.requested: dict[UnifiedLog, int] = {}
        """Logs for the next round, each with the least offset to flush up to, even if no caller waits."""
        self.waiting: dict[UnifiedLog, deque[_Waiter]] = {}
        """Waiting callers of each log, in order."""
        self.in_progress = False
        self.running: asyncio.Future[list[BaseException | None]] | None = None
        """The round that runs on threads. This reference keeps it alive: the event loop holds none."""


class _Directory:
    """A log directory. A log that is in a round of one kind waits for the next round of the other."""

    __slots__ = ("background", "in_flight", "urgent")

    def __init__(self) -> None:
        self.urgent = _Rounds(URGENT_THREADS)
        self.background = _Rounds(BACKGROUND_THREADS)
        self.in_flight: set[UnifiedLog] = set()

    @property
    def both(self) -> tuple[_Rounds, _Rounds]:
        return self.urgent, self.background


class GroupCommit:
    """All fsyncs of logs while the broker runs. Belongs to the event loop, as the logs do.

    `on_flushed(log)` is called when a flush has made more of a log durable, before its waiting callers resume;
    `on_failed(log, error)` when a flush fails.
    """

    def __init__(
        self,
        executor: Executor,
        clock: Clock,
        on_flushed: Callable[[UnifiedLog], None],
        on_failed: Callable[[UnifiedLog, ApiError], None],
    ) -> None:
        self._executor = executor
        self._clock = clock
        self._on_flushed = on_flushed
        self._on_failed = on_failed
        self._directories: dict[LogDirectory, _Directory] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self.statistics = FlushStatistics()

    def request(self, log: UnifiedLog, offset: int = UNLIMITED, *, urgent: bool = False) -> None:
        """Request a flush of `log`, at least up to `offset` (default: its end)."""
        directory = self._directory_of(log)
        rounds = directory.urgent if urgent else directory.background
        rounds.requested[log] = max(offset, rounds.requested.get(log, 0))
        self._schedule_round(directory, rounds)

    def wait(self, log: UnifiedLog, end_offset: int, *, urgent: bool = True) -> asyncio.Future[None]:
        """Flush `log`; the future is done once everything below `end_offset` is on stable storage. The futures of one
        log complete in call order.

        Flushes that may write much should not be `urgent`. Fails with ApiError KAFKA_STORAGE_ERROR, or
        NOT_LEADER_OR_FOLLOWER when the log was truncated meanwhile. Cancelling the future runs no callback.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        directory = self._directory_of(log)
        rounds = directory.urgent if urgent else directory.background
        rounds.waiting.setdefault(log, deque()).append(_Waiter(end_offset, log.truncations, future))
        self._schedule_round(directory, rounds)
        return future

    async def idle(self) -> None:
        """Return when no flush is requested or running. Call it after the last request."""
        await self._idle.wait()

    def _directory_of(self, log: UnifiedLog) -> _Directory:
        directory = self._directories.get(log.directory)
        if directory is None:
            directory = self._directories[log.directory] = _Directory()
        return directory

    def _schedule_round(self, directory: _Directory, rounds: _Rounds) -> None:
        """Start a round at the end of this event-loop turn, unless one is running."""
        if not rounds.in_progress:
            rounds.in_progress = True
            self._idle.clear()
            asyncio.get_running_loop().call_soon(self._begin_round, directory, rounds)

    def _begin_round(self, directory: _Directory, rounds: _Rounds) -> None:
        tasks: list[tuple[UnifiedLog, FlushTask]] = []
        now_ms = self._clock.now_ms()
        wanted = {**rounds.requested, **dict.fromkeys(rounds.waiting, UNLIMITED)}
        for log, offset in wanted.items():
            if log in directory.in_flight:
                continue
            for each in directory.both if offset == UNLIMITED else (rounds,):
                each.requested.pop(log, None)
            try:
                tasks.append((log, log.prepare_flush(now_ms, offset)))
            except ApiError as error:
                self._refuse(directory, log, error)
            except Exception as error:  # noqa: BLE001 - a bug; the other logs must be flushed
                self._refuse(directory, log, _unexpected(log, error))
        if not tasks:
            rounds.in_progress = False
            self._start_ready_rounds(directory)
            return
        directory.in_flight.update(log for log, _ in tasks)
        shares = [tasks[first :: rounds.threads] for first in range(min(rounds.threads, len(tasks)))]
        running = [self._executor.run(run_together, [task for _, task in share]) for share in shares]
        rounds.running = asyncio.gather(*running, return_exceptions=True)
        rounds.running.add_done_callback(partial(self._end_round, directory, rounds, tasks, self._clock.monotonic_s()))

    def _end_round(
        self,
        directory: _Directory,
        rounds: _Rounds,
        tasks: list[tuple[UnifiedLog, FlushTask]],
        began_s: float,
        done: asyncio.Future[list[BaseException | None]],
    ) -> None:
        self.statistics.rounds += 1
        self.statistics.logs += len(tasks)
        self.statistics.total_time_s += self._clock.monotonic_s() - began_s
        rounds.running = None
        rounds.in_progress = False
        directory.in_flight.difference_update(log for log, _ in tasks)
        failure = next((each for each in done.result() if each is not None), None)
        for log, task in tasks:
            if failure is not None:  # a bug; the state of these logs is unknown
                task.error = OSError(f"unexpected: {failure!r}")
            try:
                task.complete()
                self._on_flushed(log)
                _release(directory, log)
            except ApiError as error:
                self._refuse(directory, log, error)
            except Exception as error:  # noqa: BLE001 - a bug; other logs have waiters too
                self._refuse(directory, log, _unexpected(log, error))
        self._start_ready_rounds(directory)

    def _start_ready_rounds(self, directory: _Directory) -> None:
        """Start the rounds that can start. Logs still in a round of the other kind follow when it ends."""
        for rounds in directory.both:
            if not rounds.in_progress and (rounds.requested.keys() | rounds.waiting.keys()) - directory.in_flight:
                rounds.in_progress = True
                self._begin_round(directory, rounds)
        if not any(rounds.in_progress for each in self._directories.values() for rounds in each.both):
            self._idle.set()

    def _refuse(self, directory: _Directory, log: UnifiedLog, error: ApiError) -> None:
        """Fail the callers that wait for the flush of a log."""
        self._on_failed(log, error)
        for rounds in directory.both:
            for waiter in rounds.waiting.pop(log, ()):
                if not waiter.future.done():
                    waiter.future.set_exception(ApiError(error.error_code, error.message))


def _unexpected(log: UnifiedLog, error: Exception) -> ApiError:
    logger.error("The flush of %s failed", log.topic_partition, exc_info=error)
    return ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"The flush of {log.topic_partition} failed: {error!r}")


def _release(directory: _Directory, log: UnifiedLog) -> None:
    """Wake the callers whose records have been flushed."""
    for rounds in directory.both:
        waiting = rounds.waiting.get(log, deque())
        while waiting and (waiting[0].end_offset <= log.recovery_point or waiting[0].truncations != log.truncations):
            _, truncations, future = waiting.popleft()
            if future.done():
                continue
            if truncations == log.truncations:
                future.set_result(None)
            else:
                gone = f"{log.topic_partition} was truncated before its records were flushed"
                future.set_exception(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, gone))
        if not waiting:
            rounds.waiting.pop(log, None)
