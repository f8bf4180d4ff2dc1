"""Reads of the coordination tree that are made again whenever something has changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from broker.controller.cluster_membership import PAUSE_AFTER_BUG_S, RETRY_S
from cluster.zookeeper.coordination import ConnectionLossError, EventType, SessionExpiredError, WatchEvent

logger = logging.getLogger("kafka.zookeeper.ZooKeeperClient")


class Refreshing:
    """Calls `refresh` when a watch fires, and again while there is no contact to the tree. A session that ends is
    followed by another one, which begins with a refresh by its owner.
    """

    def __init__(self, name: str, refresh: Callable[[], Awaitable[None]]) -> None:
        """`refresh` may raise CoordinationError; `name` is that of the tasks."""
        self._name = name
        self._refresh = refresh
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._is_closed = False

    def watch(self, event: WatchEvent) -> None:
        """A watch for the tree."""
        if event.type is not EventType.SESSION_EXPIRED:
            self.begin()

    def begin(self) -> None:
        """Refresh on the side."""
        if not self._is_closed:
            task = asyncio.get_running_loop().create_task(self._on_the_side(), name=self._name)
            self._tasks[task] = None
            task.add_done_callback(self._tasks.pop)

    async def _on_the_side(self) -> None:
        while not self._is_closed:
            try:
                await self.until_done()
            except Exception:  # a bug; but the watch is gone, and no change would be noticed any more
                logger.exception("%s failed; trying again in %d s", self._name, PAUSE_AFTER_BUG_S)
                await asyncio.sleep(PAUSE_AFTER_BUG_S)
            else:
                return

    async def until_done(self) -> None:
        """Refresh, and wait for contact if there is none, no longer than this session lasts."""
        while not self._is_closed:
            try:
                await self._refresh()
            except ConnectionLossError:
                await asyncio.sleep(RETRY_S)
            except SessionExpiredError:
                return
            else:
                return

    async def close(self) -> None:
        """Refresh no more."""
        self._is_closed = True
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))
