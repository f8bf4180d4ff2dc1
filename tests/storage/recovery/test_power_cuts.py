"""States that a power cut can restore or leave half done. The fault matrix found most of them."""

from __future__ import annotations

import errno

import pytest

from protocol.errors import ApiError, ErrorCode
from storage.directory.log_directories import CLEAN_SHUTDOWN_FILE, take_clean_shutdown, write_clean_shutdown
from storage.directory.meta_properties import write_meta_properties
from storage.log.producer_state import decode_snapshot
from storage.log_config import LogConfig
from tests.faults.matrix import chooser
from tests.kit.memory_file_system import Fault, MemoryFileSystem, PowerCut, SimulatedCrash
from tests.storage.relocation.moving import step
from tests.storage.support import DIR, T0, TOPIC_ID, TP, append, close_cleanly, new_log, open_manager, reopen, values_in

CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=90, file_delete_delay_ms=10)


def nothing(_count: int) -> int:
    return 0


def test_marker_whose_removal_was_not_fsynced_does_not_come_back() -> None:
    file_system = MemoryFileSystem()
    file_system.make_dirs(DIR)
    file_system.sync_dir("/")
    write_clean_shutdown(file_system, DIR, 1)
    file_system.remove(f"{DIR}/{CLEAN_SHUTDOWN_FILE}")  # and here the process died
    assert take_clean_shutdown(file_system, DIR) is None
    file_system.cut_power(PowerCut.LOSE, nothing)
    assert take_clean_shutdown(file_system, DIR) is None


def test_topic_id_is_written_whole_or_not_at_all() -> None:
    for fault in (Fault(crash_amid=True, written_bytes=20), Fault(errno.ENOSPC, written_bytes=20)):
        file_system = MemoryFileSystem()
        manager, _ = open_manager(file_system)

        def inject(operation: str, path: str, fault: Fault = fault) -> Fault | None:
            return fault if operation == "write_file" else None

        file_system.inject = inject
        with pytest.raises((SimulatedCrash, ApiError)):
            manager.get_or_create(TP, TOPIC_ID, CONFIG, T0)
        file_system.kill_process()
        manager, report = open_manager(file_system)
        assert not report.refused
        assert manager.get_or_create(TP, TOPIC_ID, CONFIG, T0).topic_id == TOPIC_ID


def test_snapshot_of_an_orderly_stop_is_on_disk() -> None:
    file_system = MemoryFileSystem()
    manager, _ = open_manager(file_system)
    log = manager.get_or_create(TP, TOPIC_ID, CONFIG, T0)
    append(log, b"x", producer_id=5, producer_epoch=0, base_sequence=0)
    close_cleanly(manager)
    file_system.cut_power(PowerCut.LOSE, nothing)
    path = f"{DIR}/t-0/{1:020d}.snapshot"
    assert decode_snapshot(path, file_system.read_file(path))[5].last_sequence == 0


def test_snapshot_above_the_recovery_point_is_not_believed() -> None:
    """A truncation removed it, a power cut restored it, and the log has reached its offset with other records."""
    file_system = MemoryFileSystem()
    log = new_log(CONFIG, file_system)
    append(log, b"x", producer_id=5, producer_epoch=0, base_sequence=0)
    append(log, b"x", producer_id=5, producer_epoch=0, base_sequence=1)
    log.roll(T0)
    path = f"{DIR}/t-0/{2:020d}.snapshot"
    snapshot = file_system.read_file(path)
    log.truncate_to(1, T0)
    append(log, b"x", producer_id=6, producer_epoch=0, base_sequence=0)
    file_system.write_file(path, snapshot)
    entries = reopen(file_system, CONFIG).producer_state.entries
    assert {producer: entry.batches[-1].last_offset for producer, entry in entries.items()} == {5: 0, 6: 1}


def test_epoch_whose_batches_never_came_does_not_stay() -> None:
    """The end was truncated and an epoch began there; a power cut undid the truncation and kept the epoch."""
    file_system = MemoryFileSystem()
    log = new_log(CONFIG, file_system)
    for value in (b"a", b"b", b"c"):
        append(log, value, epoch=1)
    file_system.write_file(f"{DIR}/t-0/leader-epoch-checkpoint", b"0\n2\n1 0\n3 2\n")
    assert reopen(file_system, CONFIG).leader_epochs.entries == [(1, 0)]


