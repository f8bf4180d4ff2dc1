"""Retention: its messages, the data it keeps, and that no crash removes more."""

from __future__ import annotations

import errno

import pytest

from protocol.errors import ApiError, ErrorCode
from storage.log.unified_log import UnifiedLog
from storage.log_config import LogConfig
from storage.log_manager import LogManager
from tests.kit.memory_file_system import Fault, MemoryFileSystem, PowerCut, SimulatedCrash
from tests.storage.support import (
    DIR,
    T0,
    TP,
    append,
    batch_of,
    close_cleanly,
    delete_expired,
    delete_old_segments,
    new_log,
    open_manager,
    values_in,
)

HOUR_MS = 3_600_000
RECORD_BYTES = len(batch_of(b"00"))


def filled(config: LogConfig, disk: MemoryFileSystem | None = None, *, flush: bool = False) -> UnifiedLog:
    """Five segments of three records each, one hour apart; the newest is from now."""
    disk = disk or MemoryFileSystem()
    log = new_log(config, disk)
    for number in range(15):
        if number % 3 == 0:
            log.roll(T0)
        at = T0 - (14 - number) * HOUR_MS
        append(log, b"%02d" % number, timestamps=[at], now_ms=at)
    if flush:
        log.flush(T0)
    return log


class TestWords:
    """The reasons, as in Kafka's log."""

    def test_time(self) -> None:
        log = filled(LogConfig(retention_ms=10 * HOUR_MS))
        expiry = log.expire_segments(T0, 15)
        size, newest = 3 * RECORD_BYTES, T0 - 12 * HOUR_MS
        (reason,) = expiry.reasons
        assert reason == (
            f"Deleting segment LogSegment(baseOffset=0, size={size}, lastModifiedTime=0, "
            f"largestRecordTimestamp={newest}) due to log retention time {10 * HOUR_MS}ms breach based on the largest "
            "record timestamp in the segment"
        )
        assert (expiry.warning, log.log_start_offset) == (None, 3)

    def test_size(self) -> None:
        size = 3 * RECORD_BYTES
        log = filled(LogConfig(retention_bytes=3 * size + 1, retention_ms=-1))
        expiry = log.expire_segments(T0, 15)
        assert [reason.partition(") ")[2] for reason in expiry.reasons] == [
            f"due to log retention size {3 * size + 1} breach. Log size after deletion will be {4 * size}."
        ]

    def test_log_start(self) -> None:
        log = filled(LogConfig(retention_ms=-1, cleanup_policy=frozenset({"compact"})))
        log.delete_records_before(7, 15)
        (reason,) = log.expire_segments(T0, 15).reasons
        assert reason.startswith("Deleting segments due to log start offset 7 breach: LogSegment(baseOffset=0, ")
        assert ",LogSegment(baseOffset=3, " in reason
        assert log.log_start_offset == 7

    def test_no_timestamps(self) -> None:
        disk = MemoryFileSystem()
        disk.now_ms = T0
        log = new_log(LogConfig(retention_ms=HOUR_MS), disk)
        append(log, b"x", timestamps=[-1])
        assert log.expire_segments(T0 + HOUR_MS, 1).reasons == []
        (reason,) = log.expire_segments(T0 + HOUR_MS + 1, 1).reasons
        assert reason.endswith("breach based on the last modified time of the segment")

    def test_future_timestamp(self) -> None:
        log = new_log(LogConfig(retention_ms=1))
        append(log, b"x", timestamps=[T0 + 5])
        warning = log.expire_segments(T0, 1).warning
        assert warning is not None
        assert warning.endswith(" contains future timestamp(s), making it ineligible to be deleted")


