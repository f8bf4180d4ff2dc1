"""A cluster is upgraded from an earlier commit and downgraded again, one broker at a time, under load."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.steady_load import Sender, create_topics, judge
from tests.kit.broker_cluster import BrokerCluster
from tests.kit.broker_process import ROOT
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(300)]

EARLIER = "4c4876d93cea24c40e2ff4c78de05ce0a963fca2"
"""The commit to upgrade from. Move it forward to test a change between brokers from a later state."""
TOPIC = "upgraded"
MORE = 50


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """The files of that commit. Skips the test if the commit is not in the local history."""
    asked = subprocess.run(
        ["git", "rev-parse", "--is-shallow-repository"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if asked.stdout.strip() != "false":
        pytest.skip(f"needs git's history, back to {EARLIER}: {asked.stderr.strip() or 'this clone is shallow'}")
    target = tmp_path / "earlier"
    target.mkdir()
    archive = subprocess.run(["git", "archive", EARLIER], cwd=ROOT, capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", str(target)], input=archive.stdout, check=True)
    return target


@pytest.fixture
def cluster(tmp_path: Path, earlier: Path) -> Iterator[BrokerCluster]:
    running = BrokerCluster(tmp_path, settings={"min.insync.replicas": "2"})
    for broker in running.brokers.values():
        broker.checkout = earlier
    with running:
        create_topics(running.address, {TOPIC: {}}, replication_factor=3)
        yield running


def goes_on(sender: Sender) -> None:
    goal = len(sender.acknowledged) + MORE
    eventually("acknowledgements", lambda: len(sender.acknowledged), lambda count: count >= goal)


def roll(cluster: BrokerCluster, checkout: Path, sender: Sender) -> None:
    """Restart the brokers one by one with other code. The controller is last, as Kafka's documentation advises."""
    controller = cluster.controller()
    for number in sorted(cluster.brokers, key=lambda number: number == controller):
        broker = cluster.brokers[number]
        assert broker.stop() == 0
        broker.checkout = checkout
        broker.start()
        cluster.await_brokers(set(cluster.brokers))
        cluster.await_full_isr(TOPIC)
        goes_on(sender)


def test_there_and_back_without_a_failed_produce(cluster: BrokerCluster, earlier: Path) -> None:
    sender = Sender("rolled", cluster.address, TOPIC, idempotent=True)
    sender.start()
    try:
        goes_on(sender)
        roll(cluster, ROOT, sender)
        # A topic created by the newer controller works on the earlier brokers too.
        create_topics(cluster.address, {"between": {}}, replication_factor=3)
        roll(cluster, earlier, sender)
        cluster.await_full_isr("between")
    finally:
        sender.stop()
    assert not sender.refused
    verdict = judge(cluster.address, [sender])
    assert (verdict.lost, verdict.doubled) == (0, 0), verdict
    assert cluster.traceback() is None
