"""Appending to a log, reading from it, rolling and shortening it."""

from __future__ import annotations

import errno

import pytest

from protocol.errors import ApiError, ErrorCode
from protocol.records.batch import RecordBatch, TimestampType
from protocol.records.compression import CompressionType
from protocol.records.record_validation import RecordValidationError
from storage.log.leader_epoch import EpochEntry
from storage.log.log_config import LogConfig, ValidateRecords
from storage.log.log_validator import NotOneBatchError
from storage.log.producer_state import AppendOrigin
from tests.kit.memory_file_system import Fault, MemoryFileSystem, SimulatedCrash
from tests.storage.support import (
    DIR,
    T0,
    TP,
    append,
    batch_of,
    batches_at,
    close_cleanly,
    delete_expired,
    flush_dirty,
    load_logs,
    new_log,
    open_manager,
    read_all,
    reopen,
    values_in,
)


def refused(code: ErrorCode, log, records, **options) -> ApiError:
    before = (log.log_end_offset, log.size_bytes)
    with pytest.raises(ApiError) as caught:
        log.append_as_leader(records, leader_epoch=0, now_ms=T0, **options)
    assert caught.value.error_code is code
    assert (log.log_end_offset, log.size_bytes) == before
    return caught.value


def append_or_full(log) -> bool:
    """Whether there was room for one more batch."""
    try:
        append(log, b"x" * 50)
    except ApiError as error:
        assert error.error_code is ErrorCode.KAFKA_STORAGE_ERROR
        return False
    return True


