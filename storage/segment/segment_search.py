"""Which segment of a log has an offset, and where in it batches begin."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from protocol.records.batch import RecordBatch
from storage.segment.batch_reader import header_of
from storage.segment.log_segment import LogSegment


def segment_index(segments: Sequence[LogSegment], offset: int) -> int:
    """Index of the segment whose range has `offset`; 0 when it is below all of them."""
    return max(bisect_right(segments, offset, key=_base_offset) - 1, 0)


def _base_offset(segment: LogSegment) -> int:
    return segment.base_offset


def headers_from(segments: Sequence[LogSegment], offset: int) -> Iterator[RecordBatch]:
    """Headers of the batches that end at or above `offset`; control batches come with their records. Raises as
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
