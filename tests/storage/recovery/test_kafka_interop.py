"""One log directory used by Apache Kafka and by us in turn, after clean stops and kills; and Kafka's own
DumpLogSegments.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from protocol.records.compression import CompressionType
from protocol.topic_partition import TopicPartition
from storage.directory.checkpoints import RECOVERY_POINT_CHECKPOINT, WHOLE_SEGMENTS, read_offset_checkpoint
from storage.directory.meta_properties import read_meta_properties, read_topic_id, write_topic_id
from storage.io.os_file_system import OsFileSystem
from storage.log.unified_log import UnifiedLog
from storage.log_config import LogConfig
from storage.log_manager import LogManager
from storage.recovery.log_directory_survey import LoadReport
from tests.kit.apache_kafka import await_controller, java_server, zookeeper
from tests.kit.broker_process import free_port
from tests.kit.due import turn
from tests.kit.jars import java, kafka_classpath
from tests.storage.support import T0, batch_of, checkpoint_high_watermarks, close_cleanly, open_manager, values_in

pytestmark = pytest.mark.java

TOPIC = "t"
TP = TopicPartition(TOPIC, 0)
CONFIG = LogConfig(segment_bytes=20_000, index_interval_bytes=1000)


class Kafka:
    """Apache Kafka on `directory`, started and stopped at will."""

    def __init__(self, directory: Path, zookeeper_address: str) -> None:
        self.port = free_port()
        self.data = directory / "data"
        self.log = directory / "server.log"
        """The log of the last run only."""
        self.zookeeper_address = zookeeper_address
        self.file = directory / "server.properties"
        self.file.write_text(
            f"broker.id=0\nlisteners=PLAINTEXT://127.0.0.1:{self.port}\nlog.dirs={self.data}\n"
            f"zookeeper.connect={zookeeper_address}\n"
            # If the machine stalls for some seconds, the broker keeps its session, and so its leaderships; and the
            # first round of retention, after 30 s, finds nothing too old.
            "zookeeper.session.timeout.ms=40000\nlog.retention.ms=-1\n"
            "offsets.topic.num.partitions=1\noffsets.topic.replication.factor=1\nlog.index.interval.bytes=1000\n"
        )

    def forget(self) -> None:
        """Make ZooKeeper forget a killed broker; otherwise the next one could not register before the session ends."""
        client = KazooClient(self.zookeeper_address)
        client.start(60)
        try:
            for ephemeral in ("/brokers/ids/0", "/controller"):
                with contextlib.suppress(NoNodeError):
                    client.delete(ephemeral)
        finally:
            client.stop()
            client.close()

    @contextlib.contextmanager
    def running(self, end: signal.Signals = signal.SIGTERM) -> Iterator[str]:
        """Yields the bootstrap address."""
        with java_server("kafka.Kafka", self.file, self.port, level="WARN", end=end):
            await_controller(f"127.0.0.1:{self.port}")
            yield f"127.0.0.1:{self.port}"


def produce(bootstrap: str, values: list[bytes], codec: str = "none") -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.codec": codec,
            "linger.ms": 2,
            "batch.size": 6000,
            "log_level": 0,
        }
    )
    failed: list[object] = []
    for value in values:
        producer.produce(
            TOPIC, value, key=b"k", partition=0, on_delivery=lambda error, _: error and failed.append(error)
        )
    assert producer.flush(60) == 0
    assert not failed


def consume(bootstrap: str, count: int) -> list[tuple[int, bytes]]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "g",
            "check.crcs": True,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.assign([ClientPartition(TOPIC, 0, 0)])
    found: list[tuple[int, bytes]] = []
    for message in iter(lambda: consumer.poll(30), None):
        assert message.error() is None, message.error()
        found.append((message.offset(), message.value()))
        if len(found) == count:
            break
    consumer.close()
    return found


def open_ours(data: Path) -> tuple[LogManager, LoadReport, UnifiedLog]:
    manager, report = open_manager(OsFileSystem(), CONFIG, str(data))
    assert not report.refused
    return manager, report, manager.logs[TP]


def append_ours(log: UnifiedLog, values: list[bytes], codec: CompressionType) -> None:
    for at in range(0, len(values), 3):
        records = batch_of(*values[at : at + 3], compression=codec)
        log.append_as_leader(records, leader_epoch=max(log.latest_epoch(), 0), now_ms=T0)


def complaints(kafka: Kafka) -> list[str]:
    """Kafka's log lines about damage in the log directory."""
    wrong = ("orrupt", "rebuild", "Skipping", "Could not find", "truncat", "stray", "log dir")
    return [line for line in kafka.log.read_text().splitlines() if any(word in line for word in wrong)]


def dump(*arguments: str) -> str:
    command = java("-Xmx256M", "-cp", kafka_classpath(), "kafka.tools.DumpLogSegments", *arguments)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[Kafka]:
    with zookeeper(tmp_path / "zk") as address:
        yield Kafka(tmp_path, address)


