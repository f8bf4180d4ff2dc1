"""Moves of a compacted log: its clean offset moves along, and deleted records do not come back."""

from __future__ import annotations

import errno

import pytest

from storage.directory.checkpoints import CLEANER_OFFSET_CHECKPOINT, read_offset_checkpoint
from storage.log.unified_log import UnifiedLog
from storage.log_manager import LogManager
from tests.kit.memory_file_system import Fault, MemoryFileSystem, PowerCut, SimulatedCrash
from tests.storage.compaction.cleaning import COMPACT, clean_log, put, rows_of, write_cleaner_offsets
from tests.storage.relocation.moving import A, B, adjust, finish, step
from tests.storage.relocation.test_future_logs_restart import MODES
from tests.storage.support import T0, TOPIC_ID, TP, Countdown, close_cleanly, open_manager

LATER = T0 + 10 * COMPACT.delete_retention_ms
VALUE = b"." * 60
State = dict[bytes | None, bytes]


def opened(file_system: MemoryFileSystem) -> LogManager:
    manager, report = open_manager(file_system, COMPACT, A, B)
    assert not report.refused
    return manager


def fill(log: UnifiedLog, rounds: range, keys: str = "abcd", now_ms: int = T0) -> None:
    """Append a value for each key in each round, some to a segment; everything is sealed and flushed."""
    for number in rounds:
        for key in keys:
            put(log, (key.encode(), b"%d" % number + VALUE), now_ms=now_ms)
    seal(log, now_ms)


def seal(log: UnifiedLog, now_ms: int) -> None:
    log.roll(now_ms)
    log.flush(now_ms)


def delete(log: UnifiedLog, key: bytes, now_ms: int = T0) -> None:
    put(log, (key, None), now_ms=now_ms)
    seal(log, now_ms)


def state_of(log: UnifiedLog) -> State:
    """The value of each key, as a reader from the start finds it."""
    state: State = {}
    for _, key, value in rows_of(log):
        state.pop(key, None)
        if value is not None:
            state[key] = value
    return state


def clean_until(manager: LogManager, now_ms: int) -> UnifiedLog:
    log = manager.logs[TP]
    while clean_log(manager._file_system, manager, log, now_ms) is not None:
        """There is more."""
    return log


def entries(file_system: MemoryFileSystem) -> dict[str, int | None]:
    """The log's entry in cleaner-offset-checkpoint, by directory."""
    return {path: read_offset_checkpoint(file_system, f"{path}/{CLEANER_OFFSET_CHECKPOINT}").get(TP) for path in (A, B)}


def begin(manager: LogManager, max_bytes: int = 300) -> UnifiedLog:
    """Begin a move like a broker: the checkpoint has the copy's clean offset before the copy has any data."""
    future = manager.futures.create(manager.logs[TP], manager.futures.directory_at(B), T0)
    adjust(manager)
    write_cleaner_offsets(manager)
    assert step(manager, max_bytes).error is None
    return future


def end(manager: LogManager) -> UnifiedLog:
    assert step(manager).error is None
    log = finish(manager)
    write_cleaner_offsets(manager)
    return log


def test_how_far_the_log_is_clean_goes_with_it() -> None:
    file_system = MemoryFileSystem()
    manager = opened(file_system)
    log = manager.get_or_create(TP, TOPIC_ID, COMPACT, T0)
    fill(log, range(5))
    clean_until(manager, T0)
    checkpoint = log.cleaner_checkpoint
    assert checkpoint == log.active_segment.base_offset == 20
    fill(log, range(5, 10))
    before = rows_of(log)
    begin(manager)
    assert entries(file_system) == {A: 20, B: 20}
    moved = end(manager)
    assert entries(file_system) == {A: None, B: 20}
    assert (moved.cleaner_checkpoint, rows_of(moved)) == (20, before)
    seal(moved, T0)
    clean_until(manager, T0)
    assert (entries(file_system)[B], len(rows_of(moved))) == (40, 4)


def test_a_log_that_was_never_cleaned_has_no_entry_anywhere() -> None:
    file_system = MemoryFileSystem()
    manager = opened(file_system)
    fill(manager.get_or_create(TP, TOPIC_ID, COMPACT, T0), range(5))
    begin(manager)
    assert end(manager).cleaner_checkpoint is None
    assert entries(file_system) == {A: None, B: None}


