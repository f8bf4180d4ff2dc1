"""Committed batches are distinguished from others, and replicas that miss aborted transactions are detected."""

from __future__ import annotations

from protocol.records.control_records import ControlRecordType, EndTxnMarker, build_end_txn_marker
from storage.log.log_validator import AppendOrigin
from storage.segment.segment_files import TXN_INDEX_SUFFIX
from storage.segment.transaction_index import AbortedTxn
from tests.kit.memory_file_system import MemoryFileSystem
from tests.simulation.cluster.replica_bytes import (
    Batch,
    CommittedBatches,
    aborted_transactions,
    missing_transactions,
)
from tests.storage.support import T0, batch_of, new_log


def test_same_batches_are_the_same() -> None:
    committed = CommittedBatches()
    batches = [Batch(0, 2, 0, 7), Batch(3, 3, 0, 8), Batch(4, 9, 1, 9)]
    assert [committed.compare(batch) for batch in batches + batches] == [None] * 6
    assert committed.end == 10


def test_other_records_epoch_or_bounds_are_a_difference() -> None:
    committed = CommittedBatches()
    committed.compare(Batch(0, 2, 0, 7))
    committed.compare(Batch(3, 5, 0, 8))
    for other in (Batch(3, 5, 0, 9), Batch(3, 5, 1, 8), Batch(3, 4, 0, 8), Batch(4, 5, 0, 8)):
        assert committed.compare(other) is not None


def test_aborted_transactions_are_those_on_the_disk() -> None:
    disk = MemoryFileSystem()
    log = new_log(file_system=disk)
    for number in range(2):
        data = batch_of(b"v", producer_id=7, producer_epoch=0, base_sequence=number, is_transactional=True)
        log.append_as_leader(data, leader_epoch=0, now_ms=T0, origin=AppendOrigin.COORDINATOR)
        marker = build_end_txn_marker(
            EndTxnMarker(ControlRecordType.ABORT, 0), timestamp=T0, producer_id=7, producer_epoch=0
        )
        log.append_as_leader(memoryview(bytearray(marker)), leader_epoch=0, now_ms=T0, origin=AppendOrigin.COORDINATOR)
    assert aborted_transactions(log, disk) == [AbortedTxn(7, 0, 1, 2), AbortedTxn(7, 2, 3, 4)]
    disk.write_file(log.segments[0].files.path_of(TXN_INDEX_SUFFIX), b"")
    assert aborted_transactions(log, disk) == []


def test_replica_that_misses_an_aborted_transaction_is_found() -> None:
    old, new = AbortedTxn(7, 3, 12, 13), AbortedTxn(8, 20, 24, 25)
    assert missing_transactions({0: [old, new], 1: [old, new]}, 0) == {}
    assert missing_transactions({0: [old, new], 1: [old], 2: [old, new]}, 0) == {1: [(8, 24)]}
    assert missing_transactions({0: [old, new], 1: [new]}, 0) == {1: [(7, 12)]}
    assert missing_transactions({0: [old, new], 1: [new]}, 5) == {}, "its records may all be gone"
    assert missing_transactions({0: [old], 1: [AbortedTxn(7, 5, 12, 13)]}, 5) == {}
