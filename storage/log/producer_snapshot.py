"""The state of one producer in a log, and the files that keep it (Kafka classes `ProducerStateEntry`, `BatchMetadata`).

Snapshots (`<end offset>.snapshot`) are in Kafka's format. They bound how much of the log has to be read again at start.
Kafka writes the newest batch of every producer, and takes the last entry of a producer when it reads; an older one that
is sent again after a restart then seems out of order, and is lost or appended twice. Here each batch that is known has
an entry, the newest last.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from protocol.records.batch import NO_SEQUENCE, RecordBatch, increment_sequence
from protocol.records.checksum import crc32c

BATCHES_TO_RETAIN = 5
NO_OFFSET = -1

_VERSION = 1
_HEADER = struct.Struct(">hIi")
_CRC_FROM = 6
_ENTRY = struct.Struct(">qhiqiqiq")


class CorruptSnapshotError(ValueError):
    """A producer snapshot with invalid content; the message names the file."""


class BatchMetadata(NamedTuple):
    """One appended batch of a producer; `timestamp` is the batch's largest, in ms."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta

    @property
    def first_sequence(self) -> int:
        return increment_sequence(self.last_sequence, -self.offset_delta)


class ProducerStateEntry:
    """One producer: its epoch and its newest batches, oldest first."""

    __slots__ = ("batches", "coordinator_epoch", "current_txn_first_offset", "last_timestamp", "producer_epoch")

    def __init__(self, producer_epoch: int) -> None:
        self.producer_epoch = producer_epoch
        self.batches: tuple[BatchMetadata, ...] = ()
        self.coordinator_epoch = -1
        self.last_timestamp = -1
        self.current_txn_first_offset = NO_OFFSET
        """First offset of the producer's open transaction; -1 when it has none."""

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def find_duplicate(self, batch: RecordBatch) -> BatchMetadata | None:
        """The appended batch with the sequence numbers of `batch`, if it is among the last five."""
        if batch.producer_epoch == self.producer_epoch:
            for known in self.batches:
                if known.last_sequence == batch.last_sequence and known.first_sequence == batch.base_sequence:
                    return known
        return None


_NO_BATCHES = (BatchMetadata(NO_SEQUENCE, NO_OFFSET, 0, -1),)


def encode_snapshot(entries: dict[int, ProducerStateEntry]) -> bytes:
    """The content of a snapshot file."""
    parts = [b""]
    for producer_id, entry in entries.items():
        parts.extend(
            _ENTRY.pack(
                producer_id,
                entry.producer_epoch,
                batch.last_sequence,
                batch.last_offset,
                batch.offset_delta,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.current_txn_first_offset,
            )
            for batch in entry.batches or _NO_BATCHES
        )
    parts[0] = struct.pack(">i", len(parts) - 1)
    body = b"".join(parts)
    return struct.pack(">hI", _VERSION, crc32c(body)) + body


def decode_snapshot(path: str, data: bytes) -> dict[int, ProducerStateEntry]:
    """The producers in a snapshot file. Raises CorruptSnapshotError."""
    if len(data) < _HEADER.size:
        raise CorruptSnapshotError(f"Snapshot {path} is cut off: {len(data)} bytes")
    version, crc, count = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise CorruptSnapshotError(f"Snapshot {path} contained an unknown file version {version}")
    if crc != crc32c(data[_CRC_FROM:]):
        raise CorruptSnapshotError(f"Snapshot {path} is corrupt (CRC is no longer valid)")
    if len(data) != _HEADER.size + count * _ENTRY.size:
        raise CorruptSnapshotError(f"Snapshot {path} announces {count} entries and has {len(data)} bytes")
    entries: dict[int, ProducerStateEntry] = {}
    for fields in _ENTRY.iter_unpack(memoryview(data)[_HEADER.size :]):
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, txn_first_offset = fields
        earlier = entries.get(producer_id)
        entry = entries[producer_id] = ProducerStateEntry(epoch)
        if earlier is not None and earlier.producer_epoch == epoch:
            entry.batches = earlier.batches[1 - BATCHES_TO_RETAIN :]
        if offset >= 0:
            entry.batches = (*entry.batches, BatchMetadata(sequence, offset, delta, timestamp))
        entry.last_timestamp = timestamp
        entry.coordinator_epoch = coordinator_epoch
        entry.current_txn_first_offset = txn_first_offset
    return entries
