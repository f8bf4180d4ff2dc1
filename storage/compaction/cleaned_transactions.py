"""Transactions as the cleaner meets them, batch by batch (Kafka class `CleanedTransactionMetadata`).

A marker stays as long as anything of its transaction does: a reader that finds records of an aborted transaction
without their marker would take them for committed.
"""

from __future__ import annotations

from protocol.records.batch import RecordBatch
from protocol.records.control_records import ControlRecordType
from storage.compaction.clean_source import TransactionEnds, marker_type
from storage.segment.transaction_index import AbortedTxn


class CleanedTransactions:
    """To be shown all batches of a log in order. `take_aborted` gives the index of those shown since it last did."""

    def __init__(self, ends: TransactionEnds) -> None:
        self._ends = ends
        self._first_offsets: dict[int, int] = {}
        """Of the transactions that batches were seen of and the marker was not, by producer."""
        self._aborted: list[AbortedTxn] = []

    def can_discard(self, batch: RecordBatch) -> bool:
        """Whether the batch can be dropped: it holds records of an aborted transaction, or the marker of a transaction
        without any records left.
        """
        if batch.is_control:
            return self._can_discard_marker(batch)
        if not batch.is_transactional:
            return False
        self._first_offsets.setdefault(batch.producer_id, batch.base_offset)
        return self._ends.is_aborted(batch)

    def _can_discard_marker(self, batch: RecordBatch) -> bool:
        if batch.count == 0:
            return True
        kind = marker_type(batch)
        if kind not in {ControlRecordType.ABORT, ControlRecordType.COMMIT}:
            return False
        first_offset = self._first_offsets.pop(batch.producer_id, None)
        if first_offset is None:
            return True
        if kind is ControlRecordType.ABORT:
            known = self._ends.indexed(batch)
            if known is None or known.first_offset > first_offset:
                stable = min(self._first_offsets.values(), default=batch.last_offset + 1)
                known = AbortedTxn(batch.producer_id, first_offset, batch.last_offset, stable)
            self._aborted.append(known)
        return False

    def take_aborted(self) -> list[AbortedTxn]:
        """The aborted transactions whose markers stay."""
        taken, self._aborted = self._aborted, []
        return taken
