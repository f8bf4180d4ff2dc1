"""Cleaning interrupted at every single call of the file system: the log reads the same before and after."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from protocol.errors import ApiError
from protocol.records.control_records import ControlRecordType
from storage.compaction.clean_source import LogCleaningAbortedError
from storage.compaction.cleaner import clean
from storage.log.unified_log import UnifiedLog
from storage.log_manager import LogManager
from storage.segment.segment_files import TXN_INDEX_SUFFIX
from storage.segment.transaction_index import AbortedTxn, decode_aborted
from tests.kit.due import due
from tests.kit.memory_file_system import Fault, MemoryFileSystem, PowerCut, SimulatedCrash
from tests.storage.compaction.cleaning import (
    COMPACT,
    Stand,
    clean_log,
    data_in,
    end_transaction,
    keys,
    put,
    rows_of,
    write_cleaner_offsets,
)
from tests.storage.support import T0, TOPIC_ID, TP, open_manager, read_all

SAMPLE_EVERY = 5
FAULTS: dict[str, Fault] = {
    "crash before": Fault(crash_before=True),
    "crash after": Fault(crash_after=True),
    "EIO": Fault(errno=errno.EIO),
    "disk full": Fault(errno=errno.ENOSPC, written_bytes=100),
}
LATER = T0 + COMPACT.delete_retention_ms + 1
KEYS = [b"k%d" % number for number in range(9)]

Rows = list[tuple[int, bytes | None, bytes | None]]


def random_from(seed: int) -> Callable[[int], int]:
    """Numbers below the given one, reproducible for a seed."""
    state = seed * 2654435761 + 1

    def choose(count: int) -> int:
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (state >> 33) % count

    return choose


@dataclass
class Script:
    """A log that is cleaned bit by bit; all of it is already flushed."""

    file_system: MemoryFileSystem
    manager: LogManager
    log: UnifiedLog

    def clean(self) -> None:
        clean_log(self.file_system, self.manager, self.log, T0, high_watermark=40)
        clean_log(self.file_system, self.manager, self.log, T0, map_capacity=4)
        clean_log(self.file_system, self.manager, self.log, LATER)


def written() -> Script:
    """Values, tombstones, a transaction of each kind, an active segment."""
    file_system = MemoryFileSystem()
    manager, _ = open_manager(file_system, COMPACT)
    log = manager.get_or_create(TP, TOPIC_ID, COMPACT, T0)
    for number in range(45):
        key = KEYS[number * 7 % len(KEYS)]
        put(log, (key, b"value %d" % number * 5), (b"only %d" % number, None if number % 3 else b"v"))
        if number in {10, 20}:
            producer_id, kind = number, ControlRecordType.ABORT if number == 10 else ControlRecordType.COMMIT
            row = (KEYS[0], b"in transaction %d" % number)
            put(log, row, producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True)
            end_transaction(log, producer_id, 0, kind)
    put(log, (KEYS[1], None))
    log.flush(T0)
    manager.checkpoints.write_recovery_points()
    return Script(file_system, manager, log)


def content(log: UnifiedLog) -> Rows:
    """The records whose transaction was not aborted."""
    return [row for row in data_in(read_all(log)) if row[2] != b"in transaction 10"]


def view(rows: Rows) -> dict[bytes | None, bytes]:
    """The latest value of each key."""
    table: dict[bytes | None, bytes] = {}
    for _, key, value in rows:
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
    return table


def count_calls() -> int:
    script = written()
    calls = 0

    def inject(_operation: str, _path: str) -> Fault | None:
        nonlocal calls
        calls += 1
        return None

    script.file_system.inject = inject
    script.clean()
    return calls


CALLS = count_calls()
BEFORE = content(written().log)


def interrupt(at: int, fault: str) -> Script:
    script = written()
    calls = 0

    def inject(_operation: str, _path: str) -> Fault | None:
        nonlocal calls
        calls += 1
        return FAULTS[fault] if calls == at else None

    script.file_system.inject = inject
    with contextlib.suppress(SimulatedCrash, OSError, ApiError, LogCleaningAbortedError):
        script.clean()
    script.file_system.inject = lambda _operation, _path: None
    return script


def judge(script: Script) -> None:
    """Restart, and compare; then continue cleaning."""
    file_system = script.file_system
    manager, report = open_manager(file_system, COMPACT)
    assert not report.refused, report.refused
    assert not report.repaired
    assert not report.ignored
    log = manager.logs[TP]
    names = [info.name for info in file_system.list_dir(log.path)]
    assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted"))], names
    rows = content(log)
    assert set(rows) <= set(BEFORE)
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    assert view(rows) == view(BEFORE)
    assert log.log_end_offset == script.log.log_end_offset
    for now_ms in (LATER + 1, LATER + 2000, LATER + 4000):
        put(log, (b"another", b"%d" % now_ms))
        log.roll(now_ms)
        log.flush(now_ms)
        clean_log(file_system, manager, log, now_ms)
    rows = content(log)
    keys = [row[1] for row in rows]
    assert len(keys) == len(set(keys)), "something was not cleaned"
    assert view(rows) == {**view(BEFORE), b"another": b"%d" % (LATER + 4000)}


def check(at: int, fault: str, mode: PowerCut | None) -> None:
    script = interrupt(at, fault)
    if mode is None:
        script.file_system.kill_process()
    else:
        script.file_system.cut_power(mode, random_from(at))
    judge(script)


def test_undisturbed() -> None:
    script = written()
    script.clean()
    assert 150 < CALLS < 3000, CALLS
    script.file_system.kill_process()
    judge(script)


@pytest.mark.parametrize("mode", [None, *PowerCut])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_sample_of_calls(fault: str, mode: PowerCut | None) -> None:
    for at in range(1, CALLS + 1, SAMPLE_EVERY):
        check(at, fault, mode)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", due([None, *PowerCut]))
@pytest.mark.parametrize("fault", FAULTS)
def test_every_call(fault: str, mode: PowerCut | None) -> None:
    for at in range(1, CALLS + 1):
        check(at, fault, mode)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_the_log_goes_on_after_a_cleaning_that_failed(number: int) -> None:
    for at in range(1, CALLS + 1, SAMPLE_EVERY):
        script = written()
        log, file_system = script.log, script.file_system
        calls = 0

        def inject(_operation: str, _path: str) -> Fault | None:
            nonlocal calls
            calls += 1
            return Fault(errno=number) if calls == at else None  # noqa: B023 - used up in this round

        file_system.inject = inject
        with contextlib.suppress(OSError, ApiError):
            script.clean()
        file_system.inject = lambda _operation, _path: None
        if log.directory.failure is None:
            assert view(content(log)) == view(BEFORE)
            put(log, (b"goes", b"on"))
            assert not [info for info in file_system.list_dir(log.path) if info.name.endswith(".cleaned")]
            clean_log(file_system, script.manager, log, LATER)
            assert view(content(log)) == {**view(BEFORE), b"goes": b"on"}


class TestStartAfterACrash:
    def stopped(self, *suffixes: str) -> Stand:
        """Stop during a replacement: the files of the cleaned segment have these suffixes (`.log` first)."""
        stand = Stand()
        log = stand.log
        put(log, (b"a", b"aborted"), producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
        end_transaction(log, 1, 0, ControlRecordType.ABORT)
        stand.segments(keys("ab"), keys("ab"))
        clean(stand.file_system, stand.task())
        write_cleaner_offsets(stand.manager)
        stem = f"{log.path}/{0:020d}"
        for kind, suffix in zip((".log", ".index", ".timeindex", ".txnindex"), suffixes, strict=True):
            if suffix == "":
                for number in (0, 4):
                    with_number = f"{log.path}/{number:020d}{kind}"
                    if stand.file_system.exists(with_number):
                        stand.file_system.rename(with_number, f"{with_number}.1.deleted")
            stand.file_system.rename(f"{stem}{kind}.cleaned", f"{stem}{kind}{suffix}")
        return stand

    @pytest.mark.parametrize(
        "suffixes",
        [
            (".swap", ".swap", ".swap", ".swap"),
            ("", ".swap", ".swap", ".swap"),
            ("", "", ".swap", ".swap"),
            ("", "", "", ".swap"),
            ("", "", "", ""),
        ],
    )
    def test_a_replacement_that_was_begun_is_completed(self, suffixes: tuple[str, ...]) -> None:
        stand = self.stopped(*suffixes)
        log = stand.restart().logs[TP]
        assert [offset for offset, _, _ in rows_of(log)] == [4, 5]
        path = log.segments[0].files.path_of(TXN_INDEX_SUFFIX)
        assert decode_aborted(path, stand.file_system.read_file(path)) == [AbortedTxn(1, 0, 1, 2)]
        assert not [name for name in stand.names() if name.count(".") > 1]

    @pytest.mark.parametrize(
        "suffixes", [(".cleaned",) * 4, (".swap", ".cleaned", ".cleaned", ".cleaned"), (".swap",) * 3 + (".cleaned",)]
    )
    def test_one_that_was_not_is_undone(self, suffixes: tuple[str, ...]) -> None:
        stand = self.stopped(*suffixes)
        log = stand.restart().logs[TP]
        assert [offset for offset, _, _ in rows_of(log)] == [0, 2, 3, 4, 5]
        assert not [name for name in stand.names() if name.count(".") > 1]

    def test_an_empty_segment_takes_the_place_of_a_full_one(self) -> None:
        stand = Stand(COMPACT.replace(segment_bytes=150))
        log = stand.segments(keys("ab"), keys("ab"))
        stand.clean()
        assert [segment.size for segment in log.segments] == [0, 148, 0]
        assert rows_of(stand.restart().logs[TP]) == [(2, b"a", b"value"), (3, b"b", b"value")]
        assert stand.log.read(0, 1000).size == 148
