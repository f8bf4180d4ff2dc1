"""Apache Kafka 3.9.1 and Odradek on one ZooKeeper: either is the controller, leads and follows the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ClusterMetadata, NewPartitions, NewTopic

from tests.kit.apache_kafka import await_controller, java_server, zookeeper
from tests.kit.broker_process import BrokerProcess, free_port
from tests.kit.waiting import eventually
from tests.kit.zookeeper import served_tree

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(300)]

APACHE, ODRADEK = 0, 7
FIRST_SEGMENT = "00000000000000000000.log"
ANSWER_S = 10

Coordination = Callable[[Path], contextlib.AbstractContextManager[str]]


class Mixed(NamedTuple):
    """Two brokers. Both hold both partitions of the topic `t`; each prefers to lead one."""

    apache_address: str
    apache_data: Path
    odradek: BrokerProcess
    odradek_data: Path
    zookeeper_address: str

    @property
    def addresses(self) -> str:
        """The addresses of both, for clients that survive one of them."""
        return f"{self.apache_address},{self.odradek.address}"

    def create_topic(self, at: str) -> None:
        """Create `t`, and wait until both brokers know it."""
        topic = NewTopic("t", 2, replica_assignment=[[ODRADEK, APACHE], [APACHE, ODRADEK]])
        admin = AdminClient({"bootstrap.servers": at, "log_level": 0})
        admin.create_topics([topic])["t"].result()
        self.await_state({0: ODRADEK, 1: APACHE}, [APACHE, ODRADEK])

    def grow_and_delete_another(self, at: str) -> None:
        """Create, extend and delete a topic: both brokers learn of it, and delete their replicas."""
        admin = AdminClient({"bootstrap.servers": at, "log_level": 0})
        admin.create_topics([NewTopic("gone", 3, 2)])["gone"].result()
        admin.create_partitions([NewPartitions("gone", 5)])["gone"].result()
        for address in (self.apache_address, self.odradek.address):
            eventually(
                f"the topic at {address}",
                lambda to=address: [len(each.isrs) for each in _metadata(to).topics["gone"].partitions.values()],
                lambda seen: seen == [2] * 5,
                not_yet=(KafkaException, KeyError),
            )
        admin.delete_topics(["gone"])["gone"].result()
        for address, directory in ((self.apache_address, self.apache_data), (self.odradek.address, self.odradek_data)):
            eventually(
                f"no topic at {address}",
                lambda to=address: "gone" not in _metadata(to).topics,
                not_yet=(KafkaException,),
            )
            eventually("no replicas", lambda at=directory: not any((at / f"gone-{n}").exists() for n in range(5)))

    def await_brokers(self, controller: int) -> None:
        """Wait until both brokers know each other and the controller."""
        for address in (self.apache_address, self.odradek.address):
            eventually(
                f"both brokers at {address}",
                lambda at=address: _metadata(at),
                lambda seen: (sorted(seen.brokers), seen.controller_id) == ([APACHE, ODRADEK], controller),
                not_yet=(KafkaException,),
            )

    def await_state(self, leaders: dict[int, int], in_sync: list[int]) -> None:
        """Wait until every in-sync broker reports these leaders and in-sync replicas."""
        for broker_id, address in ((APACHE, self.apache_address), (ODRADEK, self.odradek.address)):
            if broker_id in in_sync:
                eventually(
                    f"the partitions at {address}",
                    lambda at=address: _partitions(at),
                    lambda seen: seen == {number: (leader, in_sync) for number, leader in leaders.items()},
                    not_yet=(KafkaException, KeyError),
                )

    def await_in_sync(self) -> None:
        """Wait until both brokers are in sync, whichever leads."""
        eventually(
            "both in sync",
            lambda: [in_sync for _, in_sync in _partitions(self.apache_address).values()],
            lambda seen: seen == [[APACHE, ODRADEK]] * 2,
            not_yet=(KafkaException, KeyError),
        )

    def check_replicas(self) -> None:
        """Wait until the files of both brokers are equal."""
        for number in range(2):
            both = [directory / f"t-{number}" / FIRST_SEGMENT for directory in (self.apache_data, self.odradek_data)]
            eventually(f"the replicas of t-{number}", lambda paths=both: _same(*paths))


def _same(one: Path, other: Path) -> bool:
    return one.stat().st_size > 0 and one.read_bytes() == other.read_bytes()


def _metadata(address: str) -> ClusterMetadata:
    return AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=ANSWER_S)


def _partitions(address: str) -> dict[int, tuple[int, list[int]]]:
    """Leader and in-sync replicas of each partition of `t`."""
    topic = _metadata(address).topics["t"]
    return {number: (each.leader, sorted(each.isrs)) for number, each in topic.partitions.items()}


def produce(addresses: str, name: str, count: int = 1000) -> list[list[bytes]]:
    """Produce with acks=all; returns the values of each partition. All of them are acknowledged."""
    producer = Producer({"bootstrap.servers": addresses, "acks": "all", "enable.idempotence": True, "log_level": 0})
    failures: list[object] = []
    values: list[list[bytes]] = [[], []]
    for number in range(count):
        value = f"{name}-{number}".encode()
        values[number % 2].append(value)
        producer.produce(
            "t", value, partition=number % 2, on_delivery=lambda error, _: failures.append(error) if error else None
        )
    assert producer.flush(60) == 0
    assert not failures
    return values


def consume(addresses: str, expected: list[list[bytes]]) -> None:
    """Check that every acknowledged record exists once and in order."""
    consumer = Consumer({"bootstrap.servers": addresses, "group.id": "g", "enable.auto.commit": False, "log_level": 0})
    consumer.assign([TopicPartition("t", number, 0) for number in range(2)])
    values: list[list[bytes]] = [[], []]

    def read() -> list[int]:
        for message in consumer.consume(500, 0.5):
            if message.error() is None:
                values[message.partition()].append(message.value())
        return [len(each) for each in values]

    eventually("all values", read, lambda seen: seen >= [len(each) for each in expected])
    consumer.close()
    assert values == expected


@contextlib.contextmanager
def apache(directory: Path, address: str, zookeeper_address: str) -> Iterator[None]:
    """Apache Kafka's broker."""
    settings = {
        "broker.id": str(APACHE),
        "listeners": f"PLAINTEXT://{address}",
        "log.dirs": str(directory / "data"),
        "zookeeper.connect": zookeeper_address,
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        # The other broker stops first, so no broker can take over.
        "controlled.shutdown.enable": "false",
    }
    directory.mkdir()
    properties = directory / "server.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    with java_server("kafka.Kafka", properties, int(address.rpartition(":")[2])):
        await_controller(address)
        yield


