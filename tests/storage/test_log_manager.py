"""Log directories: placing logs, deleting them, and handling many of them."""

from __future__ import annotations

import errno
import tracemalloc

import pytest

from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from storage.directory.checkpoints import RECOVERY_POINT_CHECKPOINT, WHOLE_SEGMENTS, read_offset_checkpoint
from storage.io.os_file_system import OsFileSystem
from storage.log_config import LogConfig
from storage.log_manager import LogManager
from tests.kit.environment import uuid_of
from tests.kit.memory_file_system import Fault, MemoryFileSystem
from tests.storage.compaction.cleaning import clean_log, put
from tests.storage.support import (
    DIR,
    T0,
    TOPIC_ID,
    TP,
    append,
    checkpoint_high_watermarks,
    close_cleanly,
    delete_expired,
    flush_dirty,
    load_logs,
    open_manager,
    values_in,
)

CONFIG = LogConfig(file_delete_delay_ms=100)


def filled(file_system: MemoryFileSystem, count: int = 5) -> LogManager:
    manager, _ = open_manager(file_system, CONFIG)
    log = manager.get_or_create(TP, TOPIC_ID, CONFIG, T0)
    for number in range(count):
        append(log, b"%d" % number)
    return manager


class TestPlacement:
    def test_directory_with_the_fewest_logs(self) -> None:
        file_system = MemoryFileSystem()
        manager, _ = open_manager(file_system, CONFIG, "/a", "/b", "/c")
        for number in range(7):
            manager.get_or_create(TopicPartition("t", number), None, CONFIG, T0)
        counts = [len([i for i in file_system.list_dir(path) if i.is_dir]) for path in ("/a", "/b", "/c")]
        assert sorted(counts) == [2, 2, 3]
        manager.delete(TopicPartition("t", 0), T0)
        manager.delete(TopicPartition("t", 3), T0)
        first = manager.get_or_create(TopicPartition("u", 0), None, CONFIG, T0)
        assert first.directory.path == "/a"

    def test_offline_directory_gets_nothing_and_others_go_on(self) -> None:
        file_system = MemoryFileSystem()
        failures: list[tuple[str, str]] = []
        manager = LogManager(
            file_system, ("/a", "/b"), CONFIG, on_directory_failure=lambda path, reason: failures.append((path, reason))
        )
        manager.directories.lock()
        load_logs(manager, T0)
        logs = [manager.get_or_create(TopicPartition("t", number), None, CONFIG, T0) for number in range(4)]
        lost = [log for log in logs if log.directory.path == "/a"]
        kept = [log for log in logs if log.directory.path == "/b"]
        file_system.inject = lambda operation, path: Fault(errno.EIO) if path.startswith("/a") else None
        with pytest.raises(ApiError):
            append(lost[0], b"x")
        assert [path for path, _ in failures] == ["/a"]
        for log in lost:
            with pytest.raises(ApiError) as caught:
                log.read(0, 100)
            assert caught.value.error_code is ErrorCode.KAFKA_STORAGE_ERROR
        for log in kept:
            append(log, b"x")
        created = manager.get_or_create(TopicPartition("new", 0), None, CONFIG, T0)
        assert created.directory.path == "/b"
        with pytest.raises(ApiError, match="log directories /a are offline"):
            manager.get_or_create(TopicPartition("mine", 0), None, CONFIG, T0, is_new=False)
        manager.delete(lost[0].topic_partition, T0)
        assert manager.get(lost[0].topic_partition) is None
        assert file_system.exists(lost[0].path), "the next start sets it aside"
        again = manager.get_or_create(lost[1].topic_partition, uuid_of(2), CONFIG, T0)
        assert again.directory.path == "/b"
        manager.checkpoints.write_recovery_points()
        close_cleanly(manager)
        file_system.kill_process()
        assert not file_system.exists("/a/.kafka_cleanshutdown")
        assert file_system.exists("/b/.kafka_cleanshutdown")

    def test_all_offline(self) -> None:
        file_system = MemoryFileSystem()
        manager, _ = open_manager(file_system, CONFIG)
        file_system.inject = lambda operation, path: Fault(errno.EIO) if operation == "make_dir" else None
        for _ in range(2):
            with pytest.raises(ApiError) as caught:
                manager.get_or_create(TP, None, CONFIG, T0)
            assert caught.value.error_code is ErrorCode.KAFKA_STORAGE_ERROR

    def test_full_disk_is_no_reason_to_go_offline(self) -> None:
        file_system = MemoryFileSystem()
        manager, _ = open_manager(file_system, CONFIG)
        file_system.inject = lambda operation, path: Fault(errno.ENOSPC) if operation == "make_dir" else None
        with pytest.raises(ApiError):
            manager.get_or_create(TP, None, CONFIG, T0)
        file_system.inject = lambda operation, path: None
        append(manager.get_or_create(TP, None, CONFIG, T0), b"x")


