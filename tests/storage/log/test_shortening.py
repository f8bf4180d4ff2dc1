"""Deleting records, truncating, and the leader epochs that determine the truncation offset."""

from __future__ import annotations

import pytest

from protocol.errors import ApiError, ErrorCode
from storage.log.leader_epoch import EpochEntry
from storage.log_config import LogConfig
from tests.kit.memory_file_system import Fault, MemoryFileSystem, SimulatedCrash
from tests.storage.support import (
    DIR,
    T0,
    TP,
    append,
    batch_of,
    delete_expired,
    new_log,
    open_manager,
    reopen,
    values_in,
)


class TestEpochs:
    def test_end_offsets(self) -> None:
        log = new_log()
        log.assign_epoch_start_offset(1)
        append(log, b"a", epoch=1)
        log.assign_epoch_start_offset(4)
        append(log, b"b", b"c", epoch=4)
        assert log.end_offset_for_epoch(1) == EpochEntry(1, 1)
        assert log.end_offset_for_epoch(3) == EpochEntry(1, 1)
        assert log.end_offset_for_epoch(4) == EpochEntry(4, 3)
        assert log.end_offset_for_epoch(5) == EpochEntry(-1, -1)
        assert log.end_offset_for_epoch(0) == EpochEntry(0, 0)
        assert log.latest_epoch() == 4

    def test_in_the_file_before_the_first_record(self) -> None:
        file_system = MemoryFileSystem()
        log = new_log(file_system=file_system)
        log.assign_epoch_start_offset(6)
        file_system.inject = lambda operation, path: (
            Fault(crash_before=True) if operation == "append" and path.endswith(".log") else None
        )
        with pytest.raises(SimulatedCrash):
            append(log, b"a", epoch=6)
        assert file_system.read_file(f"{DIR}/t-0/leader-epoch-checkpoint") == b"0\n1\n6 0\n"

    def test_rebuilt_from_batches(self) -> None:
        file_system = MemoryFileSystem()
        log = new_log(file_system=file_system)
        for epoch in (2, 2, 5, 8):
            append(log, b"a", epoch=epoch)
        for content in (b"", b"garbage", b"0\n3\n2 0\n"):
            file_system.write_file(f"{DIR}/t-0/leader-epoch-checkpoint", content)
            log = reopen(file_system)
            assert log.leader_epochs.entries == [EpochEntry(2, 0), EpochEntry(5, 2), EpochEntry(8, 3)]


class TestShortening:
    def filled(self, count: int = 20) -> tuple[object, MemoryFileSystem]:
        file_system = MemoryFileSystem()
        size = len(batch_of(b"00"))
        log = new_log(LogConfig(segment_bytes=4 * size, index_interval_bytes=1), file_system)
        for number in range(count):
            append(log, b"%02d" % number, epoch=number // 5)
        return log, file_system

    def test_delete_records(self) -> None:
        log, file_system = self.filled()
        assert log.delete_records_before(9, 20) == 9
        assert values_in(log)[0] == (9, b"09")
        assert [segment.base_offset for segment in log.delete_old_segments(1)] == [0]
        assert [segment.base_offset for segment in log.delete_old_segments()] == [4]
        assert log.delete_old_segments() == []
        assert [segment.base_offset for segment in log.segments] == [8, 12, 16]
        assert values_in(log)[0] == (9, b"09")
        assert log.earliest().offset == 9
        assert log.leader_epochs.entries[0] == EpochEntry(1, 9)
        with pytest.raises(ApiError):
            log.read(8, 100)
        assert log.delete_records_before(3, 20) == 9
        for offset in (21, -1):
            with pytest.raises(ApiError) as caught:
                log.delete_records_before(offset, 20)
            assert caught.value.error_code is ErrorCode.OFFSET_OUT_OF_RANGE
        names = {info.name for info in file_system.list_dir(log.path)}
        assert "00000000000000000000.log.deleted" in names
        assert "00000000000000000000.log" not in names

    def test_delete_all_records(self) -> None:
        log, _ = self.filled()
        assert log.delete_records_before(20, 20) == 20
        assert values_in(log) == []
        append(log, b"x")
        assert values_in(log) == [(20, b"x")]

    def test_log_start_survives_a_restart_by_its_checkpoint(self) -> None:
        file_system = MemoryFileSystem()
        manager, _ = open_manager(file_system)
        log = manager.get_or_create(TP, None, LogConfig(), T0)
        append(log, b"a", b"b", b"c")
        log.delete_records_before(2, 3)
        manager.checkpoints.write_log_start_offsets()
        assert file_system.read_file(f"{DIR}/log-start-offset-checkpoint") == b"0\n1\nt 0 2\n"
        assert reopen(file_system).log_start_offset == 2

    def test_files_are_removed_after_the_delay(self) -> None:
        file_system = MemoryFileSystem()
        manager, _ = open_manager(file_system, LogConfig(segment_bytes=100, file_delete_delay_ms=500))
        log = manager.get_or_create(TP, None, manager.default_config, T0)
        for _ in range(3):
            append(log, b"a" * 10)
        reader = log.read(0, 1000)
        log.delete_records_before(2, 3)
        log.delete_old_segments()
        assert reader.file is not None
        assert len(reader.file.pread(reader.position, reader.size)) == reader.size
        assert delete_expired(manager, T0) == 1
        assert delete_expired(manager, T0 + 499) == 1
        assert delete_expired(manager, T0 + 500) == 0
        assert not [info for info in file_system.list_dir(log.path) if info.name.endswith(".deleted")]

    @pytest.mark.parametrize("offset", range(21))
    def test_truncate(self, offset: int) -> None:
        log, file_system = self.filled()
        log.flush(T0)
        assert log.truncate_to(offset, T0) == (offset < 20)
        assert log.log_end_offset == offset
        assert log.recovery_point <= offset
        assert values_in(log) == [(at, b"%02d" % at) for at in range(offset)]
        assert log.leader_epochs.entries == [EpochEntry(at // 5, at) for at in range(0, offset, 5)]
        append(log, b"new", epoch=9)
        assert values_in(log)[-1] == (offset, b"new")
        again = reopen(file_system)
        assert values_in(again) == values_in(log)

    def test_truncate_in_the_middle_of_a_batch(self) -> None:
        log = new_log()
        append(log, b"a", b"b")
        append(log, b"c", b"d")
        log.truncate_to(3, T0)
        assert values_in(log) == [(0, b"a"), (1, b"b")]

    def test_truncate_forgets_producers(self) -> None:
        log = new_log()
        for number in range(4):
            append(log, b"a", producer_id=3, producer_epoch=0, base_sequence=number)
        log.truncate_to(2, T0)
        info = append(log, b"a", producer_id=3, producer_epoch=0, base_sequence=2)
        assert (info.first_offset, info.duplicate) == (2, False)

    def test_flush_that_began_before_a_truncation_proves_nothing(self) -> None:
        log, _ = self.filled()
        task = log.prepare_flush(T0)
        task.run()
        log.truncate_to(5, T0)
        task.complete()
        assert log.recovery_point == 0

    def test_truncate_fully(self) -> None:
        log, file_system = self.filled()
        log.prepare_full_truncation(100, T0).finish()
        assert (log.log_start_offset, log.log_end_offset, values_in(log)) == (100, 100, [])
        append(log, b"x")
        assert values_in(reopen(file_system)) == [(100, b"x")]
