"""Helpers for the end-to-end tests of mirror and replay: topics, and their content according to a plain consumer."""

from __future__ import annotations

import uuid
from typing import NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]


class Found(NamedTuple):
    """A record as a consumer sees it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]

    def header(self, name: str) -> bytes | None:
        """The value of the last header `name`."""
        return [value for key, value in self.headers if key == name][-1]


def create_topic(bootstrap: str, name: str, partitions: int = 1, config: dict[str, str] | None = None) -> str:
    """A new topic; its name is made unique, so that a cluster can be reused."""
    unique = f"{name}-{uuid.uuid4().hex[:8]}"
    topic = NewTopic(unique, num_partitions=partitions, config=config or {})
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([topic])[unique].result(30)
    return unique


def produce(
    bootstrap: str,
    topic: str,
    records: list[tuple[int, bytes | None, bytes | None]],
    headers: list[tuple[str, bytes | None]] | None = None,
) -> None:
    """Send (partition, key, value), and return when all are acknowledged."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})
    failed = []
    for partition, key, value in records:
        while True:
            try:
                producer.produce(
                    topic,
                    value,
                    key,
                    partition,
                    headers=headers or [],
                    on_delivery=lambda error, _: failed.append(error) if error else None,
                )
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0
    assert not failed


def consume(bootstrap: str, topic: str, start: dict[int, int] | None = None) -> list[Found]:
    """Every committed record up to the current end, in the order of partitions and offsets; `start` by partition."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex, "enable.partition.eof": True,
         "enable.auto.commit": False, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    )  # fmt: skip
    try:
        partitions = sorted(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
        begin = start if start is not None else dict.fromkeys(partitions, -2)
        consumer.assign([TopicPartition(topic, number, at) for number, at in begin.items()])
        found, open_partitions = [], set(begin)
        while open_partitions:
            message = consumer.poll(60)
            assert message is not None, f"no answer from {bootstrap}"
            if message.error() is not None:
                open_partitions.discard(message.partition())
                continue
            found.append(
                Found(message.partition(), message.offset(), message.key(), message.value(), message.headers() or [])
            )
        return sorted(found)
    finally:
        consumer.close()


def ends(bootstrap: str, topic: str) -> int:
    """The sum of the partitions' ends."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends"})
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        return sum(
            consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=30)[1] for number in partitions
        )
    finally:
        consumer.close()
