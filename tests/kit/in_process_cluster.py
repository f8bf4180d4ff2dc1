"""Several whole brokers in one process, over one coordination tree, connected by TCP on the loopback interface.

Their disks are in memory. Everything else is real, so a test can stop a broker or expire its session, and watch the
others take over. Killed brokers are covered by the simulation and by the tests with real processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Self

from broker.broker_environment import Ensemble, Environment, open_embedded
from broker.server import KafkaServer
from cluster.znodes import PartitionState, partition_state_path
from config.broker_config import BrokerConfig
from environment.system import SystemClock, TcpNetwork, ThreadExecutor
from tests.kit.environment import InlineExecutor, SeededRandom
from tests.kit.executor_worker import ExecutorWorker
from tests.kit.memory_file_system import MemoryFileSystem
from zookeeper.coordination import Coordination
from zookeeper.embedded_ensemble import EmbeddedEnsemble

SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "log.dirs": "/data",
    "offsets.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
}


class SharedEnsemble:
    """One embedded tree for all brokers; it stays open when one of them closes it."""

    is_shared = True

    def __init__(self) -> None:
        self._tree: EmbeddedEnsemble | None = None

    async def open(self, environment: Environment, *_: object) -> Ensemble:
        """The environment's OpenEnsemble."""
        if self._tree is None:
            disk = MemoryFileSystem()
            disk.make_dirs("/data")
            own = environment.replace(executor=InlineExecutor(), file_system=disk)
            self._tree = await open_embedded(own, BrokerConfig(SETTINGS | {"broker.id": "0"}), _tree_failed)
        return self

    def session(self) -> Coordination:
        """A new session, not yet connected."""
        return self.tree.session()

    @property
    def tree(self) -> EmbeddedEnsemble:
        """The tree, once the first broker has opened it."""
        assert self._tree is not None
        return self._tree

    async def close(self) -> None:
        """Do nothing: other brokers still use the tree."""


def _tree_failed(error: OSError) -> None:
    raise AssertionError("the coordination tree in memory failed") from error


class InProcessCluster:
    """`async with InProcessCluster(3) as cluster`: brokers 0, 1 and 2 serve; they are shut down cleanly at the end."""

    def __init__(self, size: int, **settings: str) -> None:
        """`settings` apply to every broker, with underscores for dots."""
        self._settings = SETTINGS | {name.replace("_", "."): value for name, value in settings.items()}
        self._size = size
        self._file_systems = [MemoryFileSystem() for _ in range(size)]
        self.ensemble = SharedEnsemble()
        self.brokers: dict[int, KafkaServer] = {}
        """The running brokers, by id."""

    async def __aenter__(self) -> Self:
        for broker_id in range(self._size):
            await self.start(broker_id)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(self.stop(broker_id) for broker_id in list(self.brokers)))

    async def start(self, broker_id: int) -> KafkaServer:
        """Start a broker on its existing disk."""
        file_system, executor = self._file_systems[broker_id], ThreadExecutor(2)
        server = KafkaServer(
            BrokerConfig(self._settings | {"broker.id": str(broker_id)}),
            environment=Environment(
                clock=SystemClock(),
                random=SeededRandom(broker_id),
                executor=executor,
                network=TcpNetwork(50),
                file_system=file_system,
                open_ensemble=self.ensemble.open,
                new_cleaner_worker=partial(ExecutorWorker, file_system, executor),
            ),
        )
        await server.start()
        self.brokers[broker_id] = server
        return server

    async def stop(self, broker_id: int) -> None:
        """Shut a broker down cleanly."""
        await self.brokers.pop(broker_id).shutdown()

    async def expire_session(self, broker_id: int) -> None:
        """Expire the session of a broker, which then begins another one."""
        await self.ensemble.tree.expire(self.brokers[broker_id].serving.coordination.membership.coordination.session_id)

    def disk(self, broker_id: int) -> MemoryFileSystem:
        """The disk of a broker. Change it only while the broker is stopped."""
        return self._file_systems[broker_id]

    async def set_state(self, topic: str, partition: int, change: Callable[[PartitionState], PartitionState]) -> None:
        """Replace the state of a partition in the tree, without the controller's knowledge."""
        session = self.ensemble.session()
        await session.connect()
        try:
            path = partition_state_path(topic, partition)
            state = PartitionState.decode(topic, partition, (await session.get(path))[0])
            await session.set(path, change(state).encode())
        finally:
            await session.close()

    def address(self, broker_id: int) -> str:
        """Host and port of a broker."""
        return f"127.0.0.1:{self.brokers[broker_id].ports['PLAINTEXT']}"

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all running brokers."""
        return ",".join(map(self.address, self.brokers))
