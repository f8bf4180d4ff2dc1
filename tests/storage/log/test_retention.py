"""Retention: what goes and what stays, against a plain model; and that no crash takes more."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ApiError, ErrorCode
from storage.log.log_config import LogConfig
from storage.log.unified_log import UnifiedLog
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


@dataclass
class Segment:
    """One segment as a person would describe it."""

    base: int
    end: int
    size: int
    newest_ms: int
    """Largest timestamp of its records, or the time its file was written when none has one."""


def expected_start(
    segments: list[Segment], log_start: int, log_end: int, high_watermark: int, config: LogConfig, now_ms: int
) -> int:
    """Where the log must begin after a round, said as plainly as possible."""
    left = list(segments)
    while len(left) > 1 and left[0].end <= min(log_start, high_watermark):
        left.pop(0)

    def may_go() -> bool:
        return bool(left) and left[0].size > 0 and left[0].end <= high_watermark

    if "delete" in config.cleanup_policy:
        while config.retention_bytes >= 0 and may_go():
            if sum(each.size for each in left[1:]) < config.retention_bytes:
                break
            left.pop(0)
        while config.retention_ms >= 0 and may_go() and now_ms - left[0].newest_ms > config.retention_ms:
            left.pop(0)
    return max(log_start, left[0].base if left else log_end)


def segments_of(log: UnifiedLog, newest: dict[int, int]) -> list[Segment]:
    """The model of a log; `newest` has what is known of the records, by base offset of their segment."""
    ends = [segment.base_offset for segment in log.segments[1:]] + [log.log_end_offset]
    return [
        Segment(segment.base_offset, end, segment.size, newest.get(segment.base_offset, 0))
        for segment, end in zip(log.segments, ends, strict=True)
    ]


CONFIGS = st.builds(
    LogConfig,
    retention_ms=st.sampled_from([-1, 0, HOUR_MS, 3 * HOUR_MS]),
    retention_bytes=st.sampled_from([-1, 0, 1, 3 * RECORD_BYTES, 5 * RECORD_BYTES + 1, 10**9]),
    cleanup_policy=st.sampled_from([frozenset({"delete"}), frozenset({"compact"}), frozenset({"compact", "delete"})]),
    file_delete_delay_ms=st.just(100),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from([-1, -9, -5, -2, 0, 4])),  # hours from now, -1: no timestamp
        st.tuples(st.just("roll"), st.just(0)),
        st.tuples(st.just("wait"), st.sampled_from([0, 1, 2])),
        st.tuples(st.just("delete records"), st.integers(0, 20)),
        st.tuples(st.just("restart"), st.sampled_from([0, 1])),
        st.tuples(st.just("round"), st.integers(0, 4)),  # records above the high watermark
    ),
    max_size=25,
)


class Story:
    """A log, and beside it what it must hold."""

    def __init__(self, config: LogConfig) -> None:
        self.config = config
        self.disk = MemoryFileSystem()
        self.now_ms = T0
        self.manager: LogManager
        self.rows: dict[int, bytes] = {}
        self.newest: dict[int, int] = {}
        self.log_start = 0
        self.open()

    @property
    def log(self) -> UnifiedLog:
        return self.manager.logs[TP]

    def open(self) -> None:
        self.disk.now_ms = self.now_ms
        self.manager, _ = open_manager(self.disk, self.config, now_ms=self.now_ms)
        self.manager.get_or_create(TP, None, self.config, self.now_ms)

    def append(self, hours: int) -> None:
        timestamp = -1 if hours == -1 else self.now_ms + hours * HOUR_MS
        base = self.log.active_segment.base_offset
        known = self.log.active_segment.max_timestamp_and_offset.timestamp
        offset = append(self.log, b"%02d" % len(self.rows), timestamps=[timestamp], now_ms=self.now_ms).first_offset
        if self.log.active_segment.base_offset != base:
            base, known = self.log.active_segment.base_offset, -1
        self.newest[base] = max(timestamp, known) if max(timestamp, known) >= 0 else self.now_ms
        self.rows[offset] = b"%02d" % len(self.rows)

    def restart(self, clean: int) -> None:
        self.manager.checkpoint_log_start_offsets()
        if clean:
            close_cleanly(self.manager)
        self.disk.kill_process()
        self.open()

    def delete_records(self, offset: int) -> None:
        offset = min(offset, self.log.log_end_offset)
        self.log_start = max(self.log_start, self.log.delete_records_before(offset, self.log.log_end_offset))

    def round(self, behind: int) -> None:
        log = self.log
        high_watermark = max(log.log_end_offset - behind, log.log_start_offset)
        end = log.log_end_offset
        self.log_start = expected_start(
            segments_of(log, self.newest), self.log_start, end, high_watermark, self.config, self.now_ms
        )
        lookup = self.manager.timestamp_lookup([log], self.now_ms)
        lookup.run()
        lookup.complete()
        reasons = delete_old_segments(self.manager, self.now_ms, high_watermark)
        assert log.log_end_offset == end
        assert all(reason.startswith("Deleting segment") for reason in reasons)
        assert log.segments[0].base_offset <= log.log_start_offset
        assert all(newer.base_offset > log.log_start_offset for _, newer in pairwise(log.segments))
        assert log.log_start_offset <= high_watermark
        assert delete_old_segments(self.manager, self.now_ms, high_watermark) == []

    def check(self) -> None:
        assert self.log.log_start_offset == self.log_start
        assert dict(values_in(self.log)) == {at: value for at, value in self.rows.items() if at >= self.log_start}


@given(config=CONFIGS, steps=STEPS)
def test_what_goes_and_what_stays(config: LogConfig, steps: list[tuple[str, int]]) -> None:
    story = Story(config)
    actions = {
        "append": story.append,
        "roll": lambda _: story.log.roll(story.now_ms),
        "delete records": story.delete_records,
        "restart": story.restart,
        "round": story.round,
    }
    for name, argument in steps:
        if name == "wait":
            story.now_ms += argument * HOUR_MS
            story.disk.now_ms = story.now_ms
        else:
            actions[name](argument)
        story.check()
    delete_expired(story.manager, story.now_ms)
    delete_expired(story.manager, story.now_ms + 100)
    names = {info.name for info in story.disk.list_dir(f"{DIR}/{TP}")}
    assert not [name for name in names if name.endswith(".deleted")]
    bases = {f"{segment.base_offset:020d}" for segment in story.log.segments}
    assert {name[:20] for name in names if name.endswith((".log", ".index", ".timeindex"))} == bases
    story.append(0)
    story.check()


def filled(config: LogConfig, disk: MemoryFileSystem | None = None, *, flush: bool = False) -> UnifiedLog:
    """Five segments of three records each, one hour apart, the newest one made now."""
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
    """The reasons, as Kafka's log has them."""

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


def test_what_goes_may_be_in_the_midst_of_a_flush() -> None:
    """Indexes are opened by name for their fsync, and have another one by then."""
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
    """The file has another name before its reader knows: the offset is gone, and nothing is wrong with the disk."""
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
        assert [segment.knows_max_timestamp for segment in log.segments[:9]] == [True] * 8 + [False]
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
        assert not log.segments[0].knows_max_timestamp
        assert log.expire_segments(T0, 15).expired == 7

    def test_nothing_to_look_up(self) -> None:
        _, manager = self.loaded()
        log = manager.logs[TP]
        log.config = LogConfig(retention_ms=-1)
        assert not manager.timestamp_lookup([log], T0).is_needed
        log.config = LogConfig(retention_ms=1, cleanup_policy=frozenset({"compact"}))
        assert not manager.timestamp_lookup([log], T0).is_needed


class TestCrashes:
    """A round dies at every call, with the power or without: what was to stay is there, and nothing is half gone."""

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
        """A file system without a journal may bring back any of the renamed files, and none of the others."""
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
