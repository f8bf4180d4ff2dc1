"""Transactions for a log, and the aborted transactions that readers get."""

from __future__ import annotations

from protocol.records.control_records import ControlRecordType, EndTxnMarker, build_end_txn_marker
from storage.log.log_reader import AbortedTransactions
from storage.log.log_validator import AppendOrigin
from storage.log.unified_log import UnifiedLog
from storage.log_config import LogConfig
from storage.segment.transaction_index import AbortedTxn, decode_aborted
from tests.kit.memory_file_system import MemoryFileSystem
from tests.storage.support import (
    DIR,
    T0,
    TOPIC_ID,
    TP,
    append,
    batch_of,
    open_manager,
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
        """Write transactions of every kind over some segments; returns the aborted ones."""
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
    """The aborted transactions that a reader gets, from memory once they were read."""
    aborted = AbortedTransactions()
    if not aborted.are_loaded(log):
        aborted.load(log)
    assert aborted.are_loaded(log)
    return list(aborted.between(log, start, log.log_end_offset if end is None else end))


def whole(log: UnifiedLog) -> list[AbortedTxn]:
    """The aborted transactions of the whole log, read segment by segment."""
    found = {each: None for segment in log.segments for each in told(log, segment.base_offset)}
    return sorted(found, key=lambda each: each.last_offset)
