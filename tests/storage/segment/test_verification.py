"""The bytes of a segment at its opening are verified once, before anyone reads them."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest

from protocol.errors import ApiError, ErrorCode
from protocol.records.batch import read_batches
from storage.log import log_reader
from storage.log.unified_log import UnifiedLog
from storage.log_config import LogConfig
from storage.log_manager import LogManager
from storage.recovery.scrub import Scrub
from storage.segment import batch_walk, verification
from tests.kit.memory_file_system import MemoryFileSystem
from tests.storage.support import (
    DIR,
    T0,
    TOPIC_ID,
    TP,
    append,
    batch_of,
    batches_at,
    close_cleanly,
    load_logs,
    open_manager,
    values_in,
)

CONFIG = LogConfig(segment_bytes=1200, index_interval_bytes=200)
SIZE = len(batch_of(b"value 000"))
EACH = CONFIG.segment_bytes // SIZE
RECORDS = 3 * EACH - 4


def path_of(segment: int) -> str:
    return f"{DIR}/t-0/{segment * EACH:020d}.log"


class Disk:
    """A log of three segments whose bytes can be changed while the broker is stopped; counts the later reads."""

    def __init__(self, config: LogConfig = CONFIG) -> None:
        self.file_system = MemoryFileSystem()
        self.config = config
        self.messages: list[str] = []
        manager, _ = open_manager(self.file_system, config)
        log = manager.get_or_create(TP, TOPIC_ID, config, T0)
        for number in range(RECORDS):
            append(log, b"value %03d" % number, timestamps=[T0 + number])
        close_cleanly(manager)
        self.file_system.kill_process()

    def change(self, path: str, change: Callable[[bytearray], object]) -> None:
        content = bytearray(self.file_system.read_file(path))
        change(content)
        self.file_system.write_file(path, bytes(content))

    def flip(self, segment: int, position: int, bit: int = 0) -> None:
        def turn(content: bytearray) -> None:
            content[position] ^= 1 << bit

        self.change(path_of(segment), turn)

    def manager(self) -> LogManager:
        manager = LogManager(self.file_system, (DIR,), self.config, on_corruption=self.messages.append)
        manager.directories.lock()
        load_logs(manager, T0, {"t": self.config})
        return manager

    def open(self) -> UnifiedLog:
        self.last_manager = self.manager()
        return self.last_manager.logs[TP]


def values(first: int, end: int) -> list[tuple[int, bytes]]:
    return [(offset, b"value %03d" % offset) for offset in range(first, end)]


def refused(log: UnifiedLog, offset: int) -> str:
    with pytest.raises(ApiError) as caught:
        log.read(offset, 10_000)
    assert caught.value.error_code is ErrorCode.CORRUPT_MESSAGE
    return caught.value.message


def test_each_byte_is_checked_once() -> None:
    log = Disk().open()
    assert [segment.batches.unverified_end for segment in log.segments] == [segment.size for segment in log.segments]
    assert log.try_read(0, 200) is None, "what would have to be checked is not read without waiting"
    assert values_in(log) == values(0, RECORDS)
    assert [segment.batches.unverified_end for segment in log.segments] == [0, 0, 0]
    assert log.try_read(0, 200) is not None


def test_what_this_process_appended_needs_no_check() -> None:
    log = Disk().open()
    end = append(log, b"new").last_offset + 1
    append(log, b"newer")
    found = log.try_read(end, 200)
    assert found is not None
    assert found.size > 0


@pytest.mark.parametrize("field", ["length", "magic", "crc", "attributes", "records"])
def test_damage_is_refused_and_the_rest_is_read(field: str) -> None:
    disk = Disk()
    at = {"length": 10, "magic": 16, "crc": 18, "attributes": 22, "records": SIZE - 3}[field]
    disk.flip(1, 3 * SIZE + at)
    log = disk.open()
    lost = EACH + 3
    assert values_in_reach(log, 0) == values(0, lost)
    message = refused(log, lost)
    assert message.startswith(f"{path_of(1)} is corrupt at byte {3 * SIZE}: ")
    assert refused(log, lost) == message
    assert values_in(log, lost + 1) == values(lost + 1, RECORDS)
    assert len(disk.messages) == 1
    assert path_of(1) in disk.messages[0]
    assert f"byte {3 * SIZE} " in disk.messages[0]
    assert f"offsets {lost} to {lost}" in disk.messages[0]


def values_in_reach(log: UnifiedLog, offset: int) -> list[tuple[int, bytes | None]]:
    """The records that a consumer from `offset` on gets before an error."""
    found: list[tuple[int, bytes | None]] = []
    end = log.log_end_offset
    while offset < end:
        try:
            one = values_in_one_read(log, offset)
        except ApiError:
            break
        found += one
        offset = one[-1][0] + 1
    return found


def values_in_one_read(log: UnifiedLog, offset: int, max_bytes: int = 10_000) -> list[tuple[int, bytes | None]]:
    info = log.read(offset, max_bytes)
    assert info.file is not None
    data = memoryview(info.file.pread(info.position, info.size))
    return [(record.offset, record.value) for batch in read_batches(data) for record in batch.records()]


@pytest.mark.parametrize("bit", range(64))
def test_base_offsets_are_judged_by_their_neighbours(bit: int) -> None:
    disk = Disk()
    disk.flip(1, 3 * SIZE + 7 - bit // 8, bit % 8)
    log = disk.open()
    lost = EACH + 3
    assert values_in_reach(log, 0) == values(0, lost)
    refused(log, lost)
    assert values_in(log, lost + 1) == values(lost + 1, RECORDS)


def test_an_epoch_amid_another_is_damage_and_a_new_one_is_not() -> None:
    disk = Disk()
    disk.flip(1, 3 * SIZE + 15)
    refused(disk.open(), EACH + 3)
    disk = Disk()
    for number in range(3, EACH):
        disk.flip(1, number * SIZE + 15)
    for number in range(RECORDS - 2 * EACH):
        disk.flip(2, number * SIZE + 15)
    assert values_in(disk.open()) == values(0, RECORDS)
    assert not disk.messages


def test_a_raised_epoch_of_the_first_batch_is_not_blamed_on_the_second() -> None:
    disk = Disk()
    disk.flip(0, 15)
    for number in range(2, EACH):
        disk.flip(0, number * SIZE + 15)
    assert values_in(disk.open(), 0)[:EACH] == values(0, EACH)
    assert not [message for message in disk.messages if "amid" in message]


def test_offsets_that_compaction_left_out_are_no_damage() -> None:
    disk = Disk()
    log = disk.open()
    log.append_as_follower(
        batches_at((RECORDS + 5, batch_of(b"a")), (RECORDS + 90, batch_of(b"b")), epoch=1), now_ms=T0
    )
    log.flush(T0)
    disk.file_system.kill_process()
    again = disk.open()
    assert [offset for offset, _ in values_in(again)][-2:] == [RECORDS + 5, RECORDS + 90]
    assert not disk.messages


@pytest.mark.parametrize("clean", [True, False])
def test_damage_at_the_end_of_what_was_flushed_does_not_shorten_the_log(clean: bool) -> None:
    disk = Disk()
    if not clean:
        disk.file_system.remove(f"{DIR}/.kafka_cleanshutdown")
    last = RECORDS - 2 * EACH - 1
    disk.flip(2, last * SIZE + SIZE - 2)
    log = disk.open()
    assert log.log_end_offset == RECORDS
    assert values_in_reach(log, 0) == values(0, RECORDS - 1)
    refused(log, RECORDS - 1)
    assert append(log, b"next").first_offset == RECORDS
    assert values_in(log, RECORDS) == [(RECORDS, b"next")]
    log.flush(T0)
    disk.file_system.kill_process()
    again = disk.open()
    assert again.log_end_offset == RECORDS + 1
    assert values_in(again, RECORDS) == [(RECORDS, b"next")]


@pytest.mark.parametrize("bit", range(64))
def test_the_last_base_offset_is_judged_by_where_the_log_ended(bit: int) -> None:
    disk = Disk()
    last = RECORDS - 2 * EACH - 1
    disk.flip(2, last * SIZE + 7 - bit // 8, bit % 8)
    log = disk.open()
    assert log.log_end_offset == RECORDS
    assert values_in_reach(log, 0) == values(0, RECORDS - 1)
    refused(log, RECORDS - 1)


def test_the_first_batch_behind_damage_is_found_without_its_size() -> None:
    disk = Disk()

    def zero(content: bytearray) -> None:
        content[SIZE // 2 : 4 * SIZE + 70] = bytes(len(content[SIZE // 2 : 4 * SIZE + 70]))

    disk.change(path_of(1), zero)
    log = disk.open()
    refused(log, EACH)
    assert values_in(log, EACH + 5) == values(EACH + 5, RECORDS)


def test_search_by_timestamp_does_not_pass_damage_over() -> None:
    disk = Disk()
    disk.flip(1, 3 * SIZE + SIZE - 1)
    log = disk.open()
    lost = EACH + 3
    with pytest.raises(ApiError) as caught:
        log.offset_for_timestamp(T0 + lost)
    assert caught.value.error_code is ErrorCode.CORRUPT_MESSAGE
    found = log.offset_for_timestamp(T0 + 2 * EACH)
    assert found is not None
    assert found.offset == 2 * EACH
    assert len(disk.messages) == 1


def test_truncation_takes_damage_away() -> None:
    for offset in (EACH + 2, EACH + 3, EACH + 4):
        disk = Disk()
        disk.flip(1, 3 * SIZE + SIZE - 1)
        log = disk.open()
        refused(log, EACH + 3)
        log.truncate_to(offset, T0)
        assert log.segments[-1].size == (offset - EACH) * SIZE
        assert log.log_end_offset == offset
        assert values_in_reach(log, 0) == values(0, min(offset, EACH + 3))


class TestScrub:
    def pass_through(self, manager: LogManager, scrub: Scrub, size: int = 300) -> int:
        scrub.begin(manager.logs)
        count = 0
        while (task := scrub.next_task(manager.logs, size, T0 + 7)) is not None:
            task.run()
            task.complete()
            count += 1
        return count

    def test_finds_what_changed_after_it_was_read(self) -> None:
        disk = Disk()
        manager = disk.manager()
        log = manager.logs[TP]
        assert values_in(log) == values(0, RECORDS)
        disk.flip(1, 3 * SIZE + SIZE - 1)
        scrub = Scrub()
        assert self.pass_through(manager, scrub) > 4
        assert len(disk.messages) == 1
        refused(log, EACH + 3)
        assert values_in(log, EACH + 4) == values(EACH + 4, RECORDS)
        assert scrub.checked_bytes == sum(segment.size for segment in log.segments[:-1])
        assert scrub.last_pass_ended_ms == T0 + 7
        self.pass_through(manager, scrub)
        assert len(disk.messages) == 1, "told once"

    def test_spares_readers_the_check(self) -> None:
        disk = Disk()
        manager = disk.manager()
        self.pass_through(manager, Scrub())
        assert [segment.batches.unverified_end > 0 for segment in manager.logs[TP].segments] == [False, False, True]

    def test_batches_appended_since_the_start_are_no_damage(self) -> None:
        """They go into the segment that was the last one at the start, and that has been read since."""
        disk = Disk()
        manager = disk.manager()
        log = manager.logs[TP]
        assert values_in(log) == values(0, RECORDS)
        for number in range(RECORDS, RECORDS + EACH):
            append(log, b"value %03d" % number, timestamps=[T0 + number])
        assert len(log.segments) > 3
        self.pass_through(manager, Scrub())
        assert not disk.messages
        assert values_in(log) == values(0, RECORDS + EACH)

    def test_segments_may_go_meanwhile(self) -> None:
        disk = Disk()
        disk.flip(0, SIZE - 1)
        manager = disk.manager()
        scrub = Scrub()
        scrub.begin(manager.logs)
        task = scrub.next_task(manager.logs, 300, T0)
        assert task is not None
        log = manager.logs[TP]
        log.delete_records_before(EACH, RECORDS)
        log.delete_old_segments()
        task.run()
        task.complete()
        assert not disk.messages
        while (task := scrub.next_task(manager.logs, 300, T0)) is not None:
            assert task.segment is not log.segments[0] or task.segment.base_offset == EACH
            task.run()
            task.complete()
        assert scrub.last_pass_ended_ms == T0


def test_config_is_no_concern_of_it() -> None:
    """A compacted topic has gaps; the verdict on the same log is the same."""
    disk = Disk(CONFIG.replace(cleanup_policy=frozenset({"compact"})))
    disk.flip(1, 3 * SIZE + 6, 3)
    log = disk.open()
    refused(log, EACH + 3)
    assert values_in(log, EACH + 4) == values(EACH + 4, RECORDS)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_is_damaged_and_wherever_readers_begin(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs with gaps, epochs and batches of many sizes; several damages of several kinds; readers at any offset."""
    monkeypatch.setattr(verification, "_NEAR_BYTES", 300)
    monkeypatch.setattr(batch_walk, "SOUND", batch_walk.SOUND._replace(window_bytes=256))
    monkeypatch.setattr(log_reader, "_CHECK_AHEAD_BYTES", 100)
    rng = random.Random(seed)
    has_gaps = seed % 3 == 0
    disk = Disk(LogConfig(segment_bytes=4000, index_interval_bytes=300))
    log = disk.open()
    log.prepare_full_truncation(0, T0).finish()
    right: dict[int, bytes | None] = {}
    offset = epoch = 0
    for _ in range(120):
        count = rng.randrange(1, 5)
        contents = [rng.randbytes(rng.choice((3, 20, 400))) for _ in range(count)]
        offset += rng.randrange(3) if has_gaps else 0
        epoch += rng.random() < 0.05
        log.append_as_follower(batches_at((offset, batch_of(*contents)), epoch=epoch), now_ms=T0)
        right |= dict(zip(range(offset, offset + count), contents, strict=True))
        offset += count
    close_cleanly(disk.last_manager)
    disk.file_system.kill_process()
    names = sorted(segment.path for segment in log.segments)
    corrupt_ranges = rng.randrange(1, 4)
    for _ in range(corrupt_ranges):
        disk.change(rng.choice(names), partial(damage_somewhere, rng))
    log = disk.open()
    served: dict[int, bytes | None] = {}
    refused = set()
    offsets = [rng.randrange(offset) for _ in range(40)] + list(range(offset))
    for at in offsets:
        try:
            for found_offset, value in values_in_one_read(log, at, rng.choice((1, 500, 5000))):
                served[found_offset] = value
        except ApiError as error:
            assert error.error_code is ErrorCode.CORRUPT_MESSAGE
            refused.add(at)
    moved = served.items() - right.items()
    if has_gaps and {value for _, value in moved} <= set(right.values()) and len(moved) < 5:
        right |= served  # a base offset was changed to another one in a gap: nothing distinguishes it from a valid one
    else:
        assert not moved
    missing = right.keys() - served.keys()
    assert missing <= refused or moved
    assert len(missing) <= corrupt_ranges * (12 if not has_gaps else 20)
    assert bool(refused) <= bool(disk.messages)


def damage_somewhere(rng: random.Random, content: bytearray) -> None:
    """Flip one bit, or replace some bytes by zeros or by another part of the file."""
    at = rng.randrange(len(content))
    kind = rng.randrange(4)
    size = min(rng.randrange(1, 300), len(content) - at)
    if kind < 2:
        content[at] ^= 1 << rng.randrange(8)
    elif kind == 2:
        content[at : at + size] = bytes(size)
    else:
        other = rng.randrange(len(content) - size + 1)
        content[at : at + size] = content[other : other + size]
