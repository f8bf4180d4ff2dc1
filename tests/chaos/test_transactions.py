"""Brokers die and pause while transactions span partitions on all of them: every transaction takes effect as a whole,
exactly once and in order, or not at all.

Real processes, whose ZooKeeper is the embedded tree; librdkafka produces.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.coordinators.coordinator_service import coordinator_partition
from protocol.topic_partition import TRANSACTION_STATE
from tests.chaos.transfers import Transfers
from tests.compat.steady_load import PARTITIONS, create_topics
from tests.kit.broker_cluster import BrokerCluster
from tests.kit.waiting import eventually
from tests.kit.zookeeper import new_served_tree

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOPIC = "accounts"
ID = "transfers"
MORE = 20


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BrokerCluster]:
    with BrokerCluster(tmp_path, settings={"min.insync.replicas": "2"}, new_server=new_served_tree) as running:
        create_topics(running.address, {TOPIC: {}}, replication_factor=3)
        yield running


def goes_on(transfers: Transfers) -> None:
    goal = len(transfers.acknowledged) + MORE
    eventually(
        "transactions",
        lambda: (transfers.failure, goal - len(transfers.acknowledged)),
        lambda state: state[0] is not None or state[1] <= 0,
    )
    assert transfers.failure is None, transfers.failure


def test_brokers_die_and_pause_amid_transactions(cluster: BrokerCluster) -> None:
    transfers = Transfers(cluster.address, TOPIC, ID)
    transfers.start()
    try:
        goes_on(transfers)
        coordinator = cluster.leader(TRANSACTION_STATE, coordinator_partition(ID, 4))
        cluster.brokers[coordinator].kill()
        goes_on(transfers)
        cluster.brokers[coordinator].start()
        cluster.await_full_isr(TRANSACTION_STATE)
        cluster.await_full_isr(TOPIC)
        for number, broker in cluster.brokers.items():
            with cluster.paused(number):
                cluster.await_brokers(set(cluster.brokers) - {number})
                goes_on(transfers)
            cluster.await_brokers(set(cluster.brokers))
            cluster.await_full_isr(TOPIC)
            broker.kill()
            goes_on(transfers)
            broker.start()
            cluster.await_full_isr(TOPIC)
    finally:
        transfers.stop()
    assert not transfers.unknown, "no producer had to be replaced"
    for partition in range(PARTITIONS):
        eventually(
            f"all committed numbers in partition {partition}",
            lambda partition=partition: transfers.committed_in(partition),  # type: ignore[misc]
            lambda seen: seen == transfers.acknowledged,
        )
    assert cluster.traceback() is None
