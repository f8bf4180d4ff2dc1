"""Records as a History keeps them, and the resulting state of producers and keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from protocol.records.batch import NO_SEQUENCE, RecordBatch, increment_sequence

_DELETE_HORIZON = 0x40
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_ABORT = b"\0\0\0\0"
"""The key of an abort marker: version and type."""


class Producer(NamedTuple):
    """The producer of a record, and its sequence number; -1 three times for a plain producer."""

    producer_id: int
    epoch: int
    sequence: int


class Row(NamedTuple):
    """One record and the fields of its batch. `attributes` are the batch's, without the cleaner's mark."""

    offset: int
    batch_base: int
    batch_end: int
    leader_epoch: int
    producer: Producer
    attributes: int
    timestamp: int
    key: bytes | None
    value: bytes | None

    @property
    def is_marker(self) -> bool:
        return bool(self.attributes & _CONTROL)


def rows_of(batch: RecordBatch) -> list[Row]:
    """The records of a batch."""
    has_sequence = batch.base_sequence != NO_SEQUENCE
    rows = []
    for record in batch.records():
        delta = record.offset - batch.base_offset
        sequence = increment_sequence(batch.base_sequence, delta) if has_sequence else NO_SEQUENCE
        rows.append(
            Row(
                record.offset,
                batch.base_offset,
                batch.next_offset,
                batch.partition_leader_epoch,
                Producer(batch.producer_id, batch.producer_epoch, sequence),
                batch.attributes & ~_DELETE_HORIZON,
                record.timestamp,
                record.key,
                record.value,
            )
        )
    return rows


class ProducerState(NamedTuple):
    """The state of a producer that must survive: its epoch, its last sequence number and that record's offset."""

    epoch: int
    last_sequence: int
    last_offset: int


def producers_in(rows: Sequence[Row], end: int) -> dict[int, ProducerState]:
    """The state of every producer after the records below `end`."""
    found: dict[int, ProducerState] = {}
    for row in rows:
        if row.producer.producer_id < 0 or row.batch_end > end:
            continue
        producer_id, epoch, sequence = row.producer
        known = found.get(producer_id)
        if sequence != NO_SEQUENCE:
            found[producer_id] = ProducerState(epoch, sequence, row.batch_end - 1)
        elif known is None or known.epoch != epoch:  # a transaction marker
            found[producer_id] = ProducerState(epoch, NO_SEQUENCE, -1)
    return found


def latest_values(rows: Iterable[Row], aborted: dict[int, int]) -> dict[bytes | None, bytes]:
    """The value of each key after all rows, without deleted keys."""
    found = {row.key: row.value for row in rows if not row.is_marker and row.offset not in aborted}
    return {key: value for key, value in found.items() if value is not None}


def aborted_in(rows: Iterable[Row]) -> dict[int, int]:
    """The offsets of aborted transactions, with those of their markers."""
    ongoing: dict[int, list[int]] = {}
    found = {}
    for row in rows:
        producer_id = row.producer.producer_id
        if row.is_marker:
            offsets = ongoing.pop(producer_id, [])
            if row.key == _ABORT:
                found.update(dict.fromkeys(offsets, row.offset))
        elif row.attributes & _TRANSACTIONAL:
            ongoing.setdefault(producer_id, []).append(row.offset)
    return found
