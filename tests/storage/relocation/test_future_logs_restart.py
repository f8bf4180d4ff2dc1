"""Moves interrupted by a stop, a crash or a failing disk, and how the next start continues."""

from __future__ import annotations

import errno

import pytest

from protocol.errors import ApiError, ErrorCode
from storage.log.unified_log import UnifiedLog
from storage.log_manager import LogManager
from tests.kit.memory_file_system import Fault, MemoryFileSystem, PowerCut, SimulatedCrash
from tests.storage.relocation.moving import (
    CONFIG,
    A,
    B,
    directories,
    filled,
    finish,
    flush_copy,
    move,
    opened,
    step,
    value,
    values,
)
from tests.storage.support import (
    T0,
    TOPIC_ID,
    TP,
    Countdown,
    append,
    batch_of,
    checkpoint_high_watermarks,
    close_cleanly,
    open_manager,
    values_in,
)


def end_after_power_cut(file_system: MemoryFileSystem) -> int:
    """The log end after a power cut now, in the worst case."""
    twin = file_system.copy()
    twin.cut_power(PowerCut.LOSE, lambda _count: 0)
    return opened(twin).logs[TP].log_end_offset


class TestAfterAStart:
    @pytest.mark.parametrize("stop", ["clean", "kill", "power"])
    def test_a_move_goes_on(self, stop: str) -> None:
        file_system = MemoryFileSystem()
        manager = opened(file_system)
        log = filled(manager, 30)
        future = manager.futures.create(log, manager.futures.directory_at(B), T0)
        step(manager, max_bytes=800)
        assert 0 < future.log_end_offset < 30
        if stop == "clean":
            close_cleanly(manager)
        elif stop == "kill":
            file_system.kill_process()
        else:
            log.flush(T0)
            file_system.cut_power(PowerCut.LOSE, lambda _count: 0)
        manager = opened(file_system)
        if stop == "power":
            assert manager.futures.logs == {}
            return
        assert manager.futures.logs[TP].log_end_offset == future.log_end_offset
        assert [directory.log_count for directory in manager.directories] == [1, 1]
        assert values_in(finish(manager)) == values(30)

    def test_a_future_log_that_got_further_than_what_is_left_of_the_log(self) -> None:
        file_system = MemoryFileSystem()
        manager = opened(file_system)
        log = filled(manager, 5)
        log.flush(T0)
        manager.checkpoints.write_recovery_points()
        for number in range(5, 10):
            append(log, value(number))
        future = manager.futures.create(log, manager.futures.directory_at(B), T0)
        step(manager)
        future.flush(T0)
        file_system.cut_power(PowerCut.LOSE, lambda _count: 0)
        manager = opened(file_system)
        log = manager.logs[TP]
        assert (log.log_end_offset, manager.futures.logs[TP].log_end_offset) == (5, 10)
        log.assign_epoch_start_offset(1)
        for number in range(5, 8):
            append(log, b"new %d" % number, epoch=1)
        assert values_in(finish(manager)) == values(5) + [(number, b"new %d" % number) for number in range(5, 8)]

    def test_until_its_name_is_safe_no_more_is_trusted_than_the_old_log_has(self) -> None:
        file_system = MemoryFileSystem()
        manager = opened(file_system)
        log = filled(manager, 5)
        log.flush(T0)
        for number in range(5, 10):
            append(log, value(number))
        future = manager.futures.create(log, manager.futures.directory_at(B), T0)
        step(manager)
        flush_copy(manager)
        assert (log.recovery_point, future.recovery_point) == (5, 10)
        assert manager.futures.catch_up(log, T0)
        moved = manager.replace_with_future(TP)
        assert moved.recovery_point == 5 == end_after_power_cut(file_system)
        moved.flush(T0)
        assert moved.recovery_point == 10 == end_after_power_cut(file_system)

    def test_two_directories_of_one_name(self) -> None:
        file_system = MemoryFileSystem()
        manager = opened(file_system)
        log = filled(manager, 10)
        manager.futures.create(log, manager.futures.directory_at(B), T0)
        step(manager)
        assert manager.futures.catch_up(log, T0)
        log.delete_records_before(3, 10)
        manager.checkpoints.write_log_start_offsets()
        moved = manager.replace_with_future(TP)
        append(moved, value(10))
        file_system.kill_process()
        manager = opened(file_system)
        assert manager.logs[TP].path == "/b/t-0"
        assert values_in(manager.logs[TP]) == values(11, 3)
        assert [directory.log_count for directory in manager.directories] == [0, 1]
        (left,) = directories(file_system, A)
        assert left.endswith("-delete")

    @pytest.mark.parametrize("names", [(A, B), (B, A)])
    def test_two_directories_that_go_equally_far(self, names: tuple[str, str]) -> None:
        """The move is complete, whichever directory is found first."""
        file_system = MemoryFileSystem()
        file_system.now_ms = T0
        manager = opened(file_system, *names)
        log = manager.get_or_create(TP, TOPIC_ID, CONFIG, T0)
        for number in range(10):
            append(log, value(number))
        source, target = names
        file_system.now_ms += 1
        manager.futures.create(log, manager.futures.directory_at(target), T0)
        step(manager)
        assert manager.futures.catch_up(log, T0)
        manager.replace_with_future(TP)
        file_system.kill_process()
        manager = opened(file_system, A, B)
        assert manager.logs[TP].path == f"{target}/t-0"
        assert values_in(manager.logs[TP]) == values(10)
        assert directories(file_system, source)[0].endswith("-delete")

    def test_a_future_log_without_its_log(self) -> None:
        file_system = MemoryFileSystem()
        manager = opened(file_system)
        manager.futures.create(filled(manager), manager.futures.directory_at(B), T0)
        file_system.kill_process()
        file_system.remove_tree("/a/t-0")
        manager, report = open_manager(file_system, CONFIG, A, B)
        assert manager.futures.logs == {}
        (left,) = directories(file_system, B)
        assert left.endswith("-stray")
        assert report.ignored == [f"/b/{left}"]

    def test_a_future_log_whose_log_is_on_a_failed_disk_is_kept(self) -> None:
        file_system = MemoryFileSystem()
        manager = opened(file_system)
        manager.futures.create(filled(manager), manager.futures.directory_at(B), T0)
        file_system.kill_process()
        file_system.faults_in_reads = True
        file_system.inject = lambda operation, path: (
            Fault(errno.EIO) if operation == "list_dir" and path.startswith(A) else None
        )
        manager = opened(file_system)
        assert list(manager.futures.logs) == [TP]
        assert TP not in manager.logs