class TestAppend:
    def test_offsets_follow_each_other_and_are_written_in_place(self) -> None:
        log = new_log()
        first = batch_of(b"a", b"b", b"c")
        info = log.append_as_leader(first, leader_epoch=7, now_ms=T0)
        assert (info.first_offset, info.last_offset, info.log_append_time_ms, info.duplicate) == (0, 2, -1, False)
        assert RecordBatch(first).partition_leader_epoch == 7
        info = append(log, b"d", epoch=7)
        assert (info.first_offset, info.last_offset) == (3, 3)
        assert values_in(log) == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]
        assert [batch.partition_leader_epoch for batch in read_all(log)] == [7, 7]

    def test_read_only_records_are_copied(self) -> None:
        log = new_log()
        data = bytes(batch_of(b"a"))
        log.append_as_leader(memoryview(data), leader_epoch=3, now_ms=T0)
        assert RecordBatch(memoryview(data)).partition_leader_epoch == -1
        assert read_all(log)[0].partition_leader_epoch == 3

    def test_log_append_time(self) -> None:
        log = new_log(LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME))
        info = append(log, b"a", b"b", now_ms=T0 + 5)
        assert info.log_append_time_ms == T0 + 5
        (batch,) = read_all(log)
        assert batch.timestamp_type is TimestampType.LOG_APPEND_TIME
        assert [record.timestamp for record in batch.records()] == [T0 + 5, T0 + 5]
        found = log.offset_for_timestamp(T0 + 1)
        assert found is not None
        assert (found.offset, found.timestamp) == (0, T0 + 5)

    @pytest.mark.parametrize(
        ("records", "error"),
        [
            (b"", ErrorCode.INVALID_RECORD),
            (b"\0" * 12, ErrorCode.INVALID_RECORD),
            (b"\0" * 60, ErrorCode.CORRUPT_MESSAGE),
        ],
    )
    def test_no_batch(self, records: bytes, error: ErrorCode) -> None:
        assert isinstance(refused(error, new_log(), memoryview(records)), NotOneBatchError)

    def test_bytes_behind_a_batch_are_left_out(self) -> None:
        log = new_log()
        data = batch_of(b"a")
        log.append_as_leader(memoryview(bytearray(bytes(data) + b"\0\0\0")), leader_epoch=0, now_ms=T0)
        assert log.size_bytes == len(data)

    def test_two_batches(self) -> None:
        refused(ErrorCode.INVALID_RECORD, new_log(), memoryview(bytearray(bytes(batch_of(b"a")) * 2)))

    def test_cut_off(self) -> None:
        refused(ErrorCode.INVALID_RECORD, new_log(), batch_of(b"abc")[:-1])

    @pytest.mark.parametrize("magic", [0, 1])
    def test_old_magic(self, magic: int) -> None:
        records = batch_of(b"a")
        records[16] = magic
        refused(ErrorCode.INVALID_RECORD, new_log(), records)

    def test_wrong_crc(self) -> None:
        records = batch_of(b"abc")
        records[-2] ^= 1
        refused(ErrorCode.CORRUPT_MESSAGE, new_log(), records)

    def test_too_large(self) -> None:
        records = batch_of(b"x" * 100)
        error = refused(ErrorCode.MESSAGE_TOO_LARGE, new_log(LogConfig(max_message_bytes=len(records) - 1)), records)
        assert "maximum configured value" in error.message
        assert append(new_log(LogConfig(max_message_bytes=len(records))), b"x" * 100).last_offset == 0

    def test_larger_than_a_segment(self) -> None:
        records = batch_of(b"x" * 100)
        refused(ErrorCode.RECORD_LIST_TOO_LARGE, new_log(LogConfig(segment_bytes=len(records) - 1)), records)

    def test_transactional_batch_of_a_client(self) -> None:
        records = batch_of(b"a", producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
        refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, new_log(), records)

    def test_compacted_topic_needs_keys(self) -> None:
        log = new_log(LogConfig(cleanup_policy=frozenset({"compact"})))
        error = refused(ErrorCode.INVALID_RECORD, log, batch_of(b"a", b"b", key=None))
        assert isinstance(error, RecordValidationError)
        assert [entry.batch_index for entry in error.record_errors] == [0, 1]
        append(log, b"a", None)
        assert values_in(log) == [(0, b"a"), (1, None)]

    def test_timestamp_too_late_by_header(self) -> None:
        log = new_log(LogConfig(message_timestamp_after_max_ms=1000))
        error = refused(ErrorCode.INVALID_TIMESTAMP, log, batch_of(b"a", b"b", timestamps=[T0, T0 + 1001]))
        assert isinstance(error, RecordValidationError)
        assert [entry.batch_index for entry in error.record_errors] == [1]
        append(log, b"a", timestamps=[T0 + 1000])

    def test_timestamp_too_early_between_first_and_largest(self) -> None:
        log = new_log(LogConfig(message_timestamp_before_max_ms=1000))
        error = refused(ErrorCode.INVALID_TIMESTAMP, log, batch_of(b"a", b"b", b"c", timestamps=[T0, T0 - 1001, T0]))
        assert isinstance(error, RecordValidationError)
        assert [entry.batch_index for entry in error.record_errors] == [1]
        append(log, b"a", b"b", b"c", timestamps=[T0, T0 - 1000, T0])

    def test_client_must_not_claim_append_time_of_such_a_topic(self) -> None:
        log = new_log(LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME))
        refused(ErrorCode.INVALID_TIMESTAMP, log, batch_of(b"a", log_append_time_ms=T0))

    def test_deep_validation_looks_at_records(self) -> None:
        # An offset delta that repeats: fine for the header and CRC, not for the records.
        builder_data = batch_of(b"a", b"b")
        payload = bytearray(builder_data)
        second = payload.rindex(b"\x02", 61, len(payload) - 5)
        assert payload[second] == 2
        payload[second] = 0
        from crc32c import crc32c

        payload[17:21] = crc32c(bytes(payload[21:])).to_bytes(4, "big")
        append(new_log(), b"x")
        new_log().append_as_leader(memoryview(bytearray(payload)), leader_epoch=0, now_ms=T0)
        deep = new_log(LogConfig(validate_records=ValidateRecords.DEEP))
        refused(ErrorCode.INVALID_RECORD, deep, memoryview(payload))

    def test_topic_compression_differs(self) -> None:
        log = new_log(LogConfig(compression_type=CompressionType.GZIP))
        append(log, b"a" * 500, b"b" * 500)
        append(log, b"c", compression=CompressionType.GZIP)
        first, second = read_all(log)
        assert first.compression is second.compression is CompressionType.GZIP
        assert first.size_in_bytes < 500
        assert [record.value for record in first.records()] == [b"a" * 500, b"b" * 500]

    def test_topic_uncompressed(self) -> None:
        log = new_log(LogConfig(compression_type=CompressionType.NONE))
        append(log, b"a", compression=CompressionType.GZIP)
        assert read_all(log)[0].compression is CompressionType.NONE

    def test_coordinator_may_append_control_batches(self) -> None:
        from protocol.records.batch import RecordBatchBuilder

        builder = RecordBatchBuilder(is_control=True, is_transactional=True, producer_id=5, producer_epoch=0)
        builder.append(T0, b"\0\0\0\1", b"\0\0\0\0\0\0")
        records = memoryview(bytearray(builder.build()))
        log = new_log()
        refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, log, records)
        log.append_as_leader(records, leader_epoch=0, now_ms=T0, origin=AppendOrigin.COORDINATOR)
        assert read_all(log)[0].is_control


