"""Transactions written by Apache Kafka, read from its log directory by this broker: the same answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from protocol.messages.fetch import FetchRequest
from tests.kit.apache_kafka import ApacheKafka
from tests.kit.broker_process import BrokerProcess
from tests.kit.waiting import eventually
from tests.kit.wire_client import WireClient
from tests.parity.subject import Subject, Target
from tests.parity.test_log_directories import move

pytestmark = [pytest.mark.java, pytest.mark.timeout(180)]

TOPIC = "t"
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
Answer = tuple[int, int, list[tuple[int, int]]]


def producer(address: str, transactional_id: str | None) -> Producer:
    settings = {"bootstrap.servers": address, "linger.ms": 0, "log_level": 0}
    # The last transaction must not time out.
    transactional = {"transactional.id": transactional_id, "transaction.timeout.ms": 600_000}
    made = Producer(settings | (transactional if transactional_id else {}))
    if transactional_id:
        made.init_transactions(60)
    return made


def write(address: str) -> list[Producer]:
    """Write transactions of every kind over several segments; returns the producer whose last one stays open."""
    topic = NewTopic(TOPIC, 1, 1, config={"segment.bytes": "2000"})
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([topic])[TOPIC].result(60)
    one, two, plain = producer(address, "one"), producer(address, "two"), producer(address, None)

    def send(sender: Producer, *values: str) -> None:
        for value in values:
            sender.produce(TOPIC, value.encode() + b"." * 300)
            assert sender.flush(30) == 0

    one.begin_transaction()
    two.begin_transaction()
    send(one, "committed 1", "committed 2")
    send(two, *(f"aborted {number}" for number in range(9)))
    send(plain, "plain 1")
    one.commit_transaction(30)
    two.abort_transaction(30)
    two.begin_transaction()
    send(two, "committed 3")
    two.commit_transaction(30)
    one.begin_transaction()
    send(one, "aborted at last")
    one.abort_transaction(30)
    one.begin_transaction()
    send(one, "open")
    send(plain, "plain 2")
    return [one, two, plain]


def answers(address: str, offsets: range) -> list[Answer]:
    """(high watermark, last stable offset, aborted transactions) of a read_committed Fetch at each offset."""
    host, _, port = address.rpartition(":")
    given = []
    with WireClient(host, int(port)) as client:
        for offset in offsets:
            partition = FetchRequest.FetchPartition(
                partition=0, fetch_offset=offset, partition_max_bytes=10_000_000, current_leader_epoch=-1
            )
            request = FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                isolation_level=1,
                topics=[FetchRequest.FetchTopic(topic=TOPIC, partitions=[partition])],
            )
            response: Any = client.ask(request, 11)
            data = response.responses[0].partitions[0]
            assert data.error_code == 0
            aborted = [(each.producer_id, each.first_offset) for each in data.aborted_transactions]
            given.append((data.high_watermark, data.last_stable_offset, aborted))
    return given


def values(address: str, isolation: str, count: int) -> list[str]:
    """The values that a consumer gets."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "g",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.assign([ClientPartition(TOPIC, 0, 0)])
    found: list[str] = []
    while len(found) < count:
        message = consumer.poll(20)
        assert message is not None, found
        assert message.error() is None
        found.append(message.value().decode().rstrip("."))
    # The log has no more records.
    assert consumer.poll(0.5) is None
    consumer.close()
    return found


def await_end(address: str, offset: int) -> None:
    """Wait for the log's end: Kafka writes the markers after it has answered."""
    eventually("the log's end", lambda: answers(address, range(1))[0][0], lambda end: end == offset)


COMMITTED = ["committed 1", "committed 2", "plain 1", "committed 3"]


def test_what_kafka_aborted_is_not_shown(tmp_path: Path) -> None:
    kafka = ApacheKafka(tmp_path / "kafka", SETTINGS)
    kafka.start()
    try:
        producers = write(kafka.address)
        await_end(kafka.address, 20)
        theirs = answers(kafka.address, range(20))
        assert values(kafka.address, "read_committed", 4) == COMMITTED
    finally:
        kafka.stop()
    assert {len(aborted) for _, _, aborted in theirs} == {0, 1, 2}
    second = str(tmp_path / "second")
    ours = BrokerProcess(tmp_path / "ours", SETTINGS | {"log.dirs": f"{kafka.data_directory},{second}"})
    ours.start()
    try:
        assert answers(ours.address, range(20)) == theirs
        assert values(ours.address, "read_committed", 4) == COMMITTED
        everything = values(ours.address, "read_uncommitted", 16)
        assert (everything.count("open"), sum(value.startswith("aborted") for value in everything)) == (1, 10)
        # The copy of a move must contain it, too, even after a crash.
        subject = Subject(Target(ours.address, str(kafka.data_directory)), "moved")
        move(subject, TOPIC, 0, second)
        subject.close()
        moved = answers(ours.address, range(20))
        # It has fewer segments, so a reader may get more aborted transactions at a time.
        for (*offsets, aborted), (*their_offsets, their_aborted) in zip(moved, theirs, strict=True):
            assert offsets == their_offsets
            assert set(their_aborted) <= set(aborted)
        assert values(ours.address, "read_committed", 4) == COMMITTED
        ours.kill()
        ours.start()
        assert answers(ours.address, range(20)) == moved
        assert values(ours.address, "read_committed", 4) == COMMITTED
    finally:
        assert ours.stop() == 0
    assert producers
