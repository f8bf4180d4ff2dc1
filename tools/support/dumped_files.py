"""Reads the files of a log segment for dump_log; never changes them, and trusts none of their contents."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from protocol.records.batch import HEADER_BYTES, LOG_OVERHEAD_BYTES, RecordBatch
from storage.segment.indexes import OffsetIndex, TimeIndex
from tools.support.common import ToolError

_MIN_RECORD_BYTES = 14  # the smallest record of any format (Kafka's LegacyRecord.RECORD_OVERHEAD_V0)
_SIZE_AND_MAGIC_BYTES = 17


class LogFile:
    """A `.log` file, or a part of one: batches by position."""

    def __init__(self, path: str) -> None:
        """Open the file. Raises OSError."""
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY)
        self.size = os.fstat(self._descriptor).st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def batches(self, start: int, max_bytes: int) -> Iterator[tuple[int, RecordBatch]]:
        """(position, batch) of the complete batches within `max_bytes` of `start`, which must be the start of a batch.

        Batches are not validated. Raises ToolError for a position beyond the file, an impossible size, and message
        formats older than 2.
        """
        if start > self.size:
            raise ToolError(f"Slice from position {start} exceeds end position of {self.path} ({self.size} bytes)")
        position, end = start, min(self.size, start + max_bytes)
        while end - position > _SIZE_AND_MAGIC_BYTES:
            head = os.pread(self._descriptor, _SIZE_AND_MAGIC_BYTES, position)
            length, magic = int.from_bytes(head[8:12], "big", signed=True), head[16]
            if length < _MIN_RECORD_BYTES:
                raise ToolError(
                    f"Found record size {length} smaller than minimum record overhead ({_MIN_RECORD_BYTES}) "
                    f"in file {self.path}."
                )
            size = length + LOG_OVERHEAD_BYTES
            if size > end - position:
                return
            if magic < 2:
                raise ToolError(
                    f"{self.path} holds messages of format v{magic} at position {position}; "
                    "only format v2 (Kafka 0.11 and later) can be shown"
                )
            data = memoryview(os.pread(self._descriptor, max(size, HEADER_BYTES), position))
            if len(data) < HEADER_BYTES:
                raise ToolError(f"Failed to read the header of the batch at position {position} of {self.path}")
            batch = RecordBatch(data)
            batch.buffer = data[:size]
            yield position, batch
            position += size


class IndexEntry(NamedTuple):
    """An entry of an index: `offset` is absolute; `value` is a position in the log (bytes) or a timestamp (ms)."""

    offset: int
    value: int


class IndexFile:
    """The entries of an `.index` or a `.timeindex` file."""

    def __init__(self, path: str, base_offset: int, kind: type[OffsetIndex | TimeIndex]) -> None:
        """Open the file. Raises OSError."""
        data = Path(path).read_bytes()
        layout = kind.entry_struct
        self.path = path
        self.base_offset = base_offset
        self.size = len(data)
        self.entry_size = layout.size
        pairs = layout.iter_unpack(data[: len(data) // layout.size * layout.size])
        if kind is OffsetIndex:
            self.all_entries = [IndexEntry(base_offset + relative, position) for relative, position in pairs]
        else:
            self.all_entries = [IndexEntry(base_offset + relative, timestamp) for timestamp, relative in pairs]

    @property
    def entries(self) -> list[IndexEntry]:
        """The entries before the trailing zeros that a crash leaves."""
        for at, entry in enumerate(self.all_entries):
            if at > 0 and entry.offset == self.base_offset:
                return self.all_entries[:at]
        return self.all_entries

    def position_of(self, offset: int) -> int:
        """Where in the log to begin the search for `offset`."""
        return max((entry for entry in self.entries if entry.offset <= offset), default=IndexEntry(0, 0)).value


def check_index(index: IndexFile) -> None:
    """Check an offset index as a starting broker does. Raises ToolError."""
    path = os.path.abspath(index.path)
    last_offset = index.all_entries[-1].offset
    if last_offset < index.base_offset:
        raise ToolError(
            f"Corrupt index found, index file ({path}) has non-zero size but the last offset is {last_offset} "
            f"which is less than the base offset {index.base_offset}"
        )
    if index.size % index.entry_size:
        raise ToolError(
            f"Index file {path} is corrupt, found {index.size} bytes which is neither positive nor a multiple of "
            f"{index.entry_size}"
        )


def check_time_index(index: IndexFile) -> None:
    """Check a time index as a starting broker does. Raises ToolError."""
    path = os.path.abspath(index.path)
    if index.all_entries:
        first, last = index.all_entries[0], index.all_entries[-1]
        described = f"Corrupt time index found, time index file ({path}) has non-zero size but the last"
        if last.value < first.value:
            raise ToolError(
                f"{described} timestamp is {last.value} which is less than the first timestamp {first.value}"
            )
        if last.offset < index.base_offset:
            raise ToolError(
                f"{described} offset is {last.offset} which is less than the first offset {index.base_offset}"
            )
    if index.size % index.entry_size:
        raise ToolError(
            f"Time index file {path} is corrupt, found {index.size} bytes which is neither positive nor a multiple of "
            f"{index.entry_size}"
        )