MODES = [None, PowerCut.LOSE, PowerCut.TEAR, PowerCut.REORDER]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: "process" if mode is None else mode.name.lower())
def test_a_crash_at_every_call_of_a_move(mode: PowerCut | None) -> None:
    """Flushed records survive, none is duplicated, and a move that has begun is completed."""
    for crash_at in range(10_000):
        file_system = MemoryFileSystem()
        manager = opened(file_system)
        log = filled(manager, 8)
        log.delete_records_before(1, 8)
        log.flush(T0)
        manager.checkpoints.write_recovery_points()
        manager.checkpoints.write_log_start_offsets()
        checkpoint_high_watermarks(manager, {TP: 8})
        acknowledged, flushed = 8, 8
        file_system.inject = countdown = Countdown(crash_at + 1)
        ended = False
        try:
            manager.futures.create(log, manager.futures.directory_at(B), T0)
            step(manager, max_bytes=200)
            append(log, value(8))
            acknowledged = 9
            log = move_on(manager)
            append(log, value(9))
            acknowledged = 10
            log.flush(T0)
            flushed = 10
            ended = True
        except SimulatedCrash:
            pass
        if mode is None:
            file_system.kill_process()
        else:
            file_system.cut_power(mode, lambda count, crash_at=crash_at: crash_at * 7 % count)  # type: ignore[misc]
        manager = opened(file_system)
        end = manager.logs[TP].log_end_offset
        assert end >= (acknowledged if mode is None else flushed), crash_at
        assert values_in(manager.logs[TP]) == values(end, 1), crash_at
        assert manager.checkpoints.high_watermarks[TP] == 8, crash_at
        assert after_another_death(file_system, mode).checkpoints.high_watermarks[TP] == 8, crash_at
        if TP in manager.futures.logs:
            assert values_in(finish(manager)) == values(end, 1), crash_at
        if ended:
            assert manager.logs[TP].path == "/b/t-0"
            break
    assert len(countdown.calls) > 20


def after_another_death(file_system: MemoryFileSystem, mode: PowerCut | None) -> LogManager:
    """The logs that the next process would find if this one died right after its start."""
    twin = file_system.copy()
    if mode is not None:
        twin.cut_power(PowerCut.LOSE, lambda _count: 0)
    return opened(twin)


def move_on(manager: LogManager) -> UnifiedLog:
    assert step(manager).error is None
    return finish(manager)


def test_every_call_of_a_move_fails_once() -> None:
    """After an error or on a full disk, the log continues in its old directory, or in the new one."""
    for number in (errno.EIO, errno.ENOSPC):
        for fail_at in range(10_000):
            file_system = MemoryFileSystem()
            manager = opened(file_system)
            filled(manager, 8)
            calls = 0

            def inject(_operation: str, path: str, fail_at: int = fail_at, number: int = number) -> Fault | None:
                nonlocal calls
                calls += 1
                return Fault(number) if calls == fail_at + 1 and path.startswith(B) else None

            file_system.inject = inject
            try:
                manager.futures.create(manager.logs[TP], manager.futures.directory_at(B), T0)
                task = step(manager)
                if task.error is not None:
                    raise task.error
                move_on(manager)
            except ApiError as error:
                assert error.error_code is ErrorCode.KAFKA_STORAGE_ERROR
            file_system.inject = lambda _operation, _path: None
            log = manager.logs[TP]
            if log.directory.failure is None:
                append(log, value(8))
                assert values_in(log) == values(9), (number, fail_at)
            else:
                assert log.path == "/b/t-0"
            close_cleanly(manager)
            manager = opened(file_system)
            assert values_in(manager.logs[TP], 0)[:8] == values(8), (number, fail_at)
            if calls <= fail_at:
                break


def test_what_a_checkpoint_says_of_an_earlier_stay_is_not_believed_of_a_future_log() -> None:
    file_system = MemoryFileSystem()
    manager = opened(file_system)
    log = filled(manager, 20)
    log.delete_records_before(5, 20)
    log.flush(T0)
    for task in (*manager.checkpoints.recovery_point_tasks(), *manager.checkpoints.log_start_offset_tasks()):
        task.run()
        task.complete()
    assert move(manager).directory.path == B
    # The first directory's checkpoints are unchanged since, and the log moves back there.
    manager.futures.create(manager.logs[TP], manager.futures.directory_at(A), T0)
    step(manager, max_bytes=1)
    future = manager.futures.logs[TP]
    copied = future.log_end_offset
    assert 5 < copied < 20
    torn = future.active_segment.path
    file_system.write_file(torn, file_system.read_file(torn) + bytes(batch_of(value(copied)))[:70])
    file_system.kill_process()
    manager = opened(file_system)
    assert manager.futures.logs[TP].log_end_offset == copied
    assert values_in(finish(manager)) == values(20, 5)
