"""Brokers with a secured inter-broker listener: three of Odradek, and one together with an Apache Kafka."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kit.apache_kafka import java_server
from tests.kit.broker_cluster import BrokerCluster
from tests.kit.broker_process import BrokerProcess, free_port
from tests.kit.waiting import eventually
from tests.kit.zookeeper import ZookeeperProcess

COUNT = 1000


class Secured(Protocol):
    """Settings of brokers and of librdkafka."""

    broker: dict[str, str]
    client: dict[str, Any]

    def listeners(self, plain: str, secured: str) -> str:
        """Both kinds: the test itself uses plain text."""
        ...


@contextlib.contextmanager
def secured_brokers(directory: Path, tree: ZookeeperProcess, security: Secured) -> Iterator[BrokerCluster]:
    """Three brokers; plain-text clients use the addresses of the cluster."""
    plain = {number: f"127.0.0.1:{free_port()}" for number in (1, 2, 3)}
    secured = {number: f"127.0.0.1:{free_port()}" for number in plain}
    security.client["bootstrap.servers"] = ",".join(secured.values())
    own = {number: {"listeners": security.listeners(plain[number], secured[number])} for number in plain}
    settings = {"min.insync.replicas": "2", **security.broker}
    cluster = BrokerCluster(directory, settings=settings, own_settings=own, ensemble=[tree])
    for number, broker in cluster.brokers.items():
        broker.address = plain[number]
    cluster.address = ",".join(plain.values())
    with cluster:
        yield cluster


def check_beside_an_apache_kafka(directory: Path, zookeeper: str, security: Secured) -> None:
    """Each of the two brokers leads one partition and follows in the other."""
    apache, odradek = ({"plain": f"127.0.0.1:{free_port()}", "secured": f"127.0.0.1:{free_port()}"} for _ in range(2))
    security.client["bootstrap.servers"] = f"{apache['secured']},{odradek['secured']}"
    common = {
        **security.broker,
        "zookeeper.connect": zookeeper,
        "offsets.topic.replication.factor": "2",
        "offsets.topic.num.partitions": "4",
        "min.insync.replicas": "2",
    }
    own = {
        "broker.id": "0",
        "listeners": security.listeners(**apache),
        "log.dirs": str(directory / "apache"),
        "controlled.shutdown.enable": "false",
    }
    properties = directory / "apache.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in {**common, **own}.items()))
    process = BrokerProcess(
        directory / "odradek", {**common, "broker.id": "7", "listeners": security.listeners(**odradek)}
    )
    process.address = odradek["plain"]
    with java_server("kafka.Kafka", properties, int(apache["secured"].rpartition(":")[2])):
        process.start()
        try:
            _check_both(security.client, apache["plain"], odradek["plain"])
        finally:
            process.stop()


def _check_both(client: Mapping[str, Any], *plain: str) -> None:
    for address in plain:
        eventually(
            f"both brokers at {address}",
            lambda at=address: set(AdminClient({"bootstrap.servers": at, "log_level": 0}).list_topics().brokers),
            lambda seen: seen == {0, 7},
        )
    admin = AdminClient(client)
    admin.create_topics([NewTopic("t", 2, replica_assignment=[[0, 7], [7, 0]])])["t"].result(30)
    # Two replicas acknowledge each record: both follow.
    produce(client, "t", 0)
    consume(client, "t", COUNT)


def produce(client: Mapping[str, Any], topic: str, first: int) -> None:
    """Produce values from `first` on; all of them are acknowledged."""
    failures: list[object] = []
    producer = Producer({**client, "enable.idempotence": True, "topic.metadata.refresh.interval.ms": 100})
    for number in range(first, first + COUNT):
        producer.produce(topic, str(number), on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(60) == 0
    assert not failures


def consume(client: Mapping[str, Any], topic: str, count: int) -> None:
    """Check, as a new group, that every record exists once."""
    consumer = Consumer({**client, "group.id": f"g-{count}", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values: list[int] = []

    def read() -> int:
        values.extend(int(each.value() or b"") for each in consumer.consume(500, 0.5) if each.error() is None)
        return len(values)

    eventually("all values", read, lambda seen: seen >= count)
    consumer.close()
    assert sorted(values) == list(range(count))
