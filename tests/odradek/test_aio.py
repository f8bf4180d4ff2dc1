"""`odradek.aio`: the same brokers with coroutines."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

import odradek
import odradek.aio
from odradek import brokers, clusters, kafka_under_test
from tests.kit.waiting import PATIENCE_S


@pytest.mark.parametrize(
    ("sync", "aio"),
    [
        (brokers.Broker, odradek.aio.Broker),
        (clusters.Cluster, odradek.aio.Cluster),
        (kafka_under_test.Topic, odradek.aio.Topic),
        (odradek.Fault, odradek.aio.Fault),
        (brokers.Clock, odradek.aio.Clock),
        (brokers.Disk, odradek.aio.Disk),
    ],
)
def test_every_verb_is_a_coroutine(sync: type, aio: type) -> None:
    def public(owner: type) -> Iterator[str]:
        return (name for name in dir(owner) if not name.startswith("_"))

    assert sorted(set(public(sync)) - set(public(aio))) == []
    plain = {"topic", "broker", "client_config", "expect"}  # they ask nothing; the last is an async context manager
    for name in set(public(aio)) - plain:
        member = inspect.getattr_static(aio, name)
        assert isinstance(member, property) or inspect.iscoroutinefunction(member), name


async def order(broker: odradek.aio.Broker, value: bytes) -> None:
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        await producer.send_and_wait("orders", value)


async def use(broker: odradek.aio.Broker) -> None:
    topic = await broker.create_topic("orders", partitions=2)
    fault = await broker.fail("Produce", "NOT_LEADER_OR_FOLLOWER", topic="orders")
    async with broker.expect("orders") as got:
        await order(broker, b"A1")
    assert got[0].value == b"A1"
    assert await fault.hits() == 1
    async with AIOKafkaConsumer(
        "orders", bootstrap_servers=broker.bootstrap_servers, group_id="billing", auto_offset_reset="earliest"
    ) as consumer:
        assert (await consumer.getone()).value == b"A1"
        await broker.await_assigned("billing")
        await consumer.commit()
    assert (await topic.latest(0)) + (await topic.latest(1)) == 1
    before = await broker.clock.now()
    await broker.clock.advance(hours=1)
    assert (await broker.clock.now() - before).total_seconds() >= 3600
    with pytest.raises(odradek.ExpectationError, match="expected 1 records in orders"):
        async with broker.expect("orders", within=0.05):
            pass
    await broker.reset()
    assert await broker.topics() == []


def test_a_broker_with_coroutines() -> None:
    async def main() -> None:
        async with odradek.aio.Broker() as broker:
            await use(broker)

    asyncio.run(main())


def test_a_cluster_with_coroutines() -> None:
    async def main() -> None:
        async with odradek.aio.Cluster(brokers=3) as cluster:
            topic = await cluster.create_topic("orders")
            leader = await cluster.await_leader("orders")
            await cluster.kill(leader)
            await cluster.await_leader("orders", among={1, 2, 3} - {leader}, within=PATIENCE_S)
            async with cluster.expect("orders", within=PATIENCE_S) as got:
                await topic.produce(["A1"])
            assert got[0].value == b"A1"
            with pytest.raises(odradek.OdradekError, match="belongs to a cluster"):
                await cluster.broker(leader).reset()

    asyncio.run(main())
