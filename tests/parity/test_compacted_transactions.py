"""Transactions written and compacted by Apache Kafka, then read and compacted further by this broker."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tests.kit.apache_kafka import ApacheKafka
from tests.kit.broker_process import BrokerProcess
from tests.kit.waiting import eventually
from tests.parity.cleaning import active_base, clean_until
from tests.parity.test_transactions_on_disk import SETTINGS, TOPIC, answers, producer

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(240)]

EAGER = SETTINGS | {"log.cleaner.backoff.ms": "100"}
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "2000",
    "min.cleanable.dirty.ratio": "0.01",
    "retention.ms": "-1",
}
KEYS = 6
Values = dict[str, str]


class Read(NamedTuple):
    """A record as a consumer gets it."""

    offset: int
    key: str
    value: str | None


class Writer:
    """Writes transactions of every kind, and knows the last committed value of each key."""

    def __init__(self, address: str, name: str) -> None:
        self.committed: Values = {}
        self._address = address
        self._name = name
        self._one = producer(address, "one")
        self._two = producer(address, "two")
        self._plain = producer(address, None)

    def write(self) -> None:
        """Several rounds, each over several segments; values of aborted transactions are newer than committed ones."""
        for number in range(4):
            text = f"{self._name} {number}"
            self._one.begin_transaction()
            self._two.begin_transaction()
            self._send(self._one, {f"k{key}": f"committed {text}" for key in range(number, KEYS)})
            self._send(self._plain, {"plain": f"plain {text}"})
            self._send(self._two, {f"k{key}": f"aborted {text}" for key in range(KEYS)} | {f"only {text}": "aborted"})
            self._one.commit_transaction(30)
            self._two.abort_transaction(30)
            self.committed |= {f"k{key}": f"committed {text}" for key in range(number, KEYS)}
            self.committed["plain"] = f"plain {text}"
        self._two.begin_transaction()
        self._send(self._two, {"k0": None, "k5": "committed last"})
        self._two.commit_transaction(30)
        del self.committed["k0"]
        self.committed["k5"] = "committed last"
        # Kafka writes the markers after it has answered.
        eventually("the last marker", lambda: answers(self._address, range(1))[0], lambda each: each[0] == each[1])

    def roll(self) -> None:
        """Make the next record start a new segment, so that everything before it can be cleaned."""
        self._send(self._plain, {"large": "large"}, 1900)
        self.committed["large"] = "large"

    def leave_open(self) -> Producer:
        """Begin the last segment with a transaction that stays open as long as its producer."""
        self.roll()
        open_one = producer(self._address, "open")
        open_one.begin_transaction()
        self._send(open_one, {"k1": "open"})
        return open_one

    @staticmethod
    def _send(sender: Producer, values: Mapping[str, str | None], size: int = 300) -> None:
        for key, value in values.items():
            sender.produce(TOPIC, None if value is None else value.encode().ljust(size, b"."), key=key.encode())
            assert sender.flush(30) == 0


def read(address: str, isolation: str) -> list[Read]:
    """Everything that a consumer gets."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "g",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([ClientPartition(TOPIC, 0, 0)])
    found: list[Read] = []
    while True:
        message = consumer.poll(30)
        assert message is not None, found
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            consumer.close()
            return found
        value = message.value()
        text = None if value is None else value.decode().rstrip(".")
        found.append(Read(message.offset(), message.key().decode(), text))


def last_values(records: list[Read]) -> Values:
    last = {each.key: each.value for each in records}
    return {key: value for key, value in last.items() if value is not None}


def await_cleaning(directory: Path) -> None:
    """Wait until everything below the active segment is clean."""

    def is_clean() -> bool:
        return clean_until(directory, TOPIC) == active_base(directory, TOPIC)

    eventually("the end of the cleaning", is_clean)


def compact(address: str) -> None:
    """Compact a topic of another broker's log directory."""
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in COMPACTED.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": address})
    admin.incremental_alter_configs([resource])[resource].result(60)


def test_what_kafka_compacted_is_read_and_compacted_further(tmp_path: Path) -> None:
    kafka = ApacheKafka(tmp_path / "kafka", EAGER)
    kafka.start()
    try:
        admin = AdminClient({"bootstrap.servers": kafka.address})
        admin.create_topics([NewTopic(TOPIC, 1, 1, config=COMPACTED)])[TOPIC].result(60)
        by_kafka = Writer(kafka.address, "kafka")
        by_kafka.write()
        open_one = by_kafka.leave_open()
        await_cleaning(kafka.data_directory)
        committed, everything = read(kafka.address, "read_committed"), read(kafka.address, "read_uncommitted")
    finally:
        kafka.stop()
    assert open_one
    assert last_values(committed) == by_kafka.committed
    assert "open" in {each.value for each in everything} - {each.value for each in committed}
    assert everything[-1].offset + 1 > 2 * len(everything), "Kafka has cleaned"

    ours = BrokerProcess(tmp_path / "ours", EAGER | {"log.dirs": str(kafka.data_directory)})
    ours.start()
    try:
        assert read(ours.address, "read_committed") == committed
        assert read(ours.address, "read_uncommitted") == everything
        # A new producer with the id aborts the open transaction.
        producer(ours.address, "open")
        eventually("the abort", lambda: answers(ours.address, range(1))[0], lambda each: each[0] == each[1])
        assert read(ours.address, "read_committed") == committed
        compact(ours.address)
        by_us = Writer(ours.address, "ours")
        by_us.write()
        by_us.roll()
        by_us.roll()
        expected = {**by_kafka.committed, **by_us.committed}
        before = read(ours.address, "read_committed")
        assert last_values(before) == expected
        await_cleaning(kafka.data_directory)
        for _ in range(2):
            after = read(ours.address, "read_committed")
            assert last_values(after) == expected
            assert set(after) < set(before)
            values = {each.value or "" for each in read(ours.address, "read_uncommitted")}
            assert "open" not in values
            assert not any(value.startswith("aborted") for value in values)
            ours.kill()
            ours.start()
    finally:
        ours.kill()
    assert "Traceback" not in ours.output.read_text()
