"""Helpers for tests of our own client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from client import admin
from client.consumer import Consumer
from client.kafka_client import KafkaClient
from client.settings import ClientSettings, ConsumerSettings
from protocol.errors import ApiError
from protocol.records.batch import Record
from protocol.topic_partition import TopicPartition

PATIENCE_S = 100.0
"""How long to wait for an expected event; a test has 120 s."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def client_of(address: str, **settings: str) -> KafkaClient:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return KafkaClient(ClientSettings.parse({"bootstrap.servers": address, **given}))


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await test()

    asyncio.run(bounded())


async def read_all(client: KafkaClient, topic: str, partitions: int = 1, **settings: str) -> dict[int, list[Record]]:
    """Every record of a topic that a consumer with these `settings` gets, by partition."""
    every = [TopicPartition(topic, number) for number in range(partitions)]
    given = {name.replace("_", "."): value for name, value in settings.items()}
    consumer_settings = ConsumerSettings.parse({"auto.offset.reset": "earliest", **given})
    ends = await admin.list_offsets(
        client, dict.fromkeys(every, admin.LATEST_TIMESTAMP), isolation_level=consumer_settings.isolation_level
    )
    found: dict[int, list[Record]] = {number: [] for number in range(partitions)}
    async with Consumer(client, consumer_settings) as consumer:
        consumer.assign(every)
        for partition, end in ends.items():
            assert not isinstance(end, ApiError)
            while (consumer.position(partition) or 0) < end.offset:
                for each, records in (await consumer.poll(5)).items():
                    found[each.partition] += records
    return found
