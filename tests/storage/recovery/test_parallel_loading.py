"""Logs loaded by several threads at a time: the result equals that of one thread, whatever the timing and the
failures.
"""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.topic_partition import TopicPartition
from storage.io.os_file_system import OsFileSystem
from storage.log.leader_epoch import EpochEntry
from storage.log_config import LogConfig
from storage.log_manager import LogManager
from storage.recovery.directory_loading import DirectoryLoad, LoadProgress
from storage.recovery.log_directory_survey import LoadReport
from tests.kit.memory_file_system import Fault, MemoryFileSystem, SimulatedCrash
from tests.storage.support import (
    T0,
    TOPIC_ID,
    Countdown,
    append,
    checkpoint_high_watermarks,
    close_cleanly,
    open_manager,
    read_all,
    values_in,
)

CONFIG = LogConfig(segment_bytes=300, index_interval_bytes=80, file_delete_delay_ms=10)
DIRECTORIES = ("/a", "/b")
PARTITIONS = 3


class Turns:
    """Threads that run one at a time: `choose` picks one before every call to the disk."""

    def __init__(self, choose: Callable[[int], int]) -> None:
        self._choose = choose
        self._condition = threading.Condition()
        self._ready: list[int] = []
        self._current = -1

    def run(self, jobs: list[Callable[[], None]]) -> None:
        """Run `jobs` to the end, each on a separate thread."""
        self._ready = list(range(len(jobs)))
        self._local = threading.local()
        threads = [threading.Thread(target=self._job, args=(at, job)) for at, job in enumerate(jobs)]
        for thread in threads:
            thread.start()
        with self._condition:
            self._next()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()

    def _job(self, number: int, job: Callable[[], None]) -> None:
        self._local.number = number
        self._wait(number)
        try:
            job()
        finally:
            with self._condition:
                self._ready.remove(number)
                self._next()

    def _next(self) -> None:
        self._current = self._ready[self._choose(len(self._ready))] if self._ready else -1
        self._condition.notify_all()

    def _wait(self, number: int) -> None:
        with self._condition:
            assert self._condition.wait_for(lambda: self._current == number, 60)

    def before_call(self, _operation: str, _path: str) -> Fault | None:
        """Possibly switch to another thread; a hook of MemoryFileSystem."""
        number = getattr(self._local, "number", None)
        if number is not None:
            with self._condition:
                self._next()
            self._wait(number)
        return None


@dataclass
class FileDamage:
    """Damage to one file of a partition: truncated, overwritten, removed or extended. `file` counts modulo the existing
    files.
    """

    partition: int
    file: int
    kind: str
    at: int


corrupt_ranges = st.lists(
    st.builds(
        FileDamage,
        st.integers(0, 2 * PARTITIONS - 1),
        st.integers(0, 30),
        st.sampled_from(["cut", "overwrite", "remove", "grow", "nonsense"]),
        st.integers(0, 2000),
    ),
    max_size=4,
)


def disk_with(damaged: list[FileDamage], counts: list[int], flushed: int, *, clean: bool) -> MemoryFileSystem:
    """Two directories of logs with up to `counts` batches each, killed or stopped, and then damaged."""
    file_system = MemoryFileSystem()
    manager, _ = open_manager(file_system, CONFIG, *DIRECTORIES)
    for number in range(2 * PARTITIONS):
        log = manager.get_or_create(TopicPartition("t", number), TOPIC_ID, CONFIG, T0)
        for sequence in range(counts[number % len(counts)]):
            append(
                log,
                b"%d" % sequence * 9,
                epoch=sequence // 4,
                producer_id=number,
                producer_epoch=0,
                base_sequence=sequence,
            )
        if number < flushed:
            log.flush(T0)
    manager.checkpoints.write_recovery_points()
    checkpoint_high_watermarks(manager, {each: log.log_end_offset for each, log in manager.logs.items()})
    if clean:
        close_cleanly(manager)
    file_system.kill_process()
    for damage in damaged:
        path = manager.logs[TopicPartition("t", damage.partition)].path
        files = sorted(info.name for info in file_system.list_dir(path))
        if not files:  # all were already removed
            continue
        do_damage(file_system, f"{path}/{files[damage.file % len(files)]}", damage)
    return file_system


def do_damage(file_system: MemoryFileSystem, path: str, damage: FileDamage) -> None:
    content = file_system.read_file(path)
    at = damage.at % (len(content) + 1)
    if damage.kind == "remove":
        file_system.remove(path)
        return
    changed = {
        "cut": content[:at],
        "overwrite": content[:at] + b"\xa5" + content[at + 1 :],
        "grow": content + bytes(at),
        "nonsense": b"nonsense",
    }
    file_system.write_file(path, changed[damage.kind])


