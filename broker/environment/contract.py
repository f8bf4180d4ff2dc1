"""The interfaces to everything nondeterministic that the broker touches. They are constructor arguments.

A whole cluster can run in one process on virtual time, reproducibly from a seed, but only if all code gets its time,
random numbers, threads, processes and sockets through these interfaces. `Environment` holds them all; `FileSystem`
(storage) and `Coordination` (cluster) are defined where they are used. Timers come from the event loop
(`loop.call_later`): a simulated loop brings simulated timers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from cluster.zookeeper.coordination import Coordination
from config.broker_config import BrokerConfig
from protocol.uuids import Uuid
from protocol.value import Value
from storage.compaction.clean_task import CleanResult, CleanTask
from storage.io.file_system import FileSystem

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


class CleanerWorker(Protocol):
    """Does one task of compaction at a time."""

    async def clean(self, task: CleanTask, bytes_per_second: float) -> CleanResult:
        """The result of `storage.compaction.cleaner.clean`.

        Raises WorkerFailure, WorkerDiedError (also after `close`).
        """
        ...

    def change_rate(self, bytes_per_second: float) -> None:
        """Change the rate of the running task."""
        ...

    def abort(self) -> None:
        """Abort the running task, if any: it soon raises WorkerFailure of kind ABORTED."""
        ...

    async def close(self) -> None:
        """End the worker at once; a running task raises WorkerDiedError."""
        ...


class Ensemble(Protocol):
    """The service that keeps the znode tree, seen from one broker."""

    @property
    def is_shared(self) -> bool:
        """Whether other brokers may use this tree as well; False for an embedded tree."""
        ...

    def session(self) -> Coordination:
        """A new session, not yet connected: the first one, and another after each that has expired."""
        ...

    async def close(self) -> None:
        """Release the service. Open sessions stay open."""
        ...


class OpenEnsemble(Protocol):
    """Reaches the service that keeps the znode tree."""

    async def __call__(
        self, environment: Environment, config: BrokerConfig, on_failure: Callable[[OSError], None]
    ) -> Ensemble:
        """Open the service that `config` names: ZooKeeper, or an embedded tree in the first log directory. `on_failure`
        is called once when the service fails for good. Raises JournalError, CoordinationError, OSError.
        """
        ...


class Environment(Value, kw_only=True):
    """Every outside influence on a broker."""

    clock: Clock
    random: Random
    executor: Executor
    network: Network
    file_system: FileSystem
    open_ensemble: OpenEnsemble
    new_cleaner_worker: Callable[[], CleanerWorker]
    memory_bytes: int | None = None
    """Bytes of memory that this process may use, or None if not known."""
    most_connections: int | None = None
    """Connections that the operating system allows, or None for no limit."""

    def share_of_memory(self, divisor: int) -> int:
        """A fraction of the memory in bytes, or -1 (no limit) if the memory is not known."""
        return -1 if self.memory_bytes is None else self.memory_bytes // divisor
