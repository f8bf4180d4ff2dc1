"""Every outside influence on a broker as one argument: the interfaces that only brokers need, the `Environment` that
holds all of them, and the one of this machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from broker.logs.cleaner_worker import ProcessWorker
from config.broker_config import BrokerConfig
from environment.contract import Clock, Executor, Network, Random
from environment.system import (
    SystemClock,
    SystemRandom,
    TcpNetwork,
    ThreadExecutor,
    available_memory,
    kafka_options,
    read_text,
    room_for_connections,
)
from protocol.value import Value
from storage.compaction.clean_task import CleanResult, CleanTask
from storage.io.file_system import FileSystem
from storage.io.os_file_system import OsFileSystem
from zookeeper.coordination import Coordination

if TYPE_CHECKING:
    from zookeeper.embedded_ensemble import EmbeddedEnsemble


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


def system_environment(config: BrokerConfig) -> Environment:
    """Real clocks, disks, threads and sockets."""
    file_system = OsFileSystem()
    return Environment(
        clock=SystemClock(),
        random=SystemRandom(),
        executor=ThreadExecutor(
            max(config.num_io_threads, config.num_recovery_threads_per_data_dir * len(config.log_dirs))
        ),
        network=TcpNetwork(config.socket_listen_backlog_size),
        file_system=file_system,
        open_ensemble=open_ensemble,
        new_cleaner_worker=ProcessWorker,
        memory_bytes=available_memory(),
        most_connections=room_for_connections(file_system.max_open_files),
    )


async def open_ensemble(
    environment: Environment, config: BrokerConfig, on_failure: Callable[[OSError], None]
) -> Ensemble:
    """The environment's OpenEnsemble: ZooKeeper if `zookeeper.connect` names one, else the embedded znode tree."""
    if config.zookeeper_address is None:
        return await open_embedded(environment, config, on_failure)
    # A standalone broker needs none of these modules and starts faster without them.
    from broker.zookeeper.kazoo_session import KazooEnsemble
    from security.jaas import system_properties, zookeeper_login

    login = zookeeper_login(system_properties(kafka_options()), read_text)
    return KazooEnsemble(config.zookeeper_address, config, login)


async def open_embedded(
    environment: Environment, config: BrokerConfig, on_failure: Callable[[OSError], None]
) -> EmbeddedEnsemble:
    """Recover the tree in the first log directory, or create a new one; see `DurableTree.open`."""
    # Brokers of a cluster need none of these modules.
    from zookeeper.durable_tree import DurableTree
    from zookeeper.embedded_ensemble import EmbeddedEnsemble

    clock, executor = environment.clock, environment.executor
    tree = await executor.run(DurableTree.open, environment.file_system, config.log_dirs[0], clock.now_ms())
    return EmbeddedEnsemble(tree, executor, clock, on_failure)
