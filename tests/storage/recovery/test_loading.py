"""Loading log directories: what is loaded, what is ignored, and what is refused."""

from __future__ import annotations

import errno
import re

import pytest

from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from storage.directory.meta_properties import LogDirError, write_topic_id
from storage.log_config import LogConfig
from storage.log_manager import LogManager
from storage.recovery.directory_loading import LoadProgress
from tests.kit.environment import uuid_of
from tests.kit.memory_file_system import Fault, MemoryFileSystem
from tests.storage.support import (
    DIR,
    T0,
    TOPIC_ID,
    TP,
    append,
    batch_of,
    checkpoint_high_watermarks,
    close_cleanly,
    delete_expired,
    load_logs,
    open_manager,
    values_in,
)
from tests.storage.test_log_manager import CONFIG, filled


class TestLoading:
    def test_clean_stop_and_its_marker(self) -> None:
        file_system = MemoryFileSystem()
        close_cleanly(filled(file_system), broker_epoch=11)
        manager, report = open_manager(file_system, CONFIG)
        assert (report.clean, report.broker_epoch, report.repaired) == (True, 11, [])
        assert manager.logs[TP].recovery_point == 5
        assert not file_system.exists(f"{DIR}/.kafka_cleanshutdown")
        file_system.kill_process()
        _, report = open_manager(file_system, CONFIG)
        assert (report.clean, report.broker_epoch) == (False, -1)

    def test_two_brokers_on_one_directory(self) -> None:
        file_system = MemoryFileSystem()
        filled(file_system)
        with pytest.raises(LogDirError, match=r"Failed to acquire lock on file \.lock in /logs"):
            open_manager(file_system, CONFIG)

    @pytest.mark.parametrize("name", ["photos", "t-x", "t0", "-1", "t-0.abc-delete"])
    def test_what_is_no_partition(self, name: str) -> None:
        file_system = MemoryFileSystem()
        close_cleanly(filled(file_system))
        file_system.make_dir(f"{DIR}/{name}")
        with pytest.raises(LogDirError, match="is not in the form of topic-partition") as caught:
            open_manager(file_system, CONFIG)
        assert name in str(caught.value)
        assert file_system.exists(f"{DIR}/.kafka_cleanshutdown"), "nothing is changed in a directory that is refused"

    def test_what_is_left_alone(self) -> None:
        file_system = MemoryFileSystem()
        filled(file_system)
        token = "0123456789abcdef" * 2
        for name in (f"t-1.{token}-future", f"t-2.{token}-stray", "lost+found", ".hidden", "__cluster_metadata-0"):
            file_system.make_dir(f"{DIR}/{name}")
        file_system.create(f"{DIR}/a file")
        file_system.kill_process()
        manager, report = open_manager(file_system, CONFIG)
        assert list(manager.logs) == [TP]
        assert len(report.ignored) == 2
        assert delete_expired(manager, T0) == 0

    def test_logs_of_two_topics_of_one_name(self) -> None:
        file_system = MemoryFileSystem()
        manager, _ = open_manager(file_system, CONFIG, "/a", "/b")
        manager.get_or_create(TP, TOPIC_ID, CONFIG, T0)
        file_system.make_dir("/b/t-0")
        write_topic_id(file_system, "/b/t-0", uuid_of(1))
        file_system.kill_process()
        for right, wrong, topic_id in (("/a", "/b", TOPIC_ID), ("/b", "/a", uuid_of(1))):
            disk = file_system.copy()
            manager, _ = open_manager(disk, CONFIG, "/a", "/b")
            (path,) = manager.resolve_conflicting_logs(lambda _partition, topic_id=topic_id: topic_id, T0)  # type: ignore[misc]
            assert re.fullmatch(rf"{wrong}/t-0\.[0-9a-f]{{32}}-stray", path)
            assert manager.logs[TP].path == f"{right}/t-0"
            assert {each.path: each.log_count for each in manager.directories} == {right: 1, wrong: 0}

    def test_the_high_watermark_of_an_earlier_topic_of_the_name_does_not_count(self) -> None:
        """Its directory was offline when the topic was deleted and recreated, and works again."""
        file_system = MemoryFileSystem()
        for directory, topic_id, count in (("/a", TOPIC_ID, 4), ("/b", uuid_of(1), 2)):
            manager, _ = open_manager(file_system, CONFIG, directory)
            append(manager.get_or_create(TP, topic_id, CONFIG, T0), *[b"x"] * count)
            checkpoint_high_watermarks(manager, {TP: count})
            file_system.kill_process()
        for topic_id, end in ((TOPIC_ID, 4), (uuid_of(1), 2)):
            manager, _ = open_manager(file_system.copy(), CONFIG, "/a", "/b")
            manager.resolve_conflicting_logs(lambda _partition, topic_id=topic_id: topic_id, T0)  # type: ignore[misc]
            assert manager.logs[TP].log_end_offset == end
            assert manager.checkpoints.high_watermarks == {TP: end}
            assert manager.checkpoints.truncated_below == {}

    def test_a_directory_that_cannot_be_used(self) -> None:
        file_system = MemoryFileSystem()
        manager, _ = open_manager(file_system, CONFIG, "/a", "/b")
        manager.get_or_create(TP, TOPIC_ID, CONFIG, T0)
        other = manager.get_or_create(TopicPartition("t", 1), TOPIC_ID, CONFIG, T0)
        append(other, b"x")
        close_cleanly(manager)
        file_system.kill_process()
        file_system.inject = lambda operation, path: (
            Fault(errno.EIO) if operation == "lock" and path.startswith("/a") else None
        )
        manager, report = open_manager(file_system, CONFIG, "/a", "/b")
        assert report.clean
        assert manager.directories[0].failure == "Log directory /a cannot be used: EIO"
        assert values_in(manager.logs[TopicPartition("t", 1)]) == [(0, b"x")]
        with pytest.raises(ApiError, match="Can not create log for t-0 because log directories /a are offline"):
            manager.get_or_create(TP, TOPIC_ID, CONFIG, T0, is_new=False)

    def test_high_watermarks_come_back(self) -> None:
        file_system = MemoryFileSystem()
        manager = filled(file_system)
        checkpoint_high_watermarks(manager, {TP: 3})
        assert file_system.read_file(f"{DIR}/replication-offset-checkpoint") == b"0\n1\nt 0 3\n"
        file_system.kill_process()
        manager, _ = open_manager(file_system, CONFIG)
        assert manager.checkpoints.high_watermarks == {TP: 3}

    def test_torn_tail_below_the_high_watermark_is_reported(self) -> None:
        file_system = MemoryFileSystem()
        manager = filled(file_system)
        checkpoint_high_watermarks(manager, {TP: 5})
        path = manager.logs[TP].active_segment.path
        size = len(batch_of(b"0"))
        content = file_system.read_file(path)
        file_system.write_file(path, content[: 3 * size + 20])
        file_system.kill_process()
        manager, report = open_manager(file_system, CONFIG)
        (result,) = report.repaired
        assert result.log is manager.logs[TP]
        assert (result.truncated_bytes, result.lost_below_high_watermark) == (20, 2)
        assert manager.checkpoints.high_watermarks[TP] == 3
        assert values_in(manager.logs[TP]) == [(0, b"0"), (1, b"1"), (2, b"2")]

    def test_an_end_lost_below_the_start_was_below_the_high_watermark(self) -> None:
        """Regardless of the last checkpoint: records are only deleted up to the high watermark."""
        file_system = MemoryFileSystem()
        manager = filled(file_system)
        checkpoint_high_watermarks(manager, {TP: 1})
        manager.logs[TP].delete_records_before(4, 5)
        manager.checkpoints.write_log_start_offsets()
        path = manager.logs[TP].active_segment.path
        file_system.write_file(path, file_system.read_file(path)[: 2 * len(batch_of(b"0"))])
        for _start in range(2):
            file_system.kill_process()
            manager, _ = open_manager(file_system, CONFIG)
            assert manager.logs[TP].log_end_offset == 4
            assert manager.checkpoints.truncated_below == {TP: 5}
            checkpoint_high_watermarks(manager, {TP: 4})

    def test_progress(self) -> None:
        file_system = MemoryFileSystem()
        manager, _ = open_manager(file_system, CONFIG)
        for number in range(3):
            append(manager.get_or_create(TopicPartition("t", number), None, CONFIG, T0), b"x" * 100)
        file_system.kill_process()
        manager = LogManager(file_system, (DIR,), CONFIG)
        manager.directories.lock()
        (load,) = manager.begin_load(T0)
        seen = [load.progress()]
        file_system.inject = lambda _operation, _path: seen.append(load.progress())
        file_system.faults_in_reads = True
        load.work()
        seen.append(load.progress())
        size = len(batch_of(b"x" * 100))
        assert seen[0] == LoadProgress(DIR, 0, 3, 0, 0)
        assert LoadProgress(DIR, 0, 3, 0, 3 * size) in seen, "the sizes are known before the first log is read"
        assert seen[-1] == LoadProgress(DIR, 3, 3, 3 * size, 3 * size)
        assert seen == sorted(seen, key=lambda progress: list(progress.fields().values()))

    def test_configuration_by_topic(self) -> None:
        file_system = MemoryFileSystem()
        filled(file_system)
        file_system.kill_process()
        manager = LogManager(file_system, (DIR,), CONFIG)
        manager.directories.lock()
        special = LogConfig(segment_bytes=77)
        load_logs(manager, T0, {"t": special})
        assert manager.logs[TP].config is special

    def test_unusable_partition_is_refused_and_the_rest_served(self) -> None:
        file_system = MemoryFileSystem()
        manager = filled(file_system)
        other = TopicPartition("other", 0)
        manager.get_or_create(other, None, CONFIG, T0)
        file_system.write_file(f"{DIR}/other-0/partition.metadata", b"nonsense")
        file_system.kill_process()
        manager, report = open_manager(file_system, CONFIG)
        assert list(manager.logs) == [TP]
        assert f"{DIR}/other-0/partition.metadata" in report.refused[other]
        with pytest.raises(ApiError, match="cannot be used") as caught:
            manager.get_or_create(other, None, CONFIG, T0)
        assert caught.value.error_code is ErrorCode.KAFKA_STORAGE_ERROR
        # It was not recovered, so the directory must not look clean to the next start.
        close_cleanly(manager)
        _, report = open_manager(file_system, CONFIG)
        assert not report.clean

    def test_records_of_old_formats_are_refused_by_file(self) -> None:
        import struct
        import zlib

        for magic in (0, 1):
            body = struct.pack(">bb", magic, 0) + (struct.pack(">q", T0) if magic else b"") + struct.pack(">i", -1)
            body += struct.pack(">i", 3) + b"abc"
            message = struct.pack(">qiI", 0, 4 + len(body), zlib.crc32(body)) + body
            for clean in (True, False):
                file_system = MemoryFileSystem()
                manager = filled(file_system, 0)
                if clean:
                    close_cleanly(manager)
                file_system.write_file(f"{DIR}/t-0/{0:020d}.log", message * 3)
                file_system.kill_process()
                manager, report = open_manager(file_system, CONFIG)
                assert manager.get(TP) is None
                assert f"{DIR}/t-0/{0:020d}.log holds records of message format v{magic}" in report.refused[TP]
                assert file_system.read_file(f"{DIR}/t-0/{0:020d}.log") == message * 3

    def test_log_start_above_all_that_is_left(self) -> None:
        file_system = MemoryFileSystem()
        manager = filled(file_system)
        manager.logs[TP].delete_records_before(4, 5)
        manager.checkpoints.write_log_start_offsets()
        file_system.write_file(f"{DIR}/t-0/{0:020d}.log", b"")
        file_system.kill_process()
        manager, _ = open_manager(file_system, CONFIG)
        log = manager.logs[TP]
        assert (log.log_start_offset, log.log_end_offset) == (4, 4)
        append(log, b"x")
        assert values_in(log) == [(4, b"x")]

    def test_partition_without_any_segment(self) -> None:
        file_system = MemoryFileSystem()
        filled(file_system, 0)
        file_system.remove(f"{DIR}/t-0/{0:020d}.log")
        file_system.kill_process()
        manager, _ = open_manager(file_system, CONFIG)
        append(manager.logs[TP], b"x")
        assert values_in(manager.logs[TP]) == [(0, b"x")]

    def test_damaged_checkpoints_are_named(self) -> None:
        file_system = MemoryFileSystem()
        filled(file_system)
        file_system.write_file(f"{DIR}/recovery-point-offset-checkpoint", b"damaged")
        file_system.kill_process()
        manager, report = open_manager(file_system, CONFIG)
        assert report.ignored == [f"{DIR}/recovery-point-offset-checkpoint is not a checkpoint file"]
        assert len(values_in(manager.logs[TP])) == 5


