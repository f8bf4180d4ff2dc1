"""Aborted transactions after a crash, a power cut, damage and a truncation."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from storage.log_config import LogConfig
from storage.segment.transaction_index import AbortedTxn, encode_aborted
from tests.faults.matrix import chooser
from tests.kit.memory_file_system import Fault, MemoryFileSystem, PowerCut, SimulatedCrash
from tests.storage.log.aborting import CONFIG, TWO, Writer, files, new_log, on_disk, told, whole
from tests.storage.support import (
    DIR,
    T0,
    TOPIC_ID,
    TP,
    append,
    close_cleanly,
    flush_dirty,
    open_manager,
    reopen,
)

DAMAGES = {
    "sound": lambda data: data,
    "missing": lambda _data: None,
    "an entry short": lambda data: data[:-34],
    "torn": lambda data: data[:-5],
    "an entry too long": lambda data: data + encode_aborted([AbortedTxn(7, 8, 9, 10)]),
    "changed": lambda data: data[:12] + b"\x7f" + data[13:],
    "of another version": lambda data: b"\x00\x05" + data[2:],
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("segment_bytes", [1000, 100_000])
def test_recovery_makes_the_index_again(damage: str, flushed: bool, segment_bytes: int) -> None:
    config = LogConfig(segment_bytes=segment_bytes)
    file_system, log = new_log(config)
    aborted = Writer(log).write_all()
    before = files(file_system)
    if flushed:
        log.flush(T0)
    for name, data in before.items():
        changed = DAMAGES[damage](data)
        if changed is None:
            file_system.remove(f"{DIR}/{TP}/{name}")
        else:
            file_system.write_file(f"{DIR}/{TP}/{name}", changed)
    log = reopen(file_system, config)
    assert files(file_system) == before
    assert whole(log) == aborted
    assert log.last_stable_offset(log.log_end_offset) == log.log_end_offset - 3, "one is still open"


def test_index_that_ends_within_an_entry_is_made_again_after_an_orderly_stop() -> None:
    file_system = MemoryFileSystem()
    manager, _ = open_manager(file_system, CONFIG)
    log = manager.get_or_create(TP, TOPIC_ID, CONFIG, T0)
    aborted = Writer(log).write_all()
    close_cleanly(manager)
    before = files(file_system)
    assert len(before) > 1
    for name, data in before.items():
        file_system.write_file(f"{DIR}/{TP}/{name}", data[:-7])
    log = reopen(file_system, CONFIG)
    assert files(file_system) == before
    assert whole(log) == aborted


@pytest.mark.parametrize("written_bytes", [0, 34, 40])
def test_a_start_may_die_while_it_makes_indexes_again(written_bytes: int) -> None:
    """The next one finds the index still torn, or rebuilt: never one that only looks valid."""
    for calls in range(1000):
        file_system = MemoryFileSystem()
        manager, _ = open_manager(file_system, CONFIG)
        log = manager.get_or_create(TP, TOPIC_ID, CONFIG, T0)
        aborted = Writer(log).write_all()
        close_cleanly(manager)
        for name, data in files(file_system).items():
            file_system.write_file(f"{DIR}/{TP}/{name}", data[:-7])
        file_system.kill_process()
        left = itertools.count(-calls)
        file_system.inject = lambda _operation, _path, left=left: (  # type: ignore[misc]
            Fault(crash_amid=True, written_bytes=written_bytes) if next(left) == 0 else None
        )
        try:
            open_manager(file_system, CONFIG)
        except SimulatedCrash:
            log = reopen(file_system, CONFIG)
            assert whole(log) == aborted, f"it died in call {calls}"
        else:
            assert calls > 10
            return
    raise AssertionError("a start makes fewer calls")


def test_markers_behind_damage_are_read() -> None:
    file_system = MemoryFileSystem()
    config = LogConfig()
    manager, _ = open_manager(file_system, config)
    log = manager.get_or_create(TP, TOPIC_ID, config, T0)
    append(log, b"plain")
    aborted = Writer(log).write_all()
    log.flush(T0)
    manager.checkpoints.write_recovery_points()
    path = log.segments[0].path
    data = bytearray(file_system.read_file(path))
    data[65] ^= 1
    file_system.write_file(path, data)
    log = reopen(file_system, config)
    assert len(log.segments[0].batches.corrupt_ranges) == 1
    assert whole(log) == aborted


def test_index_of_records_that_are_gone_is_removed() -> None:
    file_system, log = new_log(LogConfig())
    Writer(log).write_all()
    file_system.write_file(log.segments[0].path, b"")
    log = reopen(file_system)
    assert (log.log_end_offset, files(file_system), whole(log)) == (0, {}, [])


@pytest.mark.parametrize("mode", PowerCut)
def test_no_power_cut_hides_an_aborted_transaction(mode: PowerCut) -> None:
    for seed in range(30):
        file_system = MemoryFileSystem()
        manager, _ = open_manager(file_system, CONFIG)
        log = manager.get_or_create(TP, TOPIC_ID, CONFIG, T0)
        writer = Writer(log)
        aborted = writer.write_all()
        flush_dirty(manager, T0)
        manager.checkpoints.write_recovery_points()
        for _ in range(seed % 4):
            first = writer.send(TWO)
            marker = writer.abort(TWO)
            aborted.append(AbortedTxn(TWO, first, marker, log.last_stable_offset(10**9)))
            if seed % 3 == 0:
                log.flush(T0)
                manager.checkpoints.write_recovery_points()
        file_system.cut_power(mode, chooser(seed))
        log = reopen(file_system, CONFIG)
        expected = [each[:3] for each in aborted if each.last_offset < log.log_end_offset]
        assert [each[:3] for each in whole(log)] == expected, f"seed {seed}"
        assert [each[:3] for each in on_disk(file_system)] == expected, f"seed {seed}"


def test_no_power_cut_hides_what_a_process_that_was_killed_has_aborted() -> None:
    """The next process found it in the page cache, and the log was flushed far beyond it."""
    file_system, log = new_log()
    aborted = Writer(log).write_all()
    file_system.kill_process()
    manager, _ = open_manager(file_system, CONFIG)
    for _ in range(20):
        append(manager.logs[TP], b"plain" * 10, epoch=1)
    manager.logs[TP].flush(T0)
    manager.checkpoints.write_recovery_points()
    file_system.cut_power(PowerCut.LOSE, chooser(1))
    assert whole(reopen(file_system, CONFIG)) == aborted


@pytest.mark.parametrize("mode", PowerCut)
def test_no_power_cut_hides_what_was_aborted_before_the_end_was_cut_off(mode: PowerCut) -> None:
    """The truncated segment is a new object, which must fsync the data of its predecessor."""
    last_offset = Writer(new_log()[1]).write_all()[-1].last_offset
    for cut_at in range(last_offset + 4):
        file_system = MemoryFileSystem()
        manager, _ = open_manager(file_system, CONFIG)
        log = manager.get_or_create(TP, TOPIC_ID, CONFIG, T0)
        aborted = Writer(log).write_all()
        log.truncate_to(cut_at, T0)
        left = [each for each in aborted if each.last_offset < log.log_end_offset]
        for _ in ("beyond", "once more, as the first of them removes the note of the cut"):
            for _ in range(20):
                append(log, b"plain" * 10, epoch=1)
            log.flush(T0)
        manager.checkpoints.write_recovery_points()
        file_system.cut_power(mode, chooser(cut_at))
        assert whole(reopen(file_system, CONFIG)) == left, f"cut off at {cut_at}"


@pytest.mark.parametrize("segment_bytes", [1000, 100_000])
def test_what_is_cut_off_was_not_aborted(segment_bytes: int) -> None:
    config = LogConfig(segment_bytes=segment_bytes)
    aborted: Sequence[AbortedTxn] = Writer(new_log(config)[1]).write_all()
    for cut_at in range(aborted[-1].last_offset + 4):
        file_system, log = new_log(config)
        Writer(log).write_all()
        told(log)
        log.truncate_to(cut_at, T0)
        left = [each for each in aborted if each.last_offset < log.log_end_offset]
        assert on_disk(file_system) == whole(log) == left
        ended = {each.first_offset for each in left}
        open_since = [each.first_offset for each in aborted if each.first_offset < log.log_end_offset]
        unstable = min((offset for offset in open_since if offset not in ended), default=None)
        if unstable is not None:
            assert log.last_stable_offset(log.log_end_offset) <= unstable
        log = reopen(file_system, config)
        assert on_disk(file_system) == whole(log) == left
