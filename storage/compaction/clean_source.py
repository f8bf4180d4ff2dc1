"""The segments of a log as the cleaner reads them: by path, from any process, while the owner keeps using them.

Rewritten batches get a new CRC, so every batch is checked first: a flipped bit must not come out of the cleaner with a
valid checksum.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

from protocol.errors import ApiError, ErrorCode
from protocol.records.batch import RecordBatch
from protocol.records.control_records import ControlRecordType, control_type
from storage.compaction.clean_task import CleanTask, SegmentSize
from storage.io.file_system import FileSystem
from storage.segment.batch_reader import HEADERS, BatchReader, Reading, header_of
from storage.segment.segment_files import LOG_SUFFIX, TXN_INDEX_SUFFIX, file_name
from storage.segment.transaction_index import AbortedTxn, decode_aborted


class LogCleaningAbortedError(Exception):
    """The log changed during the cleaning. This is not a failure: the next attempt starts from the new state."""


class CorruptSegmentError(ApiError):
    """A segment is damaged at a byte `position` of its `.log` file; CORRUPT_MESSAGE, naming both."""

    def __init__(self, base_offset: int, position: int, message: str) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, message)
        self.base_offset = base_offset
        self.position = position


class SourceSegment:
    """One segment: everything below `end_offset`, where the next one begins."""

    def __init__(
        self, file_system: FileSystem, directory: str, segment: SegmentSize, end_offset: int, read_bytes: int
    ) -> None:
        self._file_system = file_system
        self._read_bytes = read_bytes
        self.found = segment
        self.base_offset, self.size = segment
        self.end_offset = end_offset
        self.path = f"{directory}/{file_name(segment.base_offset, LOG_SUFFIX)}"

    def batches(self, throttle: Callable[[int], None]) -> Iterator[RecordBatch]:
        """Iterate over all batches, whole and checked; `throttle` is called with the size of every read.

        Raises CorruptSegmentError, LogCleaningAbortedError, OSError.
        """
        file = self._file_system.attach(self.path, self.size)
        reading = Reading(self._read_bytes, checks_crc=True, is_whole=True)
        reader = BatchReader(self.path, file.pread, self.size, reading, throttle)
        next_offset = self.base_offset
        try:
            for position, size, window, at, _ in reader.batches(0):
                batch = RecordBatch(window[at : at + size])
                self._check_offsets(batch, position, next_offset)
                next_offset = batch.next_offset
                yield batch
        except FileNotFoundError as error:
            raise LogCleaningAbortedError(f"{self.path} is gone") from error
        finally:
            file.close()
        if reader.fault is not None:
            raise self._corrupt(reader.fault.position, reader.fault.reason)

    def _check_offsets(self, batch: RecordBatch, position: int, next_offset: int) -> None:
        if not next_offset <= batch.base_offset <= batch.last_offset < self.end_offset:
            raise self._corrupt(
                position,
                f"offsets {batch.base_offset}..{batch.last_offset} outside {next_offset}..{self.end_offset - 1}",
            )

    def _corrupt(self, position: int, what: str) -> CorruptSegmentError:
        message = f"{self.path} is corrupt at byte {position}: {what}"
        return CorruptSegmentError(self.base_offset, position, message)

    def markers(self) -> Iterator[RecordBatch]:
        """The control batches; only the headers of other batches are read. Raises as `batches`."""
        file = self._file_system.attach(self.path, self.size)
        end = 0
        try:
            for found in BatchReader(self.path, file.pread, self.size, HEADERS).batches(0):
                position, size, _, _, _ = found
                end = position + size
                if header_of(found).is_control:
                    batch = RecordBatch(memoryview(file.pread(position, size)))
                    if not batch.is_valid:
                        raise self._corrupt(position, "wrong CRC or size")
                    self._check_offsets(batch, position, self.base_offset)
                    yield batch
        except CorruptSegmentError:
            raise
        except ApiError as error:  # the header after the last batch is invalid
            raise CorruptSegmentError(self.base_offset, end, error.message) from error
        except FileNotFoundError as error:
            raise LogCleaningAbortedError(f"{self.path} is gone") from error
        finally:
            file.close()

    def aborted(self) -> list[AbortedTxn]:
        """The transaction index; empty when missing or unreadable."""
        path = self.path.removesuffix(LOG_SUFFIX) + TXN_INDEX_SUFFIX
        try:
            return decode_aborted(path, self._file_system.read_file(path))
        except (FileNotFoundError, ValueError):
            return []


def sources_of(file_system: FileSystem, task: CleanTask) -> list[SourceSegment]:
    """The segments of `task`, oldest first."""
    ends = [segment.base_offset for segment in task.segments[1:]] + [task.log_end_offset]
    return [
        SourceSegment(file_system, task.path, segment, end, task.read_bytes)
        for segment, end in zip(task.segments, ends, strict=True)
    ]


def marker_type(batch: RecordBatch) -> ControlRecordType:
    """The type of the control batch; UNKNOWN when its record was cleaned away."""
    record = next(batch.records(), None)
    return ControlRecordType.UNKNOWN if record is None else control_type(record)


class TransactionEnds:
    """How every transaction of a log ended, by its markers.

    Kafka relies on the transaction indexes of the segments; the markers themselves cannot be missing or stale. Both are
    read at the first transactional batch, so logs without transactions pay nothing.
    """

    def __init__(self, sources: Sequence[SourceSegment]) -> None:
        self._sources = sources
        self._ends: dict[int, tuple[list[int], list[bool]]] | None = None
        self._indexed: dict[tuple[int, int], AbortedTxn] = {}

    def is_aborted(self, batch: RecordBatch) -> bool:
        """Whether the transaction of this transactional batch was aborted. Raises as `SourceSegment.markers`."""
        ends = self._ends
        if ends is None:
            ends = self._ends = self._find()
        offsets, aborted = ends.get(batch.producer_id, ([], []))
        at = bisect_right(offsets, batch.last_offset)
        return at < len(aborted) and aborted[at]

    def indexed(self, batch: RecordBatch) -> AbortedTxn | None:
        """The transaction index entry of the transaction that this marker aborts, if there is one.

        The indexes still know its first offset after its first records are gone. Call `is_aborted` first.
        """
        return self._indexed.get((batch.producer_id, batch.last_offset))

    def _find(self) -> dict[int, tuple[list[int], list[bool]]]:
        ends: dict[int, tuple[list[int], list[bool]]] = {}
        for source in self._sources:
            self._indexed.update({(each.producer_id, each.last_offset): each for each in source.aborted()})
            for batch in source.markers():
                kind = marker_type(batch)
                if kind in {ControlRecordType.ABORT, ControlRecordType.COMMIT}:
                    offsets, aborted = ends.setdefault(batch.producer_id, ([], []))
                    offsets.append(batch.last_offset)
                    aborted.append(kind is ControlRecordType.ABORT)
        return ends