def begin(file_system: MemoryFileSystem) -> tuple[LogManager, list[DirectoryLoad]]:
    manager = LogManager(file_system, DIRECTORIES, CONFIG)
    manager.directories.lock()
    return manager, manager.begin_load(T0, {"t": CONFIG})


def outcome(file_system: MemoryFileSystem, manager: LogManager, report: LoadReport) -> dict[str, object]:
    """The whole observable state after loading, on the disk and in memory."""
    file_system.inject = lambda _operation, _path: None
    logs = {
        partition: (
            log.directory.path,
            log.topic_id,
            [(segment.base_offset, segment.size) for segment in log.segments],
            (log.log_start_offset, log.log_end_offset, log.recovery_point),
            log.leader_epochs.entries,
            {each: entry.batches for each, entry in log.producer_state.entries.items()},
        )
        for partition, log in manager.logs.items()
    }
    files = {
        f"{directory}/{info.name}/{file.name}": file_system.read_file(f"{directory}/{info.name}/{file.name}")
        for directory in DIRECTORIES
        for info in file_system.list_dir(directory)
        if info.is_dir
        for file in file_system.list_dir(f"{directory}/{info.name}")
    }
    return {
        "logs": logs,
        "order": list(manager.logs),
        "refused": report.refused,
        "clean": report.clean,
        "repaired": [(str(each.log.topic_partition), each.truncated_bytes) for each in report.repaired],
        "high watermarks": manager.checkpoints.high_watermarks,
        "offline": [directory.failure for directory in manager.directories],
        "to be removed": [
            (each.paths, each.is_tree, each.delay_ms)
            for directory in manager.directories
            for each in directory.deferred_deletions
        ],
        "files": files,
    }


@settings(max_examples=15, deadline=None)
@given(
    damaged=corrupt_ranges,
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    flushed=st.integers(0, 2 * PARTITIONS),
    clean=st.booleans(),
    threads=st.integers(2, 4),
    seed=st.integers(0, 1 << 30),
)
def test_any_interleaving_ends_as_one_thread_does(
    damaged: list[FileDamage],
    counts: list[int],
    flushed: int,
    clean: bool,
    threads: int,
    seed: int,
) -> None:
    alone = disk_with(damaged, counts, flushed, clean=clean)
    manager, loads = begin(alone)
    for load in loads:
        load.work()
    expected = outcome(alone, manager, manager.complete_load(loads))

    together = disk_with(damaged, counts, flushed, clean=clean)
    manager, loads = begin(together)
    scheduler = Turns(random.Random(seed).randrange)
    together.faults_in_reads = True
    together.inject = scheduler.before_call
    scheduler.run([load.work for load in loads for _ in range(threads)])
    assert outcome(together, manager, manager.complete_load(loads)) == expected


