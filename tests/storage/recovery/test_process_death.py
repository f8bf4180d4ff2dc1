"""Real processes on a real disk, killed while they append: confirmed records survive."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from protocol.topic_partition import TopicPartition
from storage.io.os_file_system import OsFileSystem
from storage.log_config import LogConfig
from tests.kit.due import ONE_IN
from tests.storage.support import T0, append, close_cleanly, open_manager, read_all

CONFIG = LogConfig(segment_bytes=30_000, index_interval_bytes=500)
PARTITIONS = 4

_APPENDER = """
import sys
sys.path.insert(0, ".")
from protocol.topic_partition import TopicPartition
from storage.io.os_file_system import OsFileSystem
from tests.storage.support import T0, append, flush_dirty, open_manager
from tests.storage.recovery.test_process_death import CONFIG, PARTITIONS

manager, _ = open_manager(OsFileSystem(max_open_files=8), CONFIG, sys.argv[1])
logs = [manager.get_or_create(TopicPartition("t", n), None, CONFIG, T0) for n in range(PARTITIONS)]
for number in range(1_000_000):
    log = logs[number % PARTITIONS]
    state = log.producer_state.entries.get(7)
    options = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0 if state is None else state.last_sequence + 1}
    info = append(log, b"%d" % log.log_end_offset, epoch=int(sys.argv[2]), **options)
    print(number % PARTITIONS, info.last_offset, flush=True)
    if number % 50 == 49:
        flush_dirty(manager, T0)
        manager.checkpoints.write_recovery_points()
"""


@pytest.mark.parametrize("rounds", [3, pytest.param(40 // ONE_IN, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_killed_again_and_again(tmp_path: Path, rounds: int) -> None:
    confirmed = [-1] * PARTITIONS
    for turn in range(rounds):
        with subprocess.Popen(
            [sys.executable, "-c", _APPENDER, str(tmp_path), str(turn)], stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout is not None
                for _ in range(700 + 37 * turn):
                    partition, offset = map(int, process.stdout.readline().split())
                    confirmed[partition] = max(confirmed[partition], offset)
            finally:
                process.kill()
        manager, report = open_manager(OsFileSystem(), CONFIG, str(tmp_path))
        assert not report.clean
        assert not report.refused
        for number in range(PARTITIONS):
            log = manager.logs[TopicPartition("t", number)]
            assert log.log_end_offset > confirmed[number]
            values = [record.value for batch in read_all(log) for record in batch.records()]
            assert values == [b"%d" % offset for offset in range(log.log_end_offset)]
            assert [entry.epoch for entry in log.leader_epochs.entries] == list(range(turn + 1))
            last = log.log_end_offset - 1
            again = append(log, b"%d" % last, producer_id=7, producer_epoch=0, base_sequence=last)
            assert (again.duplicate, again.first_offset) == (True, last)
        assert report.broker_epoch == -1
        manager.directories.unlock()


def test_clean_stop_after_a_kill(tmp_path: Path) -> None:
    manager, _ = open_manager(OsFileSystem(), CONFIG, str(tmp_path))
    log = manager.get_or_create(TopicPartition("t", 0), None, CONFIG, T0)
    for number in range(2000):
        append(log, b"%d" % number)
    close_cleanly(manager, broker_epoch=4)
    manager, report = open_manager(OsFileSystem(), CONFIG, str(tmp_path))
    assert (report.clean, report.broker_epoch) == (True, 4)
    assert manager.logs[TopicPartition("t", 0)].log_end_offset == 2000
