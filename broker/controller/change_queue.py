"""Changes one at a time, each to its end (Kafka class `ControllerEventManager`)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class ChangeQueue:
    """Runs the changes of a controller in the order in which they come."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._running: dict[asyncio.Task[Any], None] = {}

    async def run(self, change: Coroutine[Any, Any, T]) -> T:
        """Run `change` after those before it. It runs to its end even if the caller is cancelled, because between the
        transaction and the commands the tree and the brokers differ.
        """
        task = asyncio.create_task(self._in_turn(change))
        self._running[task] = None
        task.add_done_callback(self._running.pop)
        return await asyncio.shield(task)

    async def _in_turn(self, change: Coroutine[Any, Any, T]) -> T:
        async with self._turn:
            return await change

    async def close(self) -> None:
        """Wait for the changes under way."""
        if self._running:
            await asyncio.wait(self._running)
