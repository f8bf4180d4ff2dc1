"""Every call that storage makes to the disk fails once, in every way, and the next start must be sound.

One scripted life of a broker's logs is run once per call and fault; then the machine comes back and is judged:
what was acknowledged is there, what was flushed survives a power cut, nothing was invented, and the log goes on.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from storage.log_config import LogConfig
from storage.log_manager import LogDirError, LogManager
from storage.memory_file_system import Fault, MemoryFileSystem, PowerCut, SimulatedCrash
from storage.meta_properties import write_meta_properties
from storage.unified_log import UnifiedLog
from tests.storage.support import (
    DIR,
    T0,
    TP,
    append,
    batch_of,
    checkpoint_high_watermarks,
    delete_expired,
    flush_dirty,
    open_manager,
    read_all,
    values_in,
)

OTHER = TopicPartition("other", 3)
CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=90, file_delete_delay_ms=10)


@dataclass
class Expectation:
    """What the script knows it may rely on. Values by offset; `maybe` was sent and refused, or never answered."""

    acked: dict[int, bytes] = field(default_factory=dict)
    flushed: dict[int, bytes] = field(default_factory=dict)
    maybe: dict[int, set[bytes]] = field(default_factory=dict)
    log_start: int = 0
    lowest_start: int = 0
    """A log start that was asked for and not confirmed."""
    was_truncated: bool = False


class Script:
    """The life of two partitions, up to the first crash. Errors that a broker would answer are noted and lived with."""

    def __init__(self, file_system: MemoryFileSystem) -> None:
        self.file_system = file_system
        self.expected = Expectation()
        self.manager: LogManager
        self.log: UnifiedLog | None = None
        self.now_ms = T0
        self.sequence = 0
        self.epoch = 1

    def run(self) -> None:
        for step in (
            self.start,
            *[self.append] * 3,
            lambda: self.append(idempotent=True),
            self.flush,
            *[self.append] * 4,
            self.roll,
            self.background,
            *[self.append] * 2,
            self.delete_records,
            lambda: self.append(epoch=2),
            self.expire,
            self.truncate,
            lambda: self.append(epoch=3),
            self.flush,
            self.other_partition,
            self.append,
            self.stop,
            self.start,
            *[self.append] * 2,
            lambda: self.append(idempotent=True),
            self.background,
            self.append,
        ):
            step()

    def tolerate(self, action: Callable[[], object]) -> bool:
        """Whether `action` succeeded; a storage error is the only other outcome."""
        try:
            action()
        except ApiError as error:
            assert error.error_code in {ErrorCode.KAFKA_STORAGE_ERROR}, error
            return False
        return True

    def start(self) -> None:
        try:
            self.manager, report = open_manager(self.file_system, CONFIG, now_ms=self.now_ms)
        except LogDirError as error:  # what a broker ends with: one line, and nothing is served
            assert DIR in str(error)
            raise SimulatedCrash from None
        assert not report.refused
        self.tolerate(self.create)

    def create(self) -> None:
        self.log = self.manager.get_or_create(TP, None, CONFIG, self.now_ms, is_new=False)

    def append(self, *, epoch: int = 1, idempotent: bool = False) -> None:
        if self.log is None:
            return
        log = self.log
        epoch = self.epoch = max(self.epoch, epoch)  # no log has epochs that go down
        offset = log.log_end_offset
        value = b"value %d at %d " % (epoch, offset) + b"." * 40
        self.expected.maybe.setdefault(offset, set()).add(value)
        options = {"producer_id": 5, "producer_epoch": 0, "base_sequence": self.sequence} if idempotent else {}
        if self.tolerate(lambda: append(log, value, epoch=epoch, now_ms=self.now_ms, **options)):
            self.expected.acked[offset] = value
            self.sequence += idempotent
            if idempotent:
                again = log.append_as_leader(batch_of(value, **options), leader_epoch=epoch, now_ms=self.now_ms)
                assert (again.first_offset, again.duplicate) == (offset, True)

    def flush(self) -> None:
        if self.log is not None and self.tolerate(lambda: self.log.flush(self.now_ms)):
            self.expected.flushed = dict(self.expected.acked)

    def roll(self) -> None:
        if self.log is not None:
            self.tolerate(lambda: self.log.roll(self.now_ms))

    def background(self) -> None:
        self.now_ms += 100
        manager = self.manager
        self.tolerate(lambda: flush_dirty(manager, self.now_ms))
        manager.checkpoint_recovery_points()
        manager.checkpoint_log_start_offsets()
        checkpoint_high_watermarks(manager, {TP: self.log.log_end_offset} if self.log is not None else {})
        delete_expired(manager, self.now_ms)

    def delete_records(self) -> None:
        if self.log is None:
            return
        log = self.log
        offset = min(5, log.log_end_offset)
        self.expected.lowest_start = max(self.expected.lowest_start, offset)
        if self.tolerate(lambda: log.delete_records_before(offset, log.log_end_offset)):
            self.expected.log_start = offset
        self.manager.checkpoint_log_start_offsets()

    def expire(self) -> None:
        """What the broker's round does when retention takes all but the newest records."""
        if self.log is None:
            return
        log = self.log
        log.config = replace(CONFIG, retention_bytes=300)
        self.tolerate(lambda: log.expire_segments(self.now_ms, log.log_end_offset))
        log.config = CONFIG
        self.expected.lowest_start = self.expected.log_start = log.log_start_offset
        self.manager.checkpoint_log_start_offsets()
        self.tolerate(log.delete_old_segments)

    def truncate(self) -> None:
        if self.log is None:
            return
        log = self.log
        offset = max(log.log_end_offset - 2, log.log_start_offset)
        for known in (self.expected.acked, self.expected.flushed):
            for at in [at for at in known if at >= offset]:
                del known[at]
        self.expected.was_truncated = True
        self.tolerate(lambda: log.truncate_to(offset, self.now_ms))
        self.manager.checkpoint_recovery_points()

    def other_partition(self) -> None:
        def create_and_delete() -> None:
            other = self.manager.get_or_create(OTHER, None, CONFIG, self.now_ms)
            append(other, b"x")
            self.manager.delete(OTHER, self.now_ms)

        self.tolerate(create_and_delete)
        delete_expired(self.manager, self.now_ms)
        delete_expired(self.manager, self.now_ms + 1000)

    def stop(self) -> None:
        checkpoint_high_watermarks(self.manager, {TP: self.log.log_end_offset} if self.log is not None else {})
        before = dict(self.expected.acked)
        self.manager.close_cleanly(self.now_ms, broker_epoch=7)
        if self.manager.directories[0].failure is None and self.is_marked_clean():
            self.expected.flushed = before
        self.log = None

    def is_marked_clean(self) -> bool:
        return self.file_system._find(f"{DIR}/.kafka_cleanshutdown") is not None


