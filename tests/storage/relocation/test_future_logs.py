"""Moving a log to another log directory: it is copied, catches up, and replaces the log."""

from __future__ import annotations

import errno
import re

import pytest

from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from storage.directory.log_directories import take_clean_shutdown
from storage.log_config import LogConfig
from storage.relocation.future_log_tasks import AdjustTask, CopyStartTask, CopyTask
from storage.relocation.future_logs import LAST_BYTES
from tests.kit.memory_file_system import Fault, MemoryFileSystem
from tests.storage.relocation.moving import (
    CONFIG,
    MANY_BYTES,
    A,
    B,
    adjust,
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
    append,
    batch_of,
    close_cleanly,
    delete_expired,
    values_in,
)


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

    def test_a_directory_with_a_future_log_that_failed_is_not_marked_as_cleanly_shut_down(self) -> None:
        file_system = MemoryFileSystem()
        manager = opened(file_system)
        future = manager.futures.create(filled(manager), manager.futures.directory_at(B), T0)
        future.local.fail(FileNotFoundError(2, "No such file"), "Error while copying")
        close_cleanly(manager)
        assert take_clean_shutdown(file_system, A) is not None
        assert take_clean_shutdown(file_system, B) is None

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
        log.prepare_full_truncation(25, T0).finish()
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

    def test_the_owner_reads_nothing_to_find_where_a_copy_begins(self) -> None:
        """The base offset of the batch with the log start is only on the disk."""
        file_system = MemoryFileSystem()
        manager = opened(file_system)
        log = filled(manager)
        append(log, b"a", b"b", b"c")
        log.delete_records_before(11, 13)
        reads: list[str] = []
        file_system.faults_in_reads = True
        file_system.inject = lambda operation, path: reads.append(operation) if path.startswith(A) else None
        future = manager.futures.create(log, manager.futures.directory_at(B), T0)
        assert not manager.futures.catch_up(log, T0)
        task = manager.futures.adjust(log, T0)
        assert isinstance(task, CopyStartTask)
        assert reads == []
        task.run()
        assert "pread" in reads
        reads.clear()
        task.complete()
        cut = manager.futures.adjust(log, T0)
        assert isinstance(cut, AdjustTask)
        cut.run()
        cut.complete()
        assert (future.log_start_offset, future.log_end_offset) == (10, 10)
        assert manager.futures.adjust(log, T0) is None
        assert reads == []
        assert values_in(finish(manager)) == [(11, b"b"), (12, b"c")]

    def test_a_log_start_that_moves_on_is_looked_at_again(self) -> None:
        manager = opened(MemoryFileSystem())
        log = filled(manager)
        append(log, b"a", b"b", b"c")
        append(log, b"d", b"e", b"f")
        log.delete_records_before(11, 16)
        future = manager.futures.create(log, manager.futures.directory_at(B), T0)
        task = manager.futures.adjust(log, T0)
        assert isinstance(task, CopyStartTask)
        task.run()
        log.delete_records_before(14, 16)
        task.complete()
        adjust(manager)
        assert (future.log_start_offset, future.log_end_offset) == (13, 13)
        assert values_in(finish(manager)) == [(14, b"e"), (15, b"f")]

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
