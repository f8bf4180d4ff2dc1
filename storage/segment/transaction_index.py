"""The aborted transactions of a segment (Kafka classes `TransactionIndex`, `AbortedTxn`; file `.txnindex`).

Entries of 34 bytes, in the order of the markers. Unlike the other two indexes, readers need this one for correctness,
not just for speed. The file only exists for segments with aborted transactions, which are few.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from protocol.errors import ApiError
from protocol.records.batch import RecordBatch
from protocol.records.control_records import ControlRecordType, control_type
from storage.directory.checkpoints import write_atomically
from storage.io.file_system import File, FileSystem, is_disk_full
from storage.segment.indexes import SegmentFile

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0
ENTRY_BYTES = _ENTRY.size


class CompletedTxn(NamedTuple):
    """A transaction whose marker, at `last_offset`, was just appended. `last_stable_offset` is the first offset of the
    oldest open transaction, or the offset after the marker without one.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class AbortedTxn(NamedTuple):
    """An aborted transaction: its records from `first_offset` to the marker at `last_offset` are void.

    Every transaction that begins below `last_stable_offset` was completed when the marker was written.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def aborted_by(batch: RecordBatch, completed: CompletedTxn) -> AbortedTxn | None:
    """The entry for the transaction that the control batch `batch` ended, or None unless its marker is an abort."""
    try:
        record = next(batch.records(), None)
        is_aborted = record is not None and control_type(record) is ControlRecordType.ABORT
    except ApiError:
        return None
    return AbortedTxn(*completed) if is_aborted else None


def encode_aborted(transactions: Iterable[AbortedTxn]) -> bytes:
    """The content of a `.txnindex` file."""
    return b"".join([_ENTRY.pack(_VERSION, *transaction) for transaction in transactions])


def decode_aborted(path: str, data: bytes) -> list[AbortedTxn]:
    """The entries of a `.txnindex` file; `path` is for errors. Raises ValueError for another version; an incomplete
    last entry is left out.
    """
    found = []
    for version, *fields in _ENTRY.iter_unpack(data[: len(data) // _ENTRY.size * _ENTRY.size]):
        if version != _VERSION:
            raise ValueError(f"{path} has an entry of version {version}; only version {_VERSION} can be read")
        found.append(AbortedTxn(*fields))
    return found


class TransactionIndex(SegmentFile):
    """The aborted transactions whose markers are in one segment. The file is created with the first entry.

    Any thread may read; everything else belongs to the owner of the log.
    """

    __slots__ = ("_held", "_known", "_version")

    def __init__(self, file_system: FileSystem, path: str, *, is_new: bool = False) -> None:
        """The file at `path` does not exist if the segment `is_new`."""
        super().__init__(file_system, path)
        self._held: list[AbortedTxn] = []
        """Entries not written yet because the disk was full."""
        self._version = 0
        """The number of changes that the owner has made to the entries."""
        self._known: tuple[int, Sequence[AbortedTxn]] | None = (0, ()) if is_new else None
        """The entries of a version: entries that a thread has read of an older version are ignored."""

    @property
    def is_known(self) -> bool:
        """Whether `entries` is in memory."""
        known = self._known
        return known is not None and known[0] == self._version

    def entries(self) -> Sequence[AbortedTxn]:
        """All entries, read from the file if they are not in memory. Raises OSError, ValueError for an invalid file."""
        while True:
            version, known = self._version, self._known
            if known is None or known[0] != version:
                path = self.path
                try:
                    data = self._file_system.read_file(path)
                except FileNotFoundError:
                    if self.path != path:  # the owner has renamed it, on another thread
                        continue
                    data = b""
                known = version, (*decode_aborted(path, data), *self._held)
                self._known = known
            if self._version == version:
                return known[1]

    def append(self, entry: AbortedTxn) -> bool:
        """Add the transaction whose marker was just appended; returns whether the file is new. Raises OSError."""
        known = self._known[1] if self._known is not None and self.is_known else None
        self._held.append(entry)
        is_made = False
        try:
            is_made = self.write_held()
        except OSError as error:
            # The marker is already in the log. On a full disk its entry can wait in memory.
            if not is_disk_full(error):
                raise
        # The order matters: a read in between gets an older version.
        self._version += 1
        if known is not None:
            self._known = self._version, (*known, entry)
        return is_made or bool(self._held)

    def write_held(self) -> bool:
        """Write the entries held in memory, without fsync; returns whether this created the file. Raises OSError, and
        then still holds them.
        """
        if not self._held:
            return False
        is_made = False
        if self._file is None:
            is_made = not self._file_system.exists(self.path)
            self._file = self._file_system.open(self.path)
            whole = self._file.size // _ENTRY.size * _ENTRY.size
            if whole < self._file.size:
                self._file.truncate(whole)
        self._file.append([encode_aborted(self._held)])
        self._held = []
        return is_made

    @property
    def unsynced_file(self) -> File | None:
        """The file, if it may hold unsynced data written since this object was created."""
        return self._file if self._file is not None and self._file.unsynced else None

    def replace(self, entries: Sequence[AbortedTxn]) -> None:
        """Replace all entries, atomically and durably. Raises OSError."""
        self.close()
        self._file, self._held = None, []
        if entries:
            write_atomically(self._file_system, self.path, encode_aborted(entries))
        elif self._file_system.exists(self.path):
            self._file_system.remove(self.path)
        self._version += 1
        self._known = self._version, tuple(entries)

    def truncate_to(self, offset: int) -> None:
        """Forget the transactions that ended at or above `offset`. The others are then on stable storage, because an
        earlier object may have written them without fsync; only the name of a file that lost no entries may not be.
        Raises OSError, ValueError.
        """
        entries = self.entries()
        kept = [each for each in entries if each.last_offset < offset]
        if len(kept) < len(entries):
            self.replace(kept)
        elif kept:
            self._file_system.sync_file(self.path)
