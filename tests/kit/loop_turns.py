"""The work done in one turn of an event loop, counted in calls instead of time."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any, Final, Self, TypeVar

from tests.kit import memory_file_system
from tests.kit.environment import InlineExecutor, ManualClock

T = TypeVar("T")

CALL_S: Final = 0.25e-6
"""Time per call. Measurements give 0.1 to 0.3 microseconds."""


class CallsPerTurn:
    """Counts the calls of Python and built-in functions between two turns of a task.

    `most` is the largest count: the work a client waits for if its request arrives at the worst moment. Calls inside
    `executor` are not counted, as a broker makes them in threads, nor are those of the in-memory disk. With `clock`,
    every call takes CALL_S. Use as an asynchronous context manager.
    """

    def __init__(self) -> None:
        self.most = 0
        self.turns = 0
        self.total = 0
        self.executor = _Uncounted()
        self.clock = _CallClock(self)
        self._calls = 0
        self._task: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        self._task = asyncio.ensure_future(self._watch())
        await asyncio.sleep(0)
        gc.collect()
        gc.disable()  # it would call what frees the objects of other tests
        sys.setprofile(self._on_event)
        return self

    async def __aexit__(self, *_: object) -> None:
        sys.setprofile(None)
        gc.enable()
        self._task.cancel()

    async def _watch(self) -> None:
        while True:
            self.turns += 1
            self.most = max(self.most, self._calls)
            self._calls = 0
            await asyncio.sleep(0)

    def _on_event(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event in {"call", "c_call"} and frame.f_code.co_filename != memory_file_system.__file__:
            self._calls += 1
            self.total += 1


class _CallClock(ManualClock):
    def __init__(self, calls: CallsPerTurn) -> None:
        super().__init__()
        self._calls = calls

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self._calls.total * CALL_S


class _Uncounted(InlineExecutor):
    def run(self, function: Callable[..., T], /, *args: object) -> Awaitable[T]:
        counting = sys.getprofile()
        sys.setprofile(None)
        try:
            return super().run(function, *args)
        finally:
            sys.setprofile(counting)
