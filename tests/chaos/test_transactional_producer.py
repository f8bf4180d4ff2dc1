"""Our client's transactions while coordinators and leaders are killed: each is complete, in order and with its offset,
or absent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.coordinators.coordinator_service import coordinator_partition
from client import groups
from client.groups import GroupMetadata, OffsetAndMetadata
from client.producer import Producer
from client.settings import ProducerSettings
from protocol.topic_partition import CONSUMER_OFFSETS, TRANSACTION_STATE, TopicPartition
from tests.client.clients import client_of, now_ms, read_all
from tests.compat.steady_load import PARTITIONS, create_topics
from tests.kit.broker_cluster import BrokerCluster
from tests.kit.zookeeper import new_served_tree

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOPIC, SOURCE = "written", TopicPartition("read", 0)
TRANSACTIONAL_ID, GROUP = "id", "group"
MORE = 15
"""How many transactions must commit after a kill."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BrokerCluster]:
    with BrokerCluster(tmp_path, settings={"min.insync.replicas": "2"}, new_server=new_served_tree) as running:
        create_topics(running.address, {TOPIC: {}, SOURCE.topic: {}}, replication_factor=3)
        yield running


class Writer:
    """Commits four transactions out of five; each writes its number to all partitions, and as its offset."""

    def __init__(self, producer: Producer) -> None:
        self.committed: list[int] = []
        self._producer = producer
        self._is_over = False

    async def run(self) -> None:
        number = 0
        await self._producer.init_transactions()
        while not self._is_over:
            number += 1
            self._producer.begin_transaction()
            for partition in range(PARTITIONS):
                await self._producer.send(TOPIC, b"%d" % number, partition=partition)
            await self._producer.send_offsets_to_transaction({SOURCE: OffsetAndMetadata(number)}, GroupMetadata(GROUP))
            if number % 5:
                await self._producer.commit_transaction()
                self.committed.append(number)
            else:
                await self._producer.flush()
                await self._producer.abort_transaction()

    async def goes_on(self) -> None:
        goal = len(self.committed) + MORE
        while len(self.committed) < goal:
            await asyncio.sleep(0.05)

    def stop(self) -> None:
        self._is_over = True


def test_transactions_go_on_while_brokers_die(cluster: BrokerCluster) -> None:
    async def victims() -> list[int]:
        of_id = (TRANSACTION_STATE, coordinator_partition(TRANSACTIONAL_ID, 4))
        of_group = (CONSUMER_OFFSETS, coordinator_partition(GROUP, 4))
        return [await asyncio.to_thread(cluster.leader, *each) for each in (of_id, of_group, (TOPIC, 0))]

    async def test() -> None:
        async with client_of(cluster.address, retry_backoff_ms="50") as client:
            settings = ProducerSettings.parse({"transactional.id": TRANSACTIONAL_ID})
            async with Producer(client, settings, now_ms) as producer:
                writer = Writer(producer)
                writing = asyncio.create_task(writer.run())
                await writer.goes_on()
                for round_ in range(3):
                    victim = (await victims())[round_]
                    cluster.brokers[victim].kill()
                    await asyncio.wait({asyncio.create_task(writer.goes_on()), writing}, return_when="FIRST_COMPLETED")
                    assert not writing.done(), writing
                    await asyncio.to_thread(cluster.await_whole)
                    for topic in (TRANSACTION_STATE, CONSUMER_OFFSETS, TOPIC):
                        await asyncio.to_thread(cluster.await_full_isr, topic)
                writer.stop()
                await writing
            offsets = await groups.fetch_offsets(client, GROUP, [SOURCE], require_stable=True)
            assert offsets[SOURCE].offset == writer.committed[-1]
            expected = {number: [b"%d" % each for each in writer.committed] for number in range(PARTITIONS)}
            found: dict[int, list[bytes | None]] = {}
            while found != expected:
                records = await read_all(client, TOPIC, PARTITIONS, isolation_level="read_committed")
                found = {number: [each.value for each in records[number]] for number in records}

    async def bounded() -> None:
        async with asyncio.timeout(280):
            await test()

    asyncio.run(bounded())
    assert cluster.traceback() is None
