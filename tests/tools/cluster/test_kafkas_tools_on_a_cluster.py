"""Kafka's own tools, and librdkafka, drive a cluster of three brokers: producers, elections and reassignments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import ElectionType, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kit.broker_cluster import BrokerCluster
from tests.kit.waiting import eventually
from tests.tools.tool_pair import Answer, Runner, lines_of

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    """Brokers 1, 2 and 3; no automatic moves, and followers fetch in small pieces."""
    settings = {"auto.leader.rebalance.enable": "false", "replica.fetch.max.bytes": "20000"}
    with BrokerCluster(tmp_path_factory.mktemp("cluster"), settings=settings) as running:
        yield running


@pytest.fixture
def admin(cluster: BrokerCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.address, "log_level": 0})


def create(admin: AdminClient, name: str, *replicas: list[int]) -> None:
    admin.create_topics([NewTopic(name, len(replicas), replica_assignment=list(replicas))])[name].result()


def replicas_of(cluster: BrokerCluster, topic: str) -> list[tuple[int, list[int], list[int]]]:
    """Leader, replicas and ISR of each partition."""
    partitions = cluster.metadata().topics[topic].partitions
    return [(each.leader, each.replicas, sorted(each.isrs)) for _, each in sorted(partitions.items())]


def test_producers_are_described(cluster: BrokerCluster, admin: AdminClient, kafkas: Runner) -> None:
    create(admin, "described", [2, 3, 1])
    producer = Producer({"bootstrap.servers": cluster.address, "enable.idempotence": True, "log_level": 0})
    for _ in range(3):
        producer.produce("described", b"x", timestamp=1_700_000_000_000)
    assert producer.flush(60) == 0
    at = ["--bootstrap-server", cluster.address, "describe-producers", "--topic", "described", "--partition", "0"]
    for broker in ([], ["--broker-id", "1"], ["--broker-id", "3"]):
        head, row = lines_of(kafkas.run("transactions", [*at, *broker]))
        assert head.split() == [
            *("ProducerId", "ProducerEpoch", "LatestCoordinatorEpoch"),
            *("LastSequence", "LastTimestamp", "CurrentTransactionStartOffset"),
        ]
        assert row.split()[1:] == ["0", "-1", "2", "1700000000000", "None"]


def test_leaders_are_elected(cluster: BrokerCluster, admin: AdminClient, kafkas: Runner, tmp_path: Path) -> None:
    create(admin, "elected", [1, 2, 3], [2, 3, 1])
    election = ["--bootstrap-server", cluster.address, "--election-type", "preferred"]

    def depose() -> None:
        """Make another broker than its first replica lead partition 0."""
        path = tmp_path / "order.json"
        for order in ([2, 1, 3], [1, 2, 3]):
            entry = {"topic": "elected", "partition": 0, "replicas": order}
            path.write_text(json.dumps({"version": 1, "partitions": [entry]}))
            at = ["--bootstrap-server", cluster.address, "--reassignment-json-file", str(path), "--execute"]
            assert kafkas.run("reassign_partitions", at).code == 0
            eventually("the order", lambda: replicas_of(cluster, "elected")[0][1] == order)  # noqa: B023
            if order[0] == 2:
                assert kafkas.run("leader_election", [*election, "--topic", "elected", "--partition", "0"]).code == 0
                eventually("another leader", lambda: replicas_of(cluster, "elected")[0][0] == 2)

    depose()
    said = kafkas.run("leader_election", [*election, "--topic", "elected", "--partition", "0"])
    assert lines_of(said) == ["Successfully completed leader election (PREFERRED) for partitions elected-0"]
    eventually("the first leads", lambda: replicas_of(cluster, "elected")[0][0] == 1)
    said = kafkas.run("leader_election", [*election, "--topic", "elected", "--partition", "0"])
    assert lines_of(said) == ["Valid replica already elected for partitions elected-0"]
    depose()
    said = kafkas.run("leader_election", [*election, "--all-topic-partitions"])
    assert lines_of(said) == ["Successfully completed leader election (PREFERRED) for partitions elected-0"]
    unclean = ["--bootstrap-server", cluster.address, "--election-type", "unclean", "--topic", "elected"]
    said = kafkas.run("leader_election", [*unclean, "--partition", "1"])
    assert lines_of(said) == ["Valid replica already elected for partitions elected-1"]
    depose()
    wanted = TopicPartition("elected", 0)
    assert admin.elect_leaders(ElectionType.PREFERRED, [wanted]).result() == {wanted: None}
    eventually("the first leads again", lambda: replicas_of(cluster, "elected")[0][0] == 1)


def test_partitions_are_reassigned(cluster: BrokerCluster, admin: AdminClient, kafkas: Runner, tmp_path: Path) -> None:
    create(admin, "moved", [1, 2])
    # Enough data in small enough batches for the throttle to apply long before the end.
    producer = Producer({"bootstrap.servers": cluster.address, "batch.size": 20_000, "log_level": 0})
    for _ in range(600):
        producer.produce("moved", bytes(10_000))
    assert producer.flush(60) == 0
    path = tmp_path / "topics.json"

    def reassign(action: str, content: object, *args: str) -> Answer:
        path.write_text(json.dumps(content))
        name = "topics-to-move" if action == "--generate" else "reassignment"
        at = ["--bootstrap-server", cluster.address, action, f"--{name}-json-file", str(path)]
        return kafkas.run("reassign_partitions", [*at, *args])

    said = reassign("--generate", {"version": 1, "topics": [{"topic": "moved"}]}, "--broker-list", "2,3")
    assert json.loads(lines_of(said)[-1])["partitions"][0]["replicas"] in ([2, 3], [3, 2])
    wanted = {"version": 1, "partitions": [{"topic": "moved", "partition": 0, "replicas": [3, 2]}]}
    listing = ["--bootstrap-server", cluster.address, "--list"]
    assert lines_of(kafkas.run("reassign_partitions", listing)) == ["No partition reassignments found."]
    said = reassign("--execute", wanted, "--throttle", "1000")
    assert lines_of(said)[-1] == "Successfully started partition reassignment for moved-0"
    assert lines_of(kafkas.run("reassign_partitions", listing)) == [
        "Current partition reassignments:",
        "moved-0: replicas: 3,2,1. adding: 3. removing: 1.",
    ]
    said = reassign("--cancel", wanted)
    assert "Successfully cancelled partition reassignment for: moved-0" in lines_of(said)
    # In the order of the old list, as in Kafka.
    eventually("the old replicas", lambda: replicas_of(cluster, "moved") == [(1, [2, 1], [1, 2])])
    assert reassign("--execute", wanted).code == 0
    said = eventually(
        "it is over", lambda: reassign("--verify", wanted), lambda said: "moved-0 is completed" in said.stdout
    )
    assert lines_of(said)[1] == "Reassignment of partition moved-0 is completed."
    assert replicas_of(cluster, "moved")[0][1:] == ([3, 2], [2, 3])
