"""The client's interfaces to the operating system, and their real implementations: the only module of the client that
imports `random` and `time`. The client uses the event loop's time, and takes wall clock times as arguments; only OAuth
tokens, which are fetched on a thread, use the system's clock.
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
    """Randomness for backoff and for spreading records, without secrets. `random.Random` implements it."""

    def uniform(self, a: float, b: float) -> float:
        """A number between `a` and `b`."""
        ...

    def choice(self, seq: Sequence[T]) -> T:
        """One of the elements."""
        ...


class Network(Protocol):
    """Opens connections."""

    async def connect(self, protocol_factory: Callable[[], P], host: str, port: int) -> tuple[asyncio.BaseTransport, P]:
        """Open a connection. Raises OSError, for example when no server listens."""
        ...


class LoopNetwork:
    """TCP through the running event loop."""

    async def connect(self, protocol_factory: Callable[[], P], host: str, port: int) -> tuple[asyncio.BaseTransport, P]:
        return await asyncio.get_running_loop().create_connection(protocol_factory, host, port)


def system_random() -> Random:
    """A generator with a new seed."""
    return random.Random()  # noqa: S311 not for secrets


def wall_clock_s() -> float:
    """Seconds since 1970."""
    return time.time()


def pause(seconds: float) -> None:
    """Block the calling thread, which must not be the event loop's."""
    time.sleep(seconds)


def new_nonce() -> str:
    """A unique, unguessable string."""
    return f"{random.SystemRandom().getrandbits(128):032x}"
