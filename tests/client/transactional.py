"""A broker for transactions, our producer with a transactional id, and the records that consumers get."""

from __future__ import annotations

import asyncio

from client.kafka_client import KafkaClient
from client.producer import Producer
from client.settings import ProducerSettings
from tests.client.clients import now_ms, read_all

SETTINGS = {
    "num.partitions": "1",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
}


def producer_of(client: KafkaClient, transactional_id: str, **settings: str) -> Producer:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return Producer(client, ProducerSettings.parse({"transactional.id": transactional_id, **given}), now_ms)


async def values_of(client: KafkaClient, topic: str, *, committed: bool = True) -> list[bytes | None]:
    level = "read_committed" if committed else "read_uncommitted"
    (records,) = (await read_all(client, topic, isolation_level=level)).values()
    return [record.value for record in records]


async def await_values(client: KafkaClient, topic: str, expected: list[bytes]) -> None:
    """Wait for the values: a commit is answered before its markers are written."""
    while await values_of(client, topic) != expected:
        await asyncio.sleep(0.05)
