"""Segments whose offsets exceed the range of an index: split when a log is loaded or cleaned, whatever interrupts
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pytest

from protocol.errors import ApiError
from storage.directory.checkpoints import HIGH_WATERMARK_CHECKPOINT, RECOVERY_POINT_CHECKPOINT, format_offset_checkpoint
from storage.directory.log_directories import write_clean_shutdown
from storage.log.unified_log import UnifiedLog
from storage.log_config import LogConfig
from storage.log_manager import LogManager
from storage.recovery.log_directory_survey import LoadReport
from storage.segment.transaction_index import AbortedTxn, decode_aborted, encode_aborted
from tests.kit.memory_file_system import MemoryFileSystem
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
    reopen,
    values_in,
)

GIGA = 1_000_000_000
FAR = 5_500_000_011
SPARSE = (0, 3, GIGA, 2 * GIGA, 3 * GIGA, 3 * GIGA + 7, FAR, FAR + 1)
"""The offsets of a segment at 0: its indexes end at 2^31 - 1, and those of one at 3 GIGA before FAR."""
BEHIND = (6 * GIGA, 6 * GIGA + 1)
"""The offsets of the segment after it."""
CONFIG = LogConfig(index_interval_bytes=100, file_delete_delay_ms=100)
GAPS_ARE_LOSSES = LogConfig(cleanup_policy=frozenset({"delete"}), file_delete_delay_ms=100)
Rows = list[tuple[int, bytes | None]]


def rows_at(*offsets: int) -> Rows:
    return [(offset, b"at %d" % offset) for offset in offsets]


ALL = rows_at(*SPARSE, *BEHIND)


def batches(offsets: Sequence[int]) -> bytes:
    """A batch of one record at each of `offsets`, each with a different key."""
    made = [(at, batch_of(b"at %d" % at, key=b"%d" % at, timestamps=[T0 + at % 1000])) for at in offsets]
    return bytes(batches_at(*made))


def disk_with(
    segments: Mapping[int, bytes], *, clean: bool = False, indexed: bool = False, recovery_point: int = 0
) -> MemoryFileSystem:
    """A log with its `.log` files on stable storage; `indexed`: with empty indexes."""
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
    manager.directories.lock()
    # The kind of a topic is unknown before its configuration was read.
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
    # Recovery rebuilds the index from the batches; a flushed segment keeps its index.
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
    """Set one bit, or one byte, in the base offset of the batch at position `at`, beyond the range of an index."""
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
        segment.batches.read_batch(at, size) for segment in log.segments for at, size, *_ in segment.batches.headers()
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


# -- appending ---------------------------------------------------------------------------------------------------------


def test_a_follower_does_not_take_an_overflow_over() -> None:
    file_system = MemoryFileSystem()
    log = new_log(CONFIG, file_system)
    log.append_as_follower(memoryview(batches(SPARSE)), now_ms=T0)
    assert values_in(log) == rows_at(*SPARSE)
    # A segment begins where the previous one ended, unless that is too far for an index.
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
