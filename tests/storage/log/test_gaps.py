"""A segment that ends before the next one begins: compacted by Kafka, or shortened by a power cut."""

from __future__ import annotations

import errno

import pytest

from protocol.errors import ApiError
from storage.directory.checkpoints import RECOVERY_POINT_CHECKPOINT, WHOLE_SEGMENTS, read_offset_checkpoint
from storage.log.unified_log import UnifiedLog
from storage.log_config import LogConfig
from storage.log_manager import LogManager
from tests.kit.memory_file_system import Fault, MemoryFileSystem
from tests.storage.compaction.cleaning import COMPACT, Stand, clean_log, keys, rows_of
from tests.storage.support import (
    DIR,
    T0,
    TOPIC_ID,
    TP,
    append,
    batch_of,
    batches_at,
    close_cleanly,
    open_manager,
    reopen,
    values_in,
)

CHECKPOINT = f"{DIR}/{RECOVERY_POINT_CHECKPOINT}"


def shorten(file_system: MemoryFileSystem, path: str, batch: memoryview) -> None:
    """Remove the last batch of a segment, as in a power cut; all are as long as `batch`."""
    content = file_system.read_file(path)
    assert len(content) > len(batch)
    file_system.write_file(path, content[: -len(batch)])


def three_segments(file_system: MemoryFileSystem, config: LogConfig = COMPACT) -> UnifiedLog:
    """Two records in each, without the second one of the first segment; nothing was flushed."""
    manager, _ = open_manager(file_system, config)
    log = manager.get_or_create(TP, TOPIC_ID, config, T0)
    for number in range(6):
        if number in {2, 4}:
            log.roll(T0)
        append(log, b"%d" % number)
    shorten(file_system, log.segments[0].path, batch_of(b"0"))
    return log


def as_kafka_writes_it(file_system: MemoryFileSystem) -> None:
    """Rewrite the checkpoint without entries that are not partitions, as Kafka does."""
    offsets = read_offset_checkpoint(file_system, CHECKPOINT)
    offsets.pop(WHOLE_SEGMENTS, None)
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    file_system.write_file(CHECKPOINT, "\n".join(["0", str(len(lines)), *lines, ""]).encode())


def is_marked(file_system: MemoryFileSystem, directory: str = DIR) -> bool:
    return WHOLE_SEGMENTS in read_offset_checkpoint(file_system, f"{directory}/{RECOVERY_POINT_CHECKPOINT}")


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_a_lost_tail_ends_the_log(policy: str) -> None:
    file_system = MemoryFileSystem()
    config = COMPACT.replace(cleanup_policy=frozenset({policy}))
    three_segments(file_system, config)
    assert values_in(reopen(file_system, config)) == [(0, b"0")]


@pytest.mark.parametrize("checkpoint", ["of Kafka", "lost", "damaged"])
def test_a_gap_in_a_compacted_log_of_kafka_is_believed(checkpoint: str) -> None:
    file_system = MemoryFileSystem()
    three_segments(file_system)
    if checkpoint == "of Kafka":
        as_kafka_writes_it(file_system)
    elif checkpoint == "lost":
        file_system.remove(CHECKPOINT)
    else:
        file_system.write_file(CHECKPOINT, b"damaged")
    rows = [(0, b"0"), *[(number, b"%d" % number) for number in range(2, 6)]]
    assert values_in(reopen(file_system, COMPACT)) == rows
    assert is_marked(file_system), "the gap was flushed, and the recovery point is above it"
    assert values_in(reopen(file_system, COMPACT)) == rows


def test_a_gap_is_believed_until_the_disk_has_room_for_the_checkpoint() -> None:
    file_system = MemoryFileSystem()
    three_segments(file_system)
    as_kafka_writes_it(file_system)
    for _ in range(2):
        file_system.kill_process()
        file_system.inject = lambda operation, path: (
            Fault(errno.ENOSPC) if operation == "write_file" and path.startswith(CHECKPOINT) else None
        )
        manager, _ = open_manager(file_system, COMPACT)
        assert len(values_in(manager.logs[TP])) == 5
        assert not is_marked(file_system)
    file_system.inject = lambda _operation, _path: None
    manager.checkpoints.write_recovery_points()
    assert is_marked(file_system)
    assert len(values_in(reopen(file_system, COMPACT))) == 5


def test_a_gap_in_a_log_of_kafka_that_was_never_compacted_is_a_loss() -> None:
    file_system = MemoryFileSystem()
    config = COMPACT.replace(cleanup_policy=frozenset({"delete"}))
    three_segments(file_system, config)
    as_kafka_writes_it(file_system)
    assert values_in(reopen(file_system, config)) == [(0, b"0")]


def test_directories_are_marked_while_they_are_open() -> None:
    file_system = MemoryFileSystem()
    manager, _ = open_manager(file_system)
    assert is_marked(file_system)
    manager.get_or_create(TP, TOPIC_ID, LogConfig(), T0)
    manager.checkpoints.write_recovery_points()
    assert is_marked(file_system)
    close_cleanly(manager)
    assert not is_marked(file_system), "what comes next may be Kafka"
    manager, report = open_manager(file_system)
    assert report.clean
    assert not report.has_stale_checkpoints
    assert is_marked(file_system)


