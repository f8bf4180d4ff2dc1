"""Moving a log to another log directory: copied, caught up, swapped; and found again after a crash at any call."""

from __future__ import annotations

import errno
import re

import pytest

from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from storage.log.log_config import LogConfig
from storage.log.unified_log import UnifiedLog
from storage.log_manager import LogManager
from storage.relocation.copy_task import CopyTask
from storage.relocation.future_logs import LAST_BYTES
from tests.kit.memory_file_system import Fault, MemoryFileSystem, PowerCut, SimulatedCrash
from tests.storage.support import (
    T0,
    TOPIC_ID,
    TP,
    Countdown,
    append,
    batch_of,
    checkpoint_high_watermarks,
    close_cleanly,
    delete_expired,
    open_manager,
    values_in,
)

A, B, C = "/a", "/b", "/c"
CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=90, file_delete_delay_ms=10)
MANY_BYTES = 1 << 30


def value(number: int) -> bytes:
    return b"value %d " % number + b"." * 60


def opened(file_system: MemoryFileSystem, *directories: str) -> LogManager:
    return open_manager(file_system, CONFIG, *(directories or (A, B)))[0]


def filled(manager: LogManager, count: int = 10) -> UnifiedLog:
    log = manager.get_or_create(TP, TOPIC_ID, CONFIG, T0)
    for number in range(count):
        append(log, value(number))
    return log


def adjust(manager: LogManager, now_ms: int = T0) -> int:
    """Adjust a move as a broker does before it copies; how often the end of the copy was cut off for it."""
    count = 0
    while (task := manager.futures.adjust(manager.logs[TP], now_ms)) is not None:
        task.run()
        task.complete()
        count += 1
    return count


def step(manager: LogManager, max_bytes: int = MANY_BYTES) -> CopyTask:
    log = manager.logs[TP]
    adjust(manager)
    task = CopyTask(log, manager.futures.logs[TP], max_bytes, T0)
    task.run()
    return task


def finish(manager: LogManager) -> UnifiedLog:
    """What a broker does from where a move stands to its end."""
    flush_copy(manager)
    while not manager.futures.catch_up(manager.logs[TP], T0):
        assert step(manager).error is None
        flush_copy(manager)
    log = manager.replace_with_future(TP)
    log.flush(T0)
    manager.checkpoint_log_start_offsets()
    checkpoint_high_watermarks(manager, {})
    directory = manager.futures.retire(TP, T0)
    assert directory is not None
    task = manager.directory_sync_task(directory)
    task.run()
    task.complete()
    return log


def flush_copy(manager: LogManager) -> None:
    manager.futures.logs[TP].flush(T0)
    manager.checkpoint_recovery_points()


def move(manager: LogManager, target: str = B) -> UnifiedLog:
    manager.futures.create(manager.logs[TP], manager.futures.directory_at(target), T0)
    step(manager)
    return finish(manager)


def directories(file_system: MemoryFileSystem, path: str) -> list[str]:
    return sorted(info.name for info in file_system.list_dir(path) if info.is_dir)


def values(count: int, start: int = 0) -> list[tuple[int, bytes | None]]:
    return [(number, value(number)) for number in range(start, count)]


