"""Reads of the coordination tree: many at a time, and past nodes that cannot be understood."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from cluster.znodes import ZnodeFormatError

READS_IN_FLIGHT = 100
"""Reads that are sent before the first is answered."""

logger = logging.getLogger("kafka.zk.KafkaZkClient")

T = TypeVar("T")
R = TypeVar("R")


async def each_of(items: Iterable[T], read: Callable[[T], Awaitable[R]]) -> list[R]:
    """The result of `read` for each of the items, in their order; many are asked for before the first is answered."""
    waiting = list(enumerate(items))
    results: dict[int, R] = {}
    left = iter(waiting)

    async def read_some() -> None:
        for at, item in left:
            results[at] = await read(item)

    await asyncio.gather(*[read_some() for _ in range(min(len(waiting), READS_IN_FLIGHT))])
    return [results[at] for at in range(len(waiting))]


class DamagedNodes:
    """The nodes that this broker found damaged. The log names each once, and once more when it can be read again."""

    def __init__(self) -> None:
        self._reported: dict[str, str] = {}

    def report(self, error: ZnodeFormatError, consequence: str) -> None:
        """A node cannot be read; `consequence` says what does not work until it is rewritten."""
        if self._reported.get(error.path) != str(error):
            self._reported[error.path] = str(error)
            logger.error("%s; until it is rewritten, %s", error, consequence)

    def is_readable(self, path: str) -> None:
        """A node can be read, or is gone."""
        if self._reported and self._reported.pop(path, None) is not None:
            logger.info("%s can be read again, or is gone", path)
