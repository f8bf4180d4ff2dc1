"""Which segment of a log has an offset, and where in it batches begin."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from protocol.records.batch import RecordBatch
from storage.log.log_segment import LogSegment

_REMEMBERED_BOUNDARIES = 64
"""The newest that are known in any case; there are twice as many at most."""


class BatchBoundaries:
    """Positions at which batches begin, by offset: where the newest appends and reads of a log ended."""

    __slots__ = ("_positions",)

    def __init__(self) -> None:
        self._positions: dict[int, tuple[LogSegment, int]] | None = None  # most logs are idle

    def remember(self, offset: int, segment: LogSegment, position: int) -> None:
        """The batch that begins at `offset` is, or will be, at `position` of `segment`; nobody is harmed if compaction
        has replaced that meanwhile.
        """
        positions = self._positions
        if positions is None:
            positions = self._positions = {}
        positions[offset] = segment, position
        if len(positions) >= 2 * _REMEMBERED_BOUNDARIES:
            for oldest in list(positions)[:_REMEMBERED_BOUNDARIES]:
                positions.pop(oldest, None)  # another thread may have been faster

    def position_of(self, offset: int, segment: LogSegment) -> int | None:
        """Where in `segment` the batch with `offset` begins, if it was remembered."""
        positions = self._positions
        known = None if positions is None else positions.get(offset)
        return known[1] if known is not None and known[0] is segment else None

    def forget(self) -> None:
        """Positions are about to change."""
        self._positions = None


def segment_index(segments: list[LogSegment], offset: int) -> int:
    """Index of the segment whose range has `offset`; 0 when it is below all of them."""
    return max(bisect_right(segments, offset, key=_base_offset) - 1, 0)


def _base_offset(segment: LogSegment) -> int:
    return segment.base_offset


def headers_from(segments: list[LogSegment], offset: int) -> Iterator[RecordBatch]:
    """Headers of the batches that end at or above `offset`. Raises as `LogSegment.find_batch`."""
    for segment in segments[segment_index(segments, offset) :]:
        start = 0
        if segment.base_offset < offset:
            found = segment.find_batch(offset)
            if found is None:
                continue
            start = found[0]
        for _, batch in segment.batches.headers(start):
            yield batch
