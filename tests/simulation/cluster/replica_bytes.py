"""Check that all replicas of a partition hold the same committed bytes, and know the same aborted transactions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import NamedTuple

from storage.log.unified_log import UnifiedLog
from storage.segment.segment_files import TXN_INDEX_SUFFIX
from storage.segment.transaction_index import AbortedTxn, decode_aborted
from tests.kit.memory_disk import Inode
from tests.kit.memory_file_system import MemoryFileSystem
from tests.simulation.disk import SimDisk

_HEADER = Struct(">qiibIhi")
"""Base offset, length, leader epoch, magic, CRC, attributes, last offset delta."""
_LENGTH_ENDS_AT = 12


class Batch(NamedTuple):
    """The comparable part of a batch: the CRC covers its records."""

    first: int
    last: int
    leader_epoch: int
    crc: int


class CommittedBatches:
    """The batches that any replica had below its high watermark, from offset 0 on."""

    def __init__(self) -> None:
        self.end = 0
        self._batches: list[Batch] = []
        self._first_offsets: list[int] = []

    def compare(self, batch: Batch) -> str | None:
        """The difference between `batch` and the committed one at its offset. A batch after the end is added."""
        if batch.first >= self.end:
            self._batches.append(batch)
            self._first_offsets.append(batch.first)
            self.end = batch.last + 1
            return None
        known = self._batches[bisect_right(self._first_offsets, batch.first) - 1]
        return None if known == batch else f"{batch} is there where {known} was committed"


class ReplicaBytes:
    """Reads one replica's log directly from the disk, bypassing the broker and its faults."""

    def __init__(self, log: UnifiedLog, disk: SimDisk) -> None:
        self.log = log
        self._disk = disk
        self._truncations = log.truncations
        self._segment = 0
        self._position = 0
        self._verified = 0

    def verify(self, committed: CommittedBatches, end: int) -> str | None:
        """Compare the new batches below `end` with the committed ones; return the first difference, or None."""
        log = self.log
        bases = [segment.base_offset for segment in log.segments]
        # A restarted log gets its new segment some time after it has counted the truncation.
        was_replaced = self._segment not in bases and bases[0] < self._segment
        if log.truncations != self._truncations or was_replaced:
            self._truncations = log.truncations
            self._segment = self._position = self._verified = 0
        if self._verified >= end:
            return None
        for segment in log.segments:
            if segment.base_offset < self._segment:
                continue
            if segment.base_offset > self._segment:
                self._segment, self._position = segment.base_offset, 0
            inode = self._disk._find(segment.path)
            if not isinstance(inode, Inode):
                return None
            while self._position + _HEADER.size <= min(segment.size, len(inode.content)):
                first, length, epoch, _, crc, _, delta = _HEADER.unpack_from(inode.content, self._position)
                if first + delta >= end:
                    return None
                if first + delta >= log.log_start_offset:  # deleted records may be anything
                    difference = committed.compare(Batch(first, first + delta, epoch, crc))
                    if difference is not None:
                        return difference
                self._verified = first + delta + 1
                self._position += _LENGTH_ENDS_AT + length
        return None


def aborted_transactions(log: UnifiedLog, disk: MemoryFileSystem) -> list[AbortedTxn]:
    """The transactions in one replica's indexes, on the disk, or in memory while the disk is full."""
    found = []
    for segment in log.segments:
        path = segment.files.path_of(TXN_INDEX_SUFFIX)
        inode = disk._find(path)
        if isinstance(inode, Inode):
            found += decode_aborted(path, bytes(inode.content))
        if segment.files._transactions is not None:
            found += segment.files._transactions._held
    return found


def missing_transactions(
    replicas: Mapping[int, Sequence[AbortedTxn]], start_offset: int
) -> dict[int, list[tuple[int, int]]]:
    """The aborted transactions that one replica lacks and another has, by broker id; each as its producer id and the
    offset of its marker.

    All replicas have the log from `start_offset` on: of a transaction that begins earlier, some may know nothing, or
    only a later beginning.
    """
    wanted: dict[tuple[int, int], None] = {}
    for found in replicas.values():
        wanted |= {(each.producer_id, each.last_offset): None for each in found if each.first_offset >= start_offset}
    missing: dict[int, list[tuple[int, int]]] = {}
    for broker_id, found in replicas.items():
        known = {(each.producer_id, each.last_offset) for each in found}
        missing[broker_id] = [each for each in wanted if each not in known]
    return {broker_id: each for broker_id, each in missing.items() if each}
