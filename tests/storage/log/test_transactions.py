"""Transactions in a log: what read_committed readers get, from the append of a marker on, and after every kind of
shutdown.
"""

from __future__ import annotations

import errno

import pytest

from protocol.records.batch import Record, build_batch
from protocol.records.control_records import ControlRecordType
from storage.log.log_reader import AbortedTransactions
from storage.log_config import LogConfig
from storage.segment.transaction_index import AbortedTxn
from tests.kit.memory_file_system import Fault, MemoryFileSystem
from tests.storage.log.aborting import ONE, TWO, Writer, files, new_log, on_disk, told, whole
from tests.storage.support import (
    T0,
    TOPIC_ID,
    TP,
    append,
    close_cleanly,
    open_manager,
    read_all,
    reopen,
)


def test_each_segment_has_the_transactions_whose_markers_it_has() -> None:
    file_system, log = new_log()
    aborted = Writer(log).write_all()
    assert len(log.segments) > 3
    assert on_disk(file_system) == aborted
    assert whole(log) == aborted
    for segment, following in zip(log.segments, [*log.segments[1:], None], strict=True):
        end = log.log_end_offset if following is None else following.base_offset
        mine = [each for each in aborted if segment.base_offset <= each.last_offset < end]
        assert list(segment.files.aborted_transactions()) == mine
    assert sum(1 for segment in log.segments if not list(segment.files.aborted_transactions())) == len(
        log.segments
    ) - len(files(file_system))


def test_what_is_aborted_after_a_read_is_known_to_the_next_one() -> None:
    file_system = MemoryFileSystem()
    manager, _ = open_manager(file_system)
    log = manager.get_or_create(TP, TOPIC_ID, LogConfig(), T0)
    writer = Writer(log)
    writer.send(ONE)
    writer.abort(ONE)
    known = AbortedTransactions()
    assert known.are_loaded(log), "nothing has to be read of a segment that this process began"
    assert [each.producer_id for each in known.between(log, 0, 2)] == [ONE]
    close_cleanly(manager)
    log = reopen(file_system)
    writer = Writer(log)
    known = AbortedTransactions()
    assert not known.are_loaded(log)
    known.load(log)
    writer.send(TWO)
    writer.abort(TWO)
    assert known.are_loaded(log)
    assert [each.producer_id for each in known.between(log, 0, 4)] == [ONE, TWO]
    log.roll(T0)
    writer.send(ONE)
    writer.abort(ONE)
    assert known.are_loaded(log)
    assert [each.first_offset for each in known.between(log, 4, 6)] == [4]
    assert on_disk(file_system) == whole(log)


@pytest.mark.parametrize("after", [False, True])
def test_a_thread_that_reads_while_a_transaction_is_aborted_misses_nothing(after: bool) -> None:
    file_system = MemoryFileSystem()
    manager, _ = open_manager(file_system)
    log = manager.get_or_create(TP, TOPIC_ID, LogConfig(), T0)
    writer = Writer(log)
    writer.send(ONE)
    writer.abort(ONE)
    close_cleanly(manager)
    log = reopen(file_system)
    writer = Writer(log)
    writer.send(TWO)
    read_file = file_system.read_file

    def interrupted(path: str) -> bytes:
        file_system.read_file = read_file  # type: ignore[method-assign]
        if not after:
            writer.abort(TWO)
        data = read_file(path)
        if after:
            writer.abort(TWO)
        return data

    file_system.read_file = interrupted  # type: ignore[method-assign]
    for _ in range(2):
        assert [each.producer_id for each in log.segments[0].files.transactions.entries()] == [ONE, TWO]


@pytest.mark.parametrize("kind", [ControlRecordType.COMMIT, ControlRecordType.ABORT])
def test_a_transaction_ends_when_its_marker_is_below_the_high_watermark(kind: ControlRecordType) -> None:
    _, log = new_log()
    writer = Writer(log)
    append(log, b"plain")
    assert log.last_stable_offset(1) == 1
    writer.send(ONE)
    assert log.last_stable_offset(1) == 1
    assert log.last_stable_offset(2) == 1
    assert writer.end(ONE, kind) == 2
    assert log.last_stable_offset(2) == 1
    writer.send(ONE)
    assert log.last_stable_offset(2) == 1, "a marker that may still be lost ends nothing"
    assert log.last_stable_offset(3) == 3
    assert log.last_stable_offset(4) == 3
    writer.commit(ONE)
    log.on_high_watermark(5)
    assert log.last_stable_offset(5) == 5


def test_last_stable_offset_is_not_below_the_log_start() -> None:
    _, log = new_log()
    writer = Writer(log)
    writer.send(ONE)
    append(log, b"plain")
    log.delete_records_before(2, 2)
    assert log.last_stable_offset(2) == 2
    append(log, b"plain")
    assert log.last_stable_offset(3) == 2


def test_a_follower_writes_what_its_leader_wrote() -> None:
    file_system, leader = new_log()
    Writer(leader).write_all()
    copied_to, follower = new_log()
    for batch in read_all(leader):
        follower.append_as_follower(memoryview(bytes(batch.buffer)), now_ms=T0, leader_epoch=1)
    assert files(copied_to) == files(file_system)
    assert follower.last_stable_offset(follower.log_end_offset) == leader.last_stable_offset(leader.log_end_offset)
    copied_to, follower = new_log(LogConfig())
    follower.append_as_follower(memoryview(b"".join(bytes(batch.buffer) for batch in read_all(leader))), now_ms=T0)
    assert on_disk(copied_to) == on_disk(file_system)


def test_a_full_disk_keeps_no_transaction_from_readers() -> None:
    file_system, log = new_log()
    writer = Writer(log)
    first = writer.send(ONE)
    file_system.inject = lambda _operation, path: Fault(errno=errno.ENOSPC) if path.endswith("txnindex") else None
    entry = AbortedTxn(ONE, first, writer.abort(ONE), 2)
    assert told(log) == [entry]
    assert files(file_system).get(f"{0:020d}.txnindex", b"") == b""
    file_system.inject = lambda _operation, _path: None
    log.roll(T0)
    log.flush(T0)
    assert on_disk(file_system) == told(log) == [entry]


def test_a_marker_that_says_nothing_aborts_nothing() -> None:
    file_system, log = new_log()
    writer = Writer(log)
    writer.send(ONE)
    odd = [Record(0, T0, b"?", b"")]
    writer.append(
        memoryview(
            bytearray(build_batch(odd, producer_id=ONE, producer_epoch=0, is_transactional=True, is_control=True))
        )
    )
    assert told(log) == []
    assert files(file_system) == {}
