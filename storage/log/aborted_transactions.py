"""The aborted transactions of a log, which read_committed readers have to be told."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.errors import ApiError, ErrorCode
from storage.log.unified_log import UnifiedLog
from storage.segment.log_segment import LogSegment
from storage.segment.segment_search import segment_index
from storage.segment.transaction_index import AbortedTxn


def read_aborted(log: UnifiedLog) -> list[AbortedTxn]:
    """The aborted transactions of all segments, in the order of their markers. May wait for the disk, on any thread.

    Raises ApiError CORRUPT_MESSAGE when a file cannot be understood, KAFKA_STORAGE_ERROR.
    """
    try:
        return [each for segment in log.segments for each in segment.files.aborted_transactions()]
    except OSError as error:
        doing = f"Error while reading the aborted transactions of {log.topic_partition}"
        raise log.local.fail(error, doing) from error
    except ValueError as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error


def copy_aborted(log: UnifiedLog, future: UnifiedLog) -> None:
    """Give the segments of `future`, which holds the same batches, the entries that belong to them; they are on stable
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
    """The aborted transactions that a reader of a log has to know; `learn` reads them from the `.txnindex` files, and
    the segments keep them.

    What is appended afterwards is known; segments that compaction or a truncation has replaced are read again. (A
    cleaner drops records with their markers, and a reader that is told of a transaction without a marker would drop the
    producer's next one too.)
    """

    __slots__ = ("_known_segments",)

    def __init__(self) -> None:
        self._known_segments: Sequence[LogSegment] = ()
        """`log.segments` when all of them were known; every change makes a new tuple."""

    def are_known(self, log: UnifiedLog) -> bool:
        """Whether `between` can be asked about `log`."""
        segments = log.local.segments
        if segments is not self._known_segments:
            if not all(segment.files.knows_transactions for segment in segments):
                return False
            self._known_segments = segments
        return segments[-1].files.knows_transactions

    def learn(self, log: UnifiedLog) -> None:
        """Read them. May wait for the disk, on any thread. Raises as `read_aborted`."""
        read_aborted(log)

    def between(self, log: UnifiedLog, start_offset: int, end_offset: int) -> Sequence[AbortedTxn]:
        """Those that a reader of the records from `start_offset` to before `end_offset` may meet in the one segment
        that it is given records of, in the order of their markers.
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
