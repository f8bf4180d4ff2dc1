"""A broker that dies again and again while programs read from it and write to it, and what a consumer sees of their
output.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.compat.exactly_once.program import Program
from tests.compat.steady_load import IMPATIENT, PARTITIONS
from tests.kit.broker_process import BrokerProcess
from tests.kit.waiting import eventually

KILLS = int(os.environ.get("ODRADEK_EXACTLY_ONCE_KILLS", "20"))
"""How often the broker is killed in each test."""
PATIENCE_S = 120.0
PAUSE_S = 0.004
LONGEST_PAUSE_S = 0.2
"""The longest pause before a kill, which comes at any moment of a transaction."""
LONGEST_START_S = 3.0
"""The longest time before the first kill after the start of a program, to hit any step of it."""


class Record(NamedTuple):
    """An input record."""

    topic: str
    partition: int
    key: str
    value: str
    timestamp_ms: int


class Found(NamedTuple):
    """A record that a consumer received."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


class Feeder(threading.Thread):
    """An idempotent producer of `record(0)`, `record(1)`, ..., which retries forever."""

    def __init__(self, address: str, record: Callable[[int], Record]) -> None:
        super().__init__(daemon=True)
        self.sent: list[Record] = []
        self._record = record
        self._failures: list[str] = []
        self._stopping = threading.Event()
        settings: dict[str, str | int | bool] = {
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "message.timeout.ms": 0,
            **IMPATIENT,
            "log_level": 0,
        }
        self._producer = Producer(settings)

    def run(self) -> None:
        while not self._stopping.is_set():
            if len(self._producer) < 1000:
                record = self._record(len(self.sent))
                self.sent.append(record)
                self._producer.produce(
                    record.topic,
                    key=record.key,
                    value=record.value,
                    partition=record.partition,
                    timestamp=record.timestamp_ms,
                    on_delivery=self._delivered,
                )
            self._producer.poll(PAUSE_S)
        if self._producer.flush(PATIENCE_S):
            self._failures.append("not everything was acknowledged")

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failures.append(str(error))

    def stop(self) -> list[Record]:
        """Stop sending, and return all sent records once they are acknowledged."""
        self._stopping.set()
        self.join(PATIENCE_S * 2)
        assert not self.is_alive()
        assert not self._failures, self._failures[:3]
        return self.sent


def consumer_of(address: str, topic: str) -> Consumer:
    """A consumer of committed records at the beginning of the topic."""
    settings: dict[str, str | int | bool] = {
        "bootstrap.servers": address,
        "group.id": "unused",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
        **IMPATIENT,
        "log_level": 0,
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    return consumer


def _found(message: Message) -> Found:
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return Found(partition, offset, message.key(), message.value())


class Follower(threading.Thread):
    """Reads the committed records of a topic while its broker dies again and again."""

    def __init__(self, address: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.found: list[Found] = []
        self.failure: str | None = None
        self._consumer = consumer_of(address, topic)
        self._stopping = threading.Event()

    def run(self) -> None:
        while not self._stopping.is_set():
            message = self._consumer.poll(0.1)
            if message is None:
                continue
            error = message.error()
            if error is None:
                self.found.append(_found(message))
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                self.failure = str(error)
        self._consumer.close()

    def stop(self) -> None:
        """Read nothing more."""
        self._stopping.set()
        self.join(PATIENCE_S)


def committed_records(address: str, topic: str) -> list[Found]:
    """All committed records of a topic, in order within each partition."""
    consumer = consumer_of(address, topic)
    found: list[Found] = []
    ended: set[int | None] = set()
    try:
        while len(ended) < PARTITIONS:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, f"the end of {topic} does not come"
            error = message.error()
            if error is None:
                found.append(_found(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            else:
                raise KafkaException(error)
    finally:
        consumer.close()
    return found


class Trial:
    """Programs at work on a broker. `progress` counts their output."""

    def __init__(self, broker: BrokerProcess, programs: Sequence[Program], progress: Callable[[], int]) -> None:
        self._broker = broker
        self._programs = programs
        self._progress = progress
        self._chance = random.Random(KILLS)

    def await_progress(self, count: int) -> None:
        """Wait for `count` outputs; fails with the output of the programs and the broker."""

        def progress() -> int:
            for program in self._programs:
                program.ensure_runs()
            return self._progress()

        try:
            eventually("the output", progress, lambda seen: seen >= count, patience_s=PATIENCE_S)
        except AssertionError as error:
            said = "\n".join(f"-- {program.log.stem}:\n{program.tail()}" for program in self._programs)
            said += f"\n-- broker:\n{self._broker.output.read_text()[-4000:]}"
            raise AssertionError(f"{error} of {count}\n{said}") from error

    def kill_amid(self, *events: Callable[[], None]) -> None:
        """Kill the broker `KILLS` times, with these events in between; then wait for some more output."""
        parts = len(events) + 1
        for number in range(parts):
            self._kill_broker(KILLS * (number + 1) // parts - KILLS * number // parts)
            if number < len(events):
                events[number]()
        self.await_progress(self._progress() + 1)

    def _kill_broker(self, times: int) -> None:
        """Kill and restart it: first while the programs start, then mostly after some more output."""
        for turn in range(times):
            if turn % 5 != 0:
                self.await_progress(self._progress() + 1 + self._chance.randrange(60))
            time.sleep(self._chance.random() * (LONGEST_PAUSE_S if turn else LONGEST_START_S))
            self._broker.kill()
            self._broker.start()
