"""Interfaces to the machine for a client, and their real implementations: the only module of the client that
imports `random` and `time`. Time is the event loop's, and the wall clock an argument of those who need one; only for
tokens of OAuth, which are got on a thread, it is this machine's.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")
P = TypeVar("P", bound=asyncio.BaseProtocol)


class Random(Protocol):
    """Randomness for backoff and for spreading records, where nothing has to be secret. `random.Random` has it."""

    def uniform(self, a: float, b: float) -> float:
        """A number between `a` and `b`."""
        ...

    def choice(self, seq: Sequence[T]) -> T:
        """One of the elements."""
        ...


class Network(Protocol):
    """Opens connections."""

    async def connect(self, protocol_factory: Callable[[], P], host: str, port: int) -> tuple[asyncio.BaseTransport, P]:
        """Open a connection. Raises OSError when nothing listens there."""
        ...


class LoopNetwork:
    """TCP through the running event loop."""

    async def connect(self, protocol_factory: Callable[[], P], host: str, port: int) -> tuple[asyncio.BaseTransport, P]:
        return await asyncio.get_running_loop().create_connection(protocol_factory, host, port)


def system_random() -> Random:
    """Another sequence each time."""
    return random.Random()  # noqa: S311  no secrets


def wall_clock_s() -> float:
    """Seconds since 1970."""
    return time.time()


def pause(seconds: float) -> None:
    """Hold up a thread, which is never that of the event loop."""
    time.sleep(seconds)


def new_nonce() -> str:
    """A text that nobody can guess, and that no other call gives."""
    return f"{random.SystemRandom().getrandbits(128):032x}"
