"""Creates internal topics in the background when they are first needed, once at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from protocol.errors import ApiError

logger = logging.getLogger("kafka.server.AutoTopicCreationManager")


class InternalTopicCreator:
    """`ensure(name)` creates a topic unless it exists; whoever asked for it asks again later, as Kafka's clients do."""

    def __init__(self, ensure: Callable[[str], Awaitable[None]]) -> None:
        self._ensure = ensure
        self._creating: dict[str, asyncio.Task[None]] = {}

    def create(self, name: str) -> None:
        """Begin to create `name`, unless that is under way."""
        if name not in self._creating:
            self._creating[name] = asyncio.get_running_loop().create_task(self._create(name), name=f"create {name}")

    async def _create(self, name: str) -> None:
        try:
            await self._ensure(name)
        except ApiError as error:
            logger.error("The internal topic %s cannot be created: %s", name, error)
        finally:
            del self._creating[name]

    async def close(self) -> None:
        """Give up what is under way."""
        tasks = list(self._creating.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