def test_error_in_looking_whether_to_roll_takes_the_directory_offline() -> None:
    file_system = MemoryFileSystem()
    append(new_log(CONFIG, file_system), b"x")
    log = reopen(file_system, CONFIG)
    assert log.producer_state.entries == {}
    file_system.faults_in_reads = True
    file_system.inject = lambda operation, path: Fault(errno.EIO) if operation == "pread" else None
    with pytest.raises(ApiError) as caught:
        append(log, b"y")
    assert caught.value.error_code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.directory.failure is not None


@pytest.mark.parametrize("is_lost", [False, True], ids=["process death", "power cut"])
def test_copy_that_took_the_place_of_a_log_is_safe_before_the_log_goes(is_lost: bool) -> None:
    file_system = MemoryFileSystem()
    manager, _ = open_manager(file_system, CONFIG, "/a", "/b")
    log = manager.get_or_create(TP, TOPIC_ID, CONFIG, T0)
    for value in (b"a", b"b", b"c"):
        append(log, value)
    log.flush(T0)
    manager.checkpoints.write_recovery_points()
    log.delete_records_before(2, 3)
    manager.checkpoints.write_log_start_offsets()
    manager.futures.create(log, manager.futures.directory_at("/b"), T0)
    step(manager)
    assert manager.futures.catch_up(log, T0)
    manager.replace_with_future(TP)
    # The process dies here; the next one finds two logs of one name, and dies soon, too.
    file_system.kill_process()
    assert list(open_manager(file_system, CONFIG, "/a", "/b")[0].logs) == [TP]
    if is_lost:
        file_system.cut_power(PowerCut.LOSE, nothing)
    else:
        file_system.kill_process()
    found = open_manager(file_system, CONFIG, "/a", "/b")[0].logs[TP]
    assert (found.log_start_offset, values_in(found)) == (2, [(2, b"c")])


@pytest.mark.parametrize("segment_bytes", [4096, 100], ids=["in its segment", "with the segments behind"])
def test_a_second_power_cut_does_not_bring_back_what_recovery_cut_off(segment_bytes: int) -> None:
    config = CONFIG.replace(segment_bytes=segment_bytes)
    for seed in range(40):
        file_system = MemoryFileSystem()
        log = open_manager(file_system, config)[0].get_or_create(TP, None, config, T0)
        for value in (b"a", b"b", b"c", b"d"):
            append(log, value)
        log.flush(T0)
        # The second batch is damaged, which the disk reports; the third and the fourth are intact.
        size = log.read(0, 1).size
        path = log.segments[0].path if segment_bytes > size * 2 else log.segments[1].path
        content = bytearray(file_system.read_file(path))
        content[-1 if segment_bytes < size * 2 else size * 2 - 1] ^= 1
        file_system.write_file(path, bytes(content))
        file_system.cut_power(PowerCut.TEAR, lambda count: count - 1)
        log = open_manager(file_system, config)[0].logs[TP]
        assert values_in(log) == [(0, b"a")]
        append(log, b"B")
        file_system.cut_power(PowerCut.REORDER, chooser(seed))
        log = open_manager(file_system, config)[0].logs[TP]
        assert values_in(log) in ([(0, b"a")], [(0, b"a"), (1, b"B")]), f"seed {seed}"


def test_indexes_of_a_segment_that_was_sealed_amid_a_flush_are_as_safe_as_its_records() -> None:
    file_system = MemoryFileSystem()
    manager = open_manager(file_system, CONFIG)[0]
    log = manager.get_or_create(TP, None, CONFIG, T0)
    for value in (b"a", b"b", b"c"):
        append(log, value)
    task = log.prepare_flush(T0)
    log.roll(T0)
    task.run()
    task.complete()
    manager.checkpoints.write_recovery_points()
    sealed = log.segments[0].files.path_of(".timeindex")
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
            file_system.cut_power(mode, chooser(at))
            names = [info.name for info in file_system.list_dir(DIR)]
            assert not done or "meta.properties" in names
            if "meta.properties" in names:
                assert file_system.read_file(f"{DIR}/meta.properties").endswith(b"cluster.id=cluster\n")
