"""A cluster of real processes on a real ZooKeeper loses brokers under load: nothing acknowledged is lost or doubled.

librdkafka produces with acks=all to partitions of three replicas, two of which have to be in sync.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.compat.steady_load import PARTITIONS, Sender, create_topics, judge
from tests.kit.broker_cluster import SESSION_TIMEOUT_MS, BrokerCluster
from tests.kit.waiting import eventually
from tests.kit.zookeeper import new_zookeeper, real_zookeeper, start_zookeeper

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(300)]

TOPIC = "replicated"
MORE = 50
"""Acknowledgements of each sender that show that production goes on."""
ZOOKEEPER_GONE_S = 10
ZOOKEEPER_DEAD_S = 60


class TimedSender(Sender):
    """A sender that knows the longest time without an acknowledgement, in seconds."""

    longest_gap_s = 0.0
    _last_s: float | None = None

    def _delivered(self, error, message) -> None:  # type: ignore[no-untyped-def]
        now = time.monotonic()
        if self._last_s is not None:
            self.longest_gap_s = max(self.longest_gap_s, now - self._last_s)
        self._last_s = now
        super()._delivered(error, message)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BrokerCluster]:
    with BrokerCluster(tmp_path, settings={"min.insync.replicas": "2"}) as running:
        create_topics(running.address, {TOPIC: {}}, replication_factor=3)
        yield running


def goes_on(senders: Sequence[Sender]) -> None:
    """Return when each sender has `MORE` acknowledgements more than now."""
    goals = [len(sender.acknowledged) + MORE for sender in senders]
    eventually(
        "acknowledgements",
        lambda: [goal - len(sender.acknowledged) for sender, goal in zip(senders, goals, strict=True)],
        lambda missing: max(missing) <= 0,
    )


@contextlib.contextmanager
def load(cluster: BrokerCluster) -> Iterator[list[TimedSender]]:
    """Two idempotent producers for a block; afterwards all replicas are in sync, and hold what was acknowledged."""
    senders = [TimedSender(f"once{number}", cluster.address, TOPIC, idempotent=True) for number in range(2)]
    for sender in senders:
        sender.start()
    try:
        goes_on(senders)
        yield senders
        goes_on(senders)
    finally:
        for sender in senders:
            sender.stop()
    cluster.await_full_isr(TOPIC)
    verdict = judge(cluster.address, senders)
    assert (verdict.lost, verdict.doubled) == (0, 0), verdict
    assert verdict.acknowledged == sum(sum(sender.sent) for sender in senders)
    cluster.stop()
    for partition in range(PARTITIONS):
        assert len(set(cluster.logs_of(TOPIC, partition).values())) == 1, f"replicas of {partition} differ"
    assert cluster.traceback() is None


def test_the_leader_is_killed(cluster: BrokerCluster) -> None:
    with load(cluster) as senders:
        leader = cluster.leader(TOPIC, 0)
        cluster.brokers[leader].kill()
        goes_on(senders)
        assert cluster.leader(TOPIC, 0) != leader
        cluster.brokers[leader].start()
        cluster.await_full_isr(TOPIC)


def test_each_broker_is_killed_in_turn(cluster: BrokerCluster) -> None:
    with load(cluster) as senders:
        for broker in cluster.brokers.values():
            broker.kill()
            goes_on(senders)
            broker.start()
            cluster.await_full_isr(TOPIC)


def test_the_leader_pauses_for_longer_than_its_session(cluster: BrokerCluster) -> None:
    with load(cluster) as senders:
        leader = cluster.leader(TOPIC, 0)
        with cluster.paused(leader):
            cluster.await_brokers(set(cluster.brokers) - {leader})
            goes_on(senders)
        cluster.await_brokers(set(cluster.brokers))
        cluster.await_full_isr(TOPIC)


def test_the_controller_is_killed(cluster: BrokerCluster) -> None:
    with load(cluster) as senders:
        controller = cluster.controller()
        cluster.brokers[controller].kill()
        cluster.await_brokers(set(cluster.brokers) - {controller})
        goes_on(senders)
        cluster.brokers[controller].start()
        cluster.await_full_isr(TOPIC)


def test_a_rolling_restart_fails_no_produce(cluster: BrokerCluster) -> None:
    with load(cluster) as senders:
        for broker in cluster.brokers.values():
            assert broker.stop() == 0
            broker.start()
            cluster.await_full_isr(TOPIC)
        # Leaders were moved, and nobody waited for the end of a session.
        assert max(sender.longest_gap_s for sender in senders) < SESSION_TIMEOUT_MS / 1000
    assert not any(sender.refused for sender in senders)


def test_production_goes_on_without_zookeeper(cluster: BrokerCluster) -> None:
    with load(cluster) as senders:
        cluster.zookeeper.stop()
        stopped_s = time.monotonic()
        while time.monotonic() < stopped_s + ZOOKEEPER_GONE_S:
            goes_on(senders)
        cluster.zookeeper.start()
        cluster.await_brokers(set(cluster.brokers))
        leader = cluster.leader(TOPIC, 0)
        cluster.brokers[leader].kill()
        goes_on(senders)
        cluster.brokers[leader].start()


def is_whole(cluster: BrokerCluster, senders: Sequence[Sender]) -> None:
    """Return when all brokers are registered, all replicas in sync, and the controller carries out what it is asked."""
    cluster.await_brokers(set(cluster.brokers))
    cluster.await_full_isr(TOPIC)
    goes_on(senders)
    create_topics(cluster.address, {"later": {}}, replication_factor=3)
    cluster.await_full_isr("later")


def test_zookeeper_is_dead_for_a_minute(cluster: BrokerCluster) -> None:
    """It counts the time of each session anew when it comes back, so the sessions go on."""
    with load(cluster) as senders:
        cluster.zookeeper.kill()
        dead_s = time.monotonic()
        while time.monotonic() < dead_s + ZOOKEEPER_DEAD_S:
            goes_on(senders)
        start_zookeeper(cluster.zookeeper)
        is_whole(cluster, senders)
    assert not any(sender.refused for sender in senders)


def test_all_sessions_end_at_once(cluster: BrokerCluster, tmp_path: Path) -> None:
    """While ZooKeeper is where no broker finds it, it gives up all brokers, and with one of them the controller."""
    with load(cluster) as senders:
        before = [cluster.session_count(number) for number in cluster.brokers]
        cluster.zookeeper.kill()
        with real_zookeeper(tmp_path / "zookeeper"):
            started_s = time.monotonic()
            while time.monotonic() < started_s + ZOOKEEPER_GONE_S:
                goes_on(senders)
        cluster.zookeeper = new_zookeeper(tmp_path / "zookeeper", port=cluster.zookeeper.port)
        start_zookeeper(cluster.zookeeper)
        eventually(
            "a new session of each broker",
            lambda: [cluster.session_count(number) for number in cluster.brokers],
            lambda found: all(now > then for now, then in zip(found, before, strict=True)),
        )
        is_whole(cluster, senders)
    assert not any(sender.refused for sender in senders)
