"""The files of a segment: batches, two indexes, and the aborted transactions.

They are opened on first use, so that thousands of idle segments cost only a few hundred bytes each, without a
descriptor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from protocol.errors import ApiError, ErrorCode
from storage.io.file_system import File, FileSystem
from storage.segment.indexes import IndexBuilder, OffsetIndex, TimeIndex
from storage.segment.transaction_index import AbortedTxn, TransactionIndex

LOG_SUFFIX = ".log"
OFFSET_INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
"""Suffix of files that compaction is writing; they are ignored until they are renamed."""
SWAP_SUFFIX = ".swap"
"""Suffix of complete files that are about to replace the segments in their offset range."""
TRUNCATION_MARKER = "odradek-cut."
"""Prefix of the name of an empty file. The rest of the name is the recovery point of a truncated log, as long as its
checkpoint may be higher. A power cut keeps or removes a name, but could leave any part of a file's content. Only
Odradek uses it; Kafka ignores unknown files.
"""
SEGMENT_SUFFIXES = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


def file_name(base_offset: int, suffix: str) -> str:
    """Name of a file that belongs to the segment (or snapshot) at `base_offset`."""
    return f"{base_offset:020d}{suffix}"


class SegmentFiles:
    """The paths of the files of one segment, and its open files."""

    __slots__ = (
        "_is_new",
        "_offset_index",
        "_suffix",
        "_time_index",
        "_transactions",
        "base_offset",
        "directory",
        "file_system",
        "log",
    )

    def __init__(
        self, file_system: FileSystem, directory: str, base_offset: int, suffix: str = "", *, is_new: bool = False
    ) -> None:
        """The `.log` file exists, with `suffix` after its name. A segment that `is_new` only has the `.log` file."""
        self.file_system = file_system
        self.base_offset = base_offset
        self.directory = directory
        self._suffix = suffix
        self._is_new = is_new
        self.log: File | None = None
        """The `.log` file, set on first use."""
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._transactions: TransactionIndex | None = None

    def path_of(self, suffix: str) -> str:
        """The current path of the file with this suffix (`.log`, `.index`, `.timeindex`, ...)."""
        return f"{self.directory}/{file_name(self.base_offset, suffix)}{self._suffix}"

    @property
    def path(self) -> str:
        """The path of the `.log` file."""
        return self.path_of(LOG_SUFFIX)

    def attach(self, size: int) -> File:
        """The `.log` file, which has `size` bytes on first use; opens no descriptor by itself."""
        file = self.log
        if file is None:
            file = self.log = self.file_system.attach(self.path, size)
            file.path = self.path  # the owner may have renamed it, on another thread
        return file

    def use_directory(self, directory: str) -> None:
        """Follow a rename of the segment's directory."""
        self.directory = directory
        if self.log is not None:
            self.log.path = self.path
        self._use_index_paths()

    def _use_index_paths(self) -> None:
        if self._offset_index is not None:
            self._offset_index.use_path(self.path_of(OFFSET_INDEX_SUFFIX))
        if self._time_index is not None:
            self._time_index.use_path(self.path_of(TIME_INDEX_SUFFIX))
        if self._transactions is not None:
            self._transactions.use_path(self.path_of(TXN_INDEX_SUFFIX))

    @property
    def offset_index(self) -> OffsetIndex:
        index = self._offset_index
        if index is None:
            path = self.path_of(OFFSET_INDEX_SUFFIX)
            index = self._offset_index = OffsetIndex(self.file_system, path, self.base_offset)
            index.path = self.path_of(OFFSET_INDEX_SUFFIX)
        return index

    @property
    def time_index(self) -> TimeIndex:
        index = self._time_index
        if index is None:
            path = self.path_of(TIME_INDEX_SUFFIX)
            index = self._time_index = TimeIndex(self.file_system, path, self.base_offset)
            index.path = self.path_of(TIME_INDEX_SUFFIX)
        return index

    @property
    def transactions(self) -> TransactionIndex:
        """The aborted transactions whose markers are in this segment."""
        index = self._transactions
        if index is None:
            path = self.path_of(TXN_INDEX_SUFFIX)
            index = self._transactions = TransactionIndex(self.file_system, path, is_new=self._is_new)
            index.path = self.path_of(TXN_INDEX_SUFFIX)
        return index

    def aborted_transactions(self) -> Sequence[AbortedTxn]:
        """The entries of `transactions`. Any thread may call it. Raises OSError, ValueError."""
        return () if self._transactions is None and self._is_new else self.transactions.entries()

    @property
    def has_transactions(self) -> bool:
        """Whether the `transactions` are in memory."""
        return self._is_new if self._transactions is None else self._transactions.is_known

    def replace_indexes(self, builder: IndexBuilder) -> None:
        """Use the indexes that `builder` built from all batches. Raises OSError."""
        self.close_indexes()
        builder.write(self.file_system, self.path_of(OFFSET_INDEX_SUFFIX), self.path_of(TIME_INDEX_SUFFIX))
        # New objects: look-ups on other threads continue with the old ones, whose files may still be open.
        self._offset_index = self._time_index = None

    def write_held(self) -> None:
        """Write the index entries still held in memory. Raises OSError."""
        for index in (self._offset_index, self._time_index, self._transactions):
            if index is not None:
                index.write_held()

    def truncate_transactions(self, offset: int) -> None:
        """Drop the entries whose markers are at or above `offset`. Raises ApiError CORRUPT_MESSAGE, OSError."""
        try:
            self.transactions.truncate_to(offset)
        except ValueError as error:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error

    def files_to_flush(self, size: int, *, with_indexes: bool) -> list[File]:
        """The files that may hold unsynced data; the `.log` file has `size` bytes.

        Indexes are included once recovery will no longer rebuild them: when the segment is sealed or the log closed.
        Raises OSError.
        """
        files = [] if self.log is None and not size else [self.attach(size)]
        if with_indexes and size:
            for index in (self.offset_index, self.time_index):
                index.write_held()
                files.append(index.file)
        if with_indexes and self._transactions is not None:
            self._transactions.write_held()
            entries = self._transactions.unsynced_file
            files += [] if entries is None else [entries]
        return [file for file in files if file.unsynced]

    @property
    def was_used(self) -> bool:
        """Whether any file was opened since this object was created."""
        return self.log is not None or self._offset_index is not None

    def change_suffix(self, suffix: str, size: int) -> tuple[str, ...]:
        """Change the suffix of all existing files (`.deleted`, `.swap`, none), the `.log` file first; returns their
        paths. Readers on all threads continue with the same files. `size` is that of the `.log` file.
        """
        renames: tuple[Callable[[str], None], ...] = (
            self.attach(size).rename,
            self.offset_index.rename,
            self.time_index.rename,
            self.transactions.rename,
        )
        self._suffix = suffix
        new_paths = []
        for rename, name in zip(renames, SEGMENT_SUFFIXES, strict=True):
            new_path = self.path_of(name)
            try:
                rename(new_path)
            except FileNotFoundError:
                continue
            new_paths.append(new_path)
        return tuple(new_paths)

    def remove(self) -> None:
        """Remove all files at once, even if `change_suffix` has renamed only some of them. Raises OSError."""
        suffix = self._suffix
        for name in SEGMENT_SUFFIXES:
            path = self.path_of(name)
            for each in (path, path.removesuffix(suffix)):
                with contextlib.suppress(FileNotFoundError):
                    self.file_system.remove(each)
        self.close()

    def close_indexes(self) -> None:
        """Close the descriptors of the indexes."""
        for index in (self._offset_index, self._time_index, self._transactions):
            if index is not None:
                index.close()

    def put_away(self) -> None:
        """As `close`, and drop the file objects: for a segment that was only inspected."""
        self.close()
        self.log = self._offset_index = self._time_index = None

    def close(self) -> None:
        """Close the descriptors; they are opened again when needed."""
        if self.log is not None:
            self.log.close()
        self.close_indexes()
