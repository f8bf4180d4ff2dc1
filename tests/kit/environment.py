"""The broker's environment for tests: a clock that stands still, randomness from a seed, no threads."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from environment.contract import Clock
from protocol.uuids import Uuid

T = TypeVar("T")


def uuid_of(number: int) -> Uuid:
    """The id whose 16 bytes are `number`."""
    return Uuid(number.to_bytes(16, "big"))


def slice_of(checks: int) -> Callable[[], bool]:
    """A slice that ends at the check with this number."""
    left = checks

    def should_yield() -> bool:
        nonlocal left
        left -= 1
        return left <= 0

    return should_yield


class ManualClock(Clock):
    """Stands still unless a test moves it. `ms` moves both clocks; `set_back_ms` is how far the wall clock was set
    back.
    """

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000
        self.set_back_ms = 0

    def now_ms(self) -> int:
        return self.ms - self.set_back_ms

    def monotonic_s(self) -> float:
        return self.ms / 1000


class CountedSlices(ManualClock):
    """Ends each slice after `checks` checks, and sets the same limit for elements handled at once."""

    def __init__(self, checks: int) -> None:
        super().__init__()
        self._checks = checks

    def begin_slice(self, seconds: float) -> Callable[[], bool]:
        return slice_of(self._checks)

    def elements_at_once(self, most: int) -> int:
        return min(most, self._checks)


class SeededRandom:
    """A Random from a seed."""

    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)

    def randrange(self, stop: int) -> int:
        return self._random.randrange(stop)

    def uuid(self) -> Uuid:
        return Uuid.version_4(self._random.getrandbits(128))


class InlineExecutor:
    """Runs everything at once, on the event loop."""

    def run(self, function: Callable[..., T], /, *args: object) -> Awaitable[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        try:
            future.set_result(function(*args))
        except Exception as error:  # noqa: BLE001  it belongs to whoever awaits
            future.set_exception(error)
        return future

    def close(self) -> None:
        """Do nothing: no thread or process is running."""
