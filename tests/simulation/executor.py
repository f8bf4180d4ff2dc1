"""The environment's Executor on virtual time: a result arrives later, and the process may die in between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

from tests.simulation.loop import SimLoop

T = TypeVar("T")


class SimExecutor:
    """Runs a function atomically, when it is submitted or when its result is due, depending on the seed."""

    def __init__(self, loop: SimLoop, rng: Random) -> None:
        self._loop = loop
        self._rng = rng
        self.slowest_s = 0.002
        """The longest duration of a call; larger on a slow disk."""

    def run(self, function: Callable[..., T], /, *args: object) -> Awaitable[T]:
        future: asyncio.Future[T] = self._loop.create_future()
        takes_s = self.slowest_s * self._rng.random() ** 3
        if self._rng.random() < 0.5:
            outcome = _outcome(function, args)
            self._loop.call_later(takes_s, _tell, future, *outcome)
        else:
            self._loop.call_later(takes_s, lambda: _tell(future, *_outcome(function, args)))
        return future

    def close(self) -> None:
        """Drop all results that are still due."""


def _outcome(function: Callable[..., T], args: tuple[object, ...]) -> tuple[T | None, Exception | None]:
    try:
        return function(*args), None
    except Exception as error:  # noqa: BLE001  it belongs to whoever awaits
        return None, error


def _tell(future: asyncio.Future[T], result: T, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
