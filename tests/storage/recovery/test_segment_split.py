"""Segments that reach further than an index can say: split when a log is loaded or cleaned, whatever comes between."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import pytest

from protocol.errors import ApiError
from storage.directory.checkpoints import HIGH_WATERMARK_CHECKPOINT, RECOVERY_POINT_CHECKPOINT, format_offset_checkpoint
from storage.directory.clean_shutdown import write_clean_shutdown
from storage.directory.meta_properties import LogDirError
from storage.log.log_config import LogConfig
from storage.log.transaction_index import AbortedTxn, decode_aborted, encode_aborted
from storage.log.unified_log import UnifiedLog
from storage.log_manager import LogManager
from storage.recovery.log_directory_survey import LoadReport
from tests.kit.memory_file_system import Fault, MemoryFileSystem, PowerCut, SimulatedCrash
from tests.storage.compaction.cleaning import COMPACT, clean_log, put
from tests.storage.compaction.test_log_cleaner_crashes import random_from
from tests.storage.support import (
    DIR,
    T0,
    TP,
    append,
    batch_of,
    batches_at,
    close_cleanly,
    delete_expired,
    load_logs,
    new_log,
    open_manager,
    reopen,
    values_in,
)

GIGA = 1_000_000_000
FAR = 5_500_000_011
SPARSE = (0, 3, GIGA, 2 * GIGA, 3 * GIGA, 3 * GIGA + 7, FAR, FAR + 1)
"""Of a segment at 0: its indexes end at 2^31 - 1, and those of one at 3 GIGA before FAR."""
BEHIND = (6 * GIGA, 6 * GIGA + 1)
"""Of the segment after it."""
CONFIG = LogConfig(index_interval_bytes=100, file_delete_delay_ms=100)
GAPS_ARE_LOSSES = LogConfig(cleanup_policy=frozenset({"delete"}), file_delete_delay_ms=100)

FAULTS: dict[str, Fault] = {
    "crash before": Fault(crash_before=True),
    "crash after": Fault(crash_after=True),
    "crash amid": Fault(crash_amid=True, written_bytes=100),
    "EIO": Fault(errno=errno.EIO),
    "disk full": Fault(errno=errno.ENOSPC, written_bytes=100),
}

Rows = list[tuple[int, bytes | None]]


def rows_at(*offsets: int) -> Rows:
    return [(offset, b"at %d" % offset) for offset in offsets]


ALL = rows_at(*SPARSE, *BEHIND)


def batches(offsets: Sequence[int]) -> bytes:
    """A batch of one record at each of `offsets`, all with keys of their own."""
    made = [(at, batch_of(b"at %d" % at, key=b"%d" % at, timestamps=[T0 + at % 1000])) for at in offsets]
    return bytes(batches_at(*made))


def disk_with(
    segments: Mapping[int, bytes], *, clean: bool = False, indexed: bool = False, recovery_point: int = 0
) -> MemoryFileSystem:
    """A log of which the `.log` files are there, all of it on stable storage; `indexed`: with indexes, empty ones."""
    file_system = MemoryFileSystem()
    path = f"{DIR}/{TP}"
    file_system.make_dirs(path)
    for base, data in segments.items():
        for suffix, content in ((".log", data), (".index", b""), (".timeindex", b"")):
            if suffix == ".log" or indexed:
                file_system.write_file(f"{path}/{base:020d}{suffix}", content)
                file_system.sync_file(f"{path}/{base:020d}{suffix}")
    for name, offset in ((RECOVERY_POINT_CHECKPOINT, recovery_point), (HIGH_WATERMARK_CHECKPOINT, 0)):
        file_system.write_file(f"{DIR}/{name}", format_offset_checkpoint({TP: offset}))
        file_system.sync_file(f"{DIR}/{name}")
    for directory in (path, DIR, "/"):
        file_system.sync_dir(directory)
    if clean:
        write_clean_shutdown(file_system, DIR, 1)
    return file_system


def load(file_system: MemoryFileSystem, *, may_have_gaps: bool = True) -> tuple[LogManager, LoadReport, UnifiedLog]:
    manager = LogManager(file_system, [DIR], CONFIG if may_have_gaps else GAPS_ARE_LOSSES)
    manager.lock_directories()
    # What a topic is is not known before its configuration was read.
    report = load_logs(manager, T0, {} if may_have_gaps else {TP.topic: GAPS_ARE_LOSSES})
    assert not report.refused, report.refused
    return manager, report, manager.logs[TP]


def names(file_system: MemoryFileSystem, *suffixes: str) -> list[str]:
    found = [info.name for info in file_system.list_dir(f"{DIR}/{TP}")]
    return sorted(name for name in found if not suffixes or name.endswith(suffixes))


def bases(log: UnifiedLog) -> list[int]:
    return [segment.base_offset for segment in log.segments]


# -- loading -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clean", "indexed"),
    [
        pytest.param(False, False, id="crash, no indexes"),
        pytest.param(False, True, id="crash"),
        pytest.param(True, False, id="orderly stop, no indexes"),
    ],
)
def test_split_where_an_index_ends(clean: bool, indexed: bool) -> None:
    segments = {0: batches(SPARSE), 6 * GIGA: batches(BEHIND)}
    point = BEHIND[-1] + 1 if clean else 0
    file_system = disk_with(segments, clean=clean, indexed=indexed, recovery_point=point)
    manager, report, log = load(file_system)
    assert bases(log) == [0, 3 * GIGA, FAR, 6 * GIGA]
    assert values_in(log) == ALL
    assert log.log_end_offset == BEHIND[-1] + 1
    assert [result.split_segments for result in report.repaired] == [[f"{DIR}/{TP}/{0:020d}.log"]]
    for segment in log.segments:
        assert len(segment.files.offset_index) * 8 + len(segment.files.time_index) * 12 > 0
    for offset, value in ALL:
        assert values_in(log, offset)[0] == (offset, value)
    assert names(file_system, ".cleaned", ".swap") == []
    assert names(file_system, ".deleted")
    delete_expired(manager, T0)
    assert delete_expired(manager, T0 + 100) == 0
    assert names(file_system, ".deleted") == []
    append(log, b"next")
    close_cleanly(manager)
    manager, report, log = load(file_system)
    assert report.clean
    assert not report.repaired
    assert values_in(log) == [*ALL, (BEHIND[-1] + 1, b"next")]


@pytest.mark.parametrize("clean", [True, False])
def test_the_last_segment(clean: bool) -> None:
    file_system = disk_with({0: batches(SPARSE)}, clean=clean, indexed=True, recovery_point=SPARSE[-1] + 1)
    _, _, log = load(file_system)
    assert bases(log) == [0, 3 * GIGA, FAR]
    assert values_in(log) == rows_at(*SPARSE)
    append(log, b"next", epoch=1)
    assert values_in(reopen(file_system)) == [*rows_at(*SPARSE), (SPARSE[-1] + 1, b"next")]


def test_a_segment_that_begins_far_from_its_base() -> None:
    file_system = disk_with({7: batches((3 * GIGA + 5, 3 * GIGA + 9)), 6 * GIGA: batches(BEHIND)})
    _, _, log = load(file_system)
    assert bases(log) == [3 * GIGA + 5, 6 * GIGA]
    assert log.log_start_offset == 3 * GIGA + 5
    assert values_in(log) == rows_at(3 * GIGA + 5, 3 * GIGA + 9, *BEHIND)


def test_a_first_batch_behind_the_base_names_the_first_piece() -> None:
    file_system = disk_with({0: batches((5, 2**31 + 2)), 6 * GIGA: batches(BEHIND)})
    _, _, log = load(file_system)
    assert bases(log) == [5, 6 * GIGA]
    assert values_in(log) == rows_at(5, 2**31 + 2, *BEHIND)


def test_no_gap_arises_that_would_be_taken_for_a_loss() -> None:
    near = (5, 2**31 - 10, 2**31 + 10, 3 * GIGA)
    file_system = disk_with({0: batches(near), 6 * GIGA: batches(BEHIND)})
    for _ in range(3):
        _, _, log = load(file_system, may_have_gaps=False)
        assert bases(log) == [0, 2**31 - 9, 6 * GIGA]
        assert values_in(log) == rows_at(*near, *BEHIND)
        file_system.kill_process()


def test_the_state_of_producers_and_epochs_goes_on() -> None:
    made = [
        (at, batch_of(b"at %d" % at, producer_id=7, producer_epoch=0, base_sequence=number))
        for number, at in enumerate(SPARSE)
    ]
    data = bytes(batches_at(*made[:4], epoch=2)) + bytes(batches_at(*made[4:], epoch=5))
    _, _, log = load(disk_with({0: data}))
    assert [(entry.epoch, entry.start_offset) for entry in log.leader_epochs.entries] == [(2, 0), (5, 3 * GIGA)]
    assert log.producer_state.entries[7].last_sequence == len(SPARSE) - 1
    assert len(log.producer_state.entries[7].batches) == 5


def test_every_piece_gets_its_part_of_the_transaction_index() -> None:
    file_system = disk_with({0: batches(SPARSE), 6 * GIGA: batches(BEHIND)})
    index = [AbortedTxn(1, 0, 3, 3), AbortedTxn(2, 3, 3 * GIGA, 3 * GIGA), AbortedTxn(3, 9, FAR + 1, 9)]
    file_system.write_file(f"{DIR}/{TP}/{0:020d}.txnindex", encode_aborted(index))
    # Recovery makes the index anew from the batches; what was flushed keeps the one that it has.
    checkpoint = format_offset_checkpoint({TP: 6 * GIGA + 2})
    file_system.write_file(f"{DIR}/{RECOVERY_POINT_CHECKPOINT}", checkpoint)
    load(file_system)
    for base, entry in zip((0, 3 * GIGA, FAR), index, strict=True):
        path = f"{DIR}/{TP}/{base:020d}.txnindex"
        assert decode_aborted(path, file_system.read_file(path)) == [entry]


# -- damage ------------------------------------------------------------------------------------------------------------


def flipped(data: bytes, position: int, mask: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= mask
    return bytes(changed)


def far_flips(at: int, data: bytes) -> Iterator[bytes]:
    """The base offset of the batch at position `at` with one bit, or one byte, set beyond the range of an index."""
    for position in range(1, 5):
        for mask in (0x80, 0xFF):
            if position < 4 or mask & 0x80:
                yield flipped(data, at + position, mask)


@pytest.mark.parametrize("clean", [True, False])
def test_a_changed_offset_is_no_overflow(clean: bool) -> None:
    near = tuple(range(6))
    data = batches(near)
    size = len(data) // len(near)
    for number in (2, 5):
        for changed in far_flips(number * size, data):
            _, report, log = load(disk_with({0: changed}, clean=clean, recovery_point=6 if clean else 0))
            assert bases(log) == [0]
            assert not any(result.split_segments for result in report.repaired)
            left = near[:number] + (near[number + 1 :] if clean else ())
            assert values_in_what_is_sound(log) == rows_at(*left)


def values_in_what_is_sound(log: UnifiedLog) -> Rows:
    found = [
        segment.batches.read_batch(at, batch.size_in_bytes)
        for segment in log.segments
        for at, batch in segment.batches.headers()
    ]
    return [(record.offset, record.value) for batch in found for record in batch.records()]


def test_a_torn_tail_behind_an_overflow() -> None:
    data = batches(SPARSE)
    _, report, log = load(disk_with({0: data[:-10]}))
    assert bases(log) == [0, 3 * GIGA, FAR]
    assert values_in(log) == rows_at(*SPARSE[:-1])
    assert report.repaired[0].truncated_bytes == len(batches(SPARSE[-1:])) - 10


def test_damage_below_the_recovery_point_stays_where_it_is() -> None:
    data = batches(SPARSE)
    position = len(batches(SPARSE[:6]))
    broken = flipped(data, position - 3, 0xFF)  # in the value at 3 GIGA + 7
    _, _, log = load(disk_with({0: broken, 6 * GIGA: batches(BEHIND)}, recovery_point=BEHIND[-1] + 1))
    assert bases(log) == [0, 3 * GIGA, FAR, 6 * GIGA]
    assert values_in_what_is_sound(log) == rows_at(*SPARSE[:5], *SPARSE[6:], *BEHIND)
    with pytest.raises(ApiError, match=f"{3 * GIGA:020d}.log is corrupt"):
        log.read(3 * GIGA + 7, 1000)


# -- interrupted -------------------------------------------------------------------------------------------------------


def sparse_disk() -> MemoryFileSystem:
    """The first batch of what is to be split is behind its base."""
    return disk_with({0: batches((5, *SPARSE[2:])), 6 * GIGA: batches(BEHIND)}, recovery_point=6 * GIGA)


WHOLE = rows_at(5, *SPARSE[2:], *BEHIND)


def count_calls(work: Callable[[], object], file_system: MemoryFileSystem) -> int:
    calls = 0

    def inject(_operation: str, _path: str) -> Fault | None:
        nonlocal calls
        calls += 1
        return None

    file_system.inject = inject
    work()
    return calls


def interrupt(file_system: MemoryFileSystem, work: Callable[[], object], at: int, fault: Fault) -> None:
    calls = 0

    def inject(_operation: str, _path: str) -> Fault | None:
        nonlocal calls
        calls += 1
        return fault if calls == at else None

    file_system.inject = inject
    with contextlib.suppress(SimulatedCrash, OSError, ApiError, LogDirError):
        work()
    file_system.inject = lambda _operation, _path: None


def end(file_system: MemoryFileSystem, mode: PowerCut | None, seed: int) -> None:
    if mode is None:
        file_system.kill_process()
    else:
        file_system.cut_power(mode, random_from(seed))


def load_all(file_system: MemoryFileSystem) -> None:
    manager = LogManager(file_system, [DIR], CONFIG)
    manager.lock_directories()
    load_logs(manager, T0)
    for log in manager.online_logs():
        log.flush(T0)


@pytest.mark.parametrize("mode", [None, *PowerCut])
@pytest.mark.parametrize("fault", FAULTS)
def test_interrupted_at_every_call(fault: str, mode: PowerCut | None) -> None:
    first = sparse_disk()
    calls = count_calls(lambda: load_all(first), first)
    assert 30 < calls < 300, calls
    for at in range(1, calls + 1):
        file_system = sparse_disk()
        interrupt(file_system, partial(load_all, file_system), at, FAULTS[fault])
        end(file_system, mode, at)
        _, report, log = load(file_system)
        assert values_in(log) == WHOLE, at
        assert bases(log) == [5, 3 * GIGA, FAR, 6 * GIGA], at
        assert not sum(result.truncated_bytes for result in report.repaired), at
        assert names(file_system, ".cleaned", ".swap") == []
        append(log, b"next", epoch=1)
        file_system.kill_process()
        _, _, log = load(file_system)
        assert values_in(log) == [*WHOLE, (BEHIND[-1] + 1, b"next")]


def test_without_room_the_log_is_set_aside_and_nothing_is_left_behind() -> None:
    file_system = sparse_disk()
    before = file_system.used_bytes
    file_system.capacity_bytes = before + 600
    manager = LogManager(file_system, [DIR], CONFIG)
    manager.lock_directories()
    report = load_logs(manager, T0)
    reason = report.refused[TP]
    assert f"{0:020d}.log has offsets beyond what its indexes can hold, and cannot be split" in reason
    assert manager.directories[0].failure is None
    assert names(file_system, ".cleaned", ".swap", ".deleted") == []
    file_system.kill_process()
    file_system.capacity_bytes = None
    assert values_in(load(file_system)[2]) == WHOLE


# -- cleaning ----------------------------------------------------------------------------------------------------------


def overflowed_log(offsets: Sequence[int] = SPARSE) -> tuple[MemoryFileSystem, LogManager, UnifiedLog]:
    """A compacted log whose sealed first segment nobody has looked at: an orderly stop left it with its indexes."""
    segments = {0: batches(offsets), 6 * GIGA: batches(BEHIND)}
    file_system = disk_with(segments, clean=True, indexed=True, recovery_point=BEHIND[-1] + 1)
    manager, _ = open_manager(file_system, COMPACT)
    log = manager.logs[TP]
    assert bases(log) == [0, 6 * GIGA]
    return file_system, manager, log


def test_cleaning_splits_what_it_would_have_left_alone() -> None:
    file_system, manager, log = overflowed_log()
    assert clean_log(file_system, manager, log) is not None
    assert bases(log) == [0, 3 * GIGA, FAR, 6 * GIGA]
    assert values_in(log) == ALL
    for segment in log.segments[:3]:
        assert len(segment.files.time_index) == 1
    file_system.kill_process()
    _, report, log = load(file_system)
    assert not report.repaired
    assert values_in(log) == ALL


def test_cleaning_splits_what_it_changes() -> None:
    file_system, manager, log = overflowed_log()
    for offset in (3, 3 * GIGA):
        put(log, (b"%d" % offset, b"newer"))
    log.roll(T0)
    log.flush(T0)
    assert clean_log(file_system, manager, log) is not None
    assert bases(log) == [0, 3 * GIGA + 7, FAR, 6 * GIGA, BEHIND[-1] + 3]
    left = [offset for offset in (*SPARSE, *BEHIND) if offset not in (3, 3 * GIGA)]
    newer = [(BEHIND[-1] + 1, b"newer"), (BEHIND[-1] + 2, b"newer")]
    assert values_in(log) == [*rows_at(*left), *newer]
    assert values_in(reopen(file_system, COMPACT)) == [*rows_at(*left), *newer]


@pytest.mark.parametrize("mode", [None, *PowerCut])
@pytest.mark.parametrize("fault", FAULTS)
def test_cleaning_interrupted_at_every_call(fault: str, mode: PowerCut | None) -> None:
    first, manager, log = overflowed_log()
    calls = count_calls(lambda: clean_log(first, manager, log), first)
    assert 20 < calls < 300, calls
    for at in range(1, calls + 1):
        file_system, manager, log = overflowed_log()
        interrupt(file_system, partial(clean_log, file_system, manager, log), at, FAULTS[fault])
        end(file_system, mode, at)
        manager, report = open_manager(file_system, COMPACT)
        assert not report.refused
        log = manager.logs[TP]
        assert values_in(log) == ALL, at
        assert names(file_system, ".cleaned", ".swap", ".deleted") == []
        clean_log(file_system, manager, log)
        assert values_in(log) == ALL
        assert bases(log) == [0, 3 * GIGA, FAR, 6 * GIGA], at


# -- appending ---------------------------------------------------------------------------------------------------------


def test_a_follower_does_not_take_an_overflow_over() -> None:
    file_system = MemoryFileSystem()
    log = new_log(CONFIG, file_system)
    log.append_as_follower(memoryview(batches(SPARSE)), now_ms=T0)
    assert values_in(log) == rows_at(*SPARSE)
    # Where a segment ended the next one begins, unless it would be too far for an index.
    assert bases(log) == [0, 2 * GIGA + 1, FAR]
    log.flush(T0)
    assert values_in(reopen(file_system, CONFIG)) == rows_at(*SPARSE)


def test_a_batch_of_many_records_behind_a_gap_too_wide_for_an_index() -> None:
    file_system = MemoryFileSystem()
    log = new_log(CONFIG, file_system)
    append(log, b"a")
    log.append_as_follower(batches_at((3 * GIGA, batch_of(b"b", b"c", b"d"))), now_ms=T0)
    assert bases(log) == [0, 3 * GIGA]
    rows = [(0, b"a"), (3 * GIGA, b"b"), (3 * GIGA + 1, b"c"), (3 * GIGA + 2, b"d")]
    assert values_in(log) == rows
    assert values_in(reopen(file_system, CONFIG)) == rows
