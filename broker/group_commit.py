"""Fsync for everybody who waits for one (group commit): off the event loop, and never two of one log at a time.

A log directory is flushed in rounds. A round takes the logs that are asked for at that moment, up to their ends, and
fsyncs them on threads; whoever asks meanwhile, be it of the same log or another, is served by the next one. So the
number of fsyncs depends on how fast the disk is, not on how many producers and requests wait. Many logs are shared out
among a few threads: fsyncs that a journaling file system is asked for at once share its commits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from broker.seams import Clock, Executor
from protocol.errors import ApiError, ErrorCode
from storage.log_config import UNLIMITED
from storage.log_directory import LogDirectory
from storage.log_flush import FlushTask, run_together
from storage.unified_log import UnifiedLog

THREADS = 4
"""Of the executor's, for one round. The gain is nearly all there, and others are left for reads."""


class _Waiter(NamedTuple):
    end_offset: int
    truncations: int
    future: asyncio.Future[None]


class _Rounds:
    """The rounds of one log directory."""

    __slots__ = ("requested", "running", "under_way", "waiting")

    def __init__(self) -> None:
        self.requested: dict[UnifiedLog, int] = {}
        """Logs that the next round flushes whether somebody waits or not, and up to where at least."""
        self.waiting: dict[UnifiedLog, deque[_Waiter]] = {}
        """Who waits for a log, in order."""
        self.under_way = False
        self.running: asyncio.Future[list[BaseException | None]] | None = None
        """What the threads are at; the event loop itself would not hold on to it."""


class GroupCommit:
    """All fsyncs of logs while the broker runs. Belongs to the event loop, as the logs do.

    `on_flushed(log)` is called when more of a log has come to be on stable storage, before those who wait for it go on.
    """

    def __init__(self, executor: Executor, clock: Clock, on_flushed: Callable[[UnifiedLog], None]) -> None:
        self._executor = executor
        self._clock = clock
        self._on_flushed = on_flushed
        self._rounds: dict[LogDirectory, _Rounds] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    def request(self, log: UnifiedLog, offset: int = UNLIMITED) -> None:
        """Have `log` flushed, at least up to `offset` (default: its end)."""
        rounds = self._rounds_of(log)
        rounds.requested[log] = max(offset, rounds.requested.get(log, 0))

    def wait(self, log: UnifiedLog, end_offset: int) -> asyncio.Future[None]:
        """Have `log` flushed; done once everything below `end_offset` is on stable storage. Those of one log are done
        in the order of the calls.

        Fails with ApiError KAFKA_STORAGE_ERROR, or NOT_LEADER_OR_FOLLOWER when the log was truncated meanwhile. Giving
        up on it calls nothing back.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(end_offset, log.truncations, future)
        self._rounds_of(log).waiting.setdefault(log, deque()).append(waiter)
        return future

    async def idle(self) -> None:
        """Return when nothing is asked for and no thread is at it. To be called when nobody asks any more."""
        await self._idle.wait()

    def _rounds_of(self, log: UnifiedLog) -> _Rounds:
        """Where to ask for `log`; a round follows, if none is under way, once this turn of the event loop is over."""
        rounds = self._rounds.get(log.directory)
        if rounds is None:
            rounds = self._rounds[log.directory] = _Rounds()
        if not rounds.under_way:
            rounds.under_way = True
            self._idle.clear()
            asyncio.get_running_loop().call_soon(self._begin_round, rounds)
        return rounds

    def _begin_round(self, rounds: _Rounds) -> None:
        requested, rounds.requested = rounds.requested, {}
        requested.update(dict.fromkeys(rounds.waiting, UNLIMITED))
        tasks: list[tuple[UnifiedLog, FlushTask]] = []
        for log, offset in requested.items():
            try:
                tasks.append((log, log.prepare_flush(offset)))
            except ApiError as error:
                _refuse(rounds, log, error)
        if not tasks:
            self._go_on(rounds)
            return
        shares = [tasks[first::THREADS] for first in range(min(THREADS, len(tasks)))]
        running = [self._executor.run(run_together, [task for _, task in share]) for share in shares]
        rounds.running = asyncio.gather(*running, return_exceptions=True)
        rounds.running.add_done_callback(partial(self._end_round, rounds, tasks))

    def _end_round(
        self,
        rounds: _Rounds,
        tasks: list[tuple[UnifiedLog, FlushTask]],
        done: asyncio.Future[list[BaseException | None]],
    ) -> None:
        rounds.running = None
        failure = next((each for each in done.result() if each is not None), None)
        now_ms = self._clock.now_ms()
        for log, task in tasks:
            if failure is not None:  # a mistake of ours, and nothing that it touched can be relied on
                task.error = OSError(f"unexpected: {failure!r}")
            try:
                task.complete(now_ms)
            except ApiError as error:
                _refuse(rounds, log, error)
            else:
                self._on_flushed(log)
                _release(rounds, log)
        self._go_on(rounds)

    def _go_on(self, rounds: _Rounds) -> None:
        if rounds.requested or rounds.waiting:
            self._begin_round(rounds)
            return
        rounds.under_way = False
        if not any(each.under_way for each in self._rounds.values()):
            self._idle.set()


def _refuse(rounds: _Rounds, log: UnifiedLog, error: ApiError) -> None:
    """The log cannot be flushed: nobody is to wait for that."""
    for waiter in rounds.waiting.pop(log, ()):
        if not waiter.future.done():
            waiter.future.set_exception(ApiError(error.error_code, error.message))


def _release(rounds: _Rounds, log: UnifiedLog) -> None:
    """Let those go on who waited for what is flushed by now."""
    waiting = rounds.waiting.get(log)
    if waiting is None:
        return
    while waiting:
        end_offset, truncations, future = waiting[0]
        is_gone = truncations != log.truncations
        if end_offset > log.recovery_point and not is_gone:
            return
        waiting.popleft()
        if future.done():
            continue
        if is_gone:
            gone = f"{log.topic_partition} was truncated before its records were flushed"
            future.set_exception(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, gone))
        else:
            future.set_result(None)
    del rounds.waiting[log]