class TestProducers:
    def idempotent(self, sequence: int, *values: bytes, epoch: int = 0) -> memoryview:
        return batch_of(*values, producer_id=9, producer_epoch=epoch, base_sequence=sequence)

    def test_duplicate_gets_its_first_offsets(self) -> None:
        log = new_log()
        for number in range(7):
            append(log, b"noise")
            log.append_as_leader(self.idempotent(number * 2, b"a", b"b"), leader_epoch=0, now_ms=T0)
        end = log.log_end_offset
        for number in range(2, 7):
            info = log.append_as_leader(self.idempotent(number * 2, b"a", b"b"), leader_epoch=0, now_ms=T0)
            assert (info.first_offset, info.last_offset, info.duplicate) == (number * 3 + 1, number * 3 + 2, True)
        refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log, self.idempotent(2, b"a", b"b"))
        assert log.log_end_offset == end

    def test_gap_and_old_epoch(self) -> None:
        log = new_log()
        log.append_as_leader(self.idempotent(0, b"a", epoch=1), leader_epoch=0, now_ms=T0)
        refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log, self.idempotent(2, b"a", epoch=1))
        refused(ErrorCode.INVALID_PRODUCER_EPOCH, log, self.idempotent(1, b"a", epoch=0))
        refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log, self.idempotent(1, b"a", epoch=2))
        log.append_as_leader(self.idempotent(0, b"a", epoch=2), leader_epoch=0, now_ms=T0)
        log.append_as_leader(self.idempotent(1, b"a", epoch=2), leader_epoch=0, now_ms=T0)

    def test_failed_write_leaves_no_trace(self) -> None:
        file_system = MemoryFileSystem()
        log = new_log(file_system=file_system)
        log.append_as_leader(self.idempotent(0, b"a"), leader_epoch=0, now_ms=T0)
        size = log.size_bytes
        file_system.inject = lambda operation, path: (
            Fault(errno.ENOSPC, written_bytes=30) if operation == "append" and path.endswith(".log") else None
        )
        refused(ErrorCode.KAFKA_STORAGE_ERROR, log, self.idempotent(1, b"b"))
        file_system.inject = lambda operation, path: None
        assert log.active_segment.size == size
        assert file_system.attach(log.active_segment.path, size).pread(0, 1000).__len__() == size
        info = log.append_as_leader(self.idempotent(1, b"b"), leader_epoch=0, now_ms=T0)
        assert (info.first_offset, info.duplicate) == (1, False)

    @pytest.mark.parametrize("clean", [True, False])
    def test_state_survives_a_restart(self, clean: bool) -> None:
        file_system = MemoryFileSystem()
        manager, _ = open_manager(file_system)
        log = manager.get_or_create(TP, None, LogConfig(), T0)
        log.append_as_leader(self.idempotent(0, b"a"), leader_epoch=0, now_ms=T0)
        log.roll(T0)
        log.append_as_leader(self.idempotent(1, b"b", b"c"), leader_epoch=0, now_ms=T0)
        if clean:
            close_cleanly(manager)
        log = reopen(file_system)
        info = log.append_as_leader(self.idempotent(1, b"b", b"c"), leader_epoch=0, now_ms=T0)
        assert (info.first_offset, info.last_offset, info.duplicate) == (1, 2, True)
        refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log, self.idempotent(4, b"d"))
        assert log.append_as_leader(self.idempotent(3, b"d"), leader_epoch=0, now_ms=T0).first_offset == 3

    def test_expiry(self) -> None:
        log = new_log()
        log.append_as_leader(self.idempotent(0, b"a"), leader_epoch=0, now_ms=T0)
        assert log.producers.remove_expired(T0 + 999, 1000) == 0
        assert log.producers.remove_expired(T0 + 1000, 1000) == 1
        log.append_as_leader(self.idempotent(77, b"a"), leader_epoch=0, now_ms=T0)


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
        # Stops at the end of a segment, however much is asked for.
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
            # One look into the index (two reads at most) and one header: where to stop. Nothing for where to begin.
            assert len(calls) <= 3, calls
        assert reads > 5

    def test_try_read_does_not_wait(self) -> None:
        file_system = MemoryFileSystem()
        log = new_log(LogConfig(index_interval_bytes=300), file_system)
        for _ in range(50):
            append(log, b"x" * 20)
        log.active_segment.files.offset_index.write_held()
        log.local.boundaries.forget()
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