class TestMoving:
    def test_everything_is_there_and_goes_on(self) -> None:
        file_system = MemoryFileSystem()
        manager = opened(file_system)
        old = filled(manager)
        log = move(manager)
        assert log is manager.logs[TP]
        assert log.path == "/b/t-0"
        assert values_in(log) == values(10)
        append(log, value(10))
        assert values_in(log) == values(11)
        with pytest.raises(ApiError) as caught:
            append(old, b"too late")
        assert caught.value.error_code is ErrorCode.KAFKA_STORAGE_ERROR
        (left,) = directories(file_system, A)
        assert re.fullmatch(r"t-0\.[0-9a-f]{32}-delete", left)
        delete_expired(manager, T0)
        delete_expired(manager, T0 + 10)
        assert (directories(file_system, A), directories(file_system, B)) == ([], ["t-0"])
        close_cleanly(manager)
        again = opened(file_system)
        assert values_in(again.logs[TP]) == values(11)
        assert again.logs[TP].topic_id == TOPIC_ID

    def test_a_future_log_has_kafkas_name_and_counts_in_placement(self) -> None:
        file_system = MemoryFileSystem()
        manager = opened(file_system)
        filled(manager)
        manager.futures.create(manager.logs[TP], manager.futures.directory_at(B), T0)
        (name,) = directories(file_system, B)
        assert re.fullmatch(r"t-0\.[0-9a-f]{32}-future", name)
        made = [manager.get_or_create(TopicPartition("u", number), None, CONFIG, T0) for number in range(4)]
        assert [log.directory.path for log in made] == [A, B, A, B]

    def test_steps_are_bounded(self) -> None:
        manager = opened(MemoryFileSystem())
        log = filled(manager, 40)
        future = manager.futures.create(log, manager.futures.directory_at(B), T0)
        sizes = []
        while future.log_end_offset < log.log_end_offset:
            sizes.append(step(manager, max_bytes=1).copied_bytes)
        assert max(sizes) <= CONFIG.segment_bytes
        assert sum(sizes) == log.size_bytes

    def test_appends_between_the_steps(self) -> None:
        manager = opened(MemoryFileSystem())
        log = filled(manager, 3)
        future = manager.futures.create(log, manager.futures.directory_at(B), T0)
        for number in range(3, 20):
            append(log, value(number), epoch=number // 7)
            assert step(manager, max_bytes=100).error is None
        assert future.log_end_offset > 0
        moved = finish(manager)
        assert values_in(moved) == values(20)
        assert moved.leader_epochs.entries == log.leader_epochs.entries

    def test_the_last_step_is_bounded(self) -> None:
        manager = opened(MemoryFileSystem())
        log = manager.get_or_create(TP, TOPIC_ID, LogConfig(), T0)
        for _ in range(3):
            append(log, b"x" * (LAST_BYTES // 2))
        future = manager.futures.create(log, manager.futures.directory_at(B), T0)
        assert manager.futures.catch_up(log, T0) is False
        assert 0 < future.log_end_offset < log.log_end_offset
        assert manager.futures.catch_up(log, T0) is True

    def test_epochs_without_records_are_kept(self) -> None:
        manager = opened(MemoryFileSystem())
        log = filled(manager)
        log.assign_epoch_start_offset(7)
        moved = move(manager)
        assert moved.latest_epoch() == 7
        assert moved.end_offset_for_epoch(0) == (0, 10)

    def test_idempotent_producers_are_remembered(self) -> None:
        manager = opened(MemoryFileSystem())
        log = manager.get_or_create(TP, TOPIC_ID, CONFIG, T0)
        options = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
        append(log, b"once", **options)
        moved = move(manager)
        assert append(moved, b"once", **options).duplicate

    def test_an_empty_log_that_does_not_begin_at_0(self) -> None:
        manager = opened(MemoryFileSystem())
        log = filled(manager)
        log.prepare_new_start(25, T0).finish()
        moved = move(manager)
        assert (moved.log_start_offset, moved.log_end_offset) == (25, 25)
        assert append(moved, b"x").first_offset == 25

    def test_a_log_that_starts_inside_a_batch(self) -> None:
        manager = opened(MemoryFileSystem())
        log = manager.get_or_create(TP, TOPIC_ID, CONFIG, T0)
        append(log, b"a", b"b", b"c")
        log.delete_records_before(2, 3)
        moved = move(manager)
        assert (moved.log_start_offset, values_in(moved)) == (2, [(2, b"c")])

    def test_a_copy_of_what_was_cut_off_is_cut_by_a_task(self) -> None:
        file_system = MemoryFileSystem()
        manager = opened(file_system)
        log = filled(manager)
        future = manager.futures.create(log, manager.futures.directory_at(B), T0)
        assert step(manager).error is None
        log.truncate_to(4, T0)
        append(log, b"other", epoch=7)
        assert not manager.futures.catch_up(log, T0)
        calls: list[str] = []
        file_system.inject = lambda operation, _path: calls.append(operation)
        task = manager.futures.adjust(log, T0)
        assert task is not None
        assert not [each for each in calls if each.startswith(("sync", "truncate", "rename", "create"))]
        task.run()
        assert [each for each in calls if each.startswith("sync")]
        task.complete()
        assert future.log_end_offset == 4
        assert manager.futures.adjust(log, T0) is None
        assert values_in(finish(manager)) == [*values(4), (4, b"other")]

    def test_offsets_that_compaction_left_out_at_the_end(self) -> None:
        manager = opened(MemoryFileSystem())
        log = filled(manager, 3)
        log.appender.skip_to(9, T0)
        moved = move(manager)
        assert (moved.log_end_offset, values_in(moved)) == (9, values(3))
        assert append(moved, b"x").first_offset == 9

    def test_a_gap_at_the_end_is_known_to_recovery_before_the_log_is_replaced(self) -> None:
        file_system = MemoryFileSystem()
        manager = opened(file_system)
        log = filled(manager, 3)
        log.appender.skip_to(9, T0)
        future = manager.futures.create(log, manager.futures.directory_at(B), T0)
        assert not manager.futures.catch_up(log, T0)
        assert future.log_end_offset == 9
        flush_copy(manager)
        assert manager.futures.catch_up(log, T0)
        moved = manager.replace_with_future(TP)
        append(moved, value(9))
        file_system.kill_process()
        assert values_in(opened(file_system).logs[TP]) == [*values(3), (9, value(9))]

    def test_what_is_read_while_the_log_is_replaced_stays_readable(self) -> None:
        manager = opened(MemoryFileSystem())
        log = filled(manager)
        info = log.read(0, 1000)
        assert info.file is not None
        before = info.file.pread(info.position, info.size)
        move(manager)
        info.file.close()
        assert info.file.pread(info.position, info.size) == before


class TestMeanwhile:
    def test_records_are_deleted(self) -> None:
        manager = opened(MemoryFileSystem())
        log = filled(manager, 20)
        future = manager.futures.create(log, manager.futures.directory_at(B), T0)
        step(manager, max_bytes=400)
        log.delete_records_before(2, 20)
        step(manager, max_bytes=1)
        assert future.log_start_offset == 2
        log.delete_records_before(15, 20)
        moved = finish(manager)
        assert (moved.log_start_offset, values_in(moved)) == (15, values(20, 15))

    def test_records_are_deleted_between_a_step_and_its_reading(self) -> None:
        manager = opened(MemoryFileSystem())
        log = filled(manager, 20)
        future = manager.futures.create(log, manager.futures.directory_at(B), T0)
        step(manager, max_bytes=1)
        task = CopyTask(log, future, MANY_BYTES, T0)
        log.delete_records_before(17, 20)
        task.run()
        moved = finish(manager)
        assert (moved.log_start_offset, values_in(moved)) == (17, values(20, 17))

    def test_the_log_is_truncated_and_goes_on_in_another_epoch(self) -> None:
        manager = opened(MemoryFileSystem())
        log = filled(manager, 10)
        future = manager.futures.create(log, manager.futures.directory_at(B), T0)
        step(manager)
        assert future.log_end_offset == 10
        log.truncate_to(4, T0)
        for number in range(4, 12):
            append(log, b"again %d" % number, epoch=3)
        moved = finish(manager)
        assert values_in(moved) == values(4) + [(number, b"again %d" % number) for number in range(4, 12)]

    def test_the_partition_is_deleted(self) -> None:
        file_system = MemoryFileSystem()
        manager = opened(file_system)
        log = filled(manager)
        future = manager.futures.create(log, manager.futures.directory_at(B), T0)
        task = CopyTask(log, future, MANY_BYTES, T0)
        manager.delete(TP, T0)
        task.run()
        assert task.error is not None
        assert [directory.failure for directory in manager.directories] == [None, None]
        delete_expired(manager, T0)
        assert delete_expired(manager, T0 + 10) == 0
        assert directories(file_system, A) == directories(file_system, B) == []

    def test_the_partition_is_deleted_before_the_old_log_is_retired(self) -> None:
        file_system = MemoryFileSystem()
        manager = opened(file_system)
        log = filled(manager)
        manager.futures.create(log, manager.futures.directory_at(B), T0)
        step(manager)
        assert manager.futures.catch_up(log, T0)
        manager.replace_with_future(TP)
        manager.delete(TP, T0)
        assert manager.futures.retire(TP, T0) is None
        assert all(name.endswith("-delete") for path in (A, B) for name in directories(file_system, path))
        assert [directory.log_count for directory in manager.directories] == [0, 0]

    def test_a_move_is_given_up(self) -> None:
        file_system = MemoryFileSystem()
        manager = opened(file_system)
        log = filled(manager)
        manager.futures.create(log, manager.futures.directory_at(B), T0)
        step(manager)
        manager.futures.drop(TP, T0)
        assert manager.futures.logs == {}
        assert manager.directories[1].log_count == 0
        assert directories(file_system, B)[0].endswith("-delete")
        assert values_in(log) == values(10)

    def test_the_target_is_full_and_then_no_longer(self) -> None:
        file_system = MemoryFileSystem()
        manager = opened(file_system)
        log = filled(manager)
        future = manager.futures.create(log, manager.futures.directory_at(B), T0)
        file_system.inject = lambda operation, path: Fault(errno.ENOSPC) if path.startswith(B) else None
        task = step(manager)
        assert task.error is not None
        assert future.directory.failure is None
        file_system.inject = lambda _operation, _path: None
        assert values_in(finish(manager)) == values(10)

    def test_the_target_fails(self) -> None:
        file_system = MemoryFileSystem()
        manager = opened(file_system)
        log = filled(manager)
        manager.futures.create(log, manager.futures.directory_at(B), T0)
        file_system.inject = lambda operation, path: Fault(errno.EIO) if path.startswith(B) else None
        assert step(manager).error is not None
        assert manager.directories[1].failure is not None
        manager.futures.drop(TP, T0)
        append(log, value(10))
        assert values_in(log) == values(11)


class TestAsking:
    def test_directories_that_are_not_there(self) -> None:
        file_system = MemoryFileSystem()
        manager = opened(file_system)
        with pytest.raises(ApiError) as caught:
            manager.futures.directory_at("/elsewhere")
        assert caught.value.error_code is ErrorCode.LOG_DIR_NOT_FOUND
        manager.directories[1].fail(OSError(errno.EIO, "broken"), "testing")
        with pytest.raises(ApiError) as caught:
            manager.futures.directory_at(B)
        assert caught.value.error_code is ErrorCode.KAFKA_STORAGE_ERROR

    def test_a_name_without_room_for_the_suffix(self) -> None:
        manager = opened(MemoryFileSystem())
        log = manager.get_or_create(TopicPartition("n" * 215, 0), TOPIC_ID, CONFIG, T0)
        with pytest.raises(ApiError, match=r"The topic name is too long\.") as caught:
            manager.futures.create(log, manager.futures.directory_at(B), T0)
        assert caught.value.error_code is ErrorCode.INVALID_TOPIC_EXCEPTION

    def test_a_preference_counts_once(self) -> None:
        manager = opened(MemoryFileSystem())
        manager.futures.prefer(TP, manager.futures.directory_at(B))
        assert manager.get_or_create(TP, TOPIC_ID, CONFIG, T0).directory.path == B
        manager.delete(TP, T0)
        assert manager.get_or_create(TP, TOPIC_ID, CONFIG, T0).directory.path == A


def end_after_power_cut(file_system: MemoryFileSystem) -> int:
    """Where the log would end if the power was cut now, and took all that it may take."""
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
        manager.checkpoint_recovery_points()
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
        manager.checkpoint_log_start_offsets()
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
        """The move stays done, whichever is found first."""
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
    """What was flushed before the move, or after it, is there; nothing twice; and a move that was begun ends."""
    for crash_at in range(10_000):
        file_system = MemoryFileSystem()
        manager = opened(file_system)
        log = filled(manager, 8)
        log.delete_records_before(1, 8)
        log.flush(T0)
        manager.checkpoint_recovery_points()
        manager.checkpoint_log_start_offsets()
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
        assert manager.high_watermarks[TP] == 8, crash_at
        assert after_another_death(file_system, mode).high_watermarks[TP] == 8, crash_at
        if TP in manager.futures.logs:
            assert values_in(finish(manager)) == values(end, 1), crash_at
        if ended:
            assert manager.logs[TP].path == "/b/t-0"
            break
    assert len(countdown.calls) > 20


def after_another_death(file_system: MemoryFileSystem, mode: PowerCut | None) -> LogManager:
    """What the next process would find if the one that has just started died at once."""
    twin = file_system.copy()
    if mode is not None:
        twin.cut_power(PowerCut.LOSE, lambda _count: 0)
    return opened(twin)


def move_on(manager: LogManager) -> UnifiedLog:
    assert step(manager).error is None
    return finish(manager)


def test_every_call_of_a_move_fails_once() -> None:
    """With an error or a full disk the log goes on where it is, or where it was to go."""
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


def test_batches_of_a_move_are_checked() -> None:
    manager = opened(MemoryFileSystem())
    log = manager.get_or_create(TP, TOPIC_ID, LogConfig(), T0)
    append(log, b"a" * 100)
    append(log, b"b" * 100)
    file_system = manager._file_system
    content = bytearray(file_system.read_file(log.active_segment.path))
    content[len(batch_of(b"a" * 100)) + 80] ^= 1
    file_system.write_file(log.active_segment.path, bytes(content))
    future = manager.futures.create(log, manager.futures.directory_at(B), T0)
    task = step(manager)
    assert task.error is not None
    assert task.error.error_code is ErrorCode.CORRUPT_MESSAGE
    assert future.log_end_offset <= 1


def test_what_a_checkpoint_says_of_an_earlier_stay_is_not_believed_of_a_future_log() -> None:
    file_system = MemoryFileSystem()
    manager = opened(file_system)
    log = filled(manager, 20)
    log.delete_records_before(5, 20)
    log.flush(T0)
    for task in (*manager.recovery_point_tasks(), *manager.log_start_offset_tasks()):
        task.run()
        task.complete()
    assert move(manager).directory.path == B
    # Nothing has written the checkpoints of the first directory since, and the log goes back there.
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