class TestTopicIds:
    def test_files_of_another_topic_of_that_name(self) -> None:
        manager = filled(MemoryFileSystem())
        assert manager.get_or_create(TP, TOPIC_ID, CONFIG, T0) is manager.get(TP)
        with pytest.raises(ApiError) as caught:
            manager.get_or_create(TP, uuid_of(9), CONFIG, T0)
        assert caught.value.error_code is ErrorCode.INCONSISTENT_TOPIC_ID

    def test_id_is_noted_later(self) -> None:
        file_system = MemoryFileSystem()
        manager, _ = open_manager(file_system, CONFIG)
        manager.get_or_create(TP, None, CONFIG, T0)
        manager.get_or_create(TP, TOPIC_ID, CONFIG, T0)
        file_system.kill_process()
        manager, _ = open_manager(file_system, CONFIG)
        assert manager.logs[TP].topic_id == TOPIC_ID


class TestDeletion:
    def test_renamed_at_once_and_removed_later(self) -> None:
        file_system = MemoryFileSystem()
        manager = filled(file_system)
        log = manager.logs[TP]
        manager.delete(TP, T0)
        assert manager.get(TP) is None
        (left,) = [info.name for info in file_system.list_dir(DIR) if info.is_dir]
        assert left.startswith("t-0.")
        assert left.endswith("-delete")
        assert len(left) == len("t-0.") + 32 + len("-delete")
        for use in (lambda: append(log, b"x"), lambda: log.read(0, 10), lambda: log.flush(T0)):
            with pytest.raises(ApiError, match="deleted"):
                use()
        assert delete_expired(manager, T0) == 1
        assert delete_expired(manager, T0 + 99) == 1
        assert delete_expired(manager, T0 + 100) == 0
        assert not [info for info in file_system.list_dir(DIR) if info.is_dir]
        assert manager.directories[0].failure is None
        manager.delete(TP, T0)

    def test_recreated_at_once(self) -> None:
        file_system = MemoryFileSystem()
        manager = filled(file_system)
        for turn in range(3):
            manager.delete(TP, T0)
            log = manager.get_or_create(TP, uuid_of(turn + 1), CONFIG, T0)
            assert values_in(log) == []
            append(log, b"new")
        assert len([info for info in file_system.list_dir(DIR) if info.is_dir]) == 4
        manager.checkpoints.write_recovery_points()
        offsets = read_offset_checkpoint(file_system, f"{DIR}/{RECOVERY_POINT_CHECKPOINT}")
        assert offsets == {TP: 0, WHOLE_SEGMENTS: 0}

    def test_away_twice_while_the_clock_stands_still(self) -> None:
        file_system = MemoryFileSystem()
        manager = filled(file_system)
        for _ in range(3):
            manager.delete(TP, T0)
            append(manager.get_or_create(TP, TOPIC_ID, CONFIG, T0), b"new")
        assert manager.directories[0].failure is None
        assert len([info for info in file_system.list_dir(DIR) if info.is_dir]) == 4

    def test_a_restart_goes_on_with_it(self) -> None:
        file_system = MemoryFileSystem()
        manager = filled(file_system)
        manager.delete(TP, T0)
        file_system.kill_process()
        manager, _ = open_manager(file_system, CONFIG)
        assert manager.get(TP) is None
        delete_expired(manager, T0)
        assert delete_expired(manager, T0 + 100) == 0
        assert not [info for info in file_system.list_dir(DIR) if info.is_dir]

    def test_long_names(self) -> None:
        file_system = MemoryFileSystem()
        manager, _ = open_manager(file_system, CONFIG)
        name = TopicPartition("n" * 249, 12345)
        manager.get_or_create(name, None, CONFIG, T0)
        manager.delete(name, T0)
        (left,) = [info.name for info in file_system.list_dir(DIR) if info.is_dir]
        assert len(left) == 255

    def test_reading_goes_on_while_deleted(self, tmp_path) -> None:
        manager, _ = open_manager(OsFileSystem(), CONFIG, str(tmp_path))
        log = manager.get_or_create(TP, None, CONFIG, T0)
        append(log, b"abc")
        info = log.read(0, 1000)
        assert info.file is not None
        log.roll(T0)
        log.delete_records_before(1, 1)
        log.delete_old_segments()
        assert len(info.file.pread(info.position, info.size)) == info.size

    def test_links_that_lead_nowhere(self, tmp_path) -> None:
        """Kafka ignores them at start, and during compaction."""
        config = CONFIG.replace(cleanup_policy=frozenset({"compact"}))
        manager, _ = open_manager(OsFileSystem(), config, str(tmp_path))
        log = manager.get_or_create(TP, None, config, T0)
        for number in range(21):
            put(log, (b"k%d" % (number % 2), b"value"))
        close_cleanly(manager)
        for name in ("dangling", "other-0", f"{TP}/dangling", f"{TP}/00000000000000000007.log"):
            (tmp_path / name).symlink_to("nowhere")
        manager, report = open_manager(OsFileSystem(), config, str(tmp_path))
        assert (report.clean, list(manager.logs), len(manager.directories.online)) == (True, [TP], 1)
        log = manager.logs[TP]
        log.roll(T0)
        (tmp_path / str(TP) / "dangling-too").symlink_to("nowhere")
        clean_log(OsFileSystem(), manager, log, T0)
        assert [offset for offset, _ in values_in(log)] == [19, 20]