FAULTS: dict[str, Callable[[int], Fault]] = {
    "EIO": lambda seed: Fault(errno.EIO),
    "EIO, half written": lambda seed: Fault(errno.EIO, written_bytes=seed * 37 % 150),
    "disk full": lambda seed: Fault(errno.ENOSPC),
    "disk full, half written": lambda seed: Fault(errno.ENOSPC, written_bytes=seed * 37 % 150),
    "crash before": lambda seed: Fault(crash_before=True),
    "crash after": lambda seed: Fault(crash_after=True),
}
FOR_EVER = {"EIO for ever": "EIO", "disk full for ever": "disk full"}


def count_calls(*, in_reads: bool = False) -> int:
    calls = 0

    def inject(operation: str, path: str) -> None:
        nonlocal calls
        calls += 1

    file_system = MemoryFileSystem()
    file_system.inject = inject
    file_system.faults_in_reads = in_reads
    Script(file_system).run()
    return calls


def live_until(at: int, fault: str, *, in_reads: bool = False) -> tuple[MemoryFileSystem, Expectation]:
    """Run the script with `fault` in call number `at`, and end it."""
    file_system = MemoryFileSystem()
    calls = 0
    for_ever = fault in FOR_EVER
    make = FAULTS[FOR_EVER.get(fault, fault)]

    def inject(operation: str, path: str) -> Fault | None:
        nonlocal calls
        calls += 1
        return make(at) if calls == at or (for_ever and calls > at) else None

    file_system.inject = inject
    file_system.faults_in_reads = in_reads
    script = Script(file_system)
    with contextlib.suppress(SimulatedCrash):
        script.run()
    file_system.inject = lambda operation, path: None
    return file_system, script.expected


