"""The cluster of `docker compose up` as processes: its commands, variables and ports. A broker dies."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from tests.compat.steady_load import Sender, create_topics, judge, leader_address
from tests.kit.waiting import eventually
from tests.packaging.compositions import CLUSTER, published
from tests.packaging.container_processes import ComposedCluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.java,
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="needs all of 127.0.0.0/8"),
]

TOPIC = "flights"
MORE = 200
# The file keeps Kafka's default of 18 s, which would slow the test.
SESSION = {"KAFKA_ZOOKEEPER_SESSION_TIMEOUT_MS": "4000"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ComposedCluster]:
    with ComposedCluster(CLUSTER, tmp_path, SESSION) as running:
        yield running


def goes_on(sender: Sender) -> None:
    goal = len(sender.acknowledged) + MORE
    eventually("acknowledgements", lambda: len(sender.acknowledged), lambda count: count >= goal)


def brokers_told_at(address: str) -> set[tuple[str, int, str | None]]:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    nodes = admin.describe_cluster().result(30).nodes
    return {(node.host, node.port, node.rack) for node in nodes}


def await_full_isr(address: str) -> None:
    def in_sync() -> list[int]:
        partitions = AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(TOPIC, timeout=20).topics
        return [len(each.isrs) for each in partitions[TOPIC].partitions.values()]

    eventually("all replicas in sync", in_sync, lambda counts: set(counts) == {3})


def test_a_killed_broker_loses_nothing(cluster: ComposedCluster) -> None:
    ports = [
        port
        for service in cluster.brokers.values()
        for (_, port), inside in published(service).items()
        if inside == 9092
    ]
    assert ports == [9092, 9192, 9292]
    address = ",".join(f"{cluster.host}:{port}" for port in ports)
    inside = ",".join(f"{cluster.addresses[name]}:9093" for name in cluster.brokers)

    # Clients on the host get the published ports, others those of the containers; racks are the services.
    here = {(cluster.host, port, name) for port, name in zip(ports, cluster.brokers, strict=True)}
    eventually("all brokers", lambda: brokers_told_at(address), lambda found: found == here)
    there = {(cluster.addresses[name], 9093, name) for name in cluster.brokers}
    eventually("all brokers", lambda: brokers_told_at(inside), lambda found: found == there)

    create_topics(address, {TOPIC: {}}, replication_factor=-1)
    sender = Sender("host", address, TOPIC, idempotent=True)
    sender.start()
    try:
        goes_on(sender)
        host, port = leader_address(address, TOPIC, 0).split(":")
        leader = cluster.broker_at(host, int(port))
        cluster.kill(leader)
        goes_on(sender)
        assert leader_address(address, TOPIC, 0) != f"{host}:{port}"
        cluster.start(leader)
        cluster.await_healthy(leader)
        await_full_isr(address)
        goes_on(sender)
    finally:
        sender.stop()
    verdict = judge(address, [sender])
    assert (verdict.lost, verdict.doubled) == (0, 0), verdict

    # Reads like the job: as a member of a group, from another container.
    consumer = Consumer({"bootstrap.servers": inside, "group.id": "lake", "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    values = set()
    while len(values) < sum(sender.sent):
        message = consumer.poll(30)
        assert message is not None, f"{len(values)} of {sum(sender.sent)}"
        assert message.error() is None, message.error()
        values.add(message.value())
    consumer.close()