class TestEpochs:
    def test_end_offsets(self) -> None:
        log = new_log()
        log.assign_epoch_start_offset(1)
        append(log, b"a", epoch=1)
        log.assign_epoch_start_offset(4)
        append(log, b"b", b"c", epoch=4)
        assert log.end_offset_for_epoch(1) == EpochEntry(1, 1)
        assert log.end_offset_for_epoch(3) == EpochEntry(1, 1)
        assert log.end_offset_for_epoch(4) == EpochEntry(4, 3)
        assert log.end_offset_for_epoch(5) == EpochEntry(-1, -1)
        assert log.end_offset_for_epoch(0) == EpochEntry(0, 0)
        assert log.latest_epoch() == 4

    def test_in_the_file_before_the_first_record(self) -> None:
        file_system = MemoryFileSystem()
        log = new_log(file_system=file_system)
        log.assign_epoch_start_offset(6)
        file_system.inject = lambda operation, path: (
            Fault(crash_before=True) if operation == "append" and path.endswith(".log") else None
        )
        with pytest.raises(SimulatedCrash):
            append(log, b"a", epoch=6)
        assert file_system.read_file(f"{DIR}/t-0/leader-epoch-checkpoint") == b"0\n1\n6 0\n"

    def test_rebuilt_from_batches(self) -> None:
        file_system = MemoryFileSystem()
        log = new_log(file_system=file_system)
        for epoch in (2, 2, 5, 8):
            append(log, b"a", epoch=epoch)
        for content in (b"", b"garbage", b"0\n3\n2 0\n"):
            file_system.write_file(f"{DIR}/t-0/leader-epoch-checkpoint", content)
            log = reopen(file_system)
            assert log.leader_epochs.entries == [EpochEntry(2, 0), EpochEntry(5, 2), EpochEntry(8, 3)]


class TestFollower:
    def test_keeps_offsets_and_epochs(self) -> None:
        log = new_log()
        info = log.append_as_follower(batches_at((0, batch_of(b"a", b"b")), (2, batch_of(b"c")), epoch=3), now_ms=T0)
        assert info is not None
        assert (info.first_offset, info.last_offset, log.log_end_offset) == (0, 2, 3)
        assert log.leader_epochs.entries == [EpochEntry(3, 0)]

    def test_incomplete_batch_at_the_end(self) -> None:
        log = new_log()
        records = batches_at((0, batch_of(b"a")), (1, batch_of(b"b")))
        assert log.append_as_follower(records[:-1], now_ms=T0) is not None
        assert log.log_end_offset == 1
        assert log.append_as_follower(records[:20], now_ms=T0) is None

    def test_refuses_what_does_not_follow(self) -> None:
        log = new_log()
        append(log, b"a", b"b")
        for records in (batches_at((1, batch_of(b"x"))), batches_at((2, batch_of(b"x")), (2, batch_of(b"y")))):
            with pytest.raises(ApiError, match="cannot be appended"):
                log.append_as_follower(records, now_ms=T0)
        broken = batches_at((2, batch_of(b"xyz")))
        broken[-2] ^= 4
        with pytest.raises(ApiError) as caught:
            log.append_as_follower(broken, now_ms=T0)
        assert caught.value.error_code is ErrorCode.CORRUPT_MESSAGE
        assert log.log_end_offset == 2


