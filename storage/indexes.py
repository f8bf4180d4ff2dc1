"""The two sparse indexes beside a segment: offset -> file position, timestamp -> offset.

Formats are Kafka's (classes `OffsetIndex`, `TimeIndex`): entries of 8 bytes (i32 offset - base offset, i32 position) and
of 12 bytes (i64 timestamp, i32 offset - base offset), both strictly growing. There is no checksum: an index is a hint that
can always be rebuilt from its segment.

No mmap (a write into a mapped hole of a full disk kills the process) and no preallocation: the files are appended to.
New entries are held back and written `_ENTRIES_HELD` at a time; after process death the missing ones are found again by
recovery, which rebuilds the indexes of every segment above the recovery point. Look-ups go to the file with a handful of small reads and
keep nothing in memory, so an idle index costs nothing.
Kafka preallocates and fills its indexes from the front; a killed broker leaves a tail of zeros, which is not counted here.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from storage.file_system import File, FileSystem

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_ENTRIES_HELD = 128
_BLOCK_ENTRIES = 256


class CorruptIndexError(ValueError):
    """An index whose content contradicts itself or its segment; the message names the file."""


class OffsetPosition(NamedTuple):
    """The batch whose last offset is `offset` begins at byte `position` of the segment."""

    offset: int
    position: int


class TimestampOffset(NamedTuple):
    """No record up to and including `offset` has a timestamp above `timestamp` (ms)."""

    timestamp: int
    offset: int


class _EntryFile:
    """A file of fixed-size entries in ascending order, its newest ones possibly still in memory."""

    __slots__ = ("_entry", "_file", "_file_entries", "_file_system", "_held", "_path", "_width")

    def __init__(self, file_system: FileSystem, path: str, entry: struct.Struct) -> None:
        self._file_system = file_system
        self._path = path
        self._entry = entry
        self._width = entry.size
        self._held: list[tuple[int, int]] = []
        self._file: File | None = None
        self._file_entries = -1  # not looked at yet

    @property
    def path(self) -> str:
        return self._path

    def _open(self) -> File:
        file = self._file
        if file is None:
            file = self._file = self._file_system.open(self._path)
            self._file_entries = self._count_entries(file)
            if file.size != self._file_entries * self._width:
                file.truncate(self._file_entries * self._width)
        return file

    def _count_entries(self, file: File) -> int:
        """Entries before the tail of zeros that a killed Kafka broker leaves."""
        low, high = 0, file.size // self._width
        if high == 0 or not self._is_empty_at(file, high - 1):
            return high
        while low < high:
            middle = (low + high) // 2
            if self._is_empty_at(file, middle):
                high = middle
            else:
                low = middle + 1
        return low

    def _is_empty_at(self, file: File, index: int) -> bool:
        return not any(file.pread(index * self._width, self._width))

    def __len__(self) -> int:
        if self._file_entries < 0:
            self._open()
        return self._file_entries + len(self._held)

    def entry(self, index: int) -> tuple[int, int]:
        """The raw entry at `index` (0 <= index < len)."""
        file = self._open()
        if index >= self._file_entries:
            return self._held[index - self._file_entries]
        first, second = self._entry.unpack(file.pread(index * self._width, self._width))
        return first, second

    def last(self) -> tuple[int, int] | None:
        """The newest raw entry."""
        if self._held:
            return self._held[-1]
        count = len(self)
        return self.entry(count - 1) if count else None

    def append(self, entry: tuple[int, int]) -> None:
        if self._file_entries < 0:
            self._open()
        self._held.append(entry)
        if len(self._held) >= _ENTRIES_HELD:
            self.write_held()

    def write_held(self) -> None:
        """Hand the entries held in memory to the operating system."""
        held = self._held
        if held:
            file = self._open()
            pack = self._entry.pack
            file.append([b"".join([pack(first, second) for first, second in held])])
            self._file_entries += len(held)
            self._held = []

    def count_up_to(self, key: int, field: int) -> int:
        """How many entries have field number `field` <= `key`; both fields grow, so they are the first ones."""
        file = self._open()
        held = self._held
        if held and held[0][field] <= key:
            return self._file_entries + sum(1 for entry in held if entry[field] <= key)
        low, high = 0, self._file_entries
        unpack, width = self._entry.unpack_from, self._width
        while high - low > _BLOCK_ENTRIES:
            middle = (low + high) // 2
            if unpack(file.pread(middle * width, width))[field] <= key:
                low = middle + 1
            else:
                high = middle
        block = file.pread(low * width, (high - low) * width)
        first = low
        while low < high:
            middle = (low + high) // 2
            if unpack(block, (middle - first) * width)[field] <= key:
                low = middle + 1
            else:
                high = middle
        return low

    def truncate(self, count: int) -> None:
        """Keep the first `count` entries."""
        file = self._open()
        if count >= self._file_entries:
            del self._held[count - self._file_entries :]
            return
        self._held = []
        file.truncate(count * self._width)
        self._file_entries = count

    @property
    def file(self) -> File:
        """The index file itself, for its fsync."""
        return self._open()

    def check_size(self) -> None:
        """Raises CorruptIndexError when the file does not consist of whole entries."""
        if self._file is None:
            size = self._file_system.open(self._path).size
            if size % self._width:
                raise CorruptIndexError(f"Index file {self._path} has {size} bytes, not a multiple of {self._width}")

    def close(self) -> None:
        """Write what is held and let go of the descriptor. The index opens itself again when used."""
        self.write_held()
        if self._file is not None:
            self._file.close()


class OffsetIndex:
    """Offset -> position, for one segment (`.index`).

    An entry says that the batch whose last offset is `offset` starts at `position`; so does Kafka's.
    """

    __slots__ = ("_entries", "base_offset")

    def __init__(self, file_system: FileSystem, path: str, base_offset: int) -> None:
        self.base_offset = base_offset
        self._entries = _EntryFile(file_system, path, _OFFSET_ENTRY)

    @property
    def path(self) -> str:
        return self._entries.path

    def __len__(self) -> int:
        return len(self._entries)

    def append(self, offset: int, position: int) -> None:
        """Add an entry. Raises CorruptIndexError unless offset and position are above those of the last entry."""
        relative = offset - self.base_offset
        last = self._entries.last()
        if last is not None and (relative <= last[0] or position <= last[1]):
            raise CorruptIndexError(
                f"Attempt to append offset {offset}, position {position} to {self.path}, "
                f"whose last entry is offset {last[0] + self.base_offset}, position {last[1]}"
            )
        self._entries.append((relative, position))

    def lookup(self, offset: int) -> OffsetPosition:
        """The last entry at or before `offset`; (base offset, 0) when there is none."""
        count = self._entries.count_up_to(offset - self.base_offset, 0)
        return self._entry_before(count)

    def lookup_position(self, position: int) -> OffsetPosition:
        """The last entry whose batch starts at or before `position`; (base offset, 0) when there is none."""
        count = self._entries.count_up_to(position, 1)
        return self._entry_before(count)

    def _entry_before(self, count: int) -> OffsetPosition:
        if count == 0:
            return OffsetPosition(self.base_offset, 0)
        relative, position = self._entries.entry(count - 1)
        return OffsetPosition(relative + self.base_offset, position)

    def last(self) -> OffsetPosition:
        """The newest entry; (base offset, 0) when there is none."""
        return self._entry_before(len(self._entries))

    def entry(self, index: int) -> OffsetPosition:
        """The entry at `index` (0 <= index < len)."""
        relative, position = self._entries.entry(index)
        return OffsetPosition(relative + self.base_offset, position)

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at or above `offset`."""
        self._entries.truncate(self._entries.count_up_to(offset - 1 - self.base_offset, 0))

    def reset(self) -> None:
        """Drop all entries."""
        self._entries.truncate(0)

    def sanity_check(self) -> None:
        """Raises CorruptIndexError when the file cannot be what `append` wrote; looks at its size and last entry only."""
        self._entries.check_size()
        last = self._entries.last()
        if last is not None and (last[0] < 0 or last[1] < 0):
            raise CorruptIndexError(f"Index file {self.path} ends in an impossible entry {last}")

    def write_held(self) -> None:
        self._entries.write_held()

    @property
    def file(self) -> File:
        return self._entries.file

    def close(self) -> None:
        self._entries.close()


