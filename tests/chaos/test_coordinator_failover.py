"""Group coordinators die, or pause for longer than their sessions, while groups commit: no acknowledged commit is lost.

Real processes on a real ZooKeeper; librdkafka commits.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.coordinators.coordinator_service import coordinator_partition
from protocol.errors import ErrorCode
from protocol.messages.group_offsets import OffsetCommitRequest, OffsetCommitResponse
from protocol.topic_partition import CONSUMER_OFFSETS
from tests.compat.steady_load import GROUP, Committer, create_topics
from tests.kit.broker_cluster import BrokerCluster
from tests.kit.group_requests import commit
from tests.kit.waiting import eventually
from tests.kit.wire_client import ConnectionClosed, WireClient

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(300)]

TOPIC = "consumed"
MORE = 50
PARTITION = coordinator_partition(GROUP, 4)
NEIGHBOUR = next(name for name in map(str, range(100)) if coordinator_partition(name, 4) == PARTITION)
"""A group with the same coordinator."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BrokerCluster]:
    with BrokerCluster(tmp_path, settings={"min.insync.replicas": "2"}) as running:
        create_topics(running.address, {TOPIC: {}}, replication_factor=3)
        yield running


def goes_on(committer: Committer) -> None:
    goal = committer.acknowledged + MORE
    eventually("commits", lambda: goal - committer.acknowledged, lambda missing: missing <= 0)


def test_coordinators_die_and_pause_under_load(cluster: BrokerCluster) -> None:
    committer = Committer(cluster.address, TOPIC)
    committer.start()
    try:
        goes_on(committer)
        first = cluster.leader(CONSUMER_OFFSETS, PARTITION)
        cluster.brokers[first].kill()
        goes_on(committer)
        cluster.brokers[first].start()
        cluster.await_full_isr(CONSUMER_OFFSETS)
        second = cluster.leader(CONSUMER_OFFSETS, PARTITION)
        host, _, port = cluster.brokers[second].address.rpartition(":")
        with WireClient(host, int(port)) as zombie:
            assert zombie_commit(zombie, commit(NEIGHBOUR, [(TOPIC, 0, 1)])) == ErrorCode.NONE
            with cluster.paused(second):
                zombie.send(commit(GROUP, [(TOPIC, 0, 0)]), 8)
                cluster.await_brokers(set(cluster.brokers) - {second})
                goes_on(committer)
            try:
                answer = zombie.receive(OffsetCommitRequest, 8)
            except ConnectionClosed:
                pass
            else:
                assert isinstance(answer, OffsetCommitResponse)
                assert answer.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
        cluster.await_brokers(set(cluster.brokers))
        cluster.await_full_isr(CONSUMER_OFFSETS)
        goes_on(committer)
    finally:
        committer.stop()
    committer.check()
    assert cluster.traceback() is None


def zombie_commit(client: WireClient, request: OffsetCommitRequest) -> int:
    answer = client.ask(request, 8)
    assert isinstance(answer, OffsetCommitResponse)
    return answer.topics[0].partitions[0].error_code
