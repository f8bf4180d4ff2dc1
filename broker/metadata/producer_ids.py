"""Producer ids out of blocks that no other broker gets (Kafka's ZkProducerIdManager)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from cluster.znodes import ProducerIdBlock


class ProducerIds:
    """Hands out ids. `allocate_block` gets the next block from the coordination tree."""

    def __init__(self, allocate_block: Callable[[], Awaitable[ProducerIdBlock]]) -> None:
        self._allocate_block = allocate_block
        self._next = 0
        self._last = -1
        self._allocating = asyncio.Lock()

    async def next_id(self) -> int:
        """An id that no producer has had. Raises what `allocate_block` raises when it has no more."""
        async with self._allocating:
            if self._next > self._last:
                block = await self._allocate_block()
                self._next, self._last = block.first, block.last
            producer_id = self._next
            self._next += 1
            return producer_id
