"""Every byte of every kind of file flipped: hints never change an answer, and damage never crashes."""

from __future__ import annotations

import copy
from collections import Counter

import pytest

from protocol.errors import ApiError, ErrorCode
from protocol.records.batch import read_batches
from storage.directory.meta_properties import (
    LogDirError,
    check_meta_properties,
    read_meta_properties,
    write_meta_properties,
)
from storage.log.unified_log import UnifiedLog
from storage.log_config import LogConfig
from storage.log_manager import LogManager
from storage.segment.transaction_index import AbortedTxn, encode_aborted
from tests.kit.memory_file_system import MemoryFileSystem
from tests.storage.support import (
    DIR,
    T0,
    TOPIC_ID,
    TP,
    append,
    batch_of,
    checkpoint_high_watermarks,
    close_cleanly,
    open_manager,
    read_all,
    values_in,
)

CONFIG = LogConfig(segment_bytes=1500, index_interval_bytes=150)
RECORDS = 40
PRODUCER = {"producer_id": 77, "producer_epoch": 1}


def build(*, clean: bool, flushed: bool = True) -> MemoryFileSystem:
    """A log directory with every kind of file in it."""
    file_system = MemoryFileSystem()
    manager, _ = open_manager(file_system, CONFIG)
    log = manager.get_or_create(TP, TOPIC_ID, CONFIG, T0)
    write_meta_properties(file_system, DIR, 1, "cluster-id")
    for number in range(RECORDS):
        append(
            log, b"value %03d" % number, epoch=number // 15, timestamps=[T0 + number], base_sequence=number, **PRODUCER
        )
    if flushed:
        log.flush(T0)
    log.delete_records_before(3, RECORDS)
    checkpoint_high_watermarks(manager, {TP: RECORDS})
    if clean:
        close_cleanly(manager, broker_epoch=5)
    else:
        manager.checkpoints.write_recovery_points()
        manager.checkpoints.write_log_start_offsets()
        log.close()
    file_system.kill_process()
    return file_system


def open_log(file_system: MemoryFileSystem) -> tuple[LogManager, UnifiedLog | None]:
    manager, _ = open_manager(file_system, CONFIG)
    return manager, manager.get(TP)


def files_like(file_system: MemoryFileSystem, suffix: str) -> list[str]:
    names = [f"{DIR}/{info.name}" for info in file_system.list_dir(DIR) if not info.is_dir]
    names += [f"{DIR}/t-0/{info.name}" for info in file_system.list_dir(f"{DIR}/t-0")]
    return sorted(name for name in names if name.endswith(suffix))


def flips(suffix: str, *, clean: bool, bits: tuple[int, ...] = (0, 7), flushed: bool = True):
    """(file system, path, position) with one flipped bit in one byte of one file, for every byte."""
    original = build(clean=clean, flushed=flushed)
    paths = files_like(original, suffix)
    assert paths, suffix
    for path in paths:
        content = original.read_file(path)
        for position in range(len(content)):
            for bit in bits:
                file_system = copy.deepcopy(original)
                damaged = bytearray(content)
                damaged[position] ^= 1 << bit
                file_system.write_file(path, bytes(damaged))
                yield file_system, path, position


ALL = [(at, b"value %03d" % at) for at in range(RECORDS)]
EXPECTED = ALL[3:]


@pytest.mark.parametrize("clean", [True, False])
def test_offset_index_never_changes_what_is_read(clean: bool) -> None:
    for file_system, path, position in flips(".index", clean=clean, bits=(0, 3, 7)):
        _, log = open_log(file_system)
        assert log is not None
        for offset in range(3, RECORDS, 4):
            first = read_all(log, offset, 200)[0]
            assert first.base_offset <= offset <= first.last_offset, (path, position)
        assert values_in(log) == EXPECTED, (path, position)
        assert log.log_end_offset == RECORDS
        append(log, b"next")


def test_time_index_is_no_reason_to_fail() -> None:
    for file_system, _, _ in flips(".timeindex", clean=True):
        _, log = open_log(file_system)
        assert log is not None
        assert values_in(log) == EXPECTED
        log.offset_for_timestamp(T0 + 20)
        log.offset_of_max_timestamp()
        append(log, b"next", timestamps=[T0 + 100])
        log.roll(T0)