class TestActiveSegment:
    def test_everything_is_expired(self) -> None:
        disk = MemoryFileSystem()
        manager, _ = open_manager(disk, LogConfig(retention_ms=1, file_delete_delay_ms=0))
        log = manager.get_or_create(TP, None, manager.default_config, T0)
        for number in range(3):
            append(log, b"%d" % number, producer_id=4, producer_epoch=0, base_sequence=number)
        delete_old_segments(manager, T0 + 2)
        assert (log.log_start_offset, log.log_end_offset, len(log.segments)) == (3, 3, 1)
        delete_expired(manager, T0 + 2)
        again = batch_of(b"2", producer_id=4, producer_epoch=0, base_sequence=2)
        assert log.append_as_leader(again, leader_epoch=0, now_ms=T0 + 2).duplicate
        disk.kill_process()
        manager, report = open_manager(disk, LogConfig(retention_ms=1))
        log = manager.logs[TP]
        assert not report.repaired
        assert (log.log_start_offset, log.log_end_offset) == (3, 3)
        assert log.producer_state.entries[4].last_sequence == 2
        assert append(log, b"3").first_offset == 3

    def test_an_empty_log_is_left_alone(self) -> None:
        log = new_log(LogConfig(retention_ms=0, retention_bytes=0))
        assert log.expire_segments(T0 + HOUR_MS, 0).expired == 0

    def test_nothing_is_fsynced_for_what_goes(self) -> None:
        disk = MemoryFileSystem()
        log = filled(LogConfig(retention_ms=0), disk, flush=True)
        calls: list[str] = []
        disk.inject = lambda operation, path: calls.append(operation)
        log.expire_segments(T0 + 1, 15)
        assert log.log_start_offset == 15
        assert not {"flush", "sync_file", "sync_dir"} & set(calls)


def test_a_segment_expires_during_its_flush() -> None:
    """Indexes are opened by name for their fsync, and have a different name by then."""
    log = filled(LogConfig(retention_ms=0))
    task = log.prepare_flush(T0)
    log.release_files()
    log.expire_segments(T0 + 1, 15)
    assert len(log.delete_old_segments()) == 5
    task.run()
    task.complete()
    assert log.directory.failure is None
    log.flush(T0)
    assert (log.recovery_point, log.log_end_offset) == (15, 15)


def test_a_read_on_another_thread_meets_the_deletion() -> None:
    """The file is renamed before its reader knows: the offset is gone, but the disk is fine."""
    disk = MemoryFileSystem()
    manager, _ = open_manager(disk, LogConfig(retention_ms=0))
    log = manager.get_or_create(TP, None, manager.default_config, T0)
    for number in range(15):
        append(log, b"%02d" % number)
    close_cleanly(manager)
    disk.kill_process()
    log = open_manager(disk, LogConfig(retention_ms=0))[0].logs[TP]
    disk.faults_in_reads = True

    def inject(operation: str, path: str) -> Fault | None:
        disk.inject = lambda operation, path: None
        log.expire_segments(T0 + 1, 15)
        log.delete_old_segments()
        return Fault(errno.ENOENT)

    disk.inject = inject
    with pytest.raises(ApiError) as caught:
        log.read(1, 1000)
    assert caught.value.error_code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.directory.failure is None


def test_an_offline_directory_is_not_touched() -> None:
    log = filled(LogConfig(retention_ms=0))
    log.directory.take_offline("gone")
    for action in (lambda: log.expire_segments(T0 + 1, 15), log.delete_old_segments):
        with pytest.raises(ApiError) as caught:
            action()
        assert caught.value.error_code is ErrorCode.KAFKA_STORAGE_ERROR


