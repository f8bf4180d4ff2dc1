"""`odradek cluster` with real processes on a real ZooKeeper, from the first start to the last stop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.chaos.cluster_load import TimedSender, goes_on
from tests.compat.steady_load import create_topics, judge, leader_address
from tests.kit.broker_process import free_port
from tests.kit.cluster_command import ClusterCommand, cluster_command
from tests.kit.controller.reassigning import await_replicas, elect_preferred, reassign
from tests.kit.waiting import eventually
from tests.kit.zookeeper import real_zookeeper
from tools.local_cluster.process_commands import SESSION_TIMEOUT_MS

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(300)]

TOPIC = "flights"


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[str]:
    with real_zookeeper(tmp_path / "service") as service:
        yield service.address


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterCommand]:
    with cluster_command(tmp_path / "cluster") as command:
        yield command


def produce(address: str) -> None:
    """Send one record with acks=all; fails if it is not acknowledged."""
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": address, "acks": "all", "log_level": 0, "message.timeout.ms": 30_000})
    producer.produce(TOPIC, b"AA 1141", partition=0, on_delivery=lambda error, _: failures.append(error))
    producer.flush(40)
    assert failures == [None]


def test_the_life_of_a_cluster(cluster: ClusterCommand, zookeeper: str) -> None:
    port = free_port()
    said = cluster("start", "--brokers", "3", "--base-port", str(port), "--zookeeper", f"{zookeeper}/odradek")
    address = ",".join(f"127.0.0.1:{port + number}" for number in range(3))
    assert f"bootstrap.servers={address}\n" in said
    assert cluster.states() == dict.fromkeys((1, 2, 3), "running")
    assert "already running" in cluster("start", code=1)
    create_topics(address, {TOPIC: {}}, replication_factor=3)
    produce(address)

    # The leader dies; others take over; the leader restarts.
    leader = int(leader_address(address, TOPIC, 0).rpartition(":")[2]) - port + 1
    cluster("kill", str(leader))
    assert cluster.states()[leader] == "dead"
    cluster.await_status(rf"{TOPIC}-0 +[^{leader}n] ")
    produce(address)
    cluster("start")
    cluster.await_status(rf"{TOPIC}-0 +\d +[123,]+ +\d,\d,\d$")

    # The status shows a pause, and its end.
    cluster("pause", "2")
    assert cluster.states()[2] == "paused"
    assert "is paused, not running" in cluster("pause", "2", code=1)
    cluster("resume", "2")
    cluster.await_status("2 +running")

    # Add a broker.
    assert "broker 4 serves at" in cluster("add")
    assert cluster.states()[4] == "running"
    assert "started" in cluster("logs", "4")

    cluster("stop")
    assert set(cluster.states(code=1).values()) == {"dead"}
    assert all(row[1] == "-" for row in cluster.brokers(code=1).values())


def test_a_new_broker_takes_load_while_producers_go_on(cluster: ClusterCommand) -> None:
    port = free_port()
    cluster("start", "--brokers", "3", "--base-port", str(port))
    address = ",".join(f"127.0.0.1:{port + number}" for number in range(3))
    create_topics(address, {TOPIC: {"min.insync.replicas": "2"}}, replication_factor=3)
    senders = [TimedSender(f"once{number}", address, TOPIC, idempotent=True) for number in range(2)]
    for sender in senders:
        sender.start()
    goes_on(senders)
    cluster("add")
    wanted = {(TOPIC, 0): [4, 1, 2], (TOPIC, 1): [3, 4, 1]}
    reassign(address, wanted)
    everywhere = f"{address},127.0.0.1:{port + 3}"
    await_replicas(everywhere, wanted)
    elect_preferred(address)
    eventually(
        "the new broker leads", lambda: leader_address(address, TOPIC, 0), lambda at: at.endswith(f":{port + 3}")
    )
    goes_on(senders)
    for sender in senders:
        sender.stop()
    # Leaderships moved in time: no producer waited for a session to expire.
    assert max(sender.longest_gap_s for sender in senders) < SESSION_TIMEOUT_MS / 1000
    verdict = judge(everywhere, senders)
    assert verdict.is_good, verdict
    assert verdict.acknowledged == sum(sum(sender.sent) for sender in senders)


@pytest.mark.parametrize(("coordination", "title"), [("embedded", "the coordination tree"), ("zookeeper", "ZooKeeper")])
def test_only_what_is_dead_is_started(coordination: str, title: str, cluster: ClusterCommand) -> None:
    """The coordination service is a separate process; it dies first alone, then together with a broker."""
    port = free_port()
    cluster("start", "--brokers", "2", "--base-port", str(port), "--coordination", coordination)
    address = f"127.0.0.1:{port},127.0.0.1:{port + 1}"
    create_topics(address, {TOPIC: {}}, replication_factor=2)
    before = {number: row[1] for number, row in cluster.brokers().items()}
    cluster("kill", "zookeeper")
    said = cluster("start")
    assert f"starting {title}" in said
    assert "starting broker" not in said
    assert {number: row[1] for number, row in cluster.brokers().items()} == before
    assert "already running" in cluster("start", code=1)

    cluster("kill", "2")
    cluster("kill", "zookeeper")
    said = cluster("start")
    assert said.index(f"starting {title}") < said.index("starting broker 2")
    assert "starting broker 1" not in said
    cluster.await_status(rf"{TOPIC}-0 +\d +[12,]+ +\d,\d$")
    produce(address)
