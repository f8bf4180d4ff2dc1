"""An asyncio event loop on virtual time, which knows the process of each callback.

A process is a context variable: tasks, timers and callbacks inherit it. Ready callbacks of one process run first in,
first out, as asyncio promises; the seed decides which process runs next. Callbacks of a killed process are dropped,
those of a paused one wait. Each callback takes a little virtual time, so that a timer which is rearmed forever cannot
stop the clock.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any

CALLBACK_S = 0.000_01
"""Virtual time that one callback takes."""

MOST_CALLBACKS = 5_000_000
"""More than any seed needs: a longer run is an endless loop."""


class LivelockError(Exception):
    """The seed does not finish."""


class _Handle(asyncio.Handle):
    """An asyncio callback without a check for debug mode: a seed creates 20,000 of them."""

    __slots__ = ()

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context) -> None:
        self._callback = callback
        self._args = args
        self._context = context
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True

    def __repr__(self) -> str:
        return f"<{self._callback!r} of {self._context.get(CURRENT)}>"


class _TimerHandle(asyncio.TimerHandle):
    """Like `_Handle`, for a time. A cancelled one is dropped when its time comes."""

    __slots__ = ()

    def __init__(self, when: float, callback: Callable[..., object], args: tuple[Any, ...], context: Context) -> None:
        self._when = when
        self._callback = callback
        self._args = args
        self._context = context
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True

    def __repr__(self) -> str:
        return f"<{self._callback!r} of {self._context.get(CURRENT)} at {self._when}>"


class Process:
    """One process: killed once, never revived. `name` is that of the machine or client."""

    def __init__(self, name: str, life: int = 0) -> None:
        self.name = name
        self.life = life
        self.alive = True
        self.paused = False
        self.ready: deque[asyncio.Handle] = deque()
        self.tasks: list[asyncio.Task[Any]] = []
        """Kept until the seed ends: `finally` blocks of a killed process must not run."""
        self._prune_at = 256

    def __repr__(self) -> str:
        return f"{self.name}/{self.life}"

    def own(self, task: asyncio.Task[Any]) -> None:
        """Keep a task of this process."""
        self.tasks.append(task)
        if len(self.tasks) >= self._prune_at:
            self.tasks = [each for each in self.tasks if not each.done()]
            self._prune_at = max(256, 2 * len(self.tasks))


CURRENT: ContextVar[Process] = ContextVar("process")


class SimLoop(asyncio.BaseEventLoop):
    """The loop of the module docstring. `kernel_at` schedules events outside all processes: those of the network and
    the disk.
    """

    def __init__(self, rng: Random) -> None:
        super().__init__()
        self._rng = rng
        self._now = 0.0
        self._sequence = 0
        self._timers: list[tuple[float, int, Any, Any]] = []
        self._runnable: list[Process] = []
        self._over = False
        self.callbacks = 0
        self.unhandled: list[str] = []
        self.set_exception_handler(_note_unhandled)

    # -- asyncio -------------------------------------------------------------------------------------------------------

    get_debug = staticmethod(bool)
    """Always false; every future calls it."""

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        if context is None:
            context = copy_context()
        handle = _Handle(callback, args, context)
        process = context.get(CURRENT)
        if process is None:
            self._refuse(handle)
        elif process.alive:
            ready = process.ready
            if not ready and not process.paused:
                self._runnable.append(process)
            ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _TimerHandle(when, callback, args, copy_context() if context is None else context)
        self._sequence += 1
        heapq.heappush(self._timers, (when, self._sequence, timer, None))
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def create_task(  # type: ignore[override]
        self, coro: Any, *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        CURRENT.get().own(task)
        return task

    def kernel_at(self, when: float, callback: Callable[..., object], *args: Any) -> None:
        """Call back at `when`, outside all processes."""
        self._sequence += 1
        heapq.heappush(self._timers, (when, self._sequence, callback, args))

    def _run_once(self) -> None:
        runnable, timers, draw, pop = self._runnable, self._timers, self._rng.random, heapq.heappop
        while not self._stopping:  # type: ignore[attr-defined]
            while timers and timers[0][0] <= self._now:
                _, _, what, args = pop(timers)
                if args is None:
                    if not what._cancelled:
                        self._enqueue(what)
                else:
                    what(*args)
            if not runnable:
                if not timers:
                    raise LivelockError("nobody has anything to do, ever")
                self._now = max(self._now, timers[0][0])
                continue
            index = int(draw() * len(runnable)) if len(runnable) > 1 else 0
            process = runnable[index]
            ready = process.ready
            handle = ready.popleft()
            if not ready:
                del runnable[index]
            if handle._cancelled:  # type: ignore[attr-defined]
                continue
            self._now += CALLBACK_S
            self.callbacks += 1
            if self.callbacks > MOST_CALLBACKS:
                raise LivelockError(f"{self.callbacks} callbacks in {self._now:.3f} s; the last one is {handle!r}")
            try:
                handle._context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001  as asyncio does it
                self.call_exception_handler({"message": f"Exception in {handle!r}", "exception": error})

    def _write_to_self(self) -> None:
        """Do nothing: the loop has a single thread."""

    def _enqueue(self, handle: asyncio.Handle) -> None:
        process = handle._context.get(CURRENT)  # type: ignore[attr-defined]
        if process is None:
            self._refuse(handle)
        elif process.alive:
            if not process.ready and not process.paused:
                self._runnable.append(process)
            process.ready.append(handle)

    def _refuse(self, handle: asyncio.Handle) -> None:
        if not self._over:
            raise RuntimeError(f"{handle!r} belongs to no process")

    # -- processes -----------------------------------------------------------------------------------------------------

    def kill(self, process: Process) -> None:
        """Stop the process at once: none of its callbacks runs any more."""
        process.alive = False
        process.ready.clear()
        if process in self._runnable:
            self._runnable.remove(process)

    def pause(self, process: Process) -> None:
        """Like SIGSTOP: ready callbacks wait."""
        process.paused = True
        if process in self._runnable:
            self._runnable.remove(process)

    def resume(self, process: Process) -> None:
        """Like SIGCONT, which does nothing to a running process."""
        if not process.paused:
            return
        process.paused = False
        if process.alive and process.ready:
            self._runnable.append(process)

    def spawn(self, process: Process, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as the process. Do not await the task: a killed process never ends it."""
        context = copy_context()
        context.run(CURRENT.set, process)
        return context.run(self.create_task, coroutine)

    def end(self) -> None:
        """End the seed: nothing is scheduled, logged or run any more."""
        self._over = True
        for process in list(self._runnable):
            self.kill(process)
        self._timers.clear()
        self.set_exception_handler(lambda _loop, _context: None)
        self.close()


def context_of(process: Process) -> Context:
    """A context for code that runs as the process."""
    context = copy_context()
    context.run(CURRENT.set, process)
    return context


def _note_unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    assert isinstance(loop, SimLoop)
    process = CURRENT.get(None)
    loop.unhandled.append(f"{process}: {context.get('message')}: {context.get('exception')!r}")