def test_snapshot_damage_is_noticed_and_state_rebuilt() -> None:
    for file_system, _, _ in flips(".snapshot", clean=True):
        _, log = open_log(file_system)
        assert log is not None
        again = append(log, b"value 039", base_sequence=39, timestamps=[T0 + 39], **PRODUCER)
        assert (again.duplicate, again.first_offset) == (True, 39)
        with pytest.raises(ApiError) as caught:
            append(log, b"x", base_sequence=41, **PRODUCER)
        assert caught.value.error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_segment_above_the_recovery_point_is_cut_at_the_damage() -> None:
    size = len(batch_of(b"value 000", **PRODUCER, base_sequence=0))
    for file_system, path, position in flips(".log", clean=False, bits=(2,), flushed=False):
        manager, log = open_log(file_system)
        if log is None:  # the damage is in the magic of the first batch and looks like an old format
            assert manager.refused
            continue
        base = int(path[-24:-4])
        damaged_offset = base + position // size
        field = position % size
        if 12 <= field < 16:  # the leader epoch: not covered by the CRC, and any may be valid
            assert log.log_end_offset == RECORDS
            continue
        if field < 8 and damaged_offset == RECORDS - 1 and log.log_end_offset != damaged_offset:
            # The base offset is not covered either, and no batch follows that would reveal a raised one.
            assert log.log_end_offset <= 2**31
            continue
        assert log.log_end_offset == max(damaged_offset, log.log_start_offset), (path, position)
        if damaged_offset > 3:
            assert values_in(log) == EXPECTED[: damaged_offset - 3]
        append(log, b"next")


# -- every byte of every file ------------------------------------------------------------------------------------------

KINDS = (
    ".log",
    ".index",
    ".timeindex",
    ".txnindex",
    ".snapshot",
    "leader-epoch-checkpoint",
    "partition.metadata",
    "replication-offset-checkpoint",
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "cleaner-offset-checkpoint",
    "meta.properties",
    ".kafka_cleanshutdown",
)
ONLY_SOMETIMES = {
    "cleaner-offset-checkpoint": (f"{DIR}/cleaner-offset-checkpoint", b"0\n1\nt 0 12\n"),
}
"""Kinds of files that no normal operation leaves: their paths and contents."""
NOT_COVERED = ("log-start-offset-checkpoint", "recovery-point-offset-checkpoint")
"""Numbers without a checksum: a different one may be valid. Records may then be missing, but never wrong."""


def build_all(*, clean: bool) -> MemoryFileSystem:
    """Like `build`, with a transaction index for each segment; all of it flushed."""
    file_system = build(clean=clean)
    for path in files_like(file_system, ".log"):
        first = int(path[-24:-4])
        file_system.write_file(f"{path[:-4]}.txnindex", encode_aborted([AbortedTxn(78, first, first + 5, first + 6)]))
    return file_system


def consume(log: UnifiedLog) -> tuple[dict[int, bytes | None], set[int]]:
    """The records that a consumer gets if it skips each refused offset, and the skipped offsets."""
    served: dict[int, bytes | None] = {}
    refused = set()
    offset = log.log_start_offset
    while offset < min(log.log_end_offset, 2 * RECORDS):
        try:
            info = log.read(offset, 1_000)
        except ApiError as error:
            assert error.error_code is ErrorCode.CORRUPT_MESSAGE
            assert ".log is corrupt at byte " in error.message
            refused.add(offset)
            offset += 1
            continue
        if info.file is None:
            break
        for batch in read_batches(memoryview(info.file.pread(info.position, info.size))):
            batch.ensure_valid()
            served |= {record.offset: record.value for record in batch.records()}
            offset = batch.next_offset
    return served, refused


def outcome(file_system: MemoryFileSystem, path: str) -> str:
    """How a start treats a directory with one bit of `path` flipped. Asserts that it serves nothing wrong."""
    try:
        check_meta_properties(file_system, [DIR], 1, "cluster-id")
        manager, log = open_log(file_system)
    except LogDirError as error:
        assert "meta.properties" in str(error)
        return "directory refused"
    if log is None:
        assert path in manager.refused[TP]
        return "log refused"
    served, refused = consume(log)
    right = dict(ALL)
    assert served.items() <= right.items(), path
    expected = {offset for offset in right if offset >= log.log_start_offset}
    if not path.endswith(NOT_COVERED):
        assert served.keys() | refused == expected, path
    if path.endswith(".log"):
        assert log.log_end_offset == RECORDS
        assert len(refused) <= 1
        for offset in (5, 20, 35):
            if offset not in refused:
                assert read_one(log, offset) == right[offset], path
    else:
        assert not refused, path
    try:
        found = log.offset_for_timestamp(T0 + 20)
    except ApiError as error:
        assert error.error_code is ErrorCode.CORRUPT_MESSAGE
    else:
        assert found is None or found.offset in right
    assert append(log, b"next").first_offset == log.log_end_offset - 1
    return "one record refused" if refused else "served in full" if len(served) == len(expected) else "shorter"