def judge(file_system: MemoryFileSystem, expected: Expectation, must_have: dict[int, bytes]) -> None:
    """Start again, and compare."""
    manager, report = open_manager(file_system, CONFIG)
    assert not report.refused, report.refused
    assert manager.directories[0].failure is None
    log = manager.get_or_create(TP, None, CONFIG, T0)
    assert log.log_start_offset <= max(expected.log_start, expected.lowest_start)
    found = dict(values_in(log))
    assert sorted(found) == list(range(log.log_start_offset, log.log_end_offset)), "offsets have a hole"
    for offset, value in must_have.items():
        if offset >= log.log_start_offset:
            assert found.get(offset) == value, f"offset {offset} is lost"
    for offset, value in found.items():
        assert value in expected.maybe[offset], f"offset {offset} was never written so"
    assert log.offset_for_timestamp(T0 - 1) is None or found
    # The log goes on, and a clean stop after it is believed.
    info = append(log, b"goes on", epoch=9)
    assert info.first_offset == len(found) + log.log_start_offset
    manager.close_cleanly(T0)
    file_system.cut_power(PowerCut.LOSE, lambda count: 0)
    manager, report = open_manager(file_system, CONFIG)
    assert report.clean
    again = manager.logs[TP]
    assert again.recovery_point == again.log_end_offset == info.last_offset + 1
    assert dict(values_in(again)) == {**found, info.first_offset: b"goes on"}
    assert [batch.partition_leader_epoch for batch in read_all(again)][-1] == 9
    assert again.latest_epoch() == 9


def random_from(seed: int) -> Callable[[int], int]:
    """Numbers below the one asked for, always the same ones for a seed."""
    state = seed * 2654435761 + 1

    def choose(count: int) -> int:
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (state >> 33) % count

    return choose


def check(at: int, fault: str) -> None:
    file_system, expected = live_until(at, fault)
    file_system.kill_process()
    judge(file_system, expected, expected.acked)


def check_power_cut(at: int, fault: str, mode: PowerCut) -> None:
    file_system, expected = live_until(at, fault)
    # Only what a flush confirmed counts. A cut of the log that was not flushed yet may be undone.
    file_system.cut_power(mode, random_from(at))
    judge(file_system, expected, expected.flushed)


CALLS = count_calls()
CALLS_AND_READS = count_calls(in_reads=True)
SAMPLE = range(1, CALLS + 1, 3)
ALL = range(1, CALLS + 1)


def test_the_script_runs_through_without_faults() -> None:
    assert CALLS > 150
    file_system, expected = live_until(CALLS + 1, "EIO")
    assert len(expected.acked) >= 12
    file_system.kill_process()
    judge(file_system, expected, expected.acked)


@pytest.mark.parametrize("fault", [*FAULTS, *FOR_EVER])
def test_fault_in_a_sample_of_calls(fault: str) -> None:
    for at in SAMPLE:
        check(at, fault)


@pytest.mark.parametrize("fault", ["EIO", "EIO for ever"])
def test_fault_in_a_read(fault: str) -> None:
    for at in range(1, CALLS_AND_READS + 1, 2):
        file_system, expected = live_until(at, fault, in_reads=True)
        file_system.kill_process()
        file_system.faults_in_reads = False
        judge(file_system, expected, expected.acked)


