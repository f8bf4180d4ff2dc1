"""Apache Kafka and Odradek on one ZooKeeper, either of them as the controller."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata, NewTopic
from kazoo.client import KazooClient

from tests.kit.apache_kafka import ApacheKafka
from tests.kit.broker_process import BrokerProcess, free_port
from tests.kit.controller.reassigning import elect_controller, metadata_of
from tests.kit.waiting import eventually

T = TypeVar("T")

APACHE, ODRADEK = 0, 7
NOBODY = 99
"""A registered broker that never answers: a move to it stays pending as long as a test wants."""


class Cluster:
    """Both brokers on one ZooKeeper, each with two log directories."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        settings = {
            "zookeeper.session.timeout.ms": "18000",
            # The first check is due seconds after the controller's election, possibly during a test.
            "auto.leader.rebalance.enable": "false",
        }
        log_dirs = {broker: [directory / f"{broker}-{name}" for name in "ab"] for broker in (APACHE, ODRADEK)}
        self.log_dirs = {broker: [str(path) for path in paths] for broker, paths in log_dirs.items()}
        own = {broker: settings | {"log.dirs": ",".join(paths)} for broker, paths in self.log_dirs.items()}
        # Odradek stops first, and Apache Kafka would wait for another broker to take over.
        self._apache = ApacheKafka(directory / "apache", own[APACHE] | {"controlled.shutdown.enable": "false"})
        self._odradek = BrokerProcess(
            directory / "odradek",
            own[ODRADEK] | {"broker.id": str(ODRADEK), "zookeeper.connect": self._apache.zookeeper_address},
        )
        self.zookeeper = KazooClient(self._apache.zookeeper_address)

    def start(self) -> None:
        """Start everything."""
        self._apache.start()
        self._odradek.start()
        self.zookeeper.start()

    def stop(self) -> None:
        """End everything."""
        self.zookeeper.stop()
        self.zookeeper.close()
        self._odradek.stop()
        self._apache.stop()

    @property
    def addresses(self) -> str:
        """The addresses of both brokers."""
        return f"{self._apache.address},{self._odradek.address}"

    @functools.cached_property
    def admin(self) -> AdminClient:
        """A librdkafka admin client."""
        return AdminClient({"bootstrap.servers": self.addresses, "log_level": 0})

    def elect_controller(self, wanted: int) -> None:
        """Make the broker the controller, and wait until both know it."""
        elect_controller(self.zookeeper, {wanted})
        self._await_told(
            "both brokers, and the controller",
            lambda seen: (sorted(seen.brokers), seen.controller_id),
            lambda found: found == ([APACHE, ODRADEK], wanted),
        )
        self.admin.list_topics(timeout=10)  # otherwise librdkafka would continue to use its old controller

    def create_topic(self, name: str, *assignment: list[int]) -> None:
        """Create a topic with these replicas, and wait until all are in sync."""
        topic = NewTopic(name, len(assignment), replica_assignment=list(assignment))
        self.admin.create_topics([topic])[name].result()
        self.await_in_sync(name, assignment)

    def await_in_sync(self, name: str, assignment: Sequence[list[int]]) -> None:
        """Wait until the partitions have these replicas, in sync, and both brokers know it."""

        def replicas_in(seen: ClusterMetadata) -> list[tuple[list[int], list[int]]]:
            partitions = seen.topics[name].partitions
            return [(partitions[number].replicas, sorted(partitions[number].isrs)) for number in sorted(partitions)]

        wanted = [(replicas, sorted(replicas)) for replicas in assignment]
        self._await_told(f"the replicas of {name}", replicas_in, lambda found: found == wanted)

    def _await_told(self, what: str, read: Callable[[ClusterMetadata], T], holds: Callable[[T], bool]) -> None:
        """Wait until this holds for the answers of both brokers: a tool asks any of them."""
        for address in self.addresses.split(","):
            eventually(
                f"{what} at {address}",
                lambda at=address: read(metadata_of(at)),  # type: ignore[misc]
                holds,
                not_yet=(KafkaException, KeyError),
            )

    @contextlib.contextmanager
    def with_nobody(self, rack: str | None = None) -> Iterator[None]:
        """For the duration of a block, register a broker with a dead port, optionally in a rack."""
        port = free_port()
        registration: dict[str, Any] = {
            "features": {},
            "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
            "endpoints": [f"PLAINTEXT://127.0.0.1:{port}"],
            "jmx_port": -1,
            "port": port,
            "host": "127.0.0.1",
            "version": 5,
            "timestamp": "1",
        }
        if rack is not None:
            registration["rack"] = rack
        path = f"/brokers/ids/{NOBODY}"
        self.zookeeper.create(path, json.dumps(registration).encode(), ephemeral=True)
        try:
            self._await_told("a third broker", lambda seen: NOBODY in seen.brokers, bool)
            yield
        finally:
            self.zookeeper.delete(path)
            self._await_told("two brokers", lambda seen: NOBODY not in seen.brokers, bool)
