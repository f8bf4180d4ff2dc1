"""Reading a log by offset and by timestamp."""

from __future__ import annotations

import pytest

from protocol.errors import ApiError, ErrorCode
from storage.log_config import LogConfig
from tests.kit.memory_file_system import MemoryFileSystem
from tests.storage.support import (
    T0,
    TP,
    append,
    batch_of,
    batches_at,
    close_cleanly,
    new_log,
    open_manager,
    read_all,
    reopen,
    values_in,
)


class TestRead:
    def log_of(self, count: int, **config: int) -> tuple[object, int]:
        log = new_log(LogConfig(**config))
        for number in range(count):
            append(log, b"%04d" % number, b"%04d" % number)
        return log, len(batch_of(b"0000", b"0000"))

    def test_begins_at_the_batch_that_contains_the_offset(self) -> None:
        log, size = self.log_of(3)
        info = log.read(3, 10_000)
        assert (info.position, info.size) == (size, 2 * size)

    def test_ends_on_a_batch_boundary(self) -> None:
        log, size = self.log_of(3)
        assert log.read(0, 2 * size + 1).size == 2 * size
        assert log.read(0, 2 * size).size == 2 * size
        assert log.read(0, 2 * size - 1).size == size

    def test_at_least_one_batch(self) -> None:
        log, size = self.log_of(3)
        assert log.read(2, 1).size == size
        info = log.read(2, 1, min_one_message=False)
        assert (info.size, info.file, info.first_entry_incomplete) == (0, None, True)

    def test_never_beyond_the_bound(self) -> None:
        log, size = self.log_of(5)
        assert log.read(0, 10_000, 4).size == 2 * size
        assert log.read(4, 10_000, 4).size == 0
        assert log.read(6, 10_000, 4).size == 0
        assert log.read(2, 10_000, 1_000).size == 4 * size

    def test_at_the_end_there_is_nothing(self) -> None:
        log, _ = self.log_of(2)
        info = log.read(4, 100)
        assert (info.size, info.first_entry_incomplete) == (0, False)

    @pytest.mark.parametrize("offset", [-1, 5])
    def test_out_of_range(self, offset: int) -> None:
        log, _ = self.log_of(2)
        with pytest.raises(ApiError, match="Received request for offset") as caught:
            log.read(offset, 100)
        assert caught.value.error_code is ErrorCode.OFFSET_OUT_OF_RANGE

    def test_across_segments(self) -> None:
        size = len(batch_of(b"0000", b"0000"))
        log, _ = self.log_of(25, segment_bytes=3 * size, index_interval_bytes=1)
        assert len(log.segments) == 9
        for offset in range(50):
            assert values_in(log, offset) == [(at, b"%04d" % (at // 2)) for at in range(offset, 50)]
        # It stops at the end of a segment, however much is requested.
        assert log.read(1, 1 << 20).size == 3 * size

    def test_many_sizes_with_index(self) -> None:
        log, size = self.log_of(300, index_interval_bytes=200)
        for start in (0, 1, 100, 401, 598):
            for max_bytes in (1, size, 3 * size + 7, 20 * size, 1000 * size):
                fetched = read_all(log, start, max_bytes)
                assert fetched[0].base_offset == start - start % 2
                assert fetched[-1].next_offset == 600

    def test_sequential_reads_search_nothing(self) -> None:
        file_system = MemoryFileSystem()
        log = new_log(LogConfig(index_interval_bytes=300), file_system)
        for _ in range(400):
            append(log, b"x" * 20)
        calls: list[str] = []
        file_system.inject = lambda operation, path: calls.append(operation)
        file_system.faults_in_reads = True
        offset = 0
        reads = 0
        while offset < 400:
            info = log.read(offset, 4000)
            reads += 1
            last = [
                batch.last_offset for batch in read_all(log, offset, 4000)[: info.size // len(batch_of(b"x" * 20))]
            ][-1]
            offset = last + 1
            calls.clear()
            log.read(offset, 4000) if offset < 400 else None
            # The end takes one index lookup (at most two reads) and one header, the beginning nothing.
            assert len(calls) <= 3, calls
        assert reads > 5

    def test_try_read_does_not_wait(self) -> None:
        file_system = MemoryFileSystem()
        log = new_log(LogConfig(index_interval_bytes=300), file_system)
        for _ in range(50):
            append(log, b"x" * 20)
        log.active_segment.files.offset_index.write_held()
        log.local.forget_boundaries()
        file_system.is_cold = lambda path, position: True
        assert log.try_read(30, 500) is None
        waited = log.read(30, 500)
        file_system.is_cold = lambda path, position: False
        assert log.try_read(30, 500) == waited

    def test_offsets_with_gaps(self) -> None:
        log = new_log()
        log.append_as_follower(
            batches_at((0, batch_of(b"a")), (10, batch_of(b"b", b"c")), (50, batch_of(b"d"))), now_ms=T0
        )
        assert values_in(log) == [(0, b"a"), (10, b"b"), (11, b"c"), (50, b"d")]
        assert values_in(log, 5)[0] == (10, b"b")
        assert values_in(log, 12) == [(50, b"d")]
        assert log.log_end_offset == 51


class TestTimestamps:
    def test_first_record_at_or_after(self) -> None:
        log = new_log(LogConfig(index_interval_bytes=100, segment_bytes=1000))
        for number in range(100):
            append(log, b"a", b"b", timestamps=[T0 + number * 10, T0 + number * 10 + 5], epoch=number // 10)
        assert len(log.segments) > 3
        for target in range(-3, 995):
            found = log.offset_for_timestamp(T0 + target)
            expected = max((target + 4) // 5, 0)
            assert found is not None
            assert (found.offset, found.timestamp) == (expected, T0 + expected * 5)
            assert found.leader_epoch == expected // 20
        assert log.offset_for_timestamp(T0 + 996) is None
        assert log.offset_for_timestamp(T0 + 500, 50) is None
        assert log.offset_for_timestamp(T0 + 245, 50) is not None

    def test_from_the_log_start_on(self) -> None:
        log = new_log()
        for number in range(10):
            append(log, b"a", timestamps=[T0 + number])
        log.delete_records_before(5, 10)
        found = log.offset_for_timestamp(T0)
        assert found is not None
        assert found.offset == 5

    def test_largest(self) -> None:
        log = new_log(LogConfig(segment_bytes=300))
        assert log.offset_of_max_timestamp() is None
        for stamps in ([T0, T0 + 7], [T0 + 50, T0 + 90, T0 + 90, T0 + 3], [T0 + 90], [T0 + 60]):
            append(log, *[b"x"] * len(stamps), timestamps=stamps)
        found = log.offset_of_max_timestamp()
        assert found is not None
        assert (found.offset, found.timestamp) == (3, T0 + 90)
        assert log.offset_of_max_timestamp(3) is None

    def test_after_a_restart(self) -> None:
        file_system = MemoryFileSystem()
        log = new_log(file_system=file_system)
        for delta in (5, 9, 2):
            append(log, b"a", timestamps=[T0 + delta])
        log = reopen(file_system)
        found = log.offset_of_max_timestamp()
        assert found is not None
        assert found.offset == 1
        append(log, b"a", timestamps=[T0 + 7])
        found = log.offset_of_max_timestamp()
        assert found is not None
        assert found.offset == 1

    def test_after_an_orderly_stop_with_all_records_deleted(self) -> None:
        config = LogConfig(index_interval_bytes=0)
        manager, _ = open_manager(file_system := MemoryFileSystem(), config)
        log = manager.get_or_create(TP, None, config, T0)
        for delta in (1, 5, 9):
            append(log, b"a", timestamps=[T0 + delta])
        log.delete_records_before(3, 3)
        close_cleanly(manager)
        log = reopen(file_system, config)
        assert (log.log_start_offset, log.log_end_offset) == (3, 3)
        assert log.active_segment.max_timestamp_and_offset == (T0 + 9, 2)
        append(log, b"a", timestamps=[T0 + 7])
        index = log.active_segment.files.time_index
        assert [index.entry(at) for at in range(len(index))] == [(T0 + 5, 1), (T0 + 9, 2)]
