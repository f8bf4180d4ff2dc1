"""Changes one at a time, each to its end (Kafka class `ControllerEventManager`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")

logger = logging.getLogger("kafka.controller.KafkaController")


class ChangeQueue:
    """Runs the changes of a controller in the order in which they come."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._running: dict[asyncio.Task[Any], None] = {}

    async def run(self, change: Callable[[], Awaitable[T]]) -> T:
        """Run `change` after those before it. It runs to its end even if the caller is cancelled, because between the
        transaction and the commands the tree and the brokers differ.
        """
        return await asyncio.shield(self._begin(change))

    def start(self, change: Callable[[], Awaitable[None]]) -> None:
        """As `run`, for who does not wait; an error is logged."""

        async def logged() -> None:
            try:
                await change()
            except Exception:
                logger.exception("The controller failed to react to a change")

        self._begin(logged)

    def _begin(self, change: Callable[[], Awaitable[T]]) -> asyncio.Task[T]:
        task = asyncio.create_task(self._in_turn(change))
        self._running[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        del self._running[task]
        if not task.cancelled():
            task.exception()  # nobody may be left to ask for it

    async def _in_turn(self, change: Callable[[], Awaitable[T]]) -> T:
        async with self._turn:
            return await change()

    async def close(self) -> None:
        """Wait for the changes under way."""
        while self._running:
            await asyncio.wait(list(self._running))
