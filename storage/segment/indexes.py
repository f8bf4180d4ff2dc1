"""The two sparse indexes of a segment: offset -> file position, timestamp -> offset.

Formats are Kafka's (classes `OffsetIndex`, `TimeIndex`): entries of 8 bytes (i32 offset - base offset, i32 position)
and of 12 bytes (i64 timestamp, i32 offset - base offset), ascending. They are stored without checksums: an index is
only a hint, and can always be rebuilt from its segment (`IndexBuilder`).

The files are appended to, without mmap (a write into a mapped hole on a full disk kills the process) and without
preallocation. The newest entries are buffered and written together; if the process dies, recovery restores them,
because it rebuilds the indexes above the recovery point. Look-ups take a few small reads and cache nothing, so an idle
index costs nothing. A killed Kafka broker leaves a tail of zeros in its preallocated index, which is cut off.

Look-ups may run on any thread while the owner appends; they may miss the newest entries, which costs a longer scan.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable
from operator import itemgetter
from typing import ClassVar, NamedTuple

from protocol.errors import ApiError, ErrorCode
from protocol.records.batch import RecordBatch
from storage.directory.checkpoints import write_atomically
from storage.io.file_system import File, FileSystem, is_disk_full, reader_of


class SegmentFile:
    """The file at `path`. Any thread may read it; everything else belongs to the owner of the log."""

    __slots__ = ("_file", "_file_system", "path")

    def __init__(self, file_system: FileSystem, path: str) -> None:
        self._file_system = file_system
        self.path = path
        self._file: File | None = None
        """Opened on first use."""

    def use_path(self, path: str) -> None:
        """Use `path` from now on."""
        self.path = path
        if self._file is not None:
            self._file.path = path

    def rename(self, path: str) -> None:
        """Rename the file; reads in progress on any thread continue. Raises OSError, FileNotFoundError if it does not
        exist.
        """
        old, self.path = self.path, path
        if self._file is not None:
            self._file.rename(path)
        else:
            self._file_system.rename(old, path)
        self.use_path(path)

    def close(self) -> None:
        """Close the descriptor; the file is opened again when it is used."""
        if self._file is not None:
            self._file.close()


_HELD_ENTRIES = 128
_BLOCK_ENTRIES = 512
_FIELDS = (itemgetter(0), itemgetter(1))


class OffsetPosition(NamedTuple):
    """`position` (bytes) is the start of a batch at or before the one that reaches `offset`."""

    offset: int
    position: int


class TimestampOffset(NamedTuple):
    """The records up to and including `offset` have timestamps of at most `timestamp` (ms)."""

    timestamp: int
    offset: int


class TimestampAndOffset(NamedTuple):
    """A record found by its timestamp (ms), and its leader epoch (-1: unknown)."""

    timestamp: int
    offset: int
    leader_epoch: int


class _SparseIndex(SegmentFile):
    """A file of entries of two numbers, both ascending; the newest entries may still be in memory."""

    __slots__ = ("_file_entries", "_held", "_near", "base_offset")

    entry_struct: ClassVar[struct.Struct]

    def __init__(self, file_system: FileSystem, path: str, base_offset: int) -> None:
        """The file is opened, and created if missing, on first use."""
        super().__init__(file_system, path)
        self.base_offset = base_offset
        self._held: list[tuple[int, int]] = []
        self._file_entries = 0
        self._near = 0

    @property
    def file(self) -> File:
        """The file itself. Raises OSError."""
        file = self._file
        while file is None:
            path = self.path
            found = self._file_system.open(path)
            width = self.entry_struct.size
            self._file_entries = self._count_entries(found, width)
            if found.size != self._file_entries * width:
                found.truncate(self._file_entries * width)
            if self.path == path:  # otherwise the owner has renamed it, on another thread, and this may be a new file
                file = self._file = found
                file.path = self.path
        return file

    def _count_entries(self, file: File, width: int) -> int:
        """Number of entries before the tail of zeros, if any."""
        low, high = 0, file.size // width
        if high == 0 or any(file.pread((high - 1) * width, width)):
            return high
        while low < high:
            middle = (low + high) // 2
            if any(file.pread(middle * width, width)):
                low = middle + 1
            else:
                high = middle
        return low

    def __len__(self) -> int:
        _ = self.file
        return self._file_entries + len(self._held)

    def raw_entry(self, index: int) -> tuple[int, int]:
        """The stored numbers of entry `index` (0 <= index < len)."""
        file = self.file
        if index >= self._file_entries:
            return self._held[index - self._file_entries]
        width = self.entry_struct.size
        first, second = self.entry_struct.unpack(self._whole(file.pread(index * width, width), width))
        return first, second

    def _whole(self, data: bytes | bytearray, size: int) -> bytes | bytearray:
        """`data` if complete; it is too short when the owner has truncated the file, on another thread."""
        if len(data) < size:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{self.path} has become shorter")
        return data

    def _raw_last(self) -> tuple[int, int] | None:
        if self._held:
            return self._held[-1]
        count = len(self)
        return self.raw_entry(count - 1) if count else None

    def _append(self, entry: tuple[int, int]) -> None:
        self._held.append(entry)
        if len(self._held) >= _HELD_ENTRIES:
            try:
                self.write_held()
            except OSError as error:
                # The records are already in the log. On a full disk their entries can wait in memory.
                if not is_disk_full(error):
                    raise

    def write_held(self) -> None:
        """Write the entries held in memory, without fsync. Raises OSError, and then still holds them."""
        file = self.file
        held = self._held
        if held:
            pack = self.entry_struct.pack
            file.append([b"".join([pack(first, second) for first, second in held])])
            # The order matters: a look-up on another thread never sees an entry twice.
            self._held = []
            self._file_entries += len(held)

    def _search_file(
        self, file: File, count: int, key: int, field: int, *, may_wait: bool
    ) -> tuple[int, tuple[int, int] | None]:
        """The number of the first `count` (> 0) entries with field number `field` at or below `key`, and the last of
        them.
        """
        read_some = reader_of(file, may_wait=may_wait)
        read: Callable[[int, int], bytes | bytearray] = lambda at, size: self._whole(read_some(at, size), size)  # noqa: E731
        unpack, width = self.entry_struct.unpack_from, self.entry_struct.size
        # Readers move forward, so the result is mostly near the last one: one read instead of a search.
        low = self._near if self._near < count else 0
        high = min(low + _BLOCK_ENTRIES, count)
        block = read(low * width, (high - low) * width)
        if (low and unpack(block, 0)[field] > key) or (
            high < count and unpack(block, (high - low - 1) * width)[field] <= key
        ):
            low, high = 0, count
            while high - low > _BLOCK_ENTRIES:
                middle = (low + high) // 2
                if unpack(read(middle * width, width))[field] <= key:
                    low = middle + 1
                else:
                    high = middle
            low = max(low - 1, 0)  # the last entry known to be at or below the key
            block = read(low * width, (high - low) * width)
        inside = bisect_right(range(high - low), key, key=lambda at: unpack(block, at * width)[field])
        if inside == 0:
            return 0, None
        self._near = low + inside - 1
        first, second = unpack(block, (inside - 1) * width)
        return low + inside, (first, second)

    def _last_up_to(self, key: int, field: int, *, may_wait: bool) -> tuple[int, int] | None:
        """The last entry whose field number `field` is at or below `key`."""
        file = self.file
        count = self._file_entries  # must be read before `_held`, see `write_held`
        held = self._held
        if held and held[0][field] <= key:
            return held[bisect_right(held, key, key=_FIELDS[field]) - 1]
        if count == 0:
            return None
        return self._search_file(file, count, key, field, may_wait=may_wait)[1]

    def _keep_up_to(self, key: int, field: int) -> None:
        """Drop the entries whose field number `field` is above `key`."""
        file = self.file
        self._held = self._held[: bisect_right(self._held, key, key=_FIELDS[field])]
        if self._held or self._file_entries == 0:
            return
        count, _ = self._search_file(file, self._file_entries, key, field, may_wait=True)
        if count < self._file_entries:
            file.truncate(count * self.entry_struct.size)
            self._file_entries = count


class OffsetIndex(_SparseIndex):
    """Offset -> position, for one segment (`.index`).

    As in Kafka, an entry stands for the batches of one append: their last offset and the position where they start.
    """

    __slots__ = ()
    entry_struct = struct.Struct(">ii")

    def append(self, offset: int, position: int) -> None:
        """Add an entry, the largest so far. Raises OSError."""
        self._append((offset - self.base_offset, position))

    def lookup(self, offset: int, *, may_wait: bool = True) -> OffsetPosition:
        """The last entry at or before `offset`, or (base offset, 0). Raises WouldWaitError unless `may_wait`."""
        return self._of(self._last_up_to(offset - self.base_offset, 0, may_wait=may_wait))

    def lookup_position(self, position: int, *, may_wait: bool = True) -> OffsetPosition:
        """The last entry whose position is at or before `position`, or (base offset, 0)."""
        return self._of(self._last_up_to(position, 1, may_wait=may_wait))

    def last(self) -> OffsetPosition:
        """The newest entry, or (base offset, 0)."""
        return self._of(self._raw_last())

    def entry(self, index: int) -> OffsetPosition:
        """The entry at `index` (0 <= index < len)."""
        return self._of(self.raw_entry(index))

    def _of(self, entry: tuple[int, int] | None) -> OffsetPosition:
        if entry is None:
            return OffsetPosition(self.base_offset, 0)
        return OffsetPosition(entry[0] + self.base_offset, entry[1])

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at or above `offset`. Raises OSError."""
        self._keep_up_to(offset - 1 - self.base_offset, 0)