class TestShortening:
    def filled(self, count: int = 20) -> tuple[object, MemoryFileSystem]:
        file_system = MemoryFileSystem()
        size = len(batch_of(b"00"))
        log = new_log(LogConfig(segment_bytes=4 * size, index_interval_bytes=1), file_system)
        for number in range(count):
            append(log, b"%02d" % number, epoch=number // 5)
        return log, file_system

    def test_delete_records(self) -> None:
        log, file_system = self.filled()
        assert log.delete_records_before(9, 20) == 9
        assert values_in(log)[0] == (9, b"09")
        assert [segment.base_offset for segment in log.delete_old_segments(1)] == [0]
        assert [segment.base_offset for segment in log.delete_old_segments()] == [4]
        assert log.delete_old_segments() == []
        assert [segment.base_offset for segment in log.segments] == [8, 12, 16]
        assert values_in(log)[0] == (9, b"09")
        assert log.earliest().offset == 9
        assert log.leader_epochs.entries[0] == EpochEntry(1, 9)
        with pytest.raises(ApiError):
            log.read(8, 100)
        assert log.delete_records_before(3, 20) == 9
        for offset in (21, -1):
            with pytest.raises(ApiError) as caught:
                log.delete_records_before(offset, 20)
            assert caught.value.error_code is ErrorCode.OFFSET_OUT_OF_RANGE
        names = {info.name for info in file_system.list_dir(log.path)}
        assert "00000000000000000000.log.deleted" in names
        assert "00000000000000000000.log" not in names

    def test_delete_all_records(self) -> None:
        log, _ = self.filled()
        assert log.delete_records_before(20, 20) == 20
        assert values_in(log) == []
        append(log, b"x")
        assert values_in(log) == [(20, b"x")]

    def test_log_start_survives_a_restart_by_its_checkpoint(self) -> None:
        file_system = MemoryFileSystem()
        manager, _ = open_manager(file_system)
        log = manager.get_or_create(TP, None, LogConfig(), T0)
        append(log, b"a", b"b", b"c")
        log.delete_records_before(2, 3)
        manager.checkpoint_log_start_offsets()
        assert file_system.read_file(f"{DIR}/log-start-offset-checkpoint") == b"0\n1\nt 0 2\n"
        assert reopen(file_system).log_start_offset == 2

    def test_files_are_removed_after_the_delay(self) -> None:
        file_system = MemoryFileSystem()
        manager, _ = open_manager(file_system, LogConfig(segment_bytes=100, file_delete_delay_ms=500))
        log = manager.get_or_create(TP, None, manager.default_config, T0)
        for _ in range(3):
            append(log, b"a" * 10)
        reader = log.read(0, 1000)
        log.delete_records_before(2, 3)
        log.delete_old_segments()
        assert reader.file is not None
        assert len(reader.file.pread(reader.position, reader.size)) == reader.size
        assert delete_expired(manager, T0) == 1
        assert delete_expired(manager, T0 + 499) == 1
        assert delete_expired(manager, T0 + 500) == 0
        assert not [info for info in file_system.list_dir(log.path) if info.name.endswith(".deleted")]

    @pytest.mark.parametrize("offset", range(21))
    def test_truncate(self, offset: int) -> None:
        log, file_system = self.filled()
        log.flush(T0)
        assert log.truncate_to(offset, T0) == (offset < 20)
        assert log.log_end_offset == offset
        assert log.recovery_point <= offset
        assert values_in(log) == [(at, b"%02d" % at) for at in range(offset)]
        assert log.leader_epochs.entries == [EpochEntry(at // 5, at) for at in range(0, offset, 5)]
        append(log, b"new", epoch=9)
        assert values_in(log)[-1] == (offset, b"new")
        again = reopen(file_system)
        assert values_in(again) == values_in(log)

    def test_truncate_in_the_middle_of_a_batch(self) -> None:
        log = new_log()
        append(log, b"a", b"b")
        append(log, b"c", b"d")
        log.truncate_to(3, T0)
        assert values_in(log) == [(0, b"a"), (1, b"b")]

    def test_truncate_forgets_producers(self) -> None:
        log = new_log()
        for number in range(4):
            append(log, b"a", producer_id=3, producer_epoch=0, base_sequence=number)
        log.truncate_to(2, T0)
        info = append(log, b"a", producer_id=3, producer_epoch=0, base_sequence=2)
        assert (info.first_offset, info.duplicate) == (2, False)

    def test_flush_that_began_before_a_truncation_proves_nothing(self) -> None:
        log, _ = self.filled()
        task = log.prepare_flush(T0)
        task.run()
        log.truncate_to(5, T0)
        task.complete()
        assert log.recovery_point == 0

    def test_truncate_fully(self) -> None:
        log, file_system = self.filled()
        log.prepare_new_start(100, T0).finish()
        assert (log.log_start_offset, log.log_end_offset, values_in(log)) == (100, 100, [])
        append(log, b"x")
        assert values_in(reopen(file_system)) == [(100, b"x")]


class TestDiskErrors:
    def test_failed_write_takes_the_directory_offline(self) -> None:
        file_system = MemoryFileSystem()
        told: list[tuple[str, str]] = []
        from storage.log_manager import LogManager

        manager = LogManager(
            file_system, (DIR,), LogConfig(), on_directory_failure=lambda path, why: told.append((path, why))
        )
        manager.lock_directories()
        load_logs(manager, T0)
        log = manager.get_or_create(TP, None, LogConfig(), T0)
        append(log, b"a")
        file_system.inject = lambda operation, path: Fault(errno.EIO) if operation == "append" else None
        refused(ErrorCode.KAFKA_STORAGE_ERROR, log, batch_of(b"b"))
        file_system.inject = lambda operation, path: None
        refused(ErrorCode.KAFKA_STORAGE_ERROR, log, batch_of(b"b"))
        with pytest.raises(ApiError):
            log.read(0, 100)
        assert len(told) == 1
        assert told[0][0] == DIR
        assert "t-0" in told[0][1]

    def test_failed_fsync_is_not_tried_again(self) -> None:
        file_system = MemoryFileSystem()
        log = new_log(file_system=file_system)
        append(log, b"a")
        calls: list[str] = []

        def inject(operation: str, path: str) -> Fault | None:
            calls.append(operation)
            return Fault(errno.EIO) if operation == "flush" else None

        file_system.inject = inject
        with pytest.raises(ApiError) as caught:
            log.flush(T0)
        assert caught.value.error_code is ErrorCode.KAFKA_STORAGE_ERROR
        assert (calls.count("flush"), log.recovery_point) == (1, 0)
        refused(ErrorCode.KAFKA_STORAGE_ERROR, log, batch_of(b"b"))

    def test_full_disk_when_index_entries_are_written(self) -> None:
        file_system = MemoryFileSystem()
        log = new_log(LogConfig(index_interval_bytes=1), file_system)
        file_system.inject = lambda operation, path: (
            Fault(errno.ENOSPC) if operation == "append" and path.endswith("index") else None
        )
        for _ in range(300):
            append(log, b"x" * 50)
        assert len(log.active_segment.files.offset_index) == 299
        assert len(values_in(log, 200)) == 100
        file_system.inject = lambda operation, path: None
        log.roll(T0)
        assert file_system._file_at(log.segments[0].files.path_of(".index")).content.__len__() == 299 * 8

    def test_full_disk_leaves_the_log_usable(self) -> None:
        file_system = MemoryFileSystem()
        log = new_log(LogConfig(index_interval_bytes=1), file_system)
        for _ in range(50):
            append(log, b"x" * 50)
        file_system.capacity_bytes = file_system.used_bytes + 1000
        while append_or_full(log):
            assert log.log_end_offset < 100
        end = log.log_end_offset
        assert len(values_in(log)) == end
        file_system.capacity_bytes = None
        append(log, b"y")
        assert values_in(log)[-1] == (end, b"y")
        assert values_in(reopen(file_system)) == values_in(log)


def test_follower_leaves_out_what_a_later_leader_wrote() -> None:
    log = new_log()
    first = bytes(batches_at((0, batch_of(b"a")), epoch=3))
    later = bytes(batches_at((1, batch_of(b"b")), epoch=4))
    behind = bytes(batches_at((2, batch_of(b"c")), epoch=3))
    info = log.append_as_follower(memoryview(first + later + behind), now_ms=T0, leader_epoch=3)
    assert info is not None
    assert (info.last_offset, values_in(log), log.latest_epoch()) == (0, [(0, b"a")], 3)
    assert log.append_as_follower(memoryview(later), now_ms=T0, leader_epoch=3) is None
    assert log.append_as_follower(memoryview(later), now_ms=T0, leader_epoch=4) is not None
