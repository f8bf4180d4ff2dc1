"""The batches of a `.log` file, each checked before its first use (see `storage.segment.verification`)."""

from __future__ import annotations

from collections.abc import Iterator

from protocol.errors import ApiError, ErrorCode
from protocol.records.batch import HEADER_BYTES, RecordBatch
from protocol.records.record_format import MAGIC_V2
from storage.io.file_system import File, WouldWaitError, reader_of
from storage.segment.batch_reader import HEADERS, BatchReader, Found
from storage.segment.batch_walk import CorruptRange, Place
from storage.segment.segment_files import SegmentFiles
from storage.segment.verification import Verification

_CHECK_BYTES = 64 * 1024


class CheckedBatches:
    """The batches of a segment, and which of them are known to be sound. `size` is the end of the batches in bytes."""

    __slots__ = ("_files", "_verification", "limit_offset", "size", "unverified_end")

    def __init__(self, files: SegmentFiles, size: int, limit_offset: int) -> None:
        """The first `size` bytes are not checked yet."""
        self._files = files
        self.size = size
        self.unverified_end = size
        """From this position on, all bytes were checked or appended by this process, and are sound."""
        self.limit_offset = limit_offset
        """An exclusive upper bound of the offsets that the segment had when it was opened."""
        self._verification: Verification | None = None

    @property
    def file(self) -> File:
        """The `.log` file; opens no descriptor by itself."""
        file = self._files.log
        return self._files.attach(self.size) if file is None else file

    def _indexed_before(self, position: int) -> int:
        """The position of a batch before `position`, or 0."""
        return self._files.offset_index.lookup_position(position - 1).position

    @property
    def corrupt_ranges(self) -> tuple[CorruptRange, ...]:
        """The corrupt ranges found so far, in order."""
        return () if self._verification is None else self._verification.corrupt_ranges

    def sound_until(self, position: int) -> int:
        """End of the sound bytes from `position` on; `position` itself if that is unchecked or damaged."""
        if position >= self.unverified_end:
            return self.size
        return position if self._verification is None else min(self._verification.sound_until(position), self.size)

    def offset_at(self, position: int) -> int:
        """The next offset if unchecked bytes begin at `position`, otherwise -1."""
        return -1 if self._verification is None else self._verification.offset_at(position)

    def corrupt_range_of(self, offset: int) -> CorruptRange | None:
        """The corrupt range that contains `offset`, if already found."""
        return None if self._verification is None else self._verification.corrupt_range_of(offset)

    def check(self, start: int, stop: int) -> None:
        """Check the batches from position `start`, where one begins, at least up to `stop`, each once in the life of
        this object. Waits for the disk, on any thread. Raises OSError.
        """
        if start < self.unverified_end:
            verification = self._known()
            verification.check(self._read_inside, self._indexed_before, start, min(stop, self.unverified_end))
            self.unverified_end = verification.end

    def check_again(self, place: Place | None, stop: int) -> Place:
        """Check the batches of a sealed segment again, from `place` (None: the first) at least up to the position
        `stop`; returns the place of the next batch. All offsets must be below `limit_offset`. Waits for the disk, on
        any thread. Raises OSError.
        """
        verification = self._known()
        place = place or Place(0, self._files.base_offset, -1)
        after = verification.recheck(self._read_inside, place, stop, self.size, self.limit_offset)
        self.unverified_end = verification.end
        return after

    def take_checked(self, corrupt_ranges: tuple[CorruptRange, ...]) -> None:
        """Use the result of recovery, which has checked every byte and found these corrupt ranges."""
        self._verification = Verification(self._files.base_offset, 0, self.limit_offset, corrupt_ranges)
        self.unverified_end = self._verification.end

    def take_knowledge(self, other: CheckedBatches) -> None:
        """Copy the results of `other`, which has the same bytes."""
        self.limit_offset = other.limit_offset
        self.unverified_end = other.unverified_end
        self._verification = None if other._verification is None else other._verification.copy()

    def _known(self) -> Verification:
        if self._verification is None:
            self._verification = Verification(self._files.base_offset, self.unverified_end, self.limit_offset)
        return self._verification

    def _read_inside(self, position: int, size: int) -> bytes:
        # Another thread may be appending; batches after `size` may be incomplete.
        return self.file.pread(position, max(min(size, self.size - position), 0))

    def headers(
        self,
        position: int = 0,
        *,
        may_wait: bool = True,
        window_bytes: int = HEADERS.window_bytes,
        stop_at_corrupt_range: bool = False,
    ) -> Iterator[Found]:
        """The batches from `position` on, all checked; their windows hold at least the headers.

        Corrupt ranges are skipped, or raise ApiError CORRUPT_MESSAGE with `stop_at_corrupt_range`. Unchecked batches
        raise WouldWaitError unless `may_wait`.
        """
        while position < self.unverified_end:
            end = self.sound_until(position)
            if end == position and self.corrupt_range_at(position) is None:
                if not may_wait:
                    raise WouldWaitError
                self.check(position, position + _CHECK_BYTES)
                end = self.sound_until(position)
            corrupt_range = self.corrupt_range_at(position)
            if corrupt_range is not None:
                if stop_at_corrupt_range:
                    raise self.corrupt(corrupt_range)
                position = corrupt_range.end
                continue
            if end <= position:
                return
            yield from self.unchecked_headers(position, end, may_wait=may_wait, window_bytes=window_bytes)
            position = end
        yield from self.unchecked_headers(position, self.size, may_wait=may_wait, window_bytes=window_bytes)

    def unchecked_headers(
        self, position: int, end: int, *, may_wait: bool = True, window_bytes: int = HEADERS.window_bytes
    ) -> Iterator[Found]:
        """As `headers` up to the position `end`, but without a check."""
        file = self.file
        reading = HEADERS._replace(window_bytes=window_bytes)
        return BatchReader(file.path, reader_of(file, may_wait=may_wait), end, reading).batches(position)

    def boundary_before(self, position: int, start: int, *, may_wait: bool = True) -> tuple[int, int] | None:
        """Position and base offset of the last indexed batch that starts in (`start`, `position`], or None."""
        entry = self._files.offset_index.lookup_position(position, may_wait=may_wait)
        if not start < entry.position <= self.size - HEADER_BYTES:
            return None
        header = reader_of(self.file, may_wait=may_wait)(entry.position, HEADER_BYTES)
        batch = RecordBatch(memoryview(header))
        is_one = batch.magic == MAGIC_V2 and self._files.base_offset <= batch.base_offset <= entry.offset
        return (entry.position, batch.base_offset) if is_one else None

    def corrupt_range_at(self, position: int) -> CorruptRange | None:
        """The corrupt range that contains the byte at `position`, if already found."""
        return None if self._verification is None else self._verification.corrupt_range_at(position)

    def corrupt(self, corrupt_range: CorruptRange) -> ApiError:
        """The error for a read in a corrupt range."""
        return ApiError(
            ErrorCode.CORRUPT_MESSAGE,
            f"{self._files.path} is corrupt at byte {corrupt_range.start}: {corrupt_range.reason}",
        )

    def shortened(self, size: int) -> None:
        """The file was cut to `size` bytes."""
        self.size = size
        self.unverified_end = min(self.unverified_end, size)
        if self._verification is not None:
            self._verification.truncate(size)

    def follows_corrupt_range(self, entry_position: int, position: int) -> bool:
        """Whether a corrupt range reaches from `entry_position` to the batch at `position`."""
        return any(each.start == entry_position and each.end == position for each in self.corrupt_ranges)

    def read_batch(self, position: int, size: int) -> RecordBatch:
        """One whole batch, its CRC checked. Raises ApiError CORRUPT_MESSAGE naming file and position."""
        batch = RecordBatch(memoryview(self.file.pread(position, size)))
        if not batch.is_valid:
            raise ApiError(
                ErrorCode.CORRUPT_MESSAGE, f"{self._files.path} is corrupt at byte {position}: wrong CRC or size"
            )
        return batch
