"""The seams: everything nondeterministic that the broker touches, as constructor arguments.

A whole cluster can run in one process on virtual time from a seed only if no line of code reaches past these for the
time, a random number, a thread or a socket. `FileSystem` (storage) and `Coordination` (cluster) are the other two.
Timers are the event loop's own (`loop.call_later`): a simulated loop brings simulated timers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar
from uuid import UUID

T = TypeVar("T")


class Clock(Protocol):
    """Time. `now_ms` is wall-clock milliseconds since 1970 and may jump; `monotonic_s` never goes back."""

    def now_ms(self) -> int: ...

    def monotonic_s(self) -> float: ...


class Random(Protocol):
    """Randomness."""

    def randrange(self, stop: int) -> int:
        """An integer in [0, stop)."""
        ...

    def uuid(self) -> UUID:
        """A random (version 4) UUID, never one whose Kafka text form begins with a dash."""
        ...


class Executor(Protocol):
    """Runs what would block the event loop: fsync, cold reads, recovery."""

    def run(self, function: Callable[..., T], /, *args: object) -> Awaitable[T]:
        """Call `function(*args)` off the loop; the awaitable carries its result or exception."""
        ...

    def close(self) -> None:
        """Wait for what runs, accept nothing more."""
        ...


class Listener(Protocol):
    """A bound address, deaf until `start`: a broker knows that its ports are free before it touches anything."""

    @property
    def port(self) -> int:
        """The port really bound (the asked one may have been 0)."""
        ...

    async def start(self, protocol_factory: Callable[[], asyncio.BaseProtocol]) -> None:
        """Accept connections. Raises OSError when another process came first."""
        ...

    async def close(self) -> None:
        """Stop accepting; established connections are the caller's."""
        ...


class Network(Protocol):
    """Sockets."""

    def bind(self, host: str | None, port: int) -> Listener:
        """Take `host` (None: every interface) and `port`. Raises OSError when that address cannot be had."""
        ...
