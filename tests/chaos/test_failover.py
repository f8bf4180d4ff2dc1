"""A cluster of real processes on a real ZooKeeper loses brokers under load: no acknowledged record is lost or
duplicated.

librdkafka produces with acks=all to partitions of three replicas with min.insync.replicas=2.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.chaos.cluster_load import check_all_replicas, goes_on, load
from tests.compat.steady_load import Sender, create_topics
from tests.kit.broker_cluster import SESSION_TIMEOUT_MS, BrokerCluster
from tests.kit.waiting import eventually
from tests.kit.zookeeper import new_zookeeper, real_ensemble, real_zookeeper, start_zookeeper
from tests.kit.zookeeper_process import ZookeeperProcess

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(300)]

ZOOKEEPER_GONE_S = 10
ZOOKEEPER_DEAD_S = int(os.environ.get("ODRADEK_ZOOKEEPER_DEAD_S", "60"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    """One cluster for all tests in this file; at the end all replicas are equal."""
    with BrokerCluster(tmp_path_factory.mktemp("cluster"), settings={"min.insync.replicas": "2"}) as running:
        yield running
        check_all_replicas(running)


def test_each_broker_is_killed_in_turn(cluster: BrokerCluster, topic: str) -> None:
    with load(cluster, topic) as senders:
        for broker in cluster.brokers.values():
            broker.kill()
            goes_on(senders)
            broker.start()
            cluster.await_full_isr(topic)


def test_the_leader_pauses_for_longer_than_its_session(cluster: BrokerCluster, topic: str) -> None:
    with load(cluster, topic) as senders:
        leader = cluster.leader(topic, 0)
        with cluster.paused(leader):
            cluster.await_brokers(set(cluster.brokers) - {leader})
            goes_on(senders)
        cluster.await_brokers(set(cluster.brokers))
        cluster.await_full_isr(topic)


def test_the_controller_is_killed(cluster: BrokerCluster, topic: str) -> None:
    with load(cluster, topic) as senders:
        controller = cluster.controller()
        cluster.brokers[controller].kill()
        cluster.await_brokers(set(cluster.brokers) - {controller})
        goes_on(senders)
        cluster.brokers[controller].start()
        cluster.await_full_isr(topic)


def test_a_rolling_restart_fails_no_produce(cluster: BrokerCluster, topic: str) -> None:
    with load(cluster, topic) as senders:
        for broker in cluster.brokers.values():
            assert broker.stop() == 0
            broker.start()
            cluster.await_full_isr(topic)
        # Leaderships moved in time: no producer waited for a session to expire.
        assert max(sender.longest_gap_s for sender in senders) < SESSION_TIMEOUT_MS / 1000
    assert not any(sender.refused for sender in senders)


def test_production_goes_on_without_zookeeper(cluster: BrokerCluster, topic: str) -> None:
    with load(cluster, topic) as senders:
        cluster.zookeeper.stop()
        stopped_s = time.monotonic()
        while time.monotonic() < stopped_s + ZOOKEEPER_GONE_S:
            goes_on(senders)
        cluster.zookeeper.start()
        cluster.await_brokers(set(cluster.brokers))
        leader = cluster.leader(topic, 0)
        cluster.brokers[leader].kill()
        goes_on(senders)
        cluster.brokers[leader].start()


def is_whole(cluster: BrokerCluster, topic: str, senders: Sequence[Sender]) -> None:
    """Wait until all brokers are registered, all replicas in sync, and the controller handles requests."""
    cluster.await_brokers(set(cluster.brokers))
    cluster.await_full_isr(topic)
    goes_on(senders)
    create_topics(cluster.address, {f"{topic}-later": {}}, replication_factor=3)
    cluster.await_full_isr(f"{topic}-later")


def test_zookeeper_is_dead_for_longer_than_a_session(cluster: BrokerCluster, topic: str) -> None:
    """ZooKeeper restarts every session's timeout when it comes back, so the sessions survive."""
    with load(cluster, topic) as senders:
        cluster.zookeeper.kill()
        dead_s = time.monotonic()
        while time.monotonic() < dead_s + ZOOKEEPER_DEAD_S:
            goes_on(senders)
        start_zookeeper(cluster.zookeeper)
        is_whole(cluster, topic, senders)
    assert not any(sender.refused for sender in senders)


def test_all_sessions_end_at_once(cluster: BrokerCluster, topic: str) -> None:
    """While ZooKeeper is unreachable for the brokers, it expires all of them, including the controller."""
    with load(cluster, topic) as senders:
        before = [cluster.session_count(number) for number in cluster.brokers]
        cluster.zookeeper.kill()
        directory = cluster.zookeeper.output.parent
        with real_zookeeper(directory):
            started_s = time.monotonic()
            while time.monotonic() < started_s + ZOOKEEPER_GONE_S:
                goes_on(senders)
        cluster.zookeeper = new_zookeeper(directory, port=cluster.zookeeper.port)
        start_zookeeper(cluster.zookeeper)
        eventually(
            "a new session of each broker",
            lambda: [cluster.session_count(number) for number in cluster.brokers],
            lambda found: all(now > then for now, then in zip(found, before, strict=True)),
        )
        is_whole(cluster, topic, senders)
    assert not any(sender.refused for sender in senders)


def mode(server: ZookeeperProcess) -> str:
    """The role that a member of an ensemble reports: leader or follower."""
    with socket.create_connection((server.host, server.port), 10) as connection:
        connection.sendall(b"srvr")
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    return re.findall(r"(?m)^Mode: (\w+)$", answer.decode())[0]


def test_an_ensemble_loses_its_leader(tmp_path: Path) -> None:
    """Two of three ZooKeepers keep serving: no session ends, no client waits, and a broker's death is noticed."""
    with (
        real_ensemble(tmp_path / "ensemble") as ensemble,
        BrokerCluster(tmp_path, settings={"min.insync.replicas": "2"}, ensemble=ensemble) as cluster,
    ):
        topic = "replicated"
        create_topics(cluster.address, {topic: {}}, replication_factor=3)
        with load(cluster, topic) as senders:
            leader = next(server for server in ensemble if mode(server) == "leader")
            leader.kill()
            eventually(
                "a new leader of the ensemble",
                lambda: [mode(server) for server in ensemble if server is not leader],
                lambda modes: "leader" in modes,
                not_yet=(OSError, IndexError),
            )
            create_topics(cluster.address, {"later": {}}, replication_factor=3)
            cluster.await_full_isr("later")
            goes_on(senders)
            assert max(sender.longest_gap_s for sender in senders) < SESSION_TIMEOUT_MS / 1000
            assert [cluster.session_count(number) for number in cluster.brokers] == [1, 1, 1]
            victim = cluster.leader(topic, 0)
            cluster.brokers[victim].kill()
            goes_on(senders)
            cluster.brokers[victim].start()
        assert not any(sender.refused for sender in senders)
        check_all_replicas(cluster)
