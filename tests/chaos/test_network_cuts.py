"""Brokers, ZooKeeper and clients lose contact with each other under load: no acknowledged record is lost or duplicated.

Each test makes a cut, checks what still works, and heals it. Then `load` expects all replicas in sync within a minute,
with all acknowledged records, once and in order.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos.cluster_load import check_all_replicas, goes_on, load
from tests.compat.steady_load import PARTITIONS, Sender
from tests.kit.broker_cluster import BrokerCluster
from tests.kit.network.namespaces import CLIENT, ZOOKEEPER, NamespacesRefusedError, NetworkNamespaces
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(300)]

SETTINGS = {
    "min.insync.replicas": "2",
    # Shorter than a cut, so that the leader notices it.
    "replica.lag.time.max.ms": "2000",
    "replica.socket.timeout.ms": "2000",
    "controller.socket.timeout.ms": "2000",
}


@pytest.fixture(scope="module")
def network() -> Iterator[NetworkNamespaces]:
    with contextlib.ExitStack() as stack:
        try:
            network = stack.enter_context(NetworkNamespaces(3))
        except NamespacesRefusedError as error:
            pytest.skip(str(error))
        yield network


@pytest.fixture(scope="module")
def cluster(network: NetworkNamespaces, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    """One cluster for all tests in this file; at the end all replicas are equal."""
    with BrokerCluster(tmp_path_factory.mktemp("cluster"), settings=SETTINGS, network=network) as running:
        yield running
        check_all_replicas(running)


class Pair(NamedTuple):
    """The two brokers that are not the controller: each leads one partition of the topic, and follows the other.

    Without the controller no leader can change the ISR, as in Kafka.
    """

    topic: str
    leader: int
    follower: int


@pytest.fixture
def pair(cluster: BrokerCluster, topic_name: str) -> Pair:
    """A new topic: `leader` leads partition 0, `follower` leads partition 1."""
    controller = cluster.controller()
    one, other = (number for number in cluster.brokers if number != controller)
    replicas = [[one, other, controller], [other, one, controller]]
    admin = AdminClient({"bootstrap.servers": cluster.address})
    admin.create_topics([NewTopic(topic_name, PARTITIONS, replica_assignment=replicas)])[topic_name].result()
    return Pair(topic_name, one, other)


@pytest.fixture(autouse=True)
def healed(network: NetworkNamespaces) -> Iterator[None]:
    """Heal every cut before the next test."""
    yield
    network.heal_all()


def await_apart(cluster: BrokerCluster, pair: Pair) -> None:
    """Wait until either broker of a pair is out of sync with the other."""
    for partition, (leader, follower) in enumerate(((pair.leader, pair.follower), (pair.follower, pair.leader))):
        eventually(
            f"the ISR of partition {partition} with {leader} and without {follower}",
            lambda number=partition: set(cluster.partition(pair.topic, number).isrs),  # type: ignore[misc]
            lambda found, leader=leader, follower=follower: leader in found and follower not in found,  # type: ignore[misc]
        )


def acknowledges_nothing_new(cluster: BrokerCluster, topic: str, leader: int, senders: Sequence[Sender]) -> None:
    """Check for some seconds that a leader without followers acknowledges no new records.

    Records sent before may still be acknowledged, even late: a follower may have them and be the last one to leave the
    ISR.
    """
    sent = [list(sender.sent) for sender in senders]
    led = {number for number in range(PARTITIONS) if cluster.leader(topic, number) == leader}
    time.sleep(5)
    for sender, sent_before in zip(senders, sent, strict=True):
        acknowledged = [each for each in list(sender.acknowledged) if each[0] in led]
        assert not [each for each in acknowledged if each[1] >= sent_before[each[0]]]


def test_a_leader_without_zookeeper_is_replaced(cluster: BrokerCluster, network: NetworkNamespaces, topic: str) -> None:
    """The zombie reaches its clients and its followers, but acknowledges only records that the next leader has."""
    with load(cluster, topic) as senders:
        zombie = cluster.leader(topic, 0)
        network.cut(zombie, ZOOKEEPER)
        eventually("another leader", lambda: cluster.leader(topic, 0), lambda leader: leader != zombie)
        goes_on(senders)
        network.heal_all()
        cluster.await_brokers(set(cluster.brokers))


def test_a_leader_without_followers_acknowledges_nothing(
    cluster: BrokerCluster, network: NetworkNamespaces, topic: str
) -> None:
    with load(cluster, topic) as senders:
        leader = cluster.leader(topic, 0)
        for follower in set(cluster.brokers) - {leader}:
            network.cut(leader, follower)
        acknowledges_nothing_new(cluster, topic, leader, senders)
        network.heal_all()


def test_a_controller_that_is_alone_is_replaced(cluster: BrokerCluster, network: NetworkNamespaces, topic: str) -> None:
    with load(cluster, topic) as senders:
        controller = cluster.controller()
        network.isolate(controller)
        cluster.await_brokers(set(cluster.brokers) - {controller})
        goes_on(senders)
        network.heal_all()
        cluster.await_brokers(set(cluster.brokers))


def test_followers_without_their_leader_leave_the_isr(
    cluster: BrokerCluster, network: NetworkNamespaces, pair: Pair
) -> None:
    with load(cluster, pair.topic) as senders:
        network.cut(pair.leader, pair.follower)
        await_apart(cluster, pair)
        goes_on(senders)
        network.heal_all()


@pytest.mark.parametrize("lost", ["requests", "answers"])
def test_a_follower_loses_one_direction(
    cluster: BrokerCluster, network: NetworkNamespaces, pair: Pair, lost: str
) -> None:
    """A connection needs both directions: the other broker, which follows too, also loses both."""
    with load(cluster, pair.topic) as senders:
        source, target = (pair.follower, pair.leader) if lost == "requests" else (pair.leader, pair.follower)
        network.cut(source, target, one_way=True)
        await_apart(cluster, pair)
        goes_on(senders)
        network.heal_all()


def test_answers_to_producers_are_lost(cluster: BrokerCluster, network: NetworkNamespaces, topic: str) -> None:
    """They resend records that were already appended."""
    with load(cluster, topic) as senders:
        for number in cluster.brokers:
            network.cut(number, CLIENT, one_way=True)
            time.sleep(1)
            network.heal_all()
            goes_on(senders)


@pytest.mark.parametrize("lost", ["requests", "answers"])
def test_a_controller_loses_one_direction_to_zookeeper(
    cluster: BrokerCluster, network: NetworkNamespaces, topic: str, lost: str
) -> None:
    with load(cluster, topic) as senders:
        controller = cluster.controller()
        pair = (controller, ZOOKEEPER) if lost == "requests" else (ZOOKEEPER, controller)
        network.cut(*pair, one_way=True)
        eventually("another controller", cluster.controller, lambda found: found != controller)
        goes_on(senders)
        network.heal_all()
        cluster.await_brokers(set(cluster.brokers))