def read_one(log: UnifiedLog, offset: int) -> bytes | None:
    info = log.read(offset, 1)
    assert info.file is not None
    batch = next(read_batches(memoryview(info.file.pread(info.position, info.size))))
    return next(record.value for record in batch.records() if record.offset == offset)


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_byte_flipped(kind: str, clean: bool) -> None:
    if kind == ".kafka_cleanshutdown" and not clean:
        return
    original = build_all(clean=clean)
    if kind in ONLY_SOMETIMES:
        original.write_file(*ONLY_SOMETIMES[kind])
    outcomes: Counter[str] = Counter()
    for path in files_like(original, kind):
        for position, byte in enumerate(original.read_file(path)):
            file_system = copy.deepcopy(original)
            damaged = bytearray(original.read_file(path))
            damaged[position] = byte ^ 1 << (position * 5 + position // 8) % 8
            file_system.write_file(path, bytes(damaged))
            outcomes[outcome(file_system, path)] += 1
    assert outcomes
    print(f"\n{kind}, {'clean' if clean else 'unclean'}: {outcomes.total()} bytes flipped, {dict(outcomes)}")


@pytest.mark.parametrize(
    "name",
    [
        "leader-epoch-checkpoint",
        "replication-offset-checkpoint",
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        "partition.metadata",
        ".kafka_cleanshutdown",
    ],
)
@pytest.mark.parametrize("clean", [True, False])
def test_small_files_are_no_reason_to_crash(name: str, clean: bool) -> None:
    if name == ".kafka_cleanshutdown" and not clean:
        return
    for file_system, path, position in flips(name, clean=clean, bits=tuple(range(8))):
        manager, log = open_log(file_system)
        assert manager.directories[0].failure is None
        if log is None:
            assert path in manager.refused[TP], (path, position)
            continue
        assert log.leader_epochs.latest_epoch >= -1
        start = log.log_start_offset
        if name != "log-start-offset-checkpoint":
            assert values_in(log) == EXPECTED
        assert start >= 0
        append(log, b"next", epoch=log.latest_epoch() + 1)
        close_cleanly(manager)


def test_cut_off_small_files() -> None:
    for clean in (True, False):
        original = build(clean=clean)
        for path in [*files_like(original, "checkpoint"), *files_like(original, "partition.metadata")]:
            content = original.read_file(path)
            for size in range(len(content)):
                file_system = copy.deepcopy(original)
                file_system.write_file(path, content[:size])
                manager, log = open_log(file_system)
                if log is None:
                    assert path in manager.refused[TP]
                    continue
                assert log.log_end_offset == RECORDS
                if "leader-epoch" in path:
                    assert [entry.epoch for entry in log.leader_epochs.entries] == [0, 1, 2]


def test_meta_properties() -> None:
    for file_system, _, _ in flips("meta.properties", clean=True, bits=tuple(range(8))):
        try:
            check_meta_properties(file_system, [DIR], 1, "cluster-id")
            found = read_meta_properties(file_system, DIR)
        except LogDirError as error:
            assert f"{DIR}/meta.properties" in str(error)
            assert "\n" not in str(error)
        else:
            assert found is not None


def test_zero_tail_of_an_index_as_a_killed_kafka_leaves_it() -> None:
    for clean in (True, False):
        file_system = build(clean=clean)
        for path in [*files_like(file_system, ".index"), *files_like(file_system, ".timeindex")]:
            content = file_system.read_file(path)
            width = 8 if path.endswith(".index") else 12
            file_system.write_file(path, content + bytes(10_000 // width * width))
        _, log = open_log(file_system)
        assert log is not None
        assert values_in(log) == EXPECTED
        found = log.offset_for_timestamp(T0 + 21)
        assert found is not None
        assert found.offset == 21
        for number in range(5):
            append(log, b"more %d" % number, timestamps=[T0 + 50 + number])
        assert values_in(log)[-1] == (RECORDS + 4, b"more 4")


@pytest.mark.parametrize("corrupt_range", ["missing", "empty", "odd size", "random"])
def test_indexes_in_a_bad_way(corrupt_range: str) -> None:
    file_system = build(clean=True)
    for path in [*files_like(file_system, ".index"), *files_like(file_system, ".timeindex")]:
        if corrupt_range == "missing":
            file_system.remove(path)
        elif corrupt_range == "empty":
            file_system.write_file(path, b"")
        elif corrupt_range == "odd size":
            file_system.write_file(path, file_system.read_file(path) + b"\1")
        else:
            file_system.write_file(path, bytes(range(7, 7 + 96)))
    _, log = open_log(file_system)
    assert log is not None
    assert values_in(log) == EXPECTED
    for offset in range(3, RECORDS):
        assert read_all(log, offset, 200)[0].base_offset == offset
    if corrupt_range != "random":
        found = log.offset_for_timestamp(T0 + 21)
        assert found is not None
        assert found.offset == 21
