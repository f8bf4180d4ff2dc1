"""The broker's background work: started in one place, watched, and ended in one place."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from protocol.errors import ApiError

logger = logging.getLogger("kafka.server.Supervisor")


class Supervisor:
    """Owns periodic tasks. A failed round is logged; the next one follows as usual."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._at_work: set[asyncio.Task[None]] = set()
        """Tasks in a round that `stop` must not cancel."""
        self._is_stopping = False

    def every(
        self,
        interval_ms: int,
        name: str,
        work: Callable[[], Awaitable[None]],
        *,
        initial_delay_ms: int | None = None,
        asks_others: bool = False,
    ) -> None:
        """Run `work` every `interval_ms`, first after `initial_delay_ms` (default: the interval). A round that
        `asks_others` may wait for them indefinitely; `stop` cancels it.
        """
        first_ms = interval_ms if initial_delay_ms is None else initial_delay_ms
        rounds = self._repeat(interval_ms, first_ms, name, work, asks_others=asks_others)
        task = asyncio.get_running_loop().create_task(rounds, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _repeat(
        self, interval_ms: int, first_ms: int, name: str, work: Callable[[], Awaitable[None]], *, asks_others: bool
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        delay_ms = first_ms
        while not self._is_stopping:
            await asyncio.sleep(delay_ms / 1000)
            delay_ms = interval_ms
            if not asks_others:
                self._at_work.add(task)
            try:
                await work()
            except ApiError as error:
                logger.warning("Background task %s: %s; it runs again in %d ms", name, error, interval_ms)
            except Exception:
                logger.exception("Background task %s failed; it runs again in %d ms", name, interval_ms)
            finally:
                self._at_work.discard(task)

    async def stop(self) -> None:
        """Start no more rounds, and wait for the running ones. A thread that writes a file for a round cannot be
        interrupted, and later work may write the same file.
        """
        self._is_stopping = True
        tasks = list(self._tasks)
        for task in tasks:
            if task not in self._at_work:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
