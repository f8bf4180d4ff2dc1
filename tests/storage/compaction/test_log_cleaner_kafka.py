"""Apache Kafka's cleaner and ours on the same log, twice; and Kafka on a directory cleaned by us."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, IsolationLevel, Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from protocol.records.batch import RecordBatch
from protocol.records.record_format import DELETE_HORIZON_FLAG
from storage.compaction.cleanable_log import cleanable_log, plan_cleaning
from storage.compaction.cleaner import clean
from storage.directory.checkpoints import CLEANER_OFFSET_CHECKPOINT
from storage.io.os_file_system import OsFileSystem
from storage.log.unified_log import UnifiedLog
from storage.log_config import LogConfig
from storage.segment.transaction_index import AbortedTxn, decode_aborted
from tests.kit.apache_kafka import zookeeper
from tests.kit.due import turn
from tests.storage.compaction.cleaning import ENOUGH_KEYS, clean_log
from tests.storage.recovery.test_kafka_interop import Kafka, complaints, dump
from tests.storage.support import T0, TP, close_cleanly, open_manager, read_all

pytestmark = pytest.mark.java

DELETE_RETENTION_MS = 300
CONFIG = LogConfig(
    cleanup_policy=frozenset({"compact"}),
    segment_bytes=8000,
    index_interval_bytes=1000,
    delete_retention_ms=DELETE_RETENTION_MS,
)
TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": "8000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": str(DELETE_RETENTION_MS),
}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
IDLE = "log.cleaner.enable=false\n"
EAGER = "log.cleaner.backoff.ms=100\n"


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[Kafka]:
    with zookeeper(tmp_path / "zk") as address:
        kafka = Kafka(tmp_path, address)
        with kafka.file.open("a") as file:
            file.write(
                "transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n"
                "transaction.state.log.num.partitions=1\n"
            )
        yield kafka


def configure(kafka: Kafka, more: str) -> None:
    lines = [line for line in kafka.file.read_text().splitlines() if not line.startswith("log.cleaner")]
    kafka.file.write_text("\n".join([*lines, more]))


def write(bootstrap: str, written: int) -> None:
    """Write values and tombstones in every codec, then committed and aborted transactions."""
    basic = {"bootstrap.servers": bootstrap, "linger.ms": 5, "batch.size": 700, "log_level": 0}
    for number, codec in enumerate(CODECS):
        producer = Producer({**basic, "compression.codec": codec, "enable.idempotence": number % 2 == 0})
        for at in range(150):
            value = None if at % 11 == 5 else b"%s %d %d " % (codec.encode(), written, at) + b"x" * (at % 90)
            producer.produce("t", value, key=b"k%d" % (at * 7 % 40), headers=[("h", b"v")] if at % 4 == 0 else None)
        assert producer.flush(60) == 0
    transactional = Producer({**basic, "transactional.id": f"tx{written}"})
    transactional.init_transactions(60)
    for number in range(8):
        transactional.begin_transaction()
        for at in range(20):
            key = b"k%d" % (at % 40) if number % 2 else b"in %d %d" % (written, at)
            transactional.produce("t", b"of %d %d" % (written, number) + b"y" * 30, key=key)
        if number % 3 == 1:
            transactional.flush(60)
            transactional.abort_transaction(60)
        else:
            transactional.commit_transaction(60)
    await_end_of_transactions(bootstrap)
    producer = Producer(basic)
    for at in range(200):  # the active segment, which is never cleaned, begins in here
        producer.produce("t", b"last %d %d" % (written, at) + b"z" * 50, key=b"k%d" % (at % 7))
    assert producer.flush(60) == 0


def await_end_of_transactions(bootstrap: str) -> None:
    """Wait until the last marker is in the log: a coordinator answers earlier, and its next process would append it
    after the cleaning.
    """
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "log_level": 0})
    high_watermark = consumer.get_watermark_offsets(ClientPartition("t", 0), timeout=60)[1]
    consumer.close()
    deadline = time.monotonic() + 60
    while last_stable_offset(bootstrap) < high_watermark:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def last_stable_offset(bootstrap: str) -> int:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    partition = ClientPartition("t", 0)
    asked = admin.list_offsets(
        {partition: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=60
    )
    return int(asked[partition].result(60).offset)


def consume(bootstrap: str, isolation: str, last: int) -> list[tuple[int | None, bytes | None, bytes | None]]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "g",
            "isolation.level": isolation,
            "check.crcs": True,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.assign([ClientPartition("t", 0, 0)])
    found = []
    for message in iter(lambda: consumer.poll(30), None):
        assert message.error() is None, message.error()
        found.append((message.offset(), message.key(), message.value()))
        if message.offset() == last:
            break
    consumer.close()
    return found


def clean_by_kafka(kafka: Kafka, end_offset: int) -> None:
    configure(kafka, EAGER)
    checkpoint = kafka.data / CLEANER_OFFSET_CHECKPOINT
    with kafka.running():
        deadline = time.monotonic() + 60
        while f"t 0 {end_offset}" not in checkpoint.read_text().splitlines():
            assert time.monotonic() < deadline, checkpoint.read_text()
            time.sleep(0.1)


def clean_by_us(data: Path) -> int:
    """Returns the end of the clean part."""
    manager, report = open_manager(OsFileSystem(), CONFIG, str(data))
    assert report.clean
    assert not report.refused
    now_ms = int(time.time() * 1000)
    done = clean_log(OsFileSystem(), manager, manager.logs[TP], now_ms)
    assert done is not None
    close_cleanly(manager)
    for path in data.glob("t-0/*.deleted"):
        path.unlink()
    return done[1].end_offset


def begin_replacement(data: Path) -> None:
    """Clean, and die during the replacement: the first new segment is complete, the old ones still exist."""
    manager, _ = open_manager(OsFileSystem(), CONFIG, str(data))
    log = manager.logs[TP]
    found = cleanable_log(log, log.log_end_offset, T0)
    assert found is not None
    result = clean(OsFileSystem(), plan_cleaning(found, int(time.time() * 1000), ENOUGH_KEYS))
    assert len(result.groups) > 1
    assert len(result.groups[0].sources) > 1
    for path in data.glob(f"t-0/{result.groups[0].base_offset:020d}.*.cleaned"):
        path.rename(path.with_suffix(".swap"))
    manager.directories.unlock()


def opened(data: Path) -> UnifiedLog:
    """The log in that directory, opened in a copy: opening removes the marker of a clean shutdown."""
    copy = data.with_name(f"{data.name}-read")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(data, copy)
    manager, report = open_manager(OsFileSystem(), CONFIG, str(copy))
    assert report.clean
    assert not report.refused
    assert not report.repaired
    manager.directories.unlock()
    return manager.logs[TP]


def facts(batch: RecordBatch) -> tuple[object, ...]:
    """Everything that a reader sees of a batch; a delete horizon's time is that of the cleaning."""
    return (
        batch.base_offset,
        batch.last_offset,
        batch.partition_leader_epoch,
        batch.attributes,
        batch.delete_horizon_ms is not None,
        batch.max_timestamp,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.count,
        list(batch.records()),
    )