@pytest.mark.parametrize("stop", ["clean", "kill"])
def test_a_start_goes_on_with_the_copy_that_is_there(stop: str) -> None:
    file_system = MemoryFileSystem()
    manager = opened(file_system)
    log = manager.get_or_create(TP, TOPIC_ID, COMPACT, T0)
    fill(log, range(5))
    clean_until(manager, T0)
    fill(log, range(5, 10))
    copied = begin(manager, 500).log_end_offset
    assert 0 < copied < log.log_end_offset
    if stop == "clean":
        close_cleanly(manager)
    else:
        file_system.kill_process()
    manager = opened(file_system)
    assert manager.futures.logs[TP].log_end_offset == copied
    assert step(manager, 1).error is None
    assert manager.futures.logs[TP].log_end_offset > copied
    assert end(manager).cleaner_checkpoint == 20


@pytest.mark.parametrize("knows", [True, False])
def test_a_copy_begun_before_the_log_was_cleaned_begins_again(knows: bool) -> None:
    """Its directory was offline at a start. The copy has `a`, whose tombstone is gone."""
    file_system = MemoryFileSystem()
    manager = opened(file_system)
    log = manager.get_or_create(TP, TOPIC_ID, COMPACT, T0)
    fill(log, range(3))
    delete(log, b"a")
    if knows:
        clean_until(manager, T0)
        fill(log, range(3, 4), "b")
    begin(manager, 300)
    assert b"a" in state_of(manager.futures.logs[TP]) or knows
    close_cleanly(manager)

    file_system.faults_in_reads = True
    file_system.inject = lambda _operation, path: Fault(errno.EIO) if path.startswith(B) else None
    manager = opened(file_system)
    log = clean_until(manager, T0)
    fill(log, range(9, 10), "bcd", LATER)
    log = clean_until(manager, LATER)
    assert [row for row in rows_of(log) if row[1] == b"a"] == [], "neither the value nor its tombstone"
    expected = state_of(log)
    close_cleanly(manager)

    file_system.inject = lambda _operation, _path: None
    manager = opened(file_system)
    assert TP in manager.futures.logs
    log = manager.logs[TP]
    assert adjust(manager, LATER) == 1
    assert manager.futures.logs[TP].log_end_offset == log.segments[0].base_offset
    write_cleaner_offsets(manager)
    assert state_of(end(manager)) == expected
    assert entries(file_system)[A] is None


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: "process" if mode is None else mode.name.lower())
def test_a_crash_at_every_call(mode: PowerCut | None) -> None:
    """Cleaned, moved, cleaned again: whatever happens in between, every key has its latest value, and deleted ones stay
    deleted.
    """
    for crash_at in range(10_000):
        file_system = MemoryFileSystem()
        manager = opened(file_system)
        log = manager.get_or_create(TP, TOPIC_ID, COMPACT, T0)
        fill(log, range(3))
        delete(log, b"a")
        clean_until(manager, T0)
        fill(log, range(3, 5), "bc")
        manager.checkpoints.write_recovery_points()
        expected = state_of(log)
        file_system.inject = countdown = Countdown(crash_at + 1)
        ended = False
        try:
            begin(manager)
            end(manager)
            clean_until(manager, LATER)
            ended = True
        except SimulatedCrash:
            """The next process continues."""
        if mode is None:
            file_system.kill_process()
        else:
            file_system.cut_power(mode, lambda count, crash_at=crash_at: crash_at * 7 % count)  # type: ignore[misc]
        manager = opened(file_system)
        assert state_of(manager.logs[TP]) == expected, crash_at
        if TP in manager.futures.logs:
            assert state_of(end(manager)) == expected, crash_at
        write_cleaner_offsets(manager)
        log = clean_until(manager, LATER)
        fill(log, range(9, 10), "bcd", LATER)
        log = clean_until(manager, 2 * LATER - T0)
        assert state_of(log) == dict.fromkeys((b"b", b"c", b"d"), b"9" + VALUE), crash_at
        other = B if log.path.startswith(A) else A
        assert entries(file_system)[other] is None, crash_at
        if ended:
            assert log.path == "/b/t-0"
            break
    assert len(countdown.calls) > 30