class TestLookup:
    """Timestamps are read from the disk on another thread, and only as far as needed."""

    CONFIG = LogConfig(retention_ms=7 * HOUR_MS)

    def loaded(self) -> tuple[MemoryFileSystem, LogManager]:
        disk = MemoryFileSystem()
        manager, _ = open_manager(disk, self.CONFIG)
        log = manager.get_or_create(TP, None, self.CONFIG, T0)
        for number in range(15):
            append(log, b"%02d" % number, timestamps=[T0 - (14 - number) * HOUR_MS])
            log.roll(T0)
        close_cleanly(manager)
        disk.kill_process()
        return disk, open_manager(disk, self.CONFIG)[0]

    def test_the_decision_reads_nothing_after_it(self) -> None:
        disk, manager = self.loaded()
        log = manager.logs[TP]
        lookup = manager.timestamp_lookup([log], T0)
        assert lookup.is_needed
        lookup.run()
        lookup.complete()
        assert [segment.has_max_timestamp for segment in log.segments[:9]] == [True] * 8 + [False]
        calls: list[str] = []
        disk.inject = lambda operation, path: calls.append(operation)
        disk.faults_in_reads = True
        assert log.expire_segments(T0, 15).expired == 7
        assert set(calls) == {"modified_ms"}
        assert not manager.timestamp_lookup([log], T0).is_needed

    def test_what_was_appended_meanwhile_counts(self) -> None:
        disk = MemoryFileSystem()
        manager, _ = open_manager(disk, self.CONFIG)
        append(manager.get_or_create(TP, None, self.CONFIG, T0), b"old", timestamps=[T0 - 9 * HOUR_MS])
        close_cleanly(manager)
        disk.kill_process()
        manager, _ = open_manager(disk, self.CONFIG)
        log = manager.logs[TP]
        lookup = manager.timestamp_lookup([log], T0)
        lookup.run()
        append(log, b"new", timestamps=[T0 + 5])
        lookup.complete()
        assert log.active_segment.max_timestamp_and_offset.timestamp == T0 + 5

    def test_a_damaged_index_is_left_to_the_owner(self) -> None:
        disk, manager = self.loaded()
        disk.write_file(f"{DIR}/{TP}/{0:020d}.timeindex", b"")
        log = manager.logs[TP]
        lookup = manager.timestamp_lookup([log], T0)
        lookup.run()
        lookup.complete()
        assert not log.segments[0].has_max_timestamp
        assert log.expire_segments(T0, 15).expired == 7

    def test_nothing_to_look_up(self) -> None:
        _, manager = self.loaded()
        log = manager.logs[TP]
        log.config = LogConfig(retention_ms=-1)
        assert not manager.timestamp_lookup([log], T0).is_needed
        log.config = LogConfig(retention_ms=1, cleanup_policy=frozenset({"compact"}))
        assert not manager.timestamp_lookup([log], T0).is_needed


class TestCrashes:
    """A round dies at every call, with or without a power cut: kept data survives, and no deletion is half done."""

    CONFIG = LogConfig(retention_ms=7 * HOUR_MS, file_delete_delay_ms=0)

    def live(self, crash_at: int, *, after: bool) -> tuple[MemoryFileSystem, bool]:
        disk = MemoryFileSystem()
        manager, _ = open_manager(disk, self.CONFIG)
        log = manager.get_or_create(TP, None, self.CONFIG, T0)
        for number in range(15):
            append(log, b"%02d" % number, timestamps=[T0 - (14 - number) * HOUR_MS])
            log.roll(T0)
        log.flush(T0)
        calls = 0

        def inject(operation: str, path: str) -> Fault | None:
            nonlocal calls
            calls += 1
            return Fault(crash_after=after, crash_before=not after) if calls == crash_at else None

        disk.inject = inject
        finished = False
        try:
            delete_old_segments(manager, T0)
            delete_expired(manager, T0)
            finished = True
        except SimulatedCrash:
            finished = False
        disk.inject = lambda operation, path: None
        return disk, finished

    @pytest.mark.parametrize("after", [False, True])
    @pytest.mark.parametrize("mode", [None, *PowerCut])
    def test_in_every_call(self, mode: PowerCut | None, after: bool) -> None:
        finished, at = False, 0
        while not finished:
            at += 1
            disk, finished = self.live(at, after=after)
            if mode is None:
                disk.kill_process()
            else:
                disk.cut_power(mode, lambda count, at=at: at * 7 % count)  # type: ignore[misc]
            manager, report = open_manager(disk, self.CONFIG)
            log = manager.logs[TP]
            assert not report.refused
            assert log.log_start_offset in {0, 7}
            assert log.log_end_offset == 15
            assert dict(values_in(log)) == {offset: b"%02d" % offset for offset in range(log.log_start_offset, 15)}
            delete_old_segments(manager, T0)
            assert (log.log_start_offset, log.segments[0].base_offset) == (7, 7)
        assert at > 30

    def test_a_hole_below_the_log_start_is_no_loss(self) -> None:
        """A file system without a journal may restore some of the renamed files and not others."""
        disk, finished = self.live(-1, after=False)
        assert finished
        path = f"{DIR}/{TP}/{3:020d}.log"
        disk.write_file(path, bytes(batch_of(b"03")))
        disk.kill_process()
        manager, report = open_manager(disk, self.CONFIG)
        log = manager.logs[TP]
        assert (log.log_start_offset, log.log_end_offset, report.repaired) == (7, 15, [])
        delete_expired(manager, T0)
        assert not disk.exists(path)