@turn(1, of=2)
@pytest.mark.timeout(240)
def test_one_directory_used_in_turn(kafka: Kafka) -> None:
    every: list[bytes] = []

    def more(who: str, count: int) -> list[bytes]:
        values = [b"%s %06d %s" % (who.encode(), at, b"x" * (at % 60)) for at in range(count)]
        every.extend(values)
        return values

    with kafka.running() as bootstrap:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        topic = NewTopic(TOPIC, 1, 1, config={"segment.bytes": "20000"})
        admin.create_topics([topic])[TOPIC].result(60)
        for codec in ("none", "gzip", "lz4", "zstd", "snappy"):
            produce(bootstrap, more("kafka " + codec, 300), codec)

    # After a clean stop: nothing to repair, all records exist, and the producers' state is known.
    manager, report, log = open_ours(kafka.data)
    assert report.clean
    assert report.broker_epoch == -1  # the value that Kafka writes in ZooKeeper mode
    assert not report.repaired
    assert not manager.refused
    assert [value for _, value in values_in(log)] == every
    assert len(log.producer_state.entries) == 5
    assert log.leader_epochs.latest_epoch == 0
    assert log.topic_id == read_topic_id(OsFileSystem(), log.path)
    written_by_kafka = Path(log.path, "partition.metadata").read_bytes()
    assert log.topic_id is not None
    write_topic_id(OsFileSystem(), log.path, log.topic_id)
    assert Path(log.path, "partition.metadata").read_bytes() == written_by_kafka
    meta = read_meta_properties(OsFileSystem(), str(kafka.data))
    assert meta is not None
    assert (meta.version, meta.broker_id) == (0, 0)
    assert manager.checkpoints.high_watermarks[TP] == len(every)
    for codec in CompressionType:
        append_ours(log, more("ours " + codec.name, 150), codec)
    checkpoint_high_watermarks(manager, {TP: log.log_end_offset})
    close_cleanly(manager, broker_epoch=3)

    with kafka.running(signal.SIGKILL) as bootstrap:
        assert consume(bootstrap, len(every)) == list(enumerate(every))
        assert complaints(kafka) == []
        produce(bootstrap, more("kafka again", 700))
        assert consume(bootstrap, len(every)) == list(enumerate(every))

    # After a kill, Kafka's indexes are 10 MiB of zeros after their entries.
    indexes = [path for path in kafka.data.glob("t-0/*.index") if path.stat().st_size >= 10 << 20]
    assert indexes
    manager, report, log = open_ours(kafka.data)
    assert not report.clean
    assert [value for _, value in values_in(log)] == every
    assert all(path.stat().st_size < 1 << 20 for path in indexes)
    append_ours(log, more("ours again", 600), CompressionType.LZ4)
    # Die here: no close, no checkpoint. Kafka recovers our files.
    manager.directories.unlock()
    recovery_points = str(kafka.data / RECOVERY_POINT_CHECKPOINT)
    assert WHOLE_SEGMENTS in read_offset_checkpoint(OsFileSystem(), recovery_points)
    kafka.forget()

    with kafka.running() as bootstrap:
        assert consume(bootstrap, len(every)) == list(enumerate(every))
        produce(bootstrap, more("kafka at last", 10))
    assert read_offset_checkpoint(OsFileSystem(), recovery_points)[TP] == len(every)
    assert WHOLE_SEGMENTS not in read_offset_checkpoint(OsFileSystem(), recovery_points), "it is not Kafka's"

    manager, report, log = open_ours(kafka.data)
    assert report.clean
    assert [value for _, value in values_in(log)] == every
    close_cleanly(manager)


def test_dump_log_segments_reads_what_we_write(tmp_path: Path) -> None:
    manager, _ = open_manager(OsFileSystem(), CONFIG, str(tmp_path))
    log = manager.get_or_create(TP, None, CONFIG, T0)
    for number in range(400):
        records = batch_of(
            b"v%d" % number, b"x" * 100, timestamps=[T0 + number, T0 + number // 2], producer_id=7, producer_epoch=1,
            base_sequence=2 * number, compression=list(CompressionType)[number % 5],
        )  # fmt: skip
        log.append_as_leader(records, leader_epoch=number // 100, now_ms=T0)
    close_cleanly(manager)
    segments = sorted(path.name[:20] for path in tmp_path.glob("t-0/*.log"))
    assert len(segments) > 2
    for suffix in (".log", ".index", ".timeindex"):
        files = ",".join(str(tmp_path / "t-0" / (name + suffix)) for name in segments)
        output = dump("--deep-iteration", "--print-data-log", "--files", files)
        for word in ("mismatch", "Found", "corrupt", "invalid", "isvalid: false", "Exception"):
            assert word not in output, output
        if suffix == ".log":
            assert output.count("| offset: ") == 800
            assert output.count("isvalid: true") == 400
    checked = dump("--verify-index-only", "--files", str(tmp_path / "t-0" / (segments[0] + ".index")))
    assert "mismatch" not in checked
    snapshots = sorted(tmp_path.glob("t-0/*.snapshot"))
    output = dump("--files", str(snapshots[-1]))
    assert "producerId: 7 producerEpoch: 1" in output
    assert "lastSequence: 799 lastOffset: 799 offsetDelta: 1" in output or "lastSequence: 799" in output
