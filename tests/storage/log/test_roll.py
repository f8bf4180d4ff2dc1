"""When a log rolls a new segment, and when it is flushed."""

from __future__ import annotations

from storage.log_config import LogConfig
from tests.kit.memory_file_system import MemoryFileSystem
from tests.storage.support import (
    T0,
    TP,
    append,
    batch_of,
    batches_at,
    flush_dirty,
    new_log,
    open_manager,
    values_in,
)


class TestRoll:
    def bases(self, log) -> list[int]:
        return [segment.base_offset for segment in log.segments]

    def test_by_size(self) -> None:
        size = len(batch_of(b"a"))
        log = new_log(LogConfig(segment_bytes=2 * size))
        for _ in range(5):
            append(log, b"a")
        assert self.bases(log) == [0, 2, 4]

    def test_by_record_time(self) -> None:
        log = new_log(LogConfig(segment_ms=1000))
        for delta in (0, 1000, 500, 1001, 1500, 2002):
            append(log, b"a", timestamps=[T0 + delta])
        assert self.bases(log) == [0, 3, 5]

    def test_by_the_clock_without_timestamps(self) -> None:
        log = new_log(LogConfig(segment_ms=1000))
        append(log, b"a", timestamps=[-1], now_ms=T0)
        append(log, b"a", timestamps=[-1], now_ms=T0 + 1000)
        append(log, b"a", timestamps=[-1], now_ms=T0 + 1001)
        assert self.bases(log) == [0, 2]

    def test_jitter_takes_a_share_off(self) -> None:
        log = new_log(LogConfig(segment_ms=1000, segment_jitter_ms=1000))
        append(log, b"a", timestamps=[T0])
        rolled_at = next(delta for delta in range(1001) if self.rolls(log, delta))
        assert 0 < rolled_at < 1000

    def rolls(self, log, delta: int) -> bool:
        append(log, b"a", timestamps=[T0 + delta])
        return len(log.segments) > 1

    def test_by_index_size(self) -> None:
        log = new_log(LogConfig(segment_index_bytes=24, index_interval_bytes=0))
        for number in range(20):
            append(log, b"a" * 20, timestamps=[T0 + number])
        assert len(log.segments) > 5
        assert all(len(segment.files.offset_index) * 8 <= 24 for segment in log.segments)
        assert all(len(segment.files.time_index) * 12 <= 24 for segment in log.segments)
        assert values_in(log) == [(number, b"a" * 20) for number in range(20)]

    def test_by_relative_offset(self) -> None:
        log = new_log()
        append(log, b"a")
        log.append_as_follower(batches_at((2**31 - 1, batch_of(b"b"))), now_ms=T0)
        log.append_as_follower(batches_at((2**31, batch_of(b"c"))), now_ms=T0)
        assert self.bases(log) == [0, 2**31]
        assert values_in(log) == [(0, b"a"), (2**31 - 1, b"b"), (2**31, b"c")]

    def test_empty_active_segment_stays(self) -> None:
        log = new_log()
        log.roll(T0)
        assert self.bases(log) == [0]
        append(log, b"a")
        log.roll(T0)
        log.roll(T0)
        assert self.bases(log) == [0, 1]

    def test_rolled_segments_are_flushed_by_the_manager(self) -> None:
        file_system = MemoryFileSystem()
        manager, _ = open_manager(file_system)
        log = manager.get_or_create(TP, None, LogConfig(), T0)
        append(log, b"a")
        flush_dirty(manager, T0)
        assert log.recovery_point == 0
        log.roll(T0)
        append(log, b"b")
        flush_dirty(manager, T0)
        assert log.recovery_point == 1
        assert manager.due_flushes(T0) == []

    def test_flush_ms(self) -> None:
        file_system = MemoryFileSystem()
        manager, _ = open_manager(file_system)
        log = manager.get_or_create(TP, None, LogConfig(flush_ms=100), T0)
        append(log, b"a")
        flush_dirty(manager, T0 + 99)
        assert (log.recovery_point, log.log_end_offset) == (0, 1)
        flush_dirty(manager, T0 + 100)
        assert log.recovery_point == 1
