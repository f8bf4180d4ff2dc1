"""Finding records in a log, by offset and by timestamp, with the aborted transactions that read_committed readers need.

A read returns a position in a file, never bytes. It ends on a batch boundary: Kafka cuts the last batch in two, and its
clients discard the partial batch. Consumers read in sequence, so each read remembers where it ended, and the next one
neither searches an index nor walks headers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from protocol.errors import ApiError, ErrorCode
from protocol.value import Value
from storage.io.file_system import File, WouldWaitError
from storage.log.local_log import LocalLog
from storage.segment.batch_reader import BASE_OFFSET, LAST_OFFSET_DELTA
from storage.segment.indexes import TimestampAndOffset
from storage.segment.log_segment import LogSegment, segment_index
from storage.segment.transaction_index import AbortedTxn

if TYPE_CHECKING:
    from storage.log.unified_log import UnifiedLog

T = TypeVar("T")

_CHECK_AHEAD_BYTES = 2 << 20
"""Bytes to check at once, so that a sequential consumer waits only once for several reads."""


class FetchDataInfo(Value, frozen=False):
    """`size` bytes at `position` of `file` are whole batches; the first one reaches the requested offset.

    With size 0, `file` is None; `first_entry_incomplete` then says that the first batch is larger than the requested
    size.
    """

    file: File | None
    position: int
    size: int
    first_entry_incomplete: bool = False


def read(
    log: LocalLog,
    offset: int,
    max_bytes: int,
    upper_bound_offset: int | None,
    *,
    min_one_message: bool,
    may_wait: bool,
) -> FetchDataInfo:
    """See `UnifiedLog.read`. Raises WouldWaitError unless `may_wait`."""
    end_offset = log.log_end_offset
    if not log.log_start_offset <= offset <= end_offset:
        raise ApiError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"Received request for offset {offset} for partition {log.topic_partition}, but we only have "
            f"log segments upto {end_offset} and starting from {log.log_start_offset}.",
        )
    if log.directory.failure is not None:
        raise log.directory.offline_error()
    bound = end_offset if upper_bound_offset is None else min(upper_bound_offset, end_offset)
    truncation = log.truncation
    if truncation is not None:
        bound = min(bound, truncation.unreadable_from)
    segments = log.segments
    index = last = len(segments) - 1
    if offset < segments[last].base_offset:
        index = segment_index(segments, offset)
    while offset < bound and index <= last and segments[index].base_offset < bound:
        end_of_segment = segments[index + 1].base_offset if index < last else None
        info = _read_segment(
            log, segments[index], offset, bound, end_of_segment, max_bytes, min_one_message, may_wait=may_wait
        )
        if info is not None:
            return info
        index += 1
    return FetchDataInfo(None, 0, 0)


def _read_segment(
    log: LocalLog,
    segment: LogSegment,
    offset: int,
    bound: int,
    end_of_segment: int | None,
    max_bytes: int,
    min_one_message: bool,
    *,
    may_wait: bool,
) -> FetchDataInfo | None:
    """The bytes to read in the segment, which ends before the offset `end_of_segment` (None for the active segment).
    Returns None when it has nothing to read.
    """
    start = _position_of(log, segment, offset, may_wait=may_wait)
    sound_end = segment.batches.size
    if segment.batches.unverified_end and (start is None or start <= segment.batches.unverified_end):
        start, sound_end = _checked(log, segment, offset, start, max_bytes, may_wait=may_wait)
    if start is None:
        return None
    limit = start + max_bytes
    indexed = segment.batches.boundary_before(limit, start, may_wait=may_wait) if limit < sound_end else None
    if indexed is not None and indexed[1] <= bound:
        # The usual case, except near the end of the log: no need to look for the end of the readable part.
        end, next_offset = indexed
    else:
        if end_of_segment is not None and end_of_segment <= bound:
            end, next_offset = segment.batches.size, end_of_segment
        else:
            end, next_offset = _end_position(log, segment, bound, may_wait=may_wait), bound
        if end > sound_end:
            end, next_offset = sound_end, segment.batches.offset_at(sound_end)
        if end > limit:
            end, next_offset = _whole_batches_within(segment, start, end, limit, min_one_message, may_wait)
            if end == start:
                return FetchDataInfo(None, 0, 0, first_entry_incomplete=True)
    if end <= start:
        return None
    if next_offset >= 0:
        log.remember_boundary(next_offset, segment, end)
    return FetchDataInfo(segment.batches.file, start, end - start)


def _checked(
    log: LocalLog, segment: LogSegment, offset: int, start: int | None, max_bytes: int, *, may_wait: bool
) -> tuple[int | None, int]:
    """The position of the first batch that reaches `offset` in a segment that was not checked to its end (`start` is
    the position before the check), and the end of the sound bytes from there on.

    Raises ApiError CORRUPT_MESSAGE when `offset` is in a corrupt range; WouldWaitError when the first batch was not
    checked yet, unless `may_wait`.
    """
    while start is not None and start < segment.batches.size and segment.batches.sound_until(start) == start:
        corrupt_range = segment.batches.corrupt_range_at(start)
        if corrupt_range is not None:
            start = corrupt_range.end
        elif may_wait:
            segment.batches.check(start, start + max(max_bytes, _CHECK_AHEAD_BYTES))
        else:
            raise WouldWaitError
    if segment.batches.corrupt_ranges:
        log.report_corrupt_ranges(segment)
        corrupt_range = segment.batches.corrupt_range_of(max(offset, segment.base_offset))
        if corrupt_range is not None:
            raise segment.batches.corrupt(corrupt_range)
    return start, segment.batches.size if start is None else segment.batches.sound_until(start)


def _position_of(log: LocalLog, segment: LogSegment, offset: int, *, may_wait: bool) -> int | None:
    """Position of the first batch in the segment that reaches `offset`, or None."""
    if offset <= segment.base_offset:
        return 0
    known = log.known_boundary(offset, segment)
    if known is not None:
        return known
    found = segment.find_batch(offset, may_wait=may_wait)
    return None if found is None else found[0]


def _end_position(log: LocalLog, segment: LogSegment, bound: int, *, may_wait: bool) -> int:
    """The position where the batches below `bound` end.

    Another thread may be appending: `size` may already include batches above the log end that `bound` came from, so it
    is correct only when no batch reaches `bound`.
    """
    size = segment.batches.size
    position = _position_of(log, segment, bound, may_wait=may_wait)
    return size if position is None else position


def _whole_batches_within(
    segment: LogSegment, start: int, end: int, limit: int, min_one_message: bool, may_wait: bool
) -> tuple[int, int]:
    """End of the whole batches between `start` and `limit` < `end`, and the offset there; (`start`, -1) if not even one
    fits. The index has no entry between them.
    """
    whole_end, next_offset = start, -1
    for position, size, _, _, fields in segment.batches.headers(start, may_wait=may_wait):
        after = position + size
        if after > limit and (position > start or not min_one_message):
            break
        whole_end, next_offset = min(after, end), fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] + 1
    return whole_end, next_offset


def retry_if_truncated(log: LocalLog, look: Callable[[], T]) -> T:
    """Call `look` and return its result, repeating it if the log was truncated meanwhile. Any thread may call it."""
    has_missed = False
    while True:
        truncations = log.truncations
        try:
            found = look()
        except (ApiError, OSError) as error:
            if log.truncations != truncations:
                continue
            if isinstance(error, FileNotFoundError) and not has_missed:
                # The owner was just renaming the segment. By now it has, or the log start has passed the segment.
                has_missed = True
                continue
            if isinstance(error, OSError):
                raise log.read_failed(error) from error
            raise
        if log.truncations == truncations:
            return found


def offset_for_timestamp(log: LocalLog, timestamp: int, upper_bound_offset: int | None) -> TimestampAndOffset | None:
    """See `UnifiedLog.offset_for_timestamp`."""
    _refuse_while_truncated(log)
    bound = log.log_end_offset if upper_bound_offset is None else upper_bound_offset
    for segment in log.segments:
        if segment.batches.size and segment.max_timestamp_and_offset.timestamp >= timestamp:
            found = _in_segment(log, segment, partial(segment.find_timestamp, timestamp, log.log_start_offset))
            if found is not None:
                return found if found.offset < bound else None
    return None


def offset_of_max_timestamp(log: LocalLog, upper_bound_offset: int | None) -> TimestampAndOffset | None:
    """See `UnifiedLog.offset_of_max_timestamp`."""
    _refuse_while_truncated(log)
    bound = log.log_end_offset if upper_bound_offset is None else upper_bound_offset
    filled = [segment for segment in log.segments if segment.batches.size]
    if not filled:
        return None
    newest = max(filled, key=lambda segment: segment.max_timestamp_and_offset.timestamp)
    found = _in_segment(log, newest, newest.find_max_timestamp)
    return found if found is not None and found.offset < bound else None


def _refuse_while_truncated(log: LocalLog) -> None:
    if log.truncation is not None:
        raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE, f"The end of {log.topic_partition} is being cut off")


def _in_segment(
    log: LocalLog, segment: LogSegment, find: Callable[[], TimestampAndOffset | None]
) -> TimestampAndOffset | None:
    try:
        return find()
    except ApiError:
        log.report_corrupt_ranges(segment)
        raise


def read_aborted(log: UnifiedLog) -> list[AbortedTxn]:
    """The aborted transactions of all segments, in the order of their markers. May wait for the disk, on any thread.

    Raises ApiError CORRUPT_MESSAGE for an invalid file, KAFKA_STORAGE_ERROR.
    """
    try:
        return [each for segment in log.segments for each in segment.files.aborted_transactions()]
    except OSError as error:
        doing = f"Error while reading the aborted transactions of {log.topic_partition}"
        raise log.local.fail(error, doing) from error
    except ValueError as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error


def copy_aborted(log: UnifiedLog, future: UnifiedLog) -> None:
    """Copy the transaction index entries to the segments of `future`, which holds the same batches; they are on stable
    storage when this returns. Raises as `read_aborted`.
    """
    by_base: dict[int, list[AbortedTxn]] = {}
    for each in read_aborted(log):
        segment = future.segments[segment_index(future.segments, each.last_offset)]
        by_base.setdefault(segment.base_offset, []).append(each)
    try:
        for segment in future.segments:
            entries = by_base.get(segment.base_offset)
            if entries is not None:
                segment.files.transactions.replace(entries)
    except OSError as error:
        raise future.local.failed(
            error, f"Error while writing the aborted transactions of {future.topic_partition}"
        ) from error


class AbortedTransactions:
    """The aborted transactions that readers of a log need; `load` reads them from the `.txnindex` files, and the
    segments cache them.

    Later appends update the cache; segments replaced by compaction or a truncation are read again. (A cleaner drops
    records with their markers, and a reader that gets an aborted transaction without its marker would also drop the
    producer's next transaction.)
    """

    __slots__ = ("_known_segments",)

    def __init__(self) -> None:
        self._known_segments: Sequence[LogSegment] = ()
        """`log.segments` when `load` last read them; every change makes a new tuple."""

    def are_loaded(self, log: UnifiedLog) -> bool:
        """Whether `between` may be called for `log`."""
        segments = log.local.segments
        if segments is not self._known_segments:
            if not all(segment.files.has_transactions for segment in segments):
                return False
            self._known_segments = segments
        return segments[-1].files.has_transactions

    def load(self, log: UnifiedLog) -> None:
        """Read the entries. May wait for the disk, on any thread. Raises as `read_aborted`."""
        read_aborted(log)

    def between(self, log: UnifiedLog, start_offset: int, end_offset: int) -> Sequence[AbortedTxn]:
        """The aborted transactions that overlap the offsets from `start_offset` to before `end_offset` within one
        segment, in the order of their markers.
        """
        segments = log.local.segments
        first = segment_index(segments, start_offset)
        if first + 1 < len(segments):
            end_offset = min(end_offset, segments[first + 1].base_offset)
        found: list[AbortedTxn] = []
        for segment in segments[first:]:
            for each in segment.files.aborted_transactions():
                if each.last_offset >= start_offset and each.first_offset < end_offset:
                    found.append(each)
                if each.last_stable_offset >= end_offset:
                    return found
        return found
