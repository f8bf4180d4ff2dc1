"""The segment written by the cleaner: `.log`, indexes and transaction index, all with the suffix `.cleaned`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from protocol.records.batch import RecordBatch
from storage.io.file_system import FileSystem
from storage.segment.indexes import IndexBuilder
from storage.segment.log_segment import MAX_RELATIVE_OFFSET
from storage.segment.segment_files import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
)
from storage.segment.transaction_index import AbortedTxn, encode_aborted

_WRITE_BYTES = 1 << 20
_WRITE_BATCHES = 1000
"""The most buffers that one system call accepts."""


class CleanedSegment:
    """Grows batch by batch; `finish` makes it durable. `size` is that of the `.log` file in bytes."""

    def __init__(
        self,
        file_system: FileSystem,
        directory: str,
        base_offset: int,
        index_interval_bytes: int,
        throttle: Callable[[int], None],
    ) -> None:
        """The files must not exist yet. `throttle` is called with the size of every write. Raises OSError."""
        self._file_system = file_system
        self._directory = directory
        self.base_offset = base_offset
        self._throttle = throttle
        self._file = file_system.open(self._path_of(LOG_SUFFIX))
        self._indexes = IndexBuilder(base_offset, index_interval_bytes)
        self._waiting: list[memoryview] = []
        self.size = 0

    def _path_of(self, suffix: str) -> str:
        return f"{self._directory}/{file_name(self.base_offset, suffix)}{CLEANED_SUFFIX}"

    def has_range_for(self, batch: RecordBatch) -> bool:
        """Whether the indexes of this segment can hold the offsets of `batch`."""
        return batch.last_offset - self.base_offset <= MAX_RELATIVE_OFFSET

    def append(self, batch: RecordBatch) -> None:
        """Add a whole batch, which this `has_range_for`. Raises OSError."""
        self._indexes.add(batch, self.size)
        self._waiting.append(batch.buffer)
        self.size += len(batch.buffer)
        if self.size - self._file.size >= _WRITE_BYTES or len(self._waiting) >= _WRITE_BATCHES:
            self._write()

    def _write(self) -> None:
        written = self.size - self._file.size
        if written:
            self._file.append(self._waiting)
            self._waiting = []
            self._throttle(written)

    def finish(self, aborted: Sequence[AbortedTxn], modified_ms: int) -> None:
        """Return once the content of all files, though not their names, is on stable storage. Raises OSError.

        The `.log` file gets the modification time of its last source, because retention may use it.
        """
        self._write()
        self._file.close()
        offsets, times = self._indexes.contents()
        contents = {OFFSET_INDEX_SUFFIX: offsets, TIME_INDEX_SUFFIX: times}
        if aborted:
            contents[TXN_INDEX_SUFFIX] = encode_aborted(aborted)
        for suffix, data in contents.items():
            self._file_system.write_file(self._path_of(suffix), data)
            self._file_system.sync_file(self._path_of(suffix))
        self._file_system.set_modified_ms(self._path_of(LOG_SUFFIX), modified_ms)
        self._file_system.sync_file(self._path_of(LOG_SUFFIX))
