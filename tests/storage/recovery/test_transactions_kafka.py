"""Apache Kafka and this broker write byte-identical transaction indexes for the same batches, also when they rebuild
them.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from protocol.records.batch import RecordBatch
from protocol.topic_partition import TopicPartition
from storage.io.os_file_system import OsFileSystem
from storage.log.log_validator import AppendOrigin
from storage.log.unified_log import UnifiedLog
from storage.log_config import LogConfig
from storage.segment.transaction_index import ENTRY_BYTES
from tests.kit.apache_kafka import ApacheKafka
from tests.parity.subject import PATIENCE_S
from tests.parity.test_transactions_on_disk import SETTINGS, answers, await_end, write
from tests.storage.support import T0, open_manager, read_all

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]

TP = TopicPartition("t", 0)
CONFIG = LogConfig(segment_bytes=2000)
END = 20
NOTES = (".kafka_cleanshutdown", "recovery-point-offset-checkpoint")


def indexes(directory: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes() for path in sorted((directory / str(TP)).glob("*.txnindex")) if path.stat().st_size
    }


def await_partition(address: str) -> None:
    """Wait until the restarted broker leads the partition."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(AssertionError):
            await_end(address, END)
            return
        time.sleep(0.1)


def our_log(directory: Path) -> UnifiedLog:
    directory.mkdir(exist_ok=True)
    manager, report = open_manager(OsFileSystem(), CONFIG, str(directory))
    assert not report.refused
    return manager.get_or_create(TP, None, CONFIG, T0)


def lead(log: UnifiedLog, batch: RecordBatch) -> None:
    data = memoryview(bytearray(batch.buffer))
    epoch = batch.partition_leader_epoch
    assert log.append_as_leader(data, leader_epoch=epoch, now_ms=T0, origin=AppendOrigin.COORDINATOR)


def follow(log: UnifiedLog, batch: RecordBatch) -> None:
    data = memoryview(bytes(batch.buffer))
    assert log.append_as_follower(data, now_ms=T0, leader_epoch=batch.partition_leader_epoch)


def crash_without_indexes(directory: Path) -> None:
    """Simulate a crash that lost the transaction indexes."""
    for path in (directory / str(TP)).glob("*.txnindex"):
        path.unlink()
    for name in NOTES:
        (directory / name).unlink(missing_ok=True)


def test_transaction_indexes_are_the_same_to_the_byte(tmp_path: Path) -> None:
    kafka = ApacheKafka(tmp_path / "kafka", SETTINGS)
    kafka.start()
    try:
        producers = write(kafka.address)
        await_end(kafka.address, END)
        stable = answers(kafka.address, range(1))[0][1]
    finally:
        kafka.stop()
    assert producers
    theirs = indexes(kafka.data_directory)
    assert sum(map(len, theirs.values())) == 2 * ENTRY_BYTES

    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copytree(kafka.data_directory / str(TP), copy / str(TP))
    crash_without_indexes(copy)
    recovered = our_log(copy)
    assert indexes(copy) == theirs
    assert recovered.last_stable_offset(END) == stable

    appends: dict[str, Callable[[UnifiedLog, RecordBatch], None]] = {"leader": lead, "follower": follow}
    for name, appended in appends.items():
        log = our_log(tmp_path / name)
        for batch in read_all(recovered):
            appended(log, batch)
        assert indexes(tmp_path / name) == theirs
        assert log.last_stable_offset(END) == stable

    crash_without_indexes(kafka.data_directory)
    kafka.start()
    try:
        await_partition(kafka.address)
        assert answers(kafka.address, range(1))[0][1] == stable
    finally:
        kafka.stop()
    assert indexes(kafka.data_directory) == theirs