def test_a_directory_with_a_log_that_was_refused_is_not_marked() -> None:
    file_system = MemoryFileSystem()
    manager, _ = open_manager(file_system, None, "/a", "/b")
    for name in ("/a/x-0", "/b/y-0"):
        file_system.make_dir(name)
        file_system.create(f"{name}/{0:020d}.log")
    file_system.write_file("/a/x-0/partition.metadata", b"version: 9\ntopic_id: x")
    file_system.kill_process()
    manager, report = open_manager(file_system, None, "/a", "/b")
    assert len(report.refused) == 1
    assert (is_marked(file_system, "/a"), is_marked(file_system, "/b")) == (False, True)
    close_cleanly(manager)


def followed(config: LogConfig) -> tuple[MemoryFileSystem, LogManager, UnifiedLog]:
    """A follower of a compacted log: offsets are missing in segments and between them."""
    file_system = MemoryFileSystem()
    manager, _ = open_manager(file_system, config)
    log = manager.get_or_create(TP, TOPIC_ID, config, T0)
    for base in (3, 17, 40):
        log.append_as_follower(batches_at((base, batch_of(b"a")), (base + 4, batch_of(b"b"))), now_ms=T0)
        log.roll(T0)
        log.append_as_follower(batches_at((base + 9, batch_of(b"c"))), now_ms=T0)
    return file_system, manager, log


def test_a_followers_gaps_are_no_loss() -> None:
    file_system, _, log = followed(COMPACT)
    before = values_in(log)
    assert len(before) == 9
    assert len(log.segments) == 4
    assert values_in(reopen(file_system, COMPACT)) == before


def test_a_followers_lost_tail_is_one() -> None:
    file_system, _, log = followed(COMPACT)
    before = values_in(log)
    shorten(file_system, log.segments[1].path, batch_of(b"a"))
    assert values_in(reopen(file_system, COMPACT)) == before[:4]


def test_what_was_cleaned_outlives_the_process_at_once() -> None:
    stand = Stand(COMPACT.replace(segment_bytes=300))
    stand.segments(keys("abcd"), keys("abcd"), keys("abcd"))
    stand.clean()
    before = rows_of(stand.log)
    assert len(before) < 12
    assert rows_of(stand.restart().logs[TP]) == before


def test_nothing_is_cleaned_above_what_a_note_of_a_cut_says() -> None:
    """The note stays until the checkpoint is correct again: a start after a crash would take the gaps for losses."""
    stand = Stand(COMPACT.replace(segment_bytes=100_000))
    log = stand.segments(keys("abab"), keys("abab"), keys("abab"))
    stand.manager.checkpoints.write_recovery_points()
    log.truncate_to(6, T0)
    assert log.durability.truncation_marker == 4
    for _ in range(3):
        append(log, b"again", epoch=3)
    log.roll(T0)
    append(log, b"active", epoch=3)
    log.flush(T0)
    assert (log.recovery_point, log.durability.known_recovery_point) == (10, 4)
    assert stand.cleanable().first_uncleanable_offset == 4
    stand.clean()
    before = rows_of(log)
    assert rows_of(stand.restart().logs[TP]) == before
    for _ in range(3):
        append(stand.log, b"more", epoch=4)
    stand.log.roll(T0)
    append(stand.log, b"active", epoch=4)
    stand.log.flush(T0)
    assert stand.log.durability.truncation_marker is None
    assert clean_log(stand.file_system, stand.manager, stand.log) is not None
    assert len(rows_of(stand.log)) < len(before)
    assert rows_of(stand.restart().logs[TP]) == rows_of(stand.log)


def test_an_epoch_that_a_full_disk_did_not_take_is_not_known() -> None:
    """After a gap, it would begin above the log end."""
    file_system, _, log = followed(COMPACT)
    before = list(log.leader_epochs.entries)
    file_system.inject = lambda operation, _path: Fault(errno.ENOSPC) if operation == "append" else None
    records = batches_at((90, batch_of(b"d")), epoch=7)
    with pytest.raises(ApiError):
        log.append_as_follower(records, now_ms=T0)
    assert log.leader_epochs.entries == before
    file_system.inject = lambda _operation, _path: None
    log.append_as_follower(records, now_ms=T0)
    assert log.leader_epochs.entries == [*before, (7, 90)]
    assert reopen(file_system, COMPACT).leader_epochs.entries == [*before, (7, 90)]


def test_a_gap_that_no_index_could_have_spanned_is_no_loss() -> None:
    """The following batch's first record is near enough, but its last one is too far off."""
    file_system = MemoryFileSystem()
    manager, _ = open_manager(file_system, COMPACT)
    log = manager.get_or_create(TP, TOPIC_ID, COMPACT, T0)
    append(log, *[b"a"] * 10)
    log.append_as_follower(batches_at((2**31 + 8, batch_of(b"b", b"c", b"d"))), now_ms=T0)
    assert [segment.base_offset for segment in log.segments] == [0, 2**31 + 8]
    before = values_in(log)
    assert len(before) == 13
    assert values_in(reopen(file_system, COMPACT)) == before
