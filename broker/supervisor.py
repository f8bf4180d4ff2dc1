"""The broker's background work: started in one place, watched, and ended in one place."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

logger = logging.getLogger("kafka.server.Supervisor")


class Supervisor:
    """Owns periodic tasks. A round that fails is logged and the next one comes as usual."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def every(
        self, interval_ms: int, name: str, work: Callable[[], Awaitable[None]], *, initial_delay_ms: int | None = None
    ) -> None:
        """Run `work` every `interval_ms`, first after `initial_delay_ms` (the interval unless given)."""
        first_ms = interval_ms if initial_delay_ms is None else initial_delay_ms
        task = asyncio.get_running_loop().create_task(self._repeat(interval_ms, first_ms, name, work), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _repeat(self, interval_ms: int, first_ms: int, name: str, work: Callable[[], Awaitable[None]]) -> None:
        delay_ms = first_ms
        while True:
            await asyncio.sleep(delay_ms / 1000)
            delay_ms = interval_ms
            try:
                await work()
            except Exception:
                logger.exception("Background task %s failed; it runs again in %d ms", name, interval_ms)

    async def stop(self) -> None:
        """Cancel everything and wait for the end of it."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