class TestInterruptedSwaps:
    """Files that a killed cleaner of Kafka can leave."""

    def segments(self, count: int = 3) -> tuple[MemoryFileSystem, str]:
        file_system = MemoryFileSystem()
        manager, _ = open_manager(file_system, CONFIG)
        log = manager.get_or_create(TP, None, CONFIG, T0)
        for number in range(count):
            append(log, b"%d" % number, b"%d" % number)
            log.roll(T0)
        append(log, b"last")
        close_cleanly(manager)
        file_system.kill_process()
        return file_system, f"{DIR}/t-0/"

    def loaded(self, file_system: MemoryFileSystem) -> list[tuple[int, bytes | None]]:
        manager, report = open_manager(file_system, CONFIG)
        assert not report.refused
        names = [info.name for info in file_system.list_dir(f"{DIR}/t-0")]
        assert not [name for name in names if name.endswith((".swap", ".cleaned", ".deleted"))]
        return values_in(manager.logs[TP])

    def test_deleted_and_cleaned_files_go(self) -> None:
        file_system, path = self.segments()
        expected = [(0, b"0"), (1, b"0"), (2, b"1"), (3, b"1"), (4, b"2"), (5, b"2"), (6, b"last")]
        for name in (
            "00000000000000000000.log.cleaned",
            "00000000000000000009.timeindex.deleted",
            f"{0:020d}.index.cleaned",
        ):
            file_system.write_file(path + name, b"whatever")
        assert self.loaded(file_system) == expected

    def test_swap_replaces_what_it_covers(self) -> None:
        file_system, path = self.segments()
        # Compaction merged the segments at 0 and 2 into one without their first records.
        from tests.storage.support import batches_at

        merged = batches_at((1, batch_of(b"kept")), (2, batch_of(b"x", b"1")))
        file_system.write_file(path + f"{0:020d}.log.swap", bytes(merged))
        file_system.write_file(path + f"{0:020d}.index.swap", b"")
        assert self.loaded(file_system) == [(1, b"kept"), (2, b"x"), (3, b"1"), (4, b"2"), (5, b"2"), (6, b"last")]

    def test_swap_of_an_unfinished_split(self) -> None:
        file_system, path = self.segments()
        file_system.write_file(path + f"{0:020d}.log.cleaned", b"")
        file_system.write_file(path + f"{0:020d}.log.swap", b"")
        assert len(self.loaded(file_system)) == 7

    def test_index_without_segment(self) -> None:
        file_system, path = self.segments()
        file_system.write_file(path + f"{99:020d}.index", b"12345678")
        assert len(self.loaded(file_system)) == 7
        assert not file_system.exists(path + f"{99:020d}.index")
