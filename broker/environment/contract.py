"""The interfaces to everything nondeterministic that the broker touches. They are constructor arguments.

A whole cluster can run in one process on virtual time from a seed only if no line of code reaches past these for the
time, a random number, a thread, a process or a socket. `Environment` holds them all; `FileSystem` (storage) and
`Coordination` (cluster) are defined where they are used.
Timers are the event loop's own (`loop.call_later`): a simulated loop brings simulated timers.
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
        """Give a function that says whether the slice of work that begins now has lasted `seconds`.

        A simulation, in which no time passes during work, ends slices by its seed instead.
        """
        now_s = self.monotonic_s
        ends_s = now_s() + seconds
        return lambda: now_s() >= ends_s

    def elements_at_once(self, most: int) -> int:
        """How many elements of a request are handled in one go where `most` are meant to be. A simulation gives fewer,
        so that its small requests, too, are handled in slices.
        """
        return most


class Random(Protocol):
    """Randomness."""

    def randrange(self, stop: int) -> int:
        """An integer in [0, stop)."""
        ...

    def uuid(self) -> Uuid:
        """A random id (version 4), never one whose Kafka text form begins with a dash."""
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
    """A bound address, deaf until `listen`: a broker knows that its ports are free before it touches anything."""

    @property
    def port(self) -> int:
        """The port really bound (the asked one may have been 0)."""
        ...

    def listen(self) -> None:
        """Have connections wait until `start` accepts them. Raises OSError when another process came first."""
        ...

    async def start(self, protocol_factory: Callable[[], asyncio.BaseProtocol]) -> None:
        """Accept connections, those that wait first."""
        ...

    async def close(self) -> None:
        """Stop accepting; established connections are the caller's."""
        ...


class Network(Protocol):
    """Sockets."""

    def bind(self, host: str | None, port: int) -> Listener:
        """Take `host` (None: every interface) and `port`. Raises OSError when that address cannot be had."""
        ...

    async def connect(self, protocol_factory: Callable[[], P], host: str, port: int) -> tuple[asyncio.BaseTransport, P]:
        """Open a connection. Raises OSError when nothing listens there."""
        ...

    async def addresses_of(self, host: str) -> list[str]:
        """The IP addresses of a host, IPv4 first; never empty. Raises OSError when the name has none."""
        ...

    def host_name(self) -> str:
        """The name by which other machines reach this one."""
        ...


class CleanerWorker(Protocol):
    """Does one task of compaction at a time."""

    async def clean(self, task: CleanTask, bytes_per_second: float) -> CleanResult:
        """The result of `storage.compaction.cleaner.clean`.

        Raises WorkerFailure, WorkerDiedError (also after `close`).
        """
        ...

    def change_rate(self, bytes_per_second: float) -> None:
        """Let the task that runs go at another rate from now on."""
        ...

    def abort(self) -> None:
        """Abort the task under way, if there is one: it soon raises WorkerFailure of the kind ABORTED."""
        ...

    async def close(self) -> None:
        """End it, whatever it does; a task under way raises WorkerDiedError."""
        ...


class Ensemble(Protocol):
    """The service that keeps the znode tree, seen from one broker."""

    @property
    def is_shared(self) -> bool:
        """Whether other brokers may use this tree as well; False for the tree of a broker of its own."""
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
        """Open the service that `config` names: ZooKeeper, or a tree of the broker's own in its first log directory.
        `on_failure` is called once when the service fails for good. Raises JournalError, CoordinationError, OSError.
        """
        ...


class Environment(Value, kw_only=True):
    """Everything that a broker does not decide itself."""

    clock: Clock
    random: Random
    executor: Executor
    network: Network
    file_system: FileSystem
    open_ensemble: OpenEnsemble
    new_cleaner_worker: Callable[[], CleanerWorker]
    memory_bytes: int | None = None
    """Memory that this process may use; None: not known."""
    most_connections: int | None = None
    """Connections that the operating system allows; None: as many as come."""

    def share_of_memory(self, divisor: int) -> int:
        """That part of the memory in bytes; -1, which stands for no limit, if it is not known."""
        return -1 if self.memory_bytes is None else self.memory_bytes // divisor