def aborted_in(log: UnifiedLog) -> list[AbortedTxn]:
    found: list[AbortedTxn] = []
    for path in sorted(Path(log.path).glob("*.txnindex")):
        found += decode_aborted(str(path), path.read_bytes())
    return found


@turn(0, of=2)
@pytest.mark.timeout(600)
def test_both_cleaners_leave_the_same(kafka: Kafka, tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    for written in range(2):
        configure(kafka, IDLE)
        with kafka.running() as bootstrap:
            if written == 0:
                topic = NewTopic("t", 1, 1, config=TOPIC_CONFIG)
                admin = AdminClient({"bootstrap.servers": bootstrap})
                admin.create_topics([topic])["t"].result(60)
            write(bootstrap, written)
        shutil.rmtree(ours, ignore_errors=True)
        shutil.copytree(kafka.data, ours)
        begun = tmp_path / "begun"
        shutil.rmtree(begun, ignore_errors=True)
        shutil.copytree(kafka.data, begun)
        raw = len(read_all(opened(ours)))
        end_offset = clean_by_us(ours)
        clean_by_kafka(kafka, end_offset)

        by_us, by_kafka = opened(ours), opened(kafka.data)
        assert by_us.log_end_offset == by_kafka.log_end_offset
        assert by_us.cleaner_checkpoint == by_kafka.cleaner_checkpoint == end_offset
        bases = [segment.base_offset for segment in by_us.segments]
        assert bases == [segment.base_offset for segment in by_kafka.segments if segment.base_offset in bases]
        left = read_all(by_us)
        assert list(map(facts, left)) == list(map(facts, read_all(by_kafka)))
        assert len(left) < raw / 2
        assert any(batch.attributes & DELETE_HORIZON_FLAG for batch in left)
        assert aborted_in(by_us) == aborted_in(by_kafka)
        assert {each: state.last_sequence for each, state in by_us.producer_state.entries.items()} == {
            each: state.last_sequence for each, state in by_kafka.producer_state.entries.items()
        }
        time.sleep(DELETE_RETENTION_MS / 1000)

    segments = ",".join(str(path) for path in sorted(ours.glob("t-0/*.log")))
    output = dump("--deep-iteration", "--print-data-log", "--files", segments)
    for word in ("mismatch", "Found", "corrupt", "invalid", "isvalid: false", "Exception"):
        assert word not in output, output
    for path in sorted([*ours.glob("t-0/*.index"), *ours.glob("t-0/*.timeindex"), *ours.glob("t-0/*.txnindex")]):
        output = dump("--files", str(path))
        assert "mismatch" not in output
        assert "Exception" not in output

    last = opened(ours).log_end_offset - 1
    configure(kafka, IDLE)
    with kafka.running() as bootstrap:
        expected = [consume(bootstrap, isolation, last) for isolation in ("read_committed", "read_uncommitted")]
    shutil.rmtree(kafka.data)
    shutil.copytree(ours, kafka.data)
    with kafka.running() as bootstrap:
        found = [consume(bootstrap, isolation, last) for isolation in ("read_committed", "read_uncommitted")]
    assert found == expected
    assert complaints(kafka) == []

    # Kafka completes a replacement that we have begun in the same way as we do.
    begin_replacement(begun)
    shutil.rmtree(kafka.data)
    shutil.copytree(begun, kafka.data)
    with kafka.running():
        pass
    by_kafka = opened(kafka.data)
    manager, report = open_manager(OsFileSystem(), CONFIG, str(begun))
    assert not report.refused
    by_us = manager.logs[TP]
    sizes = [[(segment.base_offset, segment.size) for segment in log.segments] for log in (by_us, by_kafka)]
    assert sizes[0] == sizes[1]
    assert list(map(facts, read_all(by_us))) == list(map(facts, read_all(by_kafka)))
    manager.directories.unlock()