@contextlib.contextmanager
def tree(directory: Path) -> Iterator[str]:
    """The embedded tree, served as a ZooKeeper; yields `host:port`."""
    with served_tree(directory) as server:
        yield server.address


@contextlib.contextmanager
def mixed(directory: Path, first: int, coordination: Coordination = zookeeper) -> Iterator[Mixed]:
    """Both brokers; the `first` is the controller."""
    with contextlib.ExitStack() as stack:
        zookeeper_address = stack.enter_context(coordination(directory / "zookeeper"))
        address = f"127.0.0.1:{free_port()}"
        odradek = BrokerProcess(
            directory / "odradek",
            {"broker.id": str(ODRADEK), "zookeeper.connect": zookeeper_address, "zookeeper.session.timeout.ms": "6000"},
        )
        data, odradek_data = directory / "apache" / "data", directory / "odradek" / "data"
        cluster = Mixed(address, data, odradek, odradek_data, zookeeper_address)
        if first == ODRADEK:
            odradek.start()
        stack.enter_context(apache(directory / "apache", address, zookeeper_address))
        stack.callback(odradek.stop)
        if first == APACHE:
            odradek.start()
        cluster.await_brokers(controller=first)
        yield cluster


@pytest.mark.parametrize("coordination", [zookeeper, tree], ids=["zookeeper", "served tree"])
def test_odradek_joins_a_cluster_of_apache_kafka_leaves_it_and_comes_back(
    coordination: Coordination, tmp_path: Path
) -> None:
    with mixed(tmp_path, APACHE, coordination) as cluster:
        cluster.grow_and_delete_another(at=cluster.apache_address)
        cluster.create_topic(at=cluster.apache_address)
        first = produce(cluster.addresses, "first")
        cluster.check_replicas()
        assert cluster.odradek.stop() == 0
        cluster.await_state({0: APACHE, 1: APACHE}, [APACHE])
        second = produce(cluster.addresses, "second")
        cluster.odradek.start()
        cluster.await_in_sync()
        cluster.check_replicas()
        consume(cluster.addresses, [one + other for one, other in zip(first, second, strict=True)])


def test_apache_kafka_joins_a_cluster_of_odradek_whose_controller_dies(tmp_path: Path) -> None:
    with mixed(tmp_path, first=ODRADEK) as cluster:
        cluster.grow_and_delete_another(at=cluster.odradek.address)
        cluster.create_topic(at=cluster.odradek.address)
        first = produce(cluster.addresses, "first")
        cluster.check_replicas()
        cluster.odradek.kill()
        second = produce(cluster.addresses, "second")
        cluster.await_state({0: APACHE, 1: APACHE}, [APACHE])
        cluster.odradek.start()
        cluster.await_in_sync()
        cluster.check_replicas()
        consume(cluster.addresses, [one + other for one, other in zip(first, second, strict=True)])
