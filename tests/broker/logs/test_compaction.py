"""Compaction in whole brokers: clients write and read while the cleaner works, and while it and its broker are
killed.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from broker.logs.log_cleaner import MOST_DEATHS
from tests.kit.broker_process import BrokerProcess
from tests.kit.waiting import eventually

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
KEYS = 20
EAGER = {
    "log.cleaner.backoff.ms": "50",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.flush.scheduler.interval.ms": "100",
    "log.segment.delete.delay.ms": "500",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.segment.bytes": "2000",
}
TOPIC_CONFIG = {"cleanup.policy": "compact", "segment.bytes": "20000", "delete.retention.ms": "0"}
DEADLINE_S = 60


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    made = BrokerProcess(tmp_path, EAGER)
    made.start()
    try:
        admin = AdminClient({"bootstrap.servers": made.address})
        admin.create_topics([NewTopic("t", 1, 1, config=TOPIC_CONFIG)])["t"].result(DEADLINE_S)
        yield made
    finally:
        made.stop()


class Writer:
    """A producer of one codec with private keys; every value counts up, and some are tombstones."""

    def __init__(self, address: str, codec: str, seed: int) -> None:
        self.latest: dict[bytes, bytes | None] = {}
        self.written = 0
        self._codec = codec
        self._random = random.Random(seed)
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,  # so that retries keep the order, and every record arrives in the end
                "compression.type": codec,
                "linger.ms": 2,
                "batch.num.messages": 40,  # a segment must hold a batch
                "log_level": 0,
                # The broker restarts quickly.
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
            }
        )

    def write(self, count: int) -> None:
        for _ in range(count):
            key = f"{self._codec}-{self._random.randrange(KEYS)}".encode()
            self.written += 1
            value = None if self._random.random() < 0.1 else b"%d " % self.written + b"x" * self._random.randrange(200)
            self._producer.produce("t", value=value, key=key, partition=0, on_delivery=self._delivered)
            self.latest[key] = value
            self._producer.poll(0)

    @staticmethod
    def _delivered(error: KafkaError | None, _message: Message) -> None:
        assert error is None, error

    def flush(self) -> None:
        assert self._producer.flush(DEADLINE_S) == 0


def read_all(address: str) -> list[Message]:
    """Every record of the topic, from its beginning."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "reader", "enable.auto.commit": False})
    _, high = consumer.get_watermark_offsets(TopicPartition("t", 0), timeout=30)
    consumer.assign([TopicPartition("t", 0, 0)])
    records: list[Message] = []
    while consumer.position([TopicPartition("t", 0)])[0].offset < high:
        message = consumer.poll(30)
        assert message is not None, f"nothing after {len(records)} records of offsets below {high}"
        assert message.error() is None, message.error()
        records.append(message)
    consumer.close()
    return records


def offset_of(record: Message) -> int:
    offset = record.offset()
    assert offset is not None
    return offset


def clean_to(broker: BrokerProcess, partition: str) -> int:
    """The offset in cleaner-offset-checkpoint; -1 without an entry."""
    path = broker.output.parent / "data" / "cleaner-offset-checkpoint"
    lines = path.read_text().splitlines() if path.exists() else []
    return next((int(line.split()[2]) for line in lines if line.startswith(f"{partition} ")), -1)


def active_base(broker: BrokerProcess) -> int:
    """The base offset of the newest segment."""
    return max(int(path.stem) for path in (broker.output.parent / "data" / "t-0").glob("*.log"))


def workers(broker: BrokerProcess) -> list[int]:
    """The worker processes of the broker."""
    children = Path(f"/proc/{broker.pid}/task/{broker.pid}/children").read_text().split()
    found = []
    for pid in children:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            if b"cleaner_process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
    return found


def commit(address: str, offset: int) -> None:
    """Commit one offset of the group, superseding the previous one."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "committer", "log_level": 0})
    consumer.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=False)
    consumer.close()


def committed(address: str) -> int:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "committer"})
    (found,) = consumer.committed([TopicPartition("t", 0)], timeout=30)
    consumer.close()
    offset: int = found.offset
    return offset


def check(broker: BrokerProcess, writers: list[Writer]) -> None:
    """Wait until all but the active segment is clean; every key then has its latest value, and little else is left."""
    for writer in writers:
        writer.flush()
    eventually("the log is clean", lambda: clean_to(broker, "t 0") == active_base(broker))
    records = read_all(broker.address)
    offsets = [offset_of(record) for record in records]
    assert offsets == sorted(set(offsets))
    found: dict[bytes | None, bytes | None] = {}
    for record in records:
        found[record.key()] = record.value()
    expected = {key: value for writer in writers for key, value in writer.latest.items()}
    assert {key: value for key, value in found.items() if value is not None} == {
        key: value for key, value in expected.items() if value is not None
    }
    sealed = [record for record in records if offset_of(record) < active_base(broker)]
    assert len(sealed) <= len(expected), "a sealed segment holds two records of one key"


def test_every_key_keeps_its_latest_value(broker: BrokerProcess) -> None:
    writers = [Writer(broker.address, codec, seed) for seed, codec in enumerate(CODECS)]
    for _ in range(10):
        for writer in writers:
            writer.write(60)
    for offset in range(60):
        commit(broker.address, offset)
    check(broker, writers)
    eventually("the offsets' log is clean", lambda: clean_to(broker, "__consumer_offsets 0") > 0)
    assert committed(broker.address) == 59
    (worker,) = workers(broker)
    broker.stop()
    assert not Path(f"/proc/{worker}").exists(), "the worker outlived its broker"
    assert "as uncleanable" not in broker.output.read_text()
    broker.start()
    check(broker, writers)
    assert committed(broker.address) == 59


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_cleaners_and_brokers_are_killed(broker: BrokerProcess) -> None:
    writers = [Writer(broker.address, codec, seed) for seed, codec in enumerate(CODECS)]
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for writer in writers:
                writer.write(20)
            time.sleep(0.01)

    thread = threading.Thread(target=write)
    thread.start()
    rng = random.Random(1)
    try:
        for turn in range(12):
            for _ in range(MOST_DEATHS - 1):
                eventually("a cleaner works", lambda: bool(workers(broker)))
                time.sleep(rng.random() * 0.3)
                for pid in workers(broker):
                    with contextlib.suppress(ProcessLookupError):  # already killed
                        os.kill(pid, signal.SIGKILL)
            commit(broker.address, turn)
            left = workers(broker)
            broker.kill()
            broker.start()
            eventually("workers end with their broker", lambda: not any(Path(f"/proc/{pid}").exists() for pid in left))  # noqa: B023
            assert committed(broker.address) == turn
    finally:
        stop.set()
        thread.join()
    check(broker, writers)
    log = broker.output.read_text()
    assert "died while cleaning" in log
    assert "as uncleanable" not in log
    assert "Traceback" not in log
