"""Threads read a log while its owner appends to it, compacts it and removes old files."""

from __future__ import annotations

import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from protocol.errors import ApiError, ErrorCode
from protocol.records.batch import read_batches
from storage.io.os_file_system import OsFileSystem
from storage.log.unified_log import UnifiedLog
from tests.storage.compaction.cleaning import COMPACT, clean_log, put
from tests.storage.support import T0, TOPIC_ID, TP, delete_expired, flush_dirty, open_manager

READERS = 3
TURNS = 10
CONFIG = COMPACT.replace(file_delete_delay_ms=5_000)
"""A turn is a second, and ends when every reader has started and finished a read in it: no read takes that long."""
PATIENCE_S = 60
KEYS = [b"k%d" % number for number in range(40)]


class Reader(threading.Thread):
    """Reads from the log start to the end repeatedly; `failures` has everything unexpected."""

    def __init__(self, log: UnifiedLog, bound: list[int], max_bytes: int) -> None:
        super().__init__()
        self.log = log
        self.bound = bound
        self.max_bytes = max_bytes
        self.is_over = False
        self.passes = 0
        self.reads = 0
        self.went_on = threading.Condition()
        self.failures: list[str] = []

    def run(self) -> None:
        while not self.is_over and not self.failures:
            try:
                self.read_all()
            except (ApiError, AssertionError, OSError, ValueError, struct.error) as error:
                self.failures.append(repr(error))
            self._go_on(passes=1)

    def await_next(self) -> None:
        """Wait until a read that begins from now on has ended or failed."""
        enough = self.reads + 2
        self._await(lambda: self.reads >= enough)

    def await_next_pass(self) -> None:
        """Wait until everything now in the log was read, or a read has failed."""
        enough = self.passes + 2
        self._await(lambda: self.passes >= enough)

    def _await(self, is_there: Callable[[], bool]) -> None:
        with self.went_on:
            assert self.went_on.wait_for(lambda: is_there() or self.failures, PATIENCE_S)

    def _go_on(self, passes: int = 0) -> None:
        with self.went_on:
            self.reads += 1
            self.passes += passes
            self.went_on.notify_all()

    def read_all(self) -> None:
        at = self.log.log_start_offset
        latest: dict[bytes | None, int] = {}
        end = self.bound[0]
        while at < end and not self.is_over:
            try:
                info = self.log.read(at, self.max_bytes, end)
            except ApiError as error:
                if error.error_code is ErrorCode.OFFSET_OUT_OF_RANGE:
                    return
                raise
            if info.file is None:
                break
            data = info.file.pread(info.position, info.size)
            assert len(data) == info.size
            batches = list(read_batches(memoryview(data)))
            assert sum(batch.size_in_bytes for batch in batches) == info.size
            assert batches[0].last_offset >= at
            for batch in batches:
                batch.ensure_valid()
                for record in batch.records():
                    # The value contains its offset, to detect records served at a wrong one.
                    assert record.value is not None
                    assert int(record.value[:12]) == record.offset
                    latest[record.key] = record.offset
            at = batches[-1].next_offset
            self._go_on()
        if at >= end and end >= len(KEYS):
            assert set(latest) == set(KEYS), "a key has lost all its values"


def test_readers_meet_whole_batches_in_their_places(tmp_path: Path) -> None:
    # Few descriptors, so that they are closed and reopened all the time.
    file_system = OsFileSystem(max_open_files=8)
    manager, _ = open_manager(file_system, CONFIG, str(tmp_path))
    log = manager.get_or_create(TP, TOPIC_ID, CONFIG, T0)
    bound = [0]
    readers = [Reader(log, bound, max_bytes) for max_bytes in (1, 300, 1 << 20)[:READERS]]
    for reader in readers:
        reader.start()
    now_ms = T0
    usual = sys.getswitchinterval()
    sys.setswitchinterval(0.0001)  # threads switch between any two steps, and the owner does not starve
    try:
        for turn in range(TURNS):
            for _ in range(4):
                rows = [(key, b"%012d %d" % (log.log_end_offset + at, turn)) for at, key in enumerate(KEYS)]
                for start in range(0, len(rows), 5):
                    put(log, *rows[start : start + 5], now_ms=now_ms)
            log.roll(now_ms)
            bound[0] = log.log_end_offset
            flush_dirty(manager, now_ms)
            clean_log(file_system, manager, log, now_ms)
            for reader in readers:
                reader.await_next()
            now_ms += 1000
            delete_expired(manager, now_ms)
            if any(reader.failures for reader in readers):
                break
        for reader in readers:
            reader.await_next_pass()
    finally:
        sys.setswitchinterval(usual)
        for reader in readers:
            reader.is_over = True
        for reader in readers:
            reader.join()
    assert [failure for reader in readers for failure in reader.failures] == []
    assert log.directory.failure is None
    assert not list(tmp_path.glob("t-0/*.1.deleted")), "nothing was removed in all that time"
