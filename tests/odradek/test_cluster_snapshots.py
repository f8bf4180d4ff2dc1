"""`snapshot` and `restore` of a cluster."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import odradek
import odradek.aio
from tests.kit.waiting import PATIENCE_S, eventually


@pytest.fixture(scope="module")
def running() -> Iterator[odradek.Cluster]:
    with odradek.Cluster(brokers=3) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: odradek.Cluster) -> odradek.Cluster:
    running.reset()
    return running


def numbers(cluster: odradek.Cluster, topic: str) -> list[int]:
    return [int(each.value or b"") for each in cluster.records(topic)]


def committed(cluster: odradek.Cluster) -> dict[tuple[str, int], int]:
    group = eventually("the group is there", lambda: cluster.group("billing"), lambda found: found is not None)
    assert group is not None
    return {(each["topic"], each["partition"]): each["offset"] for each in group["offsets"]}


def state(cluster: odradek.Cluster) -> list[dict[str, Any]]:
    """The topics without the epochs, which change when brokers start."""
    topics = cluster.describe_topics()
    for partition in itertools.chain.from_iterable(topic["partitions"] for topic in topics):
        del partition["leader_epoch"], partition["partition_epoch"]
        partition["isr"] = sorted(partition["isr"])
    return topics


def test_a_restored_cluster_is_as_it_was(cluster: odradek.Cluster) -> None:
    cluster.create_topic("orders", partitions=6)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": 1})
    for number in range(60):
        producer.produce("orders", str(number), partition=number % 6)
    assert producer.flush(PATIENCE_S) == 0
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "billing"})
    consumer.commit(offsets=[TopicPartition("orders", 0, 4)], asynchronous=False)
    snapshot = cluster.snapshot()
    consumer.close()
    before, addresses = state(cluster), cluster.bootstrap_servers
    assert sum(each["latest"] for each in before[0]["partitions"]) == 60
    for _ in range(2):
        leader = cluster.await_leader("orders")
        cluster.produce("orders", "60")
        cluster.create_topic("new")
        cluster.kill(leader)
        cluster.await_leader("orders", among={1, 2, 3} - {leader}, within=PATIENCE_S)
        cluster.restore(snapshot)
        assert cluster.brokers == [1, 2, 3]
        assert not set(cluster.bootstrap_servers.split(",")) & set(addresses.split(","))
        assert state(cluster) == before
        assert sorted(numbers(cluster, "orders")) == list(range(60))
        assert committed(cluster) == {("orders", 0): 4}
        addresses = cluster.bootstrap_servers
    cluster.stop_broker(2)
    cluster.restart(2)
    for partition in range(6):
        cluster.await_isr("orders", {1, 2, 3}, partition, within=PATIENCE_S)


def test_a_snapshot_of_a_cluster_shows_one_moment(cluster: odradek.Cluster) -> None:
    """The writer appends to `first`, then to `second`: at any moment, `first` has as many records or one more."""
    for name in ("first", "second"):
        cluster.create_topic(name)
    cluster.move("first", leader=1, within=PATIENCE_S)
    cluster.move("second", leader=2, within=PATIENCE_S)
    written: list[int] = []
    ends = threading.Event()

    def write() -> None:
        for number in itertools.count():
            if ends.is_set():
                return
            for name in ("first", "second"):
                cluster.produce(name, str(number))
            written.append(number)

    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(write)
        eventually("there are records", lambda: len(written), lambda count: count > 20)
        before = len(written)
        snapshot = cluster.snapshot()
        eventually("the cluster goes on", lambda: len(written), lambda count: count > before + 5)
        ends.set()
        writing.result()
    cluster.restore(snapshot)
    first, second = numbers(cluster, "first"), numbers(cluster, "second")
    assert first == list(range(len(first)))
    assert second == list(range(len(second)))
    assert before <= len(second) <= len(first) <= len(second) + 1


def test_brokers_that_were_added(cluster: odradek.Cluster) -> None:
    added = cluster.add_broker()
    cluster.create_topic("orders", replication_factor=4).produce(["A1"])
    snapshot = cluster.snapshot()
    cluster.reset()
    assert cluster.brokers == [1, 2, 3]
    cluster.restore(snapshot)
    assert cluster.brokers == [1, 2, 3, added]
    cluster.move("orders", leader=added, within=PATIENCE_S)
    assert [each.value for each in cluster.records("orders")] == [b"A1"]


def test_what_cannot_be_copied(cluster: odradek.Cluster) -> None:
    snapshot = cluster.snapshot()
    cluster.pause(2)
    with pytest.raises(odradek.OdradekError, match=r"must run and reach each other before .*; broker 2 has paused"):
        cluster.snapshot()
    cluster.resume(2)
    cluster.isolate(3)
    with pytest.raises(odradek.OdradekError, match=r"must run and reach each other before .*; they run; cut: "):
        cluster.snapshot()
    cluster.heal()
    for call in (cluster.broker(1).snapshot, lambda: cluster.broker(1).restore(snapshot)):
        with pytest.raises(odradek.OdradekError, match="broker 1 belongs to a cluster: "):
            call()
    with pytest.raises(odradek.OdradekError, match="the cluster does not run: call start"):
        odradek.Cluster(3).restore(snapshot)
    other = pytest.raises(odradek.OdradekError, match=r"is of a cluster of 3 .* this is a broker")
    with odradek.Broker() as broker, other:
        broker.restore(snapshot)
    other = pytest.raises(odradek.OdradekError, match=r"with tls=False, .* this is a cluster of 3 with tls=True, ")
    with odradek.Cluster(3, tls=True) as secured, other:
        secured.restore(snapshot)


def test_a_snapshot_with_coroutines() -> None:
    async def main() -> None:
        async with odradek.aio.Broker() as broker:
            topic = await broker.create_topic("orders")
            snapshot = await broker.snapshot()
            await topic.produce(["A1"])
            await broker.restore(snapshot)
            assert await topic.records() == []

    asyncio.run(main())
