"""One segment of a log: a file of record batches and its two indexes (Kafka class `LogSegment`).

The file name is the base offset in 20 digits. A segment does not know its log: the log decides who may append, what is
committed and when to roll.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

from protocol.errors import ApiError, ErrorCode
from protocol.records.batch import HEADER_BYTES, RecordBatch, find_timestamp
from storage.io.file_system import File, FileSystem, is_disk_full
from storage.log_config import LogConfig
from storage.segment.batch_reader import BASE_OFFSET, LAST_OFFSET_DELTA, MAX_TIMESTAMP, header_of
from storage.segment.checked_batches import CheckedBatches
from storage.segment.indexes import IndexBuilder, OffsetPosition, TimestampAndOffset, TimestampOffset
from storage.segment.segment_files import SWAP_SUFFIX, SegmentFiles

MAX_RELATIVE_OFFSET = 2**31 - 1
_REBUILD_BYTES = 1 << 20
_REBUILD_INTERVAL_BYTES = 4096
_NO_TIMESTAMP = -1
_UNKNOWN = -2  # not read from the file yet


class LogSegment:
    """See the module's docstring. `created_ms` is the wall clock time when the segment was rolled or loaded.

    `index_interval_bytes` is passed to `append`, because it is a setting of the log that can change at any time.
    """

    __slots__ = (
        "_bytes_since_index_entry",
        "_first_timestamp",
        "_indexes_were_rebuilt",
        "_is_outdated",
        "_max_timestamp",
        "_max_timestamp_offset",
        "base_offset",
        "batches",
        "created_ms",
        "files",
    )

    def __init__(
        self,
        file_system: FileSystem,
        directory: str,
        base_offset: int,
        size: int,
        created_ms: int,
        suffix: str = "",
        *,
        is_new: bool = False,
    ) -> None:
        """A segment whose `.log` file exists and has `size` unchecked bytes. A segment that `is_new` only has the
        `.log` file.
        """
        self.base_offset = base_offset
        self.created_ms = created_ms
        self.files = SegmentFiles(file_system, directory, base_offset, suffix, is_new=is_new)
        self.batches = CheckedBatches(self.files, size, base_offset + MAX_RELATIVE_OFFSET + 1)
        self._first_timestamp = _UNKNOWN if size else _NO_TIMESTAMP
        self._max_timestamp = _UNKNOWN if size else _NO_TIMESTAMP
        self._max_timestamp_offset = base_offset
        self._bytes_since_index_entry = 0
        self._indexes_were_rebuilt = False
        self._is_outdated = False

    @property
    def size(self) -> int:
        """Bytes in the `.log` file."""
        return self.batches.size

    @property
    def path(self) -> str:
        """The path of the `.log` file."""
        return self.files.path

    @property
    def file(self) -> File:
        """The `.log` file; opens no descriptor by itself."""
        return self.batches.file

    # -- appending ----------------------------------------------------------------------------------------------------

    def append(
        self,
        records: memoryview,
        last_offset: int,
        max_timestamp: int,
        max_timestamp_offset: int,
        index_interval_bytes: int,
    ) -> None:
        """Append whole batches whose offsets are assigned; `max_timestamp` belongs to the batch that ends at
        `max_timestamp_offset`.

        Raises OSError if the write failed; then the segment is unchanged, but the file may have bytes beyond `size`
        (`discard_unwritten`).
        """
        if self._max_timestamp == _UNKNOWN:
            self._load_max_timestamp()
        batches = self.batches
        position = batches.size
        file = self.files.log
        if file is None:
            file = self.batches.file
        file.append((records,))
        length = len(records)
        batches.size = position + length
        if position == 0:
            self._first_timestamp = max_timestamp
        if max_timestamp > self._max_timestamp:
            self._max_timestamp = max_timestamp
            self._max_timestamp_offset = max_timestamp_offset
        if self._bytes_since_index_entry > index_interval_bytes:
            self._add_index_entry(last_offset, position)
        self._bytes_since_index_entry += length

    def _add_index_entry(self, last_offset: int, position: int) -> None:
        try:
            self.files.offset_index.append(last_offset, position)
            self.files.time_index.maybe_append(self._max_timestamp, self._max_timestamp_offset)
        except OSError as error:
            if not is_disk_full(error):
                raise
            # The records are written and valid. The next batch will be indexed instead.
        else:
            self._bytes_since_index_entry = 0

    def discard_unwritten(self) -> None:
        """Remove the bytes of a failed append beyond `size`. Raises OSError."""
        self.batches.file.truncate(self.batches.size)

    def should_roll(
        self, size: int, last_offset: int, max_timestamp: int, now_ms: int, config: LogConfig, jitter_ms: int
    ) -> bool:
        """Whether an append of `size` bytes up to `last_offset` needs a new segment.

        The age is measured in record timestamps from the first batch of this segment, or by the clock while it is
        empty.
        """
        own_size = self.batches.size
        if own_size > config.segment_bytes - size or last_offset - self.base_offset > MAX_RELATIVE_OFFSET:
            return True
        if own_size == 0:
            return False
        first = self._first_timestamp
        if first == _UNKNOWN:
            first = self._load_first_timestamp()
        waited = max_timestamp - first if first >= 0 else now_ms - self.created_ms
        if waited > config.max_segment_ms - jitter_ms:
            return True
        # There is at most one entry per batch and index interval, so most segments cannot have filled an index.
        limit = config.segment_index_bytes
        return own_size > limit and self._is_index_full(own_size, config.index_interval_bytes, limit)

    def _is_index_full(self, size: int, interval: int, limit: int) -> bool:
        if size // max(interval, HEADER_BYTES) * 12 <= limit:
            return False
        return (len(self.files.offset_index) + 1) * 8 > limit or (len(self.files.time_index) + 2) * 12 > limit

    def _load_first_timestamp(self) -> int:
        self._first_timestamp = _NO_TIMESTAMP
        with contextlib.suppress(ApiError):  # only rolling depends on it
            for *_, fields in self.batches.unchecked_headers(0, self.batches.size, window_bytes=HEADER_BYTES):
                self._first_timestamp = fields[MAX_TIMESTAMP]
                break
        return self._first_timestamp

    def _load_max_timestamp(self) -> None:
        index = self.files.time_index
        # An empty time index is right only if all records lack a timestamp.
        if not (index.is_sound() if len(index) else self._load_first_timestamp() == _NO_TIMESTAMP):
            self.rebuild_indexes()
        self._max_timestamp, self._max_timestamp_offset = self.files.time_index.last()

    @property
    def first_timestamp(self) -> int:
        """Largest timestamp of the first batch, or -1. May wait for the disk. Raises OSError."""
        return self._load_first_timestamp() if self._first_timestamp == _UNKNOWN else self._first_timestamp

    @property
    def max_timestamp_and_offset(self) -> TimestampOffset:
        """Largest timestamp and the last offset of the first batch that has it, or (-1, base offset)."""
        if self._max_timestamp == _UNKNOWN:
            self._load_max_timestamp()
        return TimestampOffset(self._max_timestamp, self._max_timestamp_offset)

    @property
    def has_max_timestamp(self) -> bool:
        """Whether `max_timestamp_and_offset` is in memory."""
        return self._max_timestamp != _UNKNOWN

    def learn_max_timestamp(self, found: TimestampOffset) -> None:
        """Use the last entry of the time index, which the caller has read, unless it is already known."""
        if self._max_timestamp == _UNKNOWN:
            self._max_timestamp, self._max_timestamp_offset = found

    @property
    def modified_ms(self) -> int:
        """The modification time of the `.log` file. Raises OSError."""
        return self.files.file_system.modified_ms(self.path)

    def seal(self) -> None:
        """Complete the time index, because appends have ended."""
        if self.batches.size:
            timestamp, offset = self.max_timestamp_and_offset
            self.files.time_index.maybe_append(timestamp, offset)
            self.files.offset_index.write_held()
            self.files.time_index.write_held()

    # -- looking up ---------------------------------------------------------------------------------------------------

    def find_batch(self, offset: int, *, may_wait: bool = True) -> tuple[int, RecordBatch] | None:
        """Position and header of the first batch whose last offset is at or above `offset`, or None.

        An index that does not fit the segment is rebuilt. Raises ApiError CORRUPT_MESSAGE, and WouldWaitError unless
        `may_wait`.
        """
        batches = self.batches
        if batches.size == 0:
            return None
        entry = self.files.offset_index.lookup(offset, may_wait=may_wait)
        try:
            is_sound = False
            for found in batches.headers(max(entry.position, 0), may_wait=may_wait):
                position, first = found[0], found[4][BASE_OFFSET]
                if not (
                    is_sound or self._fits(entry, first) or batches.follows_corrupt_range(entry.position, position)
                ):
                    break
                is_sound = True
                if first + found[4][LAST_OFFSET_DELTA] >= offset:
                    return position, header_of(found)
            if is_sound:
                return None
        except ApiError:
            if entry.position == 0 or self._indexes_were_rebuilt:
                raise
        if self._indexes_were_rebuilt:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{self.path} does not fit its index at byte {entry.position}")
        self.rebuild_indexes()
        return self.find_batch(offset, may_wait=may_wait)

    def _fits(self, entry: OffsetPosition, base_offset: int) -> bool:
        """Whether the batch at the position of `entry` fits the entry, judging by its `base_offset`."""
        return entry.position == 0 or self.base_offset <= base_offset <= entry.offset

    def find_timestamp(self, timestamp: int, start_offset: int) -> TimestampAndOffset | None:
        """The first record at or after `start_offset` whose timestamp is at least `timestamp`."""
        from_offset = max(self.files.time_index.lookup(timestamp).offset, start_offset)
        return self._find_record(from_offset, timestamp, start_offset)

    def find_max_timestamp(self) -> TimestampAndOffset | None:
        """The first record with the largest timestamp of this segment, or None in an empty one."""
        largest, offset = self.max_timestamp_and_offset
        return self._find_record(offset, largest, self.base_offset)

    def _find_record(self, from_offset: int, timestamp: int, start_offset: int) -> TimestampAndOffset | None:
        """As `find_timestamp`, starting with the batch that reaches `from_offset`."""
        found = self.find_batch(from_offset)
        corrupt_range = self.batches.corrupt_range_of(from_offset)
        if corrupt_range is not None:
            raise self.batches.corrupt(corrupt_range)
        headers = () if found is None else self.batches.headers(found[0], stop_at_corrupt_range=True)
        for position, size, _, _, fields in headers:
            if fields[MAX_TIMESTAMP] >= timestamp:
                batch = self.batches.read_batch(position, size)
                record = find_timestamp(batch, timestamp, start_offset)
                if record is not None:
                    return TimestampAndOffset(record.timestamp, record.offset, batch.partition_leader_epoch)
        return None

    def next_offset(self) -> int | None:
        """The offset after the last record, found by walking the headers behind the last index entry.

        Returns None if they do not lead to the end of the file, so that the segment needs recovery. Raises
        UnsupportedFormatError, OSError.
        """
        if self.batches.size == 0:
            return self.base_offset
        entry = self.files.offset_index.last()
        end, next_offset = entry.position, -1
        try:
            for position, size, _, _, fields in self.batches.unchecked_headers(entry.position, self.batches.size):
                if position == entry.position and not self._fits(entry, fields[BASE_OFFSET]):
                    return None
                end, next_offset = position + size, fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] + 1
        except ApiError:
            return None
        is_possible = 0 < next_offset - self.base_offset <= MAX_RELATIVE_OFFSET + 1
        return next_offset if end == self.batches.size and is_possible else None

    def use_indexes(self, builder: IndexBuilder) -> None:
        """Use the indexes that `builder` built from all batches. Raises OSError."""
        self.files.replace_indexes(builder)
        self._max_timestamp, self._max_timestamp_offset = builder.max_timestamp, builder.max_timestamp_offset
        self._indexes_were_rebuilt = True

    def rebuild_indexes(self) -> None:
        """Rebuild both indexes from the batch headers, as far as these are readable. Raises OSError, ApiError
        CORRUPT_MESSAGE if the segment was truncated since this object was created.
        """
        if self._is_outdated:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"The end of {self.path} was cut off")
        self.use_indexes(self.build_indexes(_REBUILD_INTERVAL_BYTES)[0])

    def build_indexes(self, interval_bytes: int) -> tuple[IndexBuilder, int | None]:
        """Build both indexes from the batch headers, as far as these are readable. Also returns the position of the
        first batch beyond the range of an index, if any.
        """
        builder = IndexBuilder(self.base_offset, interval_bytes)
        try:
            for position, size, _, _, fields in self.batches.headers(window_bytes=_REBUILD_BYTES):
                last_offset = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA]
                if not 0 <= last_offset - self.base_offset <= MAX_RELATIVE_OFFSET:
                    return builder, position
                builder.add_batch(last_offset, fields[MAX_TIMESTAMP], size, position)
        except ApiError:
            self._indexes_were_rebuilt = True  # the rest cannot be indexed; reads will fail there
        return builder, None

    # -- shortening and removing --------------------------------------------------------------------------------------

    def truncate_file(self, size: int) -> None:
        """Cut the file to the `size` bytes of valid batches that recovery found. Raises OSError.

        The cut is durable before the next append: otherwise a power cut could restore removed bytes after newer
        batches.
        """
        if size < self.batches.size:
            self.batches.file.truncate(size)
            self.batches.file.flush()
            self.batches.shortened(size)
            self._first_timestamp = _UNKNOWN if size else _NO_TIMESTAMP

    def again(self) -> LogSegment:
        """A new object for the same files, for a truncation: it does not get the findings of threads that still use
        this object. Raises OSError.
        """
        self._is_outdated = True
        self.files.write_held()
        files = self.files
        new = LogSegment(files.file_system, files.directory, self.base_offset, self.batches.size, self.created_ms)
        new.files.log = self.batches.file
        new.batches.take_knowledge(self.batches)
        return new

    def truncate_to(self, offset: int) -> int:
        """Drop the batches whose last offset is at or above `offset`; returns the offset after the last remaining one.

        Raises ApiError CORRUPT_MESSAGE, OSError.
        """
        found = self.find_batch(offset)
        position = self.batches.size if found is None else found[0]
        position = min([position, *(each.start for each in self.batches.corrupt_ranges if each.end_offset > offset)])
        self.batches.file.truncate(position)
        self.batches.shortened(position)
        self.files.offset_index.truncate_to(offset)
        self.files.time_index.truncate_to(offset)
        self.files.truncate_transactions(offset)
        self._bytes_since_index_entry = 0
        if position == 0:
            self._first_timestamp = self._max_timestamp = _NO_TIMESTAMP
            self._max_timestamp_offset = self.base_offset
        else:
            self._find_max_timestamp_again()
        end = self.next_offset()
        return offset if end is None else end

    def _find_max_timestamp_again(self) -> None:
        largest, offset = self.files.time_index.last()
        for *_, fields in self.batches.headers(self.files.offset_index.lookup(offset).position):
            if fields[MAX_TIMESTAMP] > largest:
                largest, offset = fields[MAX_TIMESTAMP], fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA]
        self._max_timestamp, self._max_timestamp_offset = largest, offset

    def files_to_flush(self, *, with_indexes: bool) -> list[File]:
        """The files that may hold unsynced data; see `SegmentFiles.files_to_flush`. Raises OSError."""
        return self.files.files_to_flush(self.batches.size, with_indexes=with_indexes)

    def change_suffix(self, suffix: str) -> tuple[str, ...]:
        """Change the suffix of all existing files; see `SegmentFiles.change_suffix`. Raises OSError."""
        return self.files.change_suffix(suffix, self.batches.size)

    def close(self) -> None:
        """Close the descriptors; they are opened again when needed."""
        self.files.close()

    def __repr__(self) -> str:
        return f"LogSegment({self.path}, size={self.batches.size})"


def segment_index(segments: Sequence[LogSegment], offset: int) -> int:
    """Index of the segment whose range contains `offset`; 0 if it is below all segments."""
    return max(bisect_right(segments, offset, key=_base_offset) - 1, 0)


def _base_offset(segment: LogSegment) -> int:
    return segment.base_offset


def headers_from(segments: Sequence[LogSegment], offset: int) -> Iterator[RecordBatch]:
    """Headers of the batches that end at or above `offset`; control batches include their records. Raises as
    `LogSegment.find_batch`, and ApiError CORRUPT_MESSAGE.
    """
    for segment in segments[segment_index(segments, offset) :]:
        start = 0
        if segment.base_offset < offset:
            found = segment.find_batch(offset)
            if found is None:
                continue
            start = found[0]
        for each in segment.batches.headers(start):
            batch = header_of(each)
            yield segment.batches.read_batch(each[0], batch.size_in_bytes) if batch.is_control else batch


def put_in_place(new: Sequence[LogSegment], rename_old: Callable[[], None]) -> None:
    """Replace the segments that `rename_old` renames with the `.cleaned` segments `new`, whose content is on stable
    storage. Raises OSError.

    The last becomes `.swap` first: if a start finds a `.cleaned` file below it, the replacement had only begun.
    """
    for segment in reversed(new):
        segment.change_suffix(SWAP_SUFFIX)
    rename_old()
    for segment in new:
        segment.change_suffix("")
