"""The interfaces to everything nondeterministic that a server touches. They are constructor arguments.

A whole cluster can run in one process on virtual time, reproducibly from a seed, but only if all code gets its time,
random numbers, threads and sockets through these interfaces. `FileSystem` (storage) is defined where it is used. Timers
come from the event loop (`loop.call_later`): a simulated loop brings simulated timers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from protocol.uuids import Uuid

T = TypeVar("T")
P = TypeVar("P", bound=asyncio.BaseProtocol)


class Clock(Protocol):
    """Time. `now_ms` is wall-clock milliseconds since 1970 and may jump; `monotonic_s` never goes back."""

    def now_ms(self) -> int: ...

    def monotonic_s(self) -> float: ...

    def begin_slice(self, seconds: float) -> Callable[[], bool]:
        """Start a slice of work; the returned function says whether it has lasted `seconds`.

        Work takes zero virtual time in a simulation, so slices end at points derived from the seed.
        """
        now_s = self.monotonic_s
        ends_s = now_s() + seconds
        return lambda: now_s() >= ends_s

    def elements_at_once(self, most: int) -> int:
        """How many elements of a request to handle in one go, given the intended maximum `most`. A simulation returns
        fewer, so that its small requests are handled in slices, too.
        """
        return most


class Random(Protocol):
    """Randomness."""

    def randrange(self, stop: int) -> int:
        """An integer in [0, stop)."""
        ...

    def uuid(self) -> Uuid:
        """A random id (version 4) whose Kafka text form does not begin with a dash."""
        ...


class Executor(Protocol):
    """Runs blocking calls off the event loop: fsync, cold reads, recovery."""

    def run(self, function: Callable[..., T], /, *args: object) -> Awaitable[T]:
        """Call `function(*args)` off the loop; the awaitable yields its result or raises its exception."""
        ...

    def close(self) -> None:
        """Wait for running calls and accept no more."""
        ...


class Listener(Protocol):
    """A bound address that does not listen until `listen`. So a broker knows that its ports are free before it touches
    anything.
    """

    @property
    def port(self) -> int:
        """The bound port, which differs from the requested one if that was 0."""
        ...

    def listen(self) -> None:
        """Start to queue connections until `start` accepts them. Raises OSError when another process came first."""
        ...

    async def start(self, protocol_factory: Callable[[], asyncio.BaseProtocol]) -> None:
        """Accept connections, beginning with the queued ones."""
        ...

    async def close(self) -> None:
        """Stop accepting; established connections are the caller's."""
        ...


class Network(Protocol):
    """Sockets."""

    def bind(self, host: str | None, port: int) -> Listener:
        """Bind `host` (None: every interface) and `port`. Raises OSError when the address is not available."""
        ...

    async def connect(self, protocol_factory: Callable[[], P], host: str, port: int) -> tuple[asyncio.BaseTransport, P]:
        """Open a connection. Raises OSError when nothing listens there."""
        ...

    async def addresses_of(self, host: str) -> list[str]:
        """The IP addresses of a host, IPv4 first; never empty. Raises OSError when the name cannot be resolved."""
        ...

    def host_name(self) -> str:
        """The name of this machine for other machines."""
        ...
