"""Clusters of real processes without Java: the embedded tree, served by a separate process, is their ZooKeeper."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from cluster.znodes import broker_path
from tests.chaos.cluster_load import check_all_replicas, goes_on, load
from tests.compat.steady_load import create_topics
from tests.kit.broker_cluster import BrokerCluster
from tests.kit.broker_process import ROOT, BrokerProcess
from tests.kit.waiting import eventually
from tests.kit.zookeeper import new_served_tree, new_session, new_zookeeper, served_tree
from tests.kit.zookeeper_process import ZookeeperProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOPIC = "replicated"
OLD_RECORDS = 500


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BrokerCluster]:
    with BrokerCluster(tmp_path, settings={"min.insync.replicas": "2"}, new_server=new_served_tree) as running:
        create_topics(running.address, {TOPIC: {}}, replication_factor=3)
        yield running
        check_all_replicas(running)


def test_the_leader_and_the_tree_are_killed_under_load(cluster: BrokerCluster) -> None:
    """Sessions outlive the tree's process: its death moves no leader, and stops no producer."""
    with load(cluster, TOPIC) as senders:
        leader = cluster.leader(TOPIC, 0)
        cluster.brokers[leader].kill()
        goes_on(senders)
        assert cluster.leader(TOPIC, 0) != leader
        cluster.brokers[leader].start()
        cluster.await_full_isr(TOPIC)

        before = [cluster.leader(TOPIC, partition) for partition in (0, 1)]
        cluster.zookeeper.kill()
        goes_on(senders)
        cluster.zookeeper.start()
        goes_on(senders)
        assert [cluster.leader(TOPIC, partition) for partition in (0, 1)] == before
        assert [cluster.session_count(broker) for broker in cluster.brokers if broker != leader] == [1, 1]

        # The tree still works.
        leader = before[0]
        cluster.brokers[leader].kill()
        goes_on(senders)
        cluster.brokers[leader].start()
        cluster.await_full_isr(TOPIC)


def test_a_broker_whose_registration_is_deleted_by_hand_comes_back(cluster: BrokerCluster) -> None:
    """This includes the controller's registration. Afterwards every partition is fully in sync again, and acks=all is
    answered.
    """
    for number in (cluster.leader(TOPIC, 0), cluster.controller()):

        async def delete(broker_id: int = number) -> None:
            session = new_session(cluster.zookeeper.address)
            await session.connect()
            await session.delete(broker_path(broker_id))
            await session.close()

        before = cluster.session_count(number)
        asyncio.run(delete())
        eventually("a new session", partial(cluster.session_count, number), lambda count, old=before: count > old)
        cluster.await_brokers(set(cluster.brokers))
        cluster.await_full_isr(TOPIC)
        produce(cluster.address, TOPIC, [b"x"])


@pytest.mark.parametrize("new_server", [new_served_tree, pytest.param(new_zookeeper, marks=pytest.mark.java)])
def test_a_tree_that_is_set_back_is_followed_without_restarts(
    tmp_path: Path, new_server: Callable[[Path], ZookeeperProcess]
) -> None:
    """The brokers have newer sessions, controller and leader epochs, and topics than the restored tree."""
    settings = {"min.insync.replicas": "2", "zookeeper.session.timeout.ms": "1500"}
    with BrokerCluster(tmp_path, settings=settings, new_server=new_server) as cluster:
        create_topics(cluster.address, {TOPIC: {}}, replication_factor=3)
        produce(cluster.address, TOPIC, [b"before"])
        cluster.zookeeper.stop()
        shutil.copytree(tmp_path / "zookeeper", tmp_path / "backup")
        cluster.zookeeper.start()
        for _ in range(2):
            broker = cluster.brokers[cluster.controller()]
            broker.kill()
            broker.start()
            cluster.await_brokers(set(cluster.brokers))
        cluster.await_full_isr(TOPIC)
        create_topics(cluster.address, {"newer": {}}, replication_factor=3)
        produce(cluster.address, TOPIC, [b"between"])
        pids = [broker.pid for broker in cluster.brokers.values()]

        cluster.zookeeper.stop()
        shutil.rmtree(tmp_path / "zookeeper")
        shutil.copytree(tmp_path / "backup", tmp_path / "zookeeper")
        cluster.zookeeper.start()
        eventually(
            "the restored tree is followed",
            lambda: [broker.output.read_text() for broker in cluster.brokers.values()],
            lambda said: all("The tree was set back to an older state" in each for each in said),
        )
        cluster.await_brokers(set(cluster.brokers))
        cluster.await_full_isr(TOPIC)
        produce(cluster.address, TOPIC, [b"after"])
        assert consume(cluster.address, TOPIC, 3, "reader") == [b"before", b"between", b"after"]
        assert "newer" not in cluster.metadata().topics
        assert [broker.pid for broker in cluster.brokers.values()] == pids


