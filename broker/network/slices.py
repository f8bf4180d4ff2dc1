"""Work in slices: an expensive request lets the event loop serve others in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final, TypeVar

from broker.environment.contract import Clock

T = TypeVar("T")

SLICE_S: Final = 0.005
"""How long one request, or the requests that came in one packet, may hold the event loop."""


async def in_slices(items: Iterable[T], clock: Clock, slice_s: float = SLICE_S) -> AsyncIterator[T]:
    """Iterate over `items`, and give the event loop its turn whenever `slice_s` have been spent on them.

    The connection waits for the handler's coroutine, so the order of effects stays. Other connections are served in
    between: what was looked up before an item need not be true at the next one.
    """
    ends_s = clock.monotonic_s() + slice_s
    for item in items:
        yield item
        if clock.monotonic_s() >= ends_s:
            await asyncio.sleep(0)
            ends_s = clock.monotonic_s() + slice_s
