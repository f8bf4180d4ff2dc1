"""Which writes are refused, and which continue, once only the reserve is left; and how clients may write again."""

from __future__ import annotations

import errno

import pytest

from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from storage.directory.disk_reserve import DiskReserveError
from storage.directory.log_directory import NO_LIMIT
from storage.log.log_validator import AppendOrigin
from storage.log.unified_log import UnifiedLog
from storage.log_config import LogConfig
from storage.log_manager import LogManager
from tests.kit.memory_file_system import Fault, MemoryFileSystem
from tests.storage.support import T0, TP, append, batch_of, batches_at, delete_expired, open_manager, values_in

MB = 1 << 20
RESERVE = 4 * MB
CONFIG = LogConfig(segment_bytes=MB, file_delete_delay_ms=0)


class LogsOnSmallDisk:
    """Logs on a small disk with a reserve."""

    def __init__(self, capacity_bytes: int = 10 * MB, reserve_bytes: int = RESERVE, *directories: str) -> None:
        self.disk = MemoryFileSystem()
        self.disk.capacity_bytes = capacity_bytes
        self.manager: LogManager = open_manager(self.disk, CONFIG, *(directories or ("/a",)))[0]
        self.said: list[tuple[str, bool]] = []
        self.manager.directories.keep_reserve(
            reserve_bytes, lambda each: self.said.append((each.path, each.is_reserve_reached))
        )
        self.check()

    def check(self) -> None:
        for task in self.manager.directories.space_tasks():
            task.run()
            task.complete()

    def log(self, topic_partition: TopicPartition = TP) -> UnifiedLog:
        return self.manager.get_or_create(topic_partition, None, CONFIG, T0)

    def fill(self, log: UnifiedLog) -> int:
        """Append until it is refused; returns how many batches were accepted."""
        for count in range(10_000):
            try:
                append(log, b"x" * 100_000)
            except DiskReserveError:
                return count
        raise AssertionError("it was never refused")


