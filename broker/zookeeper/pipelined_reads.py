"""Many reads of the coordination tree at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

READS_IN_FLIGHT = 100
"""Reads that are sent before the first is answered."""

T = TypeVar("T")
R = TypeVar("R")


async def each_of(items: Iterable[T], read: Callable[[T], Awaitable[R]]) -> list[R]:
    """The result of `read` for each of the items, in their order; many are asked for before the first is answered."""
    waiting = list(enumerate(items))
    results: dict[int, R] = {}
    left = iter(waiting)

    async def read_some() -> None:
        for at, item in left:
            results[at] = await read(item)

    await asyncio.gather(*[read_some() for _ in range(min(len(waiting), READS_IN_FLIGHT))])
    return [results[at] for at in range(len(waiting))]
