"""Apache Kafka and we split the same segments in the same way."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.topic_partition import TopicPartition
from storage.directory.checkpoints import RECOVERY_POINT_CHECKPOINT, read_offset_checkpoint
from storage.io.os_file_system import OsFileSystem
from storage.log_config import LogConfig
from storage.log_manager import LogManager
from tests.kit.apache_kafka import zookeeper
from tests.storage.recovery.test_kafka_interop import Kafka
from tests.storage.recovery.test_segment_split import BEHIND, FAR, GIGA, SPARSE, batches, rows_at
from tests.storage.support import T0, close_cleanly, load_logs, values_in

pytestmark = pytest.mark.java

CONFIG = LogConfig(index_interval_bytes=1000)
MANY = tuple(range(0, 8 * GIGA, GIGA // 8))
PARTITIONS: dict[int, dict[int, tuple[int, ...]]] = {
    0: {0: SPARSE, 6 * GIGA: BEHIND},
    1: {0: SPARSE},
    2: {0: (5, 2**31 + 2), 6 * GIGA: BEHIND},
    3: {7: (3 * GIGA + 5, 3 * GIGA + 9), 6 * GIGA: BEHIND},
    4: {0: (0, 1), 2: (9, FAR), 6 * GIGA: BEHIND},
    5: {0: MANY, 9 * GIGA: (9 * GIGA, 12 * GIGA)},
    6: {0: (0, 2**31 - 1), 2**31: (2**31, 2**32)},
}
"""The offsets in each partition's segments, beyond the range of an index: in a sealed segment, in the last one, from
the first batch on, many times, and by just one offset in the only segment.
"""


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[Kafka]:
    with zookeeper(tmp_path / "zk") as address:
        yield Kafka(tmp_path, address)


def lay_out(data: Path) -> None:
    for partition, segments in PARTITIONS.items():
        directory = data / f"t-{partition}"
        directory.mkdir(parents=True)
        for base, offsets in segments.items():
            (directory / f"{base:020d}.log").write_bytes(batches(offsets))


def files_in(data: Path) -> dict[str, dict[str, bytes]]:
    """By partition and name: the content of the record files, and the presence of index files."""
    return {
        directory.name: {
            path.name: path.read_bytes() if path.suffix == ".log" else b""
            for path in directory.iterdir()
            if path.suffix in {".log", ".index", ".timeindex"}
        }
        for directory in data.glob("t-*")
    }


@pytest.mark.timeout(180)
def test_the_same_segments(kafka: Kafka, tmp_path: Path) -> None:
    lay_out(kafka.data)
    ours = tmp_path / "ours"
    shutil.copytree(kafka.data, ours)
    with kafka.running():
        by_kafka = files_in(kafka.data)
    kafka_ends = read_offset_checkpoint(OsFileSystem(), str(kafka.data / RECOVERY_POINT_CHECKPOINT))

    manager = LogManager(OsFileSystem(), [str(ours)], CONFIG)
    manager.directories.lock()
    report = load_logs(manager, T0)
    assert not report.refused
    assert files_in(ours) == by_kafka
    for partition, segments in PARTITIONS.items():
        log = manager.logs[TopicPartition("t", partition)]
        assert values_in(log) == rows_at(*(offset for offsets in segments.values() for offset in offsets))
        assert log.log_end_offset == kafka_ends[log.topic_partition]
    close_cleanly(manager)

    # Each broker accepts the other's result.
    shutil.copytree(kafka.data, tmp_path / "of kafka")
    manager = LogManager(OsFileSystem(), [str(tmp_path / "of kafka")], CONFIG)
    manager.directories.lock()
    report = load_logs(manager, T0)
    assert report.clean
    assert not report.repaired
    assert not report.refused
    shutil.rmtree(kafka.data)
    shutil.copytree(ours, kafka.data)
    with kafka.running():
        assert files_in(kafka.data) == by_kafka