@pytest.mark.parametrize("threads", [1, 3])
def test_a_directory_that_fails_ends_its_own_load_only(threads: int) -> None:
    file_system = disk_with([], [5], 0, clean=False)
    manager, loads = begin(file_system)
    failures: list[str] = []
    manager.directories[0]._on_failure = lambda path, _reason: failures.append(path)
    file_system.faults_in_reads = True
    file_system.inject = lambda operation, path: (
        Fault(errno.EIO) if operation == "pread" and path.startswith("/a/") else None
    )
    for load in loads:
        workers = [threading.Thread(target=load.work) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    manager.complete_load(loads)
    assert failures == ["/a"]
    assert "Error while loading log dir /a" in str(manager.directories[0].failure)
    assert {log.directory.path for log in manager.logs.values()} == {"/b"}
    assert len(manager.logs) == PARTITIONS


@settings(max_examples=15, deadline=None)
@given(
    damaged=corrupt_ranges,
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    deaths=st.lists(st.integers(1, 50), min_size=1, max_size=4),
)
def test_a_recovery_that_is_killed_again_and_again(
    damaged: list[FileDamage], counts: list[int], deaths: list[int]
) -> None:
    undisturbed = disk_with(damaged, counts, 0, clean=False)
    manager, loads = begin(undisturbed)
    for load in loads:
        load.work()
    manager.complete_load(loads)
    expected = {partition: values_in(log) for partition, log in manager.logs.items()}

    file_system = disk_with(damaged, counts, 0, clean=False)
    for death in deaths:
        calls = Countdown(death)
        file_system.inject = calls
        try:
            manager, loads = begin(file_system)
            for load in loads:
                load.work()
        except SimulatedCrash:
            file_system.kill_process()
        else:
            break
    file_system.inject = lambda _operation, _path: None
    file_system.kill_process()
    manager, loads = begin(file_system)
    for load in loads:
        load.work()
    report = manager.complete_load(loads)
    assert not report.clean
    for partition, values in expected.items():
        # If the process died between the two steps, valid records truncated after a damaged batch may be back.
        found = dict(values_in(manager.logs[partition]))
        assert dict(values).items() <= found.items()
        assert all(value == b"%d" % offset * 9 for offset, value in found.items())


class TestRealFiles:
    def test_ten_times_more_logs_than_descriptors(self, tmp_path: Path) -> None:
        """Every log is loaded, read and written by four threads, with 8 descriptors for 80 logs."""
        file_system = OsFileSystem(max_open_files=8)
        manager, _ = open_manager(file_system, CONFIG, str(tmp_path))
        for number in range(80):
            log = manager.get_or_create(TopicPartition("t", number), TOPIC_ID, CONFIG, T0)
            for value in range(5):
                append(log, b"%d %d" % (number, value) * 12)
        manager.directories.unlock()
        for is_clean in (False, True):
            file_system = OsFileSystem(max_open_files=8)
            manager = LogManager(file_system, (str(tmp_path),), CONFIG)
            manager.directories.lock()
            (load,) = manager.begin_load(T0, {"t": CONFIG})
            assert load.is_clean is is_clean
            workers = [threading.Thread(target=load.work) for _ in range(4)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            report = manager.complete_load([load])
            assert not report.refused
            assert len(manager.logs) == 80
            assert file_system.open_file_count <= 8
            for number in range(80):
                log = manager.logs[TopicPartition("t", number)]
                assert [record.value for batch in read_all(log) for record in batch.records()][:5] == [
                    b"%d %d" % (number, value) * 12 for value in range(5)
                ]
                append(log, b"more")
            assert file_system.open_file_count <= 8
            close_cleanly(manager)

    def test_nothing_is_open_after_a_clean_stop(self, tmp_path: Path) -> None:
        file_system = OsFileSystem()
        manager, _ = open_manager(file_system, CONFIG, str(tmp_path))
        for number in range(20):
            append(manager.get_or_create(TopicPartition("t", number), TOPIC_ID, CONFIG, T0), b"v" * 100)
        close_cleanly(manager)
        again = OsFileSystem()
        manager, report = open_manager(again, CONFIG, str(tmp_path))
        assert report.clean
        assert again.open_file_count == 0
        assert all(not segment.files.was_used for log in manager.logs.values() for segment in log.segments)

    def test_becoming_leader_makes_no_call_and_its_epoch_is_written_before_the_first_record(self) -> None:
        file_system = MemoryFileSystem()
        manager, _ = open_manager(file_system, CONFIG)
        log = manager.get_or_create(TopicPartition("t", 0), TOPIC_ID, CONFIG, T0)
        append(log, b"v", epoch=2)
        close_cleanly(manager)
        manager, _ = open_manager(file_system, CONFIG)
        log = manager.logs[TopicPartition("t", 0)]
        calls: list[str] = []
        file_system.faults_in_reads = True
        file_system.inject = lambda operation, path: calls.append(f"{operation} {path.rpartition('/')[2]}")
        log.assign_epoch_start_offset(5)
        log.assign_epoch_start_offset(6)
        assert calls == []
        append(log, b"w", epoch=6)
        written = [call for call in calls if call.startswith(("rename leader-epoch", "append "))]
        assert [call.split()[0] for call in written] == ["rename", "append"]
        assert log.leader_epochs.entries == [EpochEntry(2, 0), EpochEntry(6, 1)]

    def test_a_log_that_nobody_used_is_closed_without_a_call(self) -> None:
        file_system = MemoryFileSystem()
        manager, _ = open_manager(file_system, CONFIG)
        for number in range(5):
            log = manager.get_or_create(TopicPartition("t", number), TOPIC_ID, CONFIG, T0)
            append(log, b"v" * 100)
            append(log, b"w", epoch=1)
        close_cleanly(manager)
        manager, _ = open_manager(file_system, CONFIG)
        for log in manager.logs.values():
            log.assign_epoch_start_offset(7)
        append(manager.logs[TopicPartition("t", 3)], b"x", epoch=7)
        touched: list[str] = []
        file_system.inject = lambda operation, path: touched.append(path) if "/t-" in path else None
        close_cleanly(manager)
        assert touched
        assert all("/t-3" in path for path in touched)
        file_system.inject = lambda _operation, _path: None
        manager, report = open_manager(file_system, CONFIG)
        assert report.clean
        assert [log.log_end_offset for log in manager.logs.values()] == [2, 2, 2, 3, 2]
        assert [log.latest_epoch() for log in manager.logs.values()] == [1, 1, 1, 7, 1]


def test_progress_counts_what_is_cut_off_as_done() -> None:
    file_system = disk_with([FileDamage(0, 0, "nonsense", 0)], [9], 0, clean=False)
    _, loads = begin(file_system)
    for load in loads:
        load.work()
        seen = load.progress()
        assert seen == LoadProgress(
            load.directory.path, PARTITIONS, PARTITIONS, seen.recovered_bytes, seen.recovered_bytes
        )