class TimeIndex(_SparseIndex):
    """Largest timestamp so far -> offset, for one segment (`.timeindex`)."""

    __slots__ = ()
    entry_struct = struct.Struct(">qi")

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Add an entry if its timestamp is above the last one's. Raises OSError."""
        last = self._raw_last()
        if timestamp > (-1 if last is None else last[0]):
            self._append((timestamp, offset - self.base_offset))

    def lookup(self, timestamp: int) -> TimestampOffset:
        """The last entry at or before `timestamp`, or (-1, base offset)."""
        return self._of(self._last_up_to(timestamp, 0, may_wait=True))

    def last(self) -> TimestampOffset:
        """The newest entry: largest timestamp indexed and its offset, or (-1, base offset)."""
        return self._of(self._raw_last())

    def entry(self, index: int) -> TimestampOffset:
        """The entry at `index` (0 <= index < len)."""
        return self._of(self.raw_entry(index))

    def _of(self, entry: tuple[int, int] | None) -> TimestampOffset:
        if entry is None:
            return TimestampOffset(-1, self.base_offset)
        return TimestampOffset(entry[0], entry[1] + self.base_offset)

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at or above `offset`. Raises OSError."""
        self._keep_up_to(offset - 1 - self.base_offset, 1)

    def is_sound(self) -> bool:
        """Whether the last entry can follow the first (Kafka's check); look-ups by offset detect damage themselves."""
        last = self._raw_last()
        return last is None or (last[1] >= 0 and last[0] >= self.raw_entry(0)[0])


class IndexBuilder:
    """Builds both indexes of a segment from its batches in order."""

    __slots__ = (
        "_base_offset",
        "_interval_bytes",
        "_offsets",
        "_since_entry",
        "_times",
        "max_timestamp",
        "max_timestamp_offset",
    )

    def __init__(self, base_offset: int, interval_bytes: int) -> None:
        self._base_offset = base_offset
        self._interval_bytes = interval_bytes
        self._since_entry = 0
        self._offsets = bytearray()
        self._times = bytearray()
        self.max_timestamp = -1
        self.max_timestamp_offset = base_offset

    def add(self, batch: RecordBatch, position: int) -> None:
        """The batch at `position` of the segment."""
        self.add_batch(batch.last_offset, batch.max_timestamp, batch.size_in_bytes, position)

    def add_batch(self, last_offset: int, max_timestamp: int, size: int, position: int) -> None:
        """As `add`, without a header object."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp, self.max_timestamp_offset = max_timestamp, last_offset
        if self._since_entry > self._interval_bytes:
            self._offsets += OffsetIndex.entry_struct.pack(last_offset - self._base_offset, position)
            self._add_time()
            self._since_entry = 0
        self._since_entry += size

    def _add_time(self) -> None:
        width = TimeIndex.entry_struct.size
        last = TimeIndex.entry_struct.unpack(self._times[-width:])[0] if self._times else -1
        if self.max_timestamp > last:
            self._times += TimeIndex.entry_struct.pack(
                self.max_timestamp, self.max_timestamp_offset - self._base_offset
            )

    def contents(self) -> tuple[bytes, bytes]:
        """The content of the files of the offset index and of the time index."""
        self._add_time()
        return bytes(self._offsets), bytes(self._times)

    def write(self, file_system: FileSystem, offset_index_path: str, time_index_path: str) -> None:
        """Replace both files, each atomically for readers. Raises OSError.

        A file that is already right is not replaced: after a crash most are right, and ext4 writes out a file at once
        when it is renamed over another.
        """
        for path, content in zip((offset_index_path, time_index_path), self.contents(), strict=True):
            if not _holds(file_system, path, content):
                write_atomically(file_system, path, content, sync=False)


def _holds(file_system: FileSystem, path: str, content: bytes) -> bool:
    try:
        return file_system.read_file(path) == content
    except FileNotFoundError:
        return False
