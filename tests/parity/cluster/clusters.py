"""A cluster of three Apache Kafka brokers and one of three Odradek brokers, on one ZooKeeper, with the same
configuration.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.kit.apache_kafka import await_controller, java_server
from tests.kit.broker_process import BrokerProcess, free_port
from tests.kit.waiting import eventually

BROKERS = (0, 1, 2)
SETTINGS = {
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": "3",
    "default.replication.factor": "3",
    "num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    # No automatic moves, and no deletion of old records.
    "auto.leader.rebalance.enable": "false",
    "log.retention.ms": "-1",
    "controlled.shutdown.retry.backoff.ms": "200",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}


class Broker(Protocol):
    """One broker of a cluster."""

    address: str

    def start(self) -> None:
        """Return when it listens."""
        ...

    def stop(self) -> object:
        """Stop cleanly, if it is running."""
        ...


class ApacheBroker:
    """An Apache Kafka broker."""

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self._properties = directory / "server.properties"
        self._running = contextlib.ExitStack()
        directory.mkdir(parents=True)
        all_settings = {"listeners": f"PLAINTEXT://{self.address}", "log.dirs": str(directory / "data"), **settings}
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in all_settings.items()))

    def start(self) -> None:
        """See `Broker`. Raises RuntimeError with its output."""
        port = int(self.address.rpartition(":")[2])
        self._running.enter_context(java_server("kafka.Kafka", self._properties, port))

    def stop(self) -> None:
        """See `Broker`."""
        self._running.close()


class ClusterTarget(NamedTuple):
    """The addresses and data directories of its brokers, by id."""

    addresses: tuple[str, ...]
    data_directories: tuple[str, ...]


class Cluster:
    """Brokers 0, 1 and 2 in the racks a, b and b. Broker 0 starts first, so it is the controller."""

    def __init__(self, directory: Path, zookeeper: str, new_broker: Callable[[Path, dict[str, str]], Broker]) -> None:
        """`zookeeper` is its address with a separate chroot for this cluster."""
        self.brokers: dict[int, Broker] = {}
        for number in BROKERS:
            settings = {
                "broker.id": str(number),
                "zookeeper.connect": zookeeper,
                "broker.rack": "a" if number == 0 else "b",
                **SETTINGS,
            }
            self.brokers[number] = new_broker(directory / f"broker-{number}", settings)
        directories = (str(directory / f"broker-{number}" / "data") for number in BROKERS)
        self.target = ClusterTarget(tuple(broker.address for broker in self.brokers.values()), tuple(directories))

    @classmethod
    def of_apache(cls, directory: Path, zookeeper: str) -> Self:
        """A cluster of Apache Kafka; not started."""
        return cls(directory, zookeeper, ApacheBroker)

    @classmethod
    def of_odradek(cls, directory: Path, zookeeper: str) -> Self:
        """A cluster of Odradek; not started."""
        return cls(directory, zookeeper, BrokerProcess)

    def start(self) -> None:
        """Start, and return once every broker knows all of them."""
        first, *others = self.brokers.values()
        first.start()
        await_controller(first.address)
        for broker in others:
            broker.start()
        self.await_brokers(*BROKERS)

    def await_brokers(self, *wanted: int) -> None:
        """Wait until the metadata of each broker consists of exactly these brokers."""
        for number in wanted:
            admin = AdminClient({"bootstrap.servers": self.brokers[number].address, "log_level": 0})
            eventually(
                f"brokers {wanted}, told by {number}",
                lambda admin=admin: sorted(admin.list_topics(timeout=5).brokers),  # type: ignore[misc]
                lambda found: found == sorted(wanted),
                not_yet=(KafkaException,),
            )

    def stop(self) -> None:
        """Stop all, the controller last."""
        for broker in reversed(self.brokers.values()):
            broker.stop()