@pytest.mark.parametrize("mode", PowerCut)
@pytest.mark.parametrize("fault", ["crash before", "crash after"])
def test_power_cut_at_a_sample_of_calls(fault: str, mode: PowerCut) -> None:
    for at in SAMPLE:
        check_power_cut(at, fault, mode)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [*FAULTS, *FOR_EVER])
def test_fault_in_every_call(fault: str) -> None:
    for at in ALL:
        check(at, fault)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mode", PowerCut)
@pytest.mark.parametrize("fault", [*FAULTS, *FOR_EVER])
def test_power_cut_after_a_fault_in_every_call(fault: str, mode: PowerCut) -> None:
    for at in ALL:
        check_power_cut(at, fault, mode)


@pytest.mark.parametrize("segment_bytes", [4096, 100], ids=["in its segment", "with the segments behind"])
def test_a_second_power_cut_does_not_bring_back_what_recovery_cut_off(segment_bytes: int) -> None:
    config = replace(CONFIG, segment_bytes=segment_bytes)
    for seed in range(40):
        file_system = MemoryFileSystem()
        log = open_manager(file_system, config)[0].get_or_create(TP, None, config, T0)
        for value in (b"a", b"b", b"c", b"d"):
            append(log, value)
        log.flush(T0)
        # The second batch is damaged, and the disk knows it; the third and the fourth are whole.
        size = log.read(0, 1).size
        path = log.segments[0].path if segment_bytes > size * 2 else log.segments[1].path
        content = bytearray(file_system.read_file(path))
        content[-1 if segment_bytes < size * 2 else size * 2 - 1] ^= 1
        file_system.write_file(path, bytes(content))
        file_system.cut_power(PowerCut.TEAR, lambda count: count - 1)
        log = open_manager(file_system, config)[0].logs[TP]
        assert values_in(log) == [(0, b"a")]
        append(log, b"B")
        file_system.cut_power(PowerCut.REORDER, random_from(seed))
        log = open_manager(file_system, config)[0].logs[TP]
        assert values_in(log) in ([(0, b"a")], [(0, b"a"), (1, b"B")]), f"seed {seed}"


def test_indexes_of_a_segment_that_was_sealed_amid_a_flush_are_as_safe_as_its_records() -> None:
    file_system = MemoryFileSystem()
    manager = open_manager(file_system, CONFIG)[0]
    log = manager.get_or_create(TP, None, CONFIG, T0)
    for value in (b"a", b"b", b"c"):
        append(log, value)
    task = log.prepare_flush()
    log.roll(T0)
    task.run()
    task.complete(T0)
    manager.checkpoint_recovery_points()
    sealed = log.segments[0].path_of(".timeindex")
    written = file_system.read_file(sealed)
    assert written, "sealing completes the time index"
    file_system.cut_power(PowerCut.LOSE, lambda _count: 0)
    log = open_manager(file_system, CONFIG)[0].logs[TP]
    assert values_in(log) == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert file_system.read_file(sealed) == written, "or else recovery has made it anew"


def test_meta_properties_are_there_whole_or_not_at_all() -> None:
    for mode in PowerCut:
        for at in range(1, 8):
            file_system = MemoryFileSystem()
            file_system.make_dirs(DIR)
            file_system.sync_dir("/")
            calls = 0

            def inject(operation: str, path: str, at: int = at) -> Fault | None:
                nonlocal calls
                calls += 1
                return Fault(crash_before=True) if calls == at else None

            file_system.inject = inject
            done = False
            try:
                write_meta_properties(file_system, DIR, 1, "cluster")
                done = True
            except SimulatedCrash:
                done = False
            file_system.cut_power(mode, random_from(at))
            names = [info.name for info in file_system.list_dir(DIR)]
            assert not done or "meta.properties" in names
            if "meta.properties" in names:
                assert file_system.read_file(f"{DIR}/meta.properties").endswith(b"cluster.id=cluster\n")
