"""Time that a test moves: an event loop and clocks that can be advanced, frozen and set.

`advance` moves time to the next timer that is due, lets the broker work until it is idle, and goes on to the next one,
until the target is reached. So timers run in their order, and what one of them starts runs before the next. Timers that
lie closer together than a two-hundredth of the whole run at one time: a jump of a week takes as many steps as one of a
minute.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from broker.broker_environment import Environment
from environment.contract import Clock, Executor

T = TypeVar("T")

STEPS: Final = 200
"""Most steps of an advance, without those that follow from others at its end."""
PATIENCE_S: Final = 5.0
POLL_S: Final = 0.002
QUIET_TURNS: Final = 3
"""Turns of the loop without work after which the broker is idle: a socket may need one to become readable."""


class MovableTime:
    """The time of one broker, as an offset to the machine's time, or the moment at which it was frozen."""

    def __init__(self) -> None:
        self._added_s = 0.0
        self._wall_added_s = 0.0
        """The additional offset of the wall clock."""
        self._frozen_s: float | None = None
        """The machine's monotonic time since which time stands still."""

    def monotonic_s(self) -> float:
        """Seconds that never go back."""
        return (time.monotonic() if self._frozen_s is None else self._frozen_s) + self._added_s

    def wall_s(self) -> float:
        """Seconds since 1970."""
        stood_s = 0.0 if self._frozen_s is None else time.monotonic() - self._frozen_s
        return time.time() - stood_s + self._added_s + self._wall_added_s

    def move_to(self, monotonic_s: float) -> None:
        """Advance to this time, unless it has passed."""
        self._added_s += max(monotonic_s - self.monotonic_s(), 0.0)

    def set_wall(self, wall_s: float) -> None:
        """Set the wall clock, forth or back, as an administrator would. Timers do not notice."""
        self._wall_added_s += wall_s - self.wall_s()

    @property
    def ahead_s(self) -> float:
        """How far the wall clock is ahead of the machine's."""
        return self.wall_s() - time.time()

    def set_ahead(self, seconds: float) -> None:
        """Set the wall clock so far ahead of the machine's. Timers do not notice."""
        self.set_wall(time.time() + seconds)

    def freeze(self) -> None:
        """Let time stand still, but for `move_to`."""
        if self._frozen_s is None:
            self._frozen_s = time.monotonic()

    def unfreeze(self) -> None:
        """Let time go on from where it stands."""
        if self._frozen_s is not None:
            stood_s = time.monotonic() - self._frozen_s
            self._frozen_s = None
            self._added_s -= stood_s

    @property
    def is_frozen(self) -> bool:
        """Whether time stands still."""
        return self._frozen_s is not None


class MovableLoop(asyncio.SelectorEventLoop):
    """An event loop on movable time."""

    def __init__(self, movable: MovableTime) -> None:
        self._movable = movable
        super().__init__()

    def time(self) -> float:
        return self._movable.monotonic_s()

    def next_timer_s(self) -> float | None:
        """The time of the next timer, or None."""
        return min((each.when() for each in self._scheduled if not each.cancelled()), default=None)  # type: ignore[attr-defined]

    def is_idle(self) -> bool:
        """Whether nothing is ready to run, but for the caller."""
        return not self._ready  # type: ignore[attr-defined]


class MovableClock(Clock):
    """The broker's clock on movable time."""

    def __init__(self, movable: MovableTime) -> None:
        self._movable = movable

    def monotonic_s(self) -> float:
        return self._movable.monotonic_s()

    def now_ms(self) -> int:
        return int(self._movable.wall_s() * 1000)


class CountingExecutor:
    """An executor that knows its unfinished calls."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._unfinished: set[asyncio.Future[Any]] = set()

    def run(self, function: Callable[..., T], /, *args: object) -> Awaitable[T]:
        """See `Executor.run`."""
        call = asyncio.ensure_future(self._executor.run(function, *args))
        self._unfinished.add(call)
        call.add_done_callback(self._unfinished.discard)
        return call

    def close(self) -> None:
        """See `Executor.close`."""
        self._executor.close()

    async def finished(self) -> None:
        """Wait for the calls that run now."""
        if self._unfinished:
            await asyncio.wait(self._unfinished)

    @property
    def is_idle(self) -> bool:
        """Whether no call runs."""
        return not self._unfinished


class TimeMachine:
    """Moves the time of a running broker."""

    def __init__(self, movable: MovableTime, loop: MovableLoop, executor: CountingExecutor) -> None:
        self.movable = movable
        self._loop = loop
        self._executor = executor
        self._turn = asyncio.Lock()
        self.is_busy: Callable[[], bool] = lambda: False
        """Whether the broker waits for another process, which does its work in the machine's time."""

    @classmethod
    def of(cls, movable: MovableTime, environment: Environment) -> tuple[TimeMachine, Environment]:
        """A machine for the running loop, and the environment of the broker whose time it moves."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, MovableLoop)
        executor = CountingExecutor(environment.executor)
        adapted = environment.replace(clock=MovableClock(movable), executor=executor)
        return cls(movable, loop, executor), adapted

    async def advance(self, seconds: float, before_move: Callable[[float], None] = lambda _seconds: None) -> None:
        """Advance time, and return when everything that fell due has run and the broker is idle.

        `before_move` is called before each move, with its seconds: clients send requests between two moves, too.
        """

        def move_to(time_s: float) -> None:
            before_move(max(time_s - self._loop.time(), 0.0))
            self.movable.move_to(time_s)

        async with self._turn:
            target_s = self._loop.time() + seconds
            await self._work_until_idle()
            for _ in range(2 * STEPS):
                next_s = self._loop.next_timer_s()
                if next_s is None or next_s > target_s:
                    break
                move_to(min(max(next_s, self._loop.time() + seconds / STEPS), target_s))
                await self._work_until_idle()
            move_to(target_s)
            await self._work_until_idle()

    async def _work_until_idle(self) -> None:
        """Let the broker work until it is idle, but for PATIENCE_S at most: clients may keep it busy."""
        quiet, ends_s = 0, time.monotonic() + PATIENCE_S
        while quiet < QUIET_TURNS and time.monotonic() < ends_s:
            await asyncio.sleep(0)
            if not self._executor.is_idle:
                await self._executor.finished()
                quiet = 0
            elif self.is_busy():
                await self._executor.run(time.sleep, POLL_S)
                quiet = 0
            else:
                quiet = quiet + 1 if self._loop.is_idle() else 0