@pytest.mark.parametrize(("capacity_bytes", "kept"), [(10 * MB, MB), (64 * MB, 64 * MB // 10), (900 * MB, 64 * MB)])
def test_without_a_number_a_small_disk_keeps_a_tenth(capacity_bytes: int, kept: int) -> None:
    small = LogsOnSmallDisk(capacity_bytes, -1)
    assert f"log.dir.reserve.bytes={kept} are kept free" in small.manager.directories[0].reserve.describe()
    append(small.log(), b"there is room")


def test_a_fast_producer_does_not_run_through_the_reserve_between_two_checks() -> None:
    small = LogsOnSmallDisk()
    log = small.log()
    count = small.fill(log)
    assert 50 < count < 65
    assert small.disk.disk_space("/a")[1] > RESERVE - 200_000
    assert values_in(log, count - 1) == [(count - 1, b"x" * 100_000)]
    with pytest.raises(
        DiskReserveError, match=r"Log directory /a has .* log\.dir\.reserve\.bytes=4194304 are"
    ) as caught:
        append(log, b"x" * 100_000)
    assert caught.value.error_code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.directory.failure is None


def test_the_reserve_is_for_everybody_else() -> None:
    small = LogsOnSmallDisk()
    log = small.log()
    small.fill(log)
    assert log.directory.is_reserve_reached
    end = log.log_end_offset
    log.append_as_leader(batch_of(b"a group's"), leader_epoch=0, now_ms=T0, origin=AppendOrigin.COORDINATOR)
    log.append_as_follower(batches_at((end + 1, batch_of(b"replicated"))), now_ms=T0)
    log.flush(T0)
    small.manager.checkpoints.write_recovery_points()
    assert [value for _, value in values_in(log, end)] == [b"a group's", b"replicated"]


def test_what_is_stored_is_acknowledged_again_when_there_is_no_room() -> None:
    """A producer whose answer was lost resends the batch; if it is refused, librdkafka may store it twice. It bumps its
    epoch for each flight with a batch that was answered OUT_OF_ORDER_SEQUENCE_NUMBER.
    """
    small = LogsOnSmallDisk()
    log = small.log()

    def send(sequence: int, value: bytes) -> bool:
        batch = batch_of(value, producer_id=7, producer_epoch=0, base_sequence=sequence)
        return log.append_as_leader(batch, leader_epoch=0, now_ms=T0).duplicate

    assert not send(0, b"stored")
    small.fill(log)
    for sequence in (1, 2, 3):
        with pytest.raises(DiskReserveError):
            send(sequence, b"x" * 100_000)
    assert send(0, b"stored")


def test_it_heals_when_space_returns_and_not_at_the_edge() -> None:
    small = LogsOnSmallDisk()
    log = small.log()
    small.fill(log)
    assert small.said == [("/a", True)]
    small.check()
    with pytest.raises(DiskReserveError):
        append(log, b"x")
    log.delete_records_before(log.log_end_offset - 5, log.log_end_offset)
    log.delete_old_segments()
    delete_expired(small.manager, T0)
    small.check()
    append(log, b"again")
    assert small.said == [("/a", True), ("/a", False)]
    assert log.directory.headroom_bytes < NO_LIMIT


def test_others_fill_the_disk() -> None:
    small = LogsOnSmallDisk()
    log = small.log()
    append(log, b"before")
    small.disk.write_file("/other", bytes(8 * MB))
    small.check()
    with pytest.raises(DiskReserveError):
        append(log, b"after")
    small.disk.remove("/other")
    small.check()
    append(log, b"after")


def test_several_directories_on_one_disk_share_what_is_left() -> None:
    small = LogsOnSmallDisk(30 * MB, RESERVE, "/a", "/b", "/c")
    logs = [small.log(TopicPartition("t", number)) for number in range(3)]
    assert sorted(log.directory.path for log in logs) == ["/a", "/b", "/c"]
    refused = 0
    while refused < 3:
        refused = 0
        for log in logs:
            try:
                append(log, b"x" * 100_000)
            except DiskReserveError:
                refused += 1
    left = small.disk.disk_space("/a")[1]
    assert RESERVE - 3 * MB < left < RESERVE + MB


def test_new_logs_go_where_there_is_room() -> None:
    small = LogsOnSmallDisk(10 * MB, RESERVE, "/a", "/b")
    small.manager.directories[0].is_reserve_reached = True
    for number in range(3):
        assert small.log(TopicPartition("t", number)).directory.path == "/b"


def test_without_a_reserve_the_disk_may_be_filled() -> None:
    small = LogsOnSmallDisk(MB, 0)
    log = small.log()
    for _ in range(10):
        append(log, b"x" * 100_000)
    with pytest.raises(ApiError) as caught:
        append(log, b"x" * 100_000)
    assert not isinstance(caught.value, DiskReserveError)
    assert log.directory.failure is None
    assert small.said == []
    small.check()
    assert log.directory.usable_bytes < 200_000


def test_a_disk_that_does_not_answer_is_offline() -> None:
    small = LogsOnSmallDisk()
    log = small.log()
    small.disk.faults_in_reads = True
    small.disk.inject = lambda operation, _path: Fault(errno.EIO) if operation == "disk_space" else None
    small.check()
    assert "Error while asking for the space in /a" in (log.directory.failure or "")


def test_what_is_appended_while_the_disk_is_asked_counts() -> None:
    small = LogsOnSmallDisk()
    log = small.log()
    (task,) = small.manager.directories.space_tasks()
    task.run()
    for _ in range(50):
        append(log, b"x" * 100_000)
    task.complete()
    assert log.directory.headroom_bytes < 6 * MB - 50 * 100_000 + 100_000


def names_in(small: LogsOnSmallDisk, path: str) -> list[str]:
    return sorted(info.name for info in small.disk.list_dir(path))


@pytest.mark.parametrize("renames", range(4))
def test_what_is_deleted_goes_at_once_when_there_is_no_room_for_another_name(renames: int) -> None:
    small = LogsOnSmallDisk(1000 * MB, 0)
    log = small.log()
    for number in range(12):
        append(log, b"%d" % number + b"x" * 300_000, producer_id=1, producer_epoch=0, base_sequence=number)
    first = [segment.base_offset for segment in log.segments[:2]]
    log.delete_records_before(log.segments[2].base_offset, log.log_end_offset)
    count = 0

    def inject(operation: str, _path: str) -> Fault | None:
        nonlocal count
        count += operation == "rename"
        return Fault(errno.ENOSPC) if operation == "rename" and count > renames else None

    small.disk.inject = inject
    assert len(log.delete_old_segments()) == 2
    small.disk.inject = lambda _operation, _path: None
    assert log.directory.failure is None
    delete_expired(small.manager, T0)
    delete_expired(small.manager, T0)
    assert not [name for name in names_in(small, log.path) if name[:20].isdigit() and int(name[:20]) in first]
    start = log.log_start_offset
    assert [offset for offset, _ in values_in(log)] == list(range(start, 12))
    small.disk.kill_process()
    again = open_manager(small.disk, CONFIG, "/a")[0].logs[TP]
    assert [offset for offset, _ in values_in(again)][-1] == 11


def test_a_partition_is_deleted_at_once_when_there_is_no_room_for_another_name() -> None:
    small = LogsOnSmallDisk(1000 * MB, 0)
    append(small.log(), b"x")
    small.disk.inject = lambda operation, _path: Fault(errno.ENOSPC) if operation == "rename" else None
    small.manager.delete(TP, T0)
    small.disk.inject = lambda _operation, _path: None
    assert small.manager.directories[0].failure is None
    assert not [name for name in names_in(small, "/a") if name.startswith("t-0")]
    delete_expired(small.manager, T0)
    delete_expired(small.manager, T0)
    assert small.manager.directories[0].failure is None
    assert values_in(small.log()) == []