class TimeIndex:
    """Largest timestamp so far -> offset, for one segment (`.timeindex`)."""

    __slots__ = ("_entries", "base_offset")

    def __init__(self, file_system: FileSystem, path: str, base_offset: int) -> None:
        self.base_offset = base_offset
        self._entries = _EntryFile(file_system, path, _TIME_ENTRY)

    @property
    def path(self) -> str:
        return self._entries.path

    def __len__(self) -> int:
        return len(self._entries)

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Add an entry if its timestamp is above the last one's; otherwise there is nothing to say.

        Raises CorruptIndexError when the offset goes back.
        """
        relative = offset - self.base_offset
        last = self._entries.last()
        if last is not None:
            if relative < last[1]:
                raise CorruptIndexError(
                    f"Attempt to append offset {offset} to {self.path}, whose last offset is {last[1] + self.base_offset}"
                )
            if timestamp <= last[0]:
                return
        elif timestamp < 0:
            return
        self._entries.append((timestamp, relative))

    def lookup(self, timestamp: int) -> TimestampOffset:
        """The last entry at or before `timestamp`; (-1, base offset) when there is none."""
        return self._entry_before(self._entries.count_up_to(timestamp, 0))

    def last(self) -> TimestampOffset:
        """The newest entry: largest timestamp indexed and its offset; (-1, base offset) when there is none."""
        return self._entry_before(len(self._entries))

    def _entry_before(self, count: int) -> TimestampOffset:
        if count == 0:
            return TimestampOffset(-1, self.base_offset)
        timestamp, relative = self._entries.entry(count - 1)
        return TimestampOffset(timestamp, relative + self.base_offset)

    def entry(self, index: int) -> TimestampOffset:
        """The entry at `index` (0 <= index < len)."""
        timestamp, relative = self._entries.entry(index)
        return TimestampOffset(timestamp, relative + self.base_offset)

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at or above `offset`."""
        self._entries.truncate(self._entries.count_up_to(offset - 1 - self.base_offset, 1))

    def reset(self) -> None:
        """Drop all entries."""
        self._entries.truncate(0)

    def sanity_check(self) -> None:
        """Raises CorruptIndexError when the file cannot be what `maybe_append` wrote; looks at size, first and last entry."""
        self._entries.check_size()
        last = self._entries.last()
        if last is not None and (last[1] < 0 or last[0] < self._entries.entry(0)[0]):
            raise CorruptIndexError(f"Index file {self.path} ends in an impossible entry {last}")

    def write_held(self) -> None:
        self._entries.write_held()

    @property
    def file(self) -> File:
        return self._entries.file

    def close(self) -> None:
        self._entries.close()