def copy(source: Path, target: str) -> subprocess.CompletedProcess[str]:
    """`odradek coordination copy`."""
    command = [sys.executable, "-P", "-m", "odradek", "coordination", "copy", "--from", str(source), "--to", target]
    return subprocess.run(
        command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=False
    )


def produce(address: str, topic: str, values: list[bytes]) -> None:
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": address, "acks": "all", "log_level": 0, "message.timeout.ms": 30_000})
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=lambda error, _: failures.append(error))
    producer.flush(40)
    assert set(failures) == {None}
    assert len(failures) == len(values)


def consume(address: str, topic: str, count: int, group: str) -> list[bytes]:
    """Read records from the group's committed offset on, and commit what was read."""
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    try:
        consumer.subscribe([topic])
        records = []
        while len(records) < count:
            message = consumer.poll(30)
            assert message is not None, f"{len(records)} of {count}"
            assert message.error() is None, message.error()
            records.append(message)
        consumer.commit(offsets=[TopicPartition(topic, 0, records[-1].offset() + 1)], asynchronous=False)
        return [record.value() for record in records]
    finally:
        consumer.close()


def test_a_single_broker_grows_into_a_cluster_with_its_data(tmp_path: Path) -> None:
    old = [b"%d" % number for number in range(OLD_RECORDS)]
    first = BrokerProcess(tmp_path / "first", {"broker.id": "7", "default.replication.factor": "1"})
    first.start()
    create_topics(first.address, {"old": {"retention.ms": "-1"}})
    produce(first.address, "old", old)
    half = OLD_RECORDS // 2
    assert consume(first.address, "old", OLD_RECORDS, "reader") == old
    produce(first.address, "old", old[:half])
    data = tmp_path / "first" / "data"
    with served_tree(tmp_path / "tree") as tree:
        refused = copy(data, f"{tree.address}/kafka")
        assert (refused.returncode, "Failed to acquire lock" in refused.stderr) == (1, True), refused
        first.stop()

        copied = copy(data, f"{tree.address}/kafka")
        assert (copied.returncode, copied.stderr) == (0, "")
        assert f"from {data} to {tree.address}/kafka" in copied.stdout
        again = copy(data, f"{tree.address}/kafka")
        assert (again.returncode, again.stdout) == (1, "")
        assert again.stderr.startswith(f"{tree.address}/kafka is not empty, it has admin, brokers, ")

        shared = {"zookeeper.connect": f"{tree.address}/kafka", "controlled.shutdown.retry.backoff.ms": "500"}
        grown = BrokerProcess(tmp_path / "first", {"broker.id": "7", **shared})
        others = [BrokerProcess(tmp_path / f"more-{number}", {"broker.id": number, **shared}) for number in "89"]
        brokers = [grown, *others]
        try:
            for broker in brokers:
                broker.start()
            # Records, the topic's configuration and the group's offsets are in place.
            assert consume(grown.address, "old", half, "reader") == old[:half]
            produce(others[0].address, "old", [b"new"])
            assert consume(others[1].address, "old", OLD_RECORDS + half + 1, "other") == [*old, *old[:half], b"new"]
            create_topics(grown.address, {"replicated": {}}, replication_factor=3)
            produce(grown.address, "replicated", [b"x"])
            assert [broker.stop() for broker in brokers] == [0, 0, 0]
        finally:
            for broker in brokers:
                broker.kill()


def test_nothing_to_copy_is_said(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for source, message in ((tmp_path / "none", "there is no directory"), (empty, "keeps no tree")):
        done = copy(source, "127.0.0.1:1/kafka")
        assert done.returncode == 1
        assert message in done.stderr