class TestManyPartitions:
    def test_an_empty_one_takes_little_memory_and_no_descriptor(self, tmp_path) -> None:
        file_system = OsFileSystem()
        manager, _ = open_manager(file_system, CONFIG, str(tmp_path))
        names = [TopicPartition("topic", number) for number in range(1000)]
        tracemalloc.start()
        for name in names:
            manager.get_or_create(name, TOPIC_ID, CONFIG, T0)
        created, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert created / len(names) < 1500
        assert file_system.open_file_count == 0
        close_cleanly(manager)
        tracemalloc.start()
        manager, report = open_manager(file_system, CONFIG, str(tmp_path))
        loaded, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert report.clean
        assert len(manager.logs) == len(names)
        assert loaded / len(names) < 2000
        assert file_system.open_file_count == 0

    def test_more_partitions_than_descriptors(self, tmp_path) -> None:
        file_system = OsFileSystem(max_open_files=20)
        config = LogConfig(segment_bytes=300, index_interval_bytes=1)
        manager, _ = open_manager(file_system, config, str(tmp_path))
        logs = [manager.get_or_create(TopicPartition("t", number), None, config, T0) for number in range(100)]
        for turn in range(6):
            for log in logs:
                append(log, b"%d" % turn)
        flush_dirty(manager, T0)
        assert file_system.open_file_count <= 20
        close_cleanly(manager)
        manager, report = open_manager(file_system, config, str(tmp_path))
        assert report.clean
        for log in manager.logs.values():
            assert values_in(log) == [(turn, b"%d" % turn) for turn in range(6)]

    def test_an_idle_broker_writes_no_checkpoints(self) -> None:
        file_system = MemoryFileSystem()
        manager = filled(file_system)

        def checkpoint() -> int:
            calls: list[str] = []
            file_system.inject = lambda operation, path: calls.append(operation)
            manager.checkpoints.write_recovery_points()
            manager.checkpoints.write_log_start_offsets()
            checkpoint_high_watermarks(manager, {TP: 5})
            file_system.inject = lambda operation, path: None
            return len(calls)

        assert checkpoint() > 0
        assert checkpoint() == 0
        manager.logs[TP].flush(T0)
        assert checkpoint() > 0
