"""Limits on TLS handshakes: how many hold memory, how many a thread works on, and how long one may take."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from broker.environment.contract import Executor

HANDSHAKE_S: Final = 10.0
"""How long a handshake may take from its first step on."""
MOST_OPEN: Final = 256
"""Handshakes that may be under way at once; further connections are not read until one ends."""
MOST_STEPS: Final = 2
"""Steps of handshakes that run at once, so that threads are left for the disks."""


class Handshakes:
    """Admits handshakes in the order in which they came, and runs their steps off the event loop."""

    def __init__(self, executor: Executor, most_open: int = MOST_OPEN) -> None:
        self._executor = executor
        self._most_open = most_open
        self._open: dict[object, None] = {}
        self._waiting: dict[object, Callable[[], None]] = {}
        self._steps: deque[tuple[Callable[[], None], Callable[[asyncio.Future[None]], None]]] = deque()
        self._running = 0

    def enter(self, connection: object, begin: Callable[[], None]) -> None:
        """Call `begin` when `connection` may begin its handshake, perhaps at once."""
        if len(self._open) < self._most_open:
            self._open[connection] = None
            begin()
        else:
            self._waiting[connection] = begin

    def leave(self, connection: object) -> None:
        """The handshake of `connection` has ended, or will not begin; may be called again."""
        self._waiting.pop(connection, None)
        if connection not in self._open:
            return
        del self._open[connection]
        if self._waiting:
            first = next(iter(self._waiting))
            self._open[first] = None
            self._waiting.pop(first)()

    def run(self, step: Callable[[], None], done: Callable[[asyncio.Future[None]], None]) -> None:
        """Run `step` on a thread when its turn comes, then `done` on the event loop."""
        self._steps.append((step, done))
        self._run_next()

    def _run_next(self) -> None:
        while self._steps and self._running < MOST_STEPS:
            step, done = self._steps.popleft()
            self._running += 1
            future = asyncio.ensure_future(self._executor.run(step))
            future.add_done_callback(self._on_step)
            future.add_done_callback(done)

    def _on_step(self, _: asyncio.Future[None]) -> None:
        self._running -= 1
        self._run_next()
