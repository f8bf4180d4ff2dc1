"""Transactions in a log: what read_committed readers are told, from the append of a marker on, and after every end."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Sequence

import pytest

from protocol.records.batch import Record, build_batch
from protocol.records.control_records import ControlRecordType, EndTxnMarker, build_end_txn_marker
from storage.log.aborted_transactions import AbortedTransactions
from storage.log.producer_state import AppendOrigin
from storage.log.unified_log import UnifiedLog
from storage.log_config import LogConfig
from storage.segment.transaction_index import AbortedTxn, decode_aborted, encode_aborted
from tests.faults.matrix import chooser
from tests.kit.memory_file_system import Fault, MemoryFileSystem, PowerCut, SimulatedCrash
from tests.storage.support import (
    DIR,
    T0,
    TOPIC_ID,
    TP,
    append,
    batch_of,
    close_cleanly,
    flush_dirty,
    open_manager,
    read_all,
    reopen,
)

CONFIG = LogConfig(segment_bytes=1000)
ONE, TWO = 101, 102


class Writer:
    """Writes transactions of several producers into a log."""

    def __init__(self, log: UnifiedLog) -> None:
        self.log = log
        self._sequences: dict[int, int] = {}

    def send(self, producer_id: int, value: bytes = b"v" * 60) -> int:
        sequence = self._sequences.get(producer_id, 0)
        self._sequences[producer_id] = sequence + 1
        data = batch_of(value, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, is_transactional=True)
        return self.append(data)

    def end(self, producer_id: int, kind: ControlRecordType) -> int:
        marker = build_end_txn_marker(EndTxnMarker(kind, 0), timestamp=T0, producer_id=producer_id, producer_epoch=0)
        return self.append(memoryview(bytearray(marker)))

    def abort(self, producer_id: int) -> int:
        return self.end(producer_id, ControlRecordType.ABORT)

    def commit(self, producer_id: int) -> int:
        return self.end(producer_id, ControlRecordType.COMMIT)

    def append(self, data: memoryview) -> int:
        origin = AppendOrigin.COORDINATOR
        return self.log.append_as_leader(data, leader_epoch=1, now_ms=T0, origin=origin).last_offset

    def write_all(self) -> list[AbortedTxn]:
        """Transactions of every kind over some segments; gives those that were aborted."""
        self.send(ONE)
        two = self.send(TWO)
        self.commit(ONE)
        one = self.send(ONE)
        aborted = [AbortedTxn(TWO, two, self.abort(TWO), one)]
        for _ in range(20):
            append(self.log, b"plain" * 10, epoch=1)
        self.send(ONE)
        marker = self.abort(ONE)
        aborted.append(AbortedTxn(ONE, one, marker, marker + 1))
        self.abort(ONE)  # of nothing
        for _ in range(5):
            first = self.send(TWO)
            marker = self.abort(TWO)
            aborted.append(AbortedTxn(TWO, first, marker, marker + 1))
        self.send(ONE)
        self.send(TWO)
        self.commit(TWO)
        return aborted


def new_log(config: LogConfig = CONFIG) -> tuple[MemoryFileSystem, UnifiedLog]:
    file_system = MemoryFileSystem()
    manager, _ = open_manager(file_system, config)
    return file_system, manager.get_or_create(TP, TOPIC_ID, config, T0)


def files(file_system: MemoryFileSystem) -> dict[str, bytes]:
    """The transaction indexes."""
    path = f"{DIR}/{TP}"
    names = sorted(info.name for info in file_system.list_dir(path) if info.name.endswith(".txnindex"))
    return {name: file_system.read_file(f"{path}/{name}") for name in names}


def on_disk(file_system: MemoryFileSystem) -> list[AbortedTxn]:
    return [each for name, data in files(file_system).items() for each in decode_aborted(name, data)]


def told(log: UnifiedLog, start: int = 0, end: int | None = None) -> list[AbortedTxn]:
    """The aborted transactions that a reader is told, from memory once they were read."""
    aborted = AbortedTransactions()
    if not aborted.are_known(log):
        aborted.learn(log)
    assert aborted.are_known(log)
    return list(aborted.between(log, start, log.log_end_offset if end is None else end))


def whole(log: UnifiedLog) -> list[AbortedTxn]:
    """The aborted transactions of the whole log, read segment by segment."""
    found = {each: None for segment in log.segments for each in told(log, segment.base_offset)}
    return sorted(found, key=lambda each: each.last_offset)


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
    assert known.are_known(log), "nothing has to be read of a segment that this process began"
    assert [each.producer_id for each in known.between(log, 0, 2)] == [ONE]
    close_cleanly(manager)
    log = reopen(file_system)
    writer = Writer(log)
    known = AbortedTransactions()
    assert not known.are_known(log)
    known.learn(log)
    writer.send(TWO)
    writer.abort(TWO)
    assert known.are_known(log)
    assert [each.producer_id for each in known.between(log, 0, 4)] == [ONE, TWO]
    log.roll(T0)
    writer.send(ONE)
    writer.abort(ONE)
    assert known.are_known(log)
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


DAMAGES = {
    "sound": lambda data: data,
    "missing": lambda _data: None,
    "an entry short": lambda data: data[:-34],
    "torn": lambda data: data[:-5],
    "an entry too long": lambda data: data + encode_aborted([AbortedTxn(7, 8, 9, 10)]),
    "changed": lambda data: data[:12] + b"\x7f" + data[13:],
    "of another version": lambda data: b"\x00\x05" + data[2:],
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("segment_bytes", [1000, 100_000])
def test_recovery_makes_the_index_again(damage: str, flushed: bool, segment_bytes: int) -> None:
    config = LogConfig(segment_bytes=segment_bytes)
    file_system, log = new_log(config)
    aborted = Writer(log).write_all()
    before = files(file_system)
    if flushed:
        log.flush(T0)
    for name, data in before.items():
        changed = DAMAGES[damage](data)
        if changed is None:
            file_system.remove(f"{DIR}/{TP}/{name}")
        else:
            file_system.write_file(f"{DIR}/{TP}/{name}", changed)
    log = reopen(file_system, config)
    assert files(file_system) == before
    assert whole(log) == aborted
    assert log.last_stable_offset(log.log_end_offset) == log.log_end_offset - 3, "one is still open"


def test_index_that_ends_within_an_entry_is_made_again_after_an_orderly_stop() -> None:
    file_system = MemoryFileSystem()
    manager, _ = open_manager(file_system, CONFIG)
    log = manager.get_or_create(TP, TOPIC_ID, CONFIG, T0)
    aborted = Writer(log).write_all()
    close_cleanly(manager)
    before = files(file_system)
    assert len(before) > 1
    for name, data in before.items():
        file_system.write_file(f"{DIR}/{TP}/{name}", data[:-7])
    log = reopen(file_system, CONFIG)
    assert files(file_system) == before
    assert whole(log) == aborted


@pytest.mark.parametrize("written_bytes", [0, 34, 40])
def test_a_start_may_die_while_it_makes_indexes_again(written_bytes: int) -> None:
    """The next one finds the index torn still, or made again: never one that only looks sound."""
    for calls in range(1000):
        file_system = MemoryFileSystem()
        manager, _ = open_manager(file_system, CONFIG)
        log = manager.get_or_create(TP, TOPIC_ID, CONFIG, T0)
        aborted = Writer(log).write_all()
        close_cleanly(manager)
        for name, data in files(file_system).items():
            file_system.write_file(f"{DIR}/{TP}/{name}", data[:-7])
        file_system.kill_process()
        left = itertools.count(-calls)
        file_system.inject = lambda _operation, _path, left=left: (  # type: ignore[misc]
            Fault(crash_amid=True, written_bytes=written_bytes) if next(left) == 0 else None
        )
        try:
            open_manager(file_system, CONFIG)
        except SimulatedCrash:
            log = reopen(file_system, CONFIG)
            assert whole(log) == aborted, f"it died in call {calls}"
        else:
            assert calls > 10
            return
    raise AssertionError("a start makes fewer calls")


def test_index_of_records_that_are_gone_is_removed() -> None:
    file_system, log = new_log(LogConfig())
    Writer(log).write_all()
    file_system.write_file(log.segments[0].path, b"")
    log = reopen(file_system)
    assert (log.log_end_offset, files(file_system), whole(log)) == (0, {}, [])


@pytest.mark.parametrize("mode", PowerCut)
def test_no_power_cut_hides_an_aborted_transaction(mode: PowerCut) -> None:
    for seed in range(30):
        file_system = MemoryFileSystem()
        manager, _ = open_manager(file_system, CONFIG)
        log = manager.get_or_create(TP, TOPIC_ID, CONFIG, T0)
        writer = Writer(log)
        aborted = writer.write_all()
        flush_dirty(manager, T0)
        manager.checkpoints.write_recovery_points()
        for _ in range(seed % 4):
            first = writer.send(TWO)
            marker = writer.abort(TWO)
            aborted.append(AbortedTxn(TWO, first, marker, log.last_stable_offset(10**9)))
            if seed % 3 == 0:
                log.flush(T0)
                manager.checkpoints.write_recovery_points()
        file_system.cut_power(mode, chooser(seed))
        log = reopen(file_system, CONFIG)
        expected = [each[:3] for each in aborted if each.last_offset < log.log_end_offset]
        assert [each[:3] for each in whole(log)] == expected, f"seed {seed}"
        assert [each[:3] for each in on_disk(file_system)] == expected, f"seed {seed}"


def test_no_power_cut_hides_what_a_process_that_was_killed_has_aborted() -> None:
    """The next process found it in the page cache, and the log was flushed far beyond."""
    file_system, log = new_log()
    aborted = Writer(log).write_all()
    file_system.kill_process()
    manager, _ = open_manager(file_system, CONFIG)
    for _ in range(20):
        append(manager.logs[TP], b"plain" * 10, epoch=1)
    manager.logs[TP].flush(T0)
    manager.checkpoints.write_recovery_points()
    file_system.cut_power(PowerCut.LOSE, chooser(1))
    assert whole(reopen(file_system, CONFIG)) == aborted


@pytest.mark.parametrize("mode", PowerCut)
def test_no_power_cut_hides_what_was_aborted_before_the_end_was_cut_off(mode: PowerCut) -> None:
    """The segment that was cut has a new object, which has to fsync what the one before it wrote."""
    last_offset = Writer(new_log()[1]).write_all()[-1].last_offset
    for cut_at in range(last_offset + 4):
        file_system = MemoryFileSystem()
        manager, _ = open_manager(file_system, CONFIG)
        log = manager.get_or_create(TP, TOPIC_ID, CONFIG, T0)
        aborted = Writer(log).write_all()
        log.truncate_to(cut_at, T0)
        left = [each for each in aborted if each.last_offset < log.log_end_offset]
        for _ in ("beyond", "once more, as the first of them removes the note of the cut"):
            for _ in range(20):
                append(log, b"plain" * 10, epoch=1)
            log.flush(T0)
        manager.checkpoints.write_recovery_points()
        file_system.cut_power(mode, chooser(cut_at))
        assert whole(reopen(file_system, CONFIG)) == left, f"cut off at {cut_at}"


@pytest.mark.parametrize("segment_bytes", [1000, 100_000])
def test_what_is_cut_off_was_not_aborted(segment_bytes: int) -> None:
    config = LogConfig(segment_bytes=segment_bytes)
    aborted: Sequence[AbortedTxn] = Writer(new_log(config)[1]).write_all()
    for cut_at in range(aborted[-1].last_offset + 4):
        file_system, log = new_log(config)
        Writer(log).write_all()
        told(log)
        log.truncate_to(cut_at, T0)
        left = [each for each in aborted if each.last_offset < log.log_end_offset]
        assert on_disk(file_system) == whole(log) == left
        ended = {each.first_offset for each in left}
        open_since = [each.first_offset for each in aborted if each.first_offset < log.log_end_offset]
        unstable = min((offset for offset in open_since if offset not in ended), default=None)
        if unstable is not None:
            assert log.last_stable_offset(log.log_end_offset) <= unstable
        log = reopen(file_system, config)
        assert on_disk(file_system) == whole(log) == left


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
