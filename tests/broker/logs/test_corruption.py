"""A flipped bit on the disk of a real broker: readers get an error, it is logged once, and the rest is served."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from protocol.errors import ErrorCode
from protocol.messages.fetch import FetchRequest
from protocol.records.batch import read_batches
from tests.kit.broker_process import BrokerProcess, free_port
from tests.kit.jars import java, kafka_classpath
from tests.kit.waiting import eventually
from tests.kit.wire_client import WireClient
from tests.kit.wire_requests import list_offsets

BATCHES = 6
SIZE = 400
T = 1_700_000_000_000
DAMAGED = 2


@dataclass
class Damaged:
    broker: BrokerProcess
    path: Path
    position: int
    metrics_port: int

    def fetch(self, offset: int) -> tuple[ErrorCode, list[int]]:
        """Error code, and the offsets returned."""
        host, port = self.broker.address.split(":")
        asked = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=1 << 20,
            topics=[FetchRequest.FetchTopic(topic="t", partitions=[asked])],
        )
        with WireClient(host, int(port)) as client:
            answer = client.ask(request, 11).responses[0].partitions[0]  # type: ignore[attr-defined]
        records = memoryview(answer.records or b"")
        return ErrorCode(answer.error_code), [r.offset for batch in read_batches(records) for r in batch.records()]

    def offset_at(self, timestamp: int) -> tuple[ErrorCode, int]:
        host, port = self.broker.address.split(":")
        with WireClient(host, int(port)) as client:
            answer = client.ask(list_offsets("t", timestamp), 5).topics[0].partitions[0]  # type: ignore[attr-defined]
        return ErrorCode(answer.error_code), answer.offset

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=60) as response:
            found = re.search(rf"^{name}(?:{{.*}})? (\S+)$", response.read().decode(), re.MULTILINE)
        assert found is not None
        return float(found[1])

    def log_lines(self) -> list[str]:
        return [line for line in self.broker.output.read_text().splitlines() if "is corrupt at byte" in line]


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[Damaged]:
    """A broker with a bit flipped in the third of six batches while it was down."""
    metrics_port = free_port()
    settings = {
        "metrics.listener": f"127.0.0.1:{metrics_port}",
        "log.scrub.interval.ms": "500",
        "log.segment.bytes": str(4 * SIZE),
    }
    broker = BrokerProcess(tmp_path, settings)
    broker.start()
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 0})
    for number in range(BATCHES):
        producer.produce("t", bytes([65 + number]) * SIZE, timestamp=T + number)
        assert producer.flush(60) == 0
    assert broker.stop() == 0
    path = next((tmp_path / "data" / "t-0").glob(f"*{0:019d}*.log"))
    content = bytearray(path.read_bytes())
    at = content.index(bytes([65 + DAMAGED]) * SIZE)
    content[at + 7] ^= 4
    path.write_bytes(content)
    yield Damaged(broker, path, content.rindex(b"B" * SIZE) + SIZE + 1, metrics_port)
    broker.stop()


def test_damage_is_refused_and_what_is_behind_it_is_served(damaged: Damaged) -> None:
    damaged.broker.start()
    assert damaged.fetch(0) == (ErrorCode.NONE, [0, 1])
    for _ in range(3):
        assert damaged.fetch(DAMAGED) == (ErrorCode.CORRUPT_MESSAGE, [])
    assert damaged.fetch(DAMAGED + 1)[1][0] == DAMAGED + 1
    assert damaged.fetch(BATCHES - 1) == (ErrorCode.NONE, [BATCHES - 1])
    assert damaged.offset_at(T + DAMAGED)[0] is ErrorCode.CORRUPT_MESSAGE
    assert damaged.offset_at(T + BATCHES - 1) == (ErrorCode.NONE, BATCHES - 1)
    lines = damaged.log_lines()
    assert len(lines) == 1, lines
    assert f"{damaged.path} is corrupt at byte {damaged.position} (" in lines[0]
    assert f"offsets {DAMAGED} to {DAMAGED} cannot be read" in lines[0]
    assert damaged.metric("odradek_log_corruptions_total") == 1


def test_the_scrub_finds_it_before_anybody_reads(damaged: Damaged) -> None:
    damaged.broker.start()
    eventually("a full pass", lambda: damaged.metric("odradek_log_scrub_last_full_pass_timestamp_seconds"))
    assert damaged.metric("odradek_log_scrub_bytes_total") >= damaged.path.stat().st_size
    assert damaged.metric("odradek_log_corruptions_total") == 1
    assert len(damaged.log_lines()) == 1


def poll(consumer: Consumer) -> Message:
    message = consumer.poll(60)
    assert message is not None
    return message


def test_librdkafka_is_told_and_gets_past_it_by_seeking(damaged: Damaged) -> None:
    damaged.broker.start()
    consumer = Consumer({"bootstrap.servers": damaged.broker.address, "group.id": "g"})
    consumer.assign([TopicPartition("t", 0, 0)])
    for offset in range(DAMAGED):
        assert poll(consumer).offset() == offset
    error = poll(consumer).error()
    assert error is not None
    assert error.code() == ErrorCode.CORRUPT_MESSAGE
    consumer.seek(TopicPartition("t", 0, DAMAGED + 1))
    while (error := (message := poll(consumer)).error()) is not None:
        assert error.code() == ErrorCode.CORRUPT_MESSAGE
    assert message.offset() == DAMAGED + 1
    assert message.value() == b"D" * SIZE
    consumer.close()


def kafkas_consumer(damaged: Damaged, offset: int, most: int) -> subprocess.CompletedProcess[str]:
    log4j = damaged.broker.output.with_name("log4j.properties")
    log4j.write_text(
        "log4j.rootLogger=ERROR, stderr\nlog4j.appender.stderr=org.apache.log4j.ConsoleAppender\n"
        "log4j.appender.stderr.Target=System.err\nlog4j.appender.stderr.layout=org.apache.log4j.SimpleLayout\n"
    )
    options = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Dlog4j.configuration=file:{log4j}")
    command = [
        *java(*options, "-cp", kafka_classpath()),
        *("org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", damaged.broker.address),
        *("--topic", "t", "--partition", "0", "--offset", str(offset)),
        *("--max-messages", str(most), "--timeout-ms", "60000"),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.java
def test_kafkas_consumer_throws_and_reads_on_behind_it(damaged: Damaged) -> None:
    damaged.broker.start()
    stopped = kafkas_consumer(damaged, 0, BATCHES)
    assert stopped.stdout.split() == ["A" * SIZE, "B" * SIZE]
    assert "Encountered corrupt message when fetching offset 2 for topic-partition t-0" in stopped.stderr
    assert kafkas_consumer(damaged, DAMAGED + 1, 3).stdout.split() == [letter * SIZE for letter in "DEF"]


def test_groups_go_on_from_an_older_commit(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, {"offsets.topic.num.partitions": "1"})
    broker.start()
    producer = Producer({"bootstrap.servers": broker.address})
    for topic in ("t", "other"):
        producer.produce(topic, b"x")
    assert producer.flush(60) == 0
    settings = {"bootstrap.servers": broker.address, "group.id": "g", "enable.auto.commit": False}
    consumer = Consumer(settings)
    for offset in (11, 22, 33):
        consumer.commit(offsets=[TopicPartition("t", 0, offset, str(offset) * 20)], asynchronous=False)
    consumer.commit(offsets=[TopicPartition("other", 0, 44)], asynchronous=False)
    consumer.close()
    assert broker.stop() == 0
    path = tmp_path / "data" / "__consumer_offsets-0" / f"{0:020d}.log"
    content = path.read_bytes()
    path.write_bytes(content.replace(b"33" * 20, b"33" * 19 + b"3\x00"))
    broker.start()
    consumer = Consumer(settings)
    committed = consumer.committed([TopicPartition("t", 0), TopicPartition("other", 0)], timeout=60)
    consumer.close()
    assert broker.stop() == 0
    assert [each.offset for each in committed] == [22, 44]
    assert "Loading of __consumer_offsets-0 continues at offset 3" in broker.output.read_text()
