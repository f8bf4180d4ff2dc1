"""Waiting for conditions, so that no test sleeps for a time that it hopes is enough."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = float(os.environ.get("ODRADEK_PATIENCE_S", "60"))
"""Shorter in tests that run other tests to see them fail."""


def eventually(
    what: str,
    observe: Callable[[], T],
    holds: Callable[[T], bool] = bool,
    *,
    not_yet: tuple[type[Exception], ...] = (),
    patience_s: float = PATIENCE_S,
    pause_s: float = 0.05,
) -> T:
    """Observe until the condition holds, and return the observed value; fails with the last one. An error of the kinds
    `not_yet` counts as an observation that does not hold.
    """
    deadline = time.monotonic() + patience_s
    while True:
        last: object
        try:
            last = seen = observe()
            if holds(seen):
                return seen
        except not_yet as error:
            last = repr(error)
        assert time.monotonic() < deadline, f"{what}: still {last}"
        time.sleep(pause_s)


async def eventually_async(
    what: str,
    observe: Callable[[], Awaitable[T]],
    holds: Callable[[T], bool] = bool,
    *,
    patience_s: float = PATIENCE_S,
    pause_s: float = 0.001,
) -> T:
    """Like `eventually`, with an async observation."""
    deadline = time.monotonic() + patience_s
    while not holds(seen := await observe()):
        assert time.monotonic() < deadline, f"{what}: still {seen}"
        await asyncio.sleep(pause_s)
    return seen


async def eventually_on_loop(what: str, is_so: Callable[[], object], *, pause_s: float = 0.0) -> None:
    """Run the event loop until it holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S:.0f} s: {what}"
        await asyncio.sleep(pause_s)


async def turns(count: int = 50) -> None:
    """Run everything that is ready."""
    for _ in range(count):
        await asyncio.sleep(0)
