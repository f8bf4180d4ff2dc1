"""Several brokers of one kind on one ZooKeeper, measured as one: their costs are added up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Self

from kazoo.client import KazooClient

from bench.brokers import SESSION_TIMEOUT_MS, Broker, ZooKeeper, await_listening
from bench.processes import cpu_s

REPLICAS: Final = 3
_PATIENCE_S: Final = 30.0

SETTINGS = {
    "default.replication.factor": str(REPLICAS),
    "offsets.topic.replication.factor": str(REPLICAS),
    "min.insync.replicas": "2",
    "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
}


class Cluster(Broker):
    """Brokers 1, 2, ... created by `make`."""

    def __init__(self, make: Callable[[], Broker], count: int) -> None:
        self._make = make
        self.members = [make() for _ in range(count)]
        self.name = self.members[0].name
        super().__init__()
        self.port = self.members[0].port
        self.address = ",".join(member.address for member in self.members)
        self.zookeeper = ZooKeeper(self.directory)

    def another(self) -> Broker:
        """Another cluster of the same size, with a separate ZooKeeper."""
        return Cluster(self._make, len(self.members))

    def prepare(self) -> None:
        """Start ZooKeeper and wait until it listens."""
        self.zookeeper.start()
        for number, member in enumerate(self.members, 1):
            member.environment = self.environment
            own = {"broker.id": str(number), "zookeeper.connect": self.zookeeper.address}
            member.settings = {**SETTINGS, **self.settings, **own}

    def launch(self) -> None:
        """Spawn all brokers."""
        for member in self.members:
            member.launch()

    def start(self) -> None:
        """Prepare, launch, wait for every port."""
        self.prepare()
        self.launch()
        for member in self.members:
            if member.process is not None:
                await_listening(member.port, member.process)

    def member(self, broker_id: int) -> Broker:
        """One of the brokers."""
        return self.members[broker_id - 1]

    def build_fast(self) -> None:
        """Compile the record code of each broker."""
        for member in self.members:
            member.build_fast()

    def end(self) -> None:
        """Stop one broker after the other, so that each hands over its leaderships."""
        for member in self.members:
            member.end()

    def kill(self) -> None:
        """SIGKILL all brokers."""
        for member in self.members:
            member.kill()

    def stop(self) -> None:
        """Stop the brokers first, then ZooKeeper."""
        for member in self.members:
            member.stop()
        self.zookeeper.stop()

    def remove(self) -> None:
        """Remove the data of all brokers."""
        for member in self.members:
            member.remove()
        super().remove()

    def cpu_s(self) -> float:
        """CPU seconds of all brokers, without ZooKeeper."""
        return sum(member.cpu_s() for member in self.members if member.process is not None)

    def cpu_s_now(self) -> float:
        """CPU seconds of all brokers so far, even while they are busy."""
        return sum(cpu_s(member.pid) for member in self.members if member.process is not None)

    def rss_bytes(self) -> int:
        """Resident memory of all brokers."""
        return sum(member.rss_bytes() for member in self.members if member.process is not None)


def cluster_of(broker: Broker) -> Cluster:
    """The broker as a cluster. Raises TypeError for a single broker."""
    if not isinstance(broker, Cluster):
        raise TypeError(f"this scenario needs a cluster, not one {broker.name}")
    return broker


class SessionWatch:
    """Context manager that kills one broker of a cluster with SIGKILL, and notices the end of its ZooKeeper session."""

    ended_s = 0.0
    """When ZooKeeper dropped the broker's node, as wall-clock time."""

    def __init__(self, cluster: Cluster, broker_id: int) -> None:
        self._cluster = cluster
        self._broker_id = broker_id
        self._zookeeper = KazooClient(cluster.zookeeper.address)
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        self._zookeeper.start()
        if self._zookeeper.exists(f"/brokers/ids/{self._broker_id}", watch=self._on_change) is None:
            raise RuntimeError(f"broker {self._broker_id} is not registered")
        return self

    def __exit__(self, *_: object) -> None:
        self._zookeeper.stop()
        self._zookeeper.close()

    def _on_change(self, _: object) -> None:
        self.ended_s = time.time()
        self._ended.set()

    def kill(self) -> None:
        """Kill the broker, and return when its session has ended. Raises RuntimeError on timeout."""
        Broker.kill(self._cluster.member(self._broker_id))
        if not self._ended.wait(_PATIENCE_S):
            raise RuntimeError(f"the session of broker {self._broker_id} did not end in {_PATIENCE_S} s")
