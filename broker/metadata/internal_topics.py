"""Creates internal topics when they are first needed, each once at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from protocol.errors import ApiError

logger = logging.getLogger("kafka.server.AutoTopicCreationManager")


class InternalTopicCreator:
    """`ensure(name)` creates a topic unless it exists."""

    def __init__(self, ensure: Callable[[str], Awaitable[None]]) -> None:
        self._ensure = ensure
        self._creating: dict[str, asyncio.Task[None]] = {}

    async def created(self, name: str, patience_s: float) -> None:
        """Return when the topic is created, cannot be created, or `patience_s` is over; the creation then continues."""
        task = self._creating.get(name)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._create(name), name=f"create {name}")
            self._creating[name] = task
        await asyncio.wait([task], timeout=patience_s)

    async def _create(self, name: str) -> None:
        try:
            await self._ensure(name)
        except ApiError as error:
            logger.error("The internal topic %s cannot be created: %s", name, error)
        finally:
            del self._creating[name]

    async def close(self) -> None:
        """Cancel the creations under way."""
        tasks = list(self._creating.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
