"""A thread reads a log, and before it has finished the owner truncates and appends: nothing that the thread learned of
the old bytes may be applied to the new ones.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Iterator

import pytest

from protocol.errors import ApiError
from protocol.records.batch import read_batches
from storage.log.log_reader import FetchDataInfo
from storage.log.unified_log import UnifiedLog
from storage.log_config import LogConfig
from storage.log_manager import LogManager
from storage.recovery.scrub import SegmentCheck
from storage.segment.segment_files import TRUNCATION_MARKER
from tests.kit.memory_file_system import Fault, MemoryFile, MemoryFileSystem
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

RECORDS = 30
CUT_AT = 22
CONFIG = LogConfig(segment_bytes=1 << 20, index_interval_bytes=200)
SEGMENTED = CONFIG.replace(segment_bytes=1000)
NEW = [b"new " + b"%d" % number * (40 + 13 * number) for number in range(8)]
"""With other sizes than the replaced batches, so that no two begin at the same position."""


class Race:
    """A log whose bytes are unverified; `interrupt` is called before or after read call number `at` of a reader."""

    def __init__(self, config: LogConfig, at: int, *, after: bool) -> None:
        self.file_system = MemoryFileSystem()
        manager, _ = open_manager(self.file_system, config)
        log = manager.get_or_create(TP, TOPIC_ID, config, T0)
        for number in range(RECORDS):
            append(log, b"value %03d" % number, timestamps=[T0 + number])
        close_cleanly(manager)
        self.file_system.kill_process()
        self.damages: list[str] = []
        self.manager = LogManager(self.file_system, (DIR,), config, on_corruption=self.damages.append)
        self.manager.directories.lock()
        load_logs(self.manager, T0, {"t": config})
        self.log = self.manager.logs[TP]
        self.left = at
        self.after = after
        self.was_interrupted = False

    def read(self, reader: Callable[[UnifiedLog], object], interrupt: Callable[[UnifiedLog], None]) -> None:
        """Let `reader` read."""

        pread = MemoryFile.pread

        def count() -> None:
            self.left -= 1
            if self.left < 0 and not self.was_interrupted:
                self.was_interrupted = True
                interrupt(self.log)

        def interrupted(file: MemoryFile, position: int, size: int) -> bytes:
            if not self.after:
                count()
            data = pread(file, position, size)
            if self.after:
                count()
            return data

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MemoryFile, "pread", interrupted)
            info = reader(self.log)
        if isinstance(info, FetchDataInfo) and info.file is not None:
            batches = list(read_batches(memoryview(info.file.pread(info.position, info.size))))
            assert sum(batch.size_in_bytes for batch in batches) == info.size, "whole batches of the log as it is"

    def check(self, expected: list[tuple[int, bytes]]) -> None:
        """The log has the content that its owner wrote, wherever and however it is read."""
        assert self.damages == []
        assert values_in(self.log) == expected
        for offset in range(CUT_AT - 4, self.log.log_end_offset):
            for max_bytes in (1, 300):
                assert next(value for _, value in slice_of(self.log, offset, max_bytes)) == expected[offset][1]
        assert self.damages == []


def slice_of(log: UnifiedLog, offset: int, max_bytes: int) -> list[tuple[int, bytes | None]]:
    info = log.read(offset, max_bytes)
    assert info.file is not None
    data = info.file.pread(info.position, info.size)
    found = [each for batch in read_batches(memoryview(data)) for each in batch.records()]
    assert len(data) == info.size
    return [(record.offset, record.value) for record in found if record.offset >= offset]


def cut(log: UnifiedLog) -> None:
    log.truncate_to(CUT_AT, T0)


def cut_and_go_on(log: UnifiedLog) -> None:
    cut(log)
    for value in NEW:
        append(log, value, epoch=1)


def cut_twice_and_go_on(log: UnifiedLog) -> None:
    cut_and_go_on(log)
    log.truncate_to(CUT_AT + 1, T0)
    for value in NEW[:0:-1]:
        append(log, value, epoch=2)


def begin_anew(log: UnifiedLog) -> None:
    log.prepare_full_truncation(0, T0).finish()
    for value in NEW * 4:
        append(log, value, epoch=1)


OLD = [(offset, b"value %03d" % offset) for offset in range(RECORDS)]
KEPT = OLD[:CUT_AT]
WAYS: dict[Callable[[UnifiedLog], None], list[tuple[int, bytes]]] = {
    cut: KEPT,
    cut_and_go_on: KEPT + list(enumerate(NEW, CUT_AT)),
    cut_twice_and_go_on: KEPT + list(enumerate([NEW[0], *NEW[:0:-1]], CUT_AT)),
    begin_anew: list(enumerate(NEW * 4)),
}


def consume(offset: int, max_bytes: int) -> Callable[[UnifiedLog], FetchDataInfo]:
    return lambda log: log.read(offset, max_bytes)


def scrub(log: UnifiedLog) -> None:
    task = SegmentCheck(log, log.segments[-1], None, 1 << 20)
    task.run()
    task.complete()


def look_up(log: UnifiedLog) -> None:
    found = log.offset_for_timestamp(T0 + CUT_AT - 2)
    assert found is None or found.timestamp >= T0 + CUT_AT - 2
    log.offset_of_max_timestamp()


READERS = {
    "from the start": consume(0, 1 << 20),
    "at the end": consume(RECORDS - 1, 1 << 20),
    "before the cut": consume(CUT_AT - 3, 500),
    "scrub": scrub,
    "time stamps": look_up,
}


def races(config: LogConfig) -> Iterator[Race]:
    """One race for each point that can interrupt the reader."""
    for after in (False, True):
        for at in itertools.count():
            race = Race(config, at, after=after)
            yield race
            if not race.was_interrupted:
                assert at > 0
                break


@pytest.mark.parametrize("config", [CONFIG, SEGMENTED], ids=["one segment", "some"])
@pytest.mark.parametrize("interrupt", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("reader", READERS)
def test_what_was_learned_of_the_old_end_is_forgotten(
    config: LogConfig, interrupt: Callable[[UnifiedLog], None], reader: str
) -> None:
    for race in races(config):
        try:
            race.read(READERS[reader], interrupt)
        except ApiError as error:
            assert race.was_interrupted
            assert error.error_code.name in ("OFFSET_OUT_OF_RANGE", "OFFSET_NOT_AVAILABLE")
        race.check(WAYS[interrupt] if race.was_interrupted else OLD)


@pytest.mark.parametrize("config", [CONFIG, SEGMENTED], ids=["one segment", "some"])
def test_until_the_cut_is_complete_nobody_reads_or_writes_what_is_cut(config: LogConfig) -> None:
    race = Race(config, 0, after=False)
    log = race.log
    task = log.prepare_truncation(CUT_AT, T0)
    readable = log.segments[-1].base_offset

    def look() -> None:
        assert log.log_end_offset == CUT_AT
        assert log.read(CUT_AT, 1000).size == 0
        assert log.read(CUT_AT - 1, 1000).size == 0
        assert values_in(log) == OLD[:readable]
        with pytest.raises(ApiError) as caught:
            log.offset_for_timestamp(T0)
        assert caught.value.error_code.name == "OFFSET_NOT_AVAILABLE"
        for forbidden in (
            lambda: append(log, b"new"),
            lambda: log.append_as_follower(batches_at((CUT_AT, batch_of(b"new"))), now_ms=T0),
            lambda: log.roll(T0),
            lambda: log.prepare_truncation(3, T0),
            log.close,
        ):
            with pytest.raises(RuntimeError):
                forbidden()
        assert log.expire_segments(T0 * 2, RECORDS).expired == 0
        flush = log.prepare_flush(T0)
        flush.run()
        flush.complete()

    look()
    recovery_point = log.recovery_point
    task.run()
    look()
    assert log.recovery_point == recovery_point
    task.complete()
    race.check(KEPT)
    append(log, b"new")
    race.check([*KEPT, (CUT_AT, b"new")])
    log.flush(T0)
    assert log.recovery_point == CUT_AT + 1


def test_a_log_that_is_deleted_while_its_end_is_cut_stays_deleted() -> None:
    race = Race(CONFIG, 0, after=False)
    task = race.log.prepare_truncation(CUT_AT, T0)
    race.manager.delete(TP, T0)
    task.run()
    with pytest.raises(ApiError) as caught:
        task.complete()
    assert caught.value.error_code.name == "KAFKA_STORAGE_ERROR"
    assert [directory.failure for directory in race.manager.directories] == [None]


def test_a_disk_that_is_too_full_to_begin_leaves_the_log_as_it_was() -> None:
    race = Race(SEGMENTED, 0, after=False)
    refuses = Fault(errno=errno.ENOSPC)
    race.file_system.inject = lambda operation, path: (
        refuses if operation == "create" and TRUNCATION_MARKER in path else None
    )
    with pytest.raises(ApiError):
        race.log.truncate_to(CUT_AT, T0)
    race.file_system.inject = lambda _operation, _path: None
    race.check(OLD)
    append(race.log, b"new")
    race.check([*OLD, (RECORDS, b"new")])
