"""Appending to a log: what is accepted, what is refused, and the state after a disk failure."""

from __future__ import annotations

import errno

import pytest

from protocol.errors import ApiError, ErrorCode
from protocol.records.batch import RecordBatch, TimestampType
from protocol.records.compression import CompressionType
from protocol.records.record_validation import RecordValidationError
from storage.log.leader_epoch import EpochEntry
from storage.log.log_validator import AppendOrigin, NotOneBatchError
from storage.log_config import LogConfig, ValidateRecords
from tests.kit.memory_file_system import Fault, MemoryFileSystem
from tests.storage.support import (
    DIR,
    T0,
    TP,
    append,
    batch_of,
    batches_at,
    close_cleanly,
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
    """Append one more batch; returns whether there was room."""
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
        # A repeated offset delta: the header and the CRC are valid, the records are not.
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


class TestDiskErrors:
    def test_failed_write_takes_the_directory_offline(self) -> None:
        file_system = MemoryFileSystem()
        told: list[tuple[str, str]] = []
        from storage.log_manager import LogManager

        manager = LogManager(
            file_system, (DIR,), LogConfig(), on_directory_failure=lambda path, why: told.append((path, why))
        )
        manager.directories.lock()
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
