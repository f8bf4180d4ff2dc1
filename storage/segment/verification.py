"""Checking batches that this process did not write before they are served.

The content of a segment may have changed on the disk before it is opened. Each byte is checked once, on first use
(`storage.segment.batch_walk`). Damaged bytes are never read again.
"""

from __future__ import annotations

from collections.abc import Callable

from protocol.records.batch import HEADER_BYTES, RecordBatch
from protocol.value import Value
from storage.segment.batch_reader import Read
from storage.segment.batch_walk import UNKNOWN_EPOCH, BatchWalk, CorruptRange, Place, place_after

_NEAR_BYTES = 256 * 1024
"""A check begins at the start of the unchecked bytes if that is within this distance, otherwise at an index entry."""
_MAX_GAPS = 16


class _Gap(Value):
    """A range of unchecked bytes."""

    start: Place
    end: int


class Verification:
    """The state of the bytes that a segment had when it was opened: unchecked and corrupt ranges.

    Any thread may check while others read: the state is replaced atomically. The result of one of two concurrent checks
    may be lost; it is repeated when needed.
    """

    __slots__ = ("_known", "_limit")

    def __init__(self, base_offset: int, size: int, limit: int, corrupt_ranges: tuple[CorruptRange, ...] = ()) -> None:
        """The first `size` bytes are unchecked. Their batches have offsets below `limit`."""
        gaps = (_Gap(Place(0, base_offset, UNKNOWN_EPOCH), size),) if size else ()
        self._known: tuple[tuple[_Gap, ...], tuple[CorruptRange, ...]] = gaps, corrupt_ranges
        self._limit = limit

    def copy(self) -> Verification:
        """A copy of the current state; later results are not shared."""
        twin = Verification(0, 0, self._limit)
        twin._known = self._known
        return twin

    @property
    def corrupt_ranges(self) -> tuple[CorruptRange, ...]:
        """The corrupt ranges found, in order."""
        return self._known[1]

    @property
    def end(self) -> int:
        """All bytes from this position on were checked and are sound."""
        gaps, corrupt_ranges = self._known
        return max(gaps[-1].end if gaps else 0, corrupt_ranges[-1].end if corrupt_ranges else 0)

    def sound_until(self, position: int) -> int:
        """End of the sound bytes from `position` on, 2^63-1 if they do not end; `position` itself if that is unchecked
        or damaged.
        """
        gaps, corrupt_ranges = self._known
        ends = [max(gap.start.position, position) for gap in gaps if gap.end > position]
        ends += [max(corrupt_range.start, position) for corrupt_range in corrupt_ranges if corrupt_range.end > position]
        return min(ends, default=2**63 - 1)

    def offset_at(self, position: int) -> int:
        """The next offset if unchecked bytes begin at `position`, otherwise -1."""
        return next((gap.start.next_offset for gap in self._known[0] if gap.start.position == position), -1)

    def corrupt_range_at(self, position: int) -> CorruptRange | None:
        """The corrupt range that contains the byte at `position`."""
        return next((each for each in self.corrupt_ranges if each.start <= position < each.end), None)

    def corrupt_range_of(self, offset: int) -> CorruptRange | None:
        """The corrupt range that contains `offset`."""
        return next((each for each in self.corrupt_ranges if each.first_offset <= offset < each.end_offset), None)

    def check(self, read: Read, indexed_before: Callable[[int], int], start: int, stop: int) -> None:
        """Check the unchecked bytes between the positions `start` and `stop`, up to the end of a batch.

        `indexed_before(position)` is the position of a batch before that one, or 0; a wrong index only costs time.
        Raises OSError.
        """
        for gap in self._known[0]:
            if gap.end > start and gap.start.position < stop:
                self._check_gap(read, indexed_before, gap, max(start, gap.start.position), stop)

    def _check_gap(self, read: Read, indexed_before: Callable[[int], int], gap: _Gap, start: int, stop: int) -> None:
        if start - gap.start.position > _NEAR_BYTES:
            # Begin one indexed batch early: it serves to judge the next one and is not judged itself.
            begin = indexed_before(indexed_before(start))
            if gap.start.position < begin < start:
                first = Place(begin, gap.start.next_offset, UNKNOWN_EPOCH)
                found = self._walk(read, gap, first, gives_batches=True)
                beyond = next(found.run(begin + 1), None)
                if isinstance(beyond, tuple) and not isinstance(beyond, CorruptRange):
                    second = place_after(*beyond)
                    found = self._walk(read, gap, second)
                    corrupt_ranges = [each for each in found.run(stop) if isinstance(each, CorruptRange)]
                    if not corrupt_ranges or corrupt_ranges[0].start > second.position:
                        self._note(second.position, found.place, corrupt_ranges)
                        return
        found = self._walk(read, gap, gap.start)
        corrupt_ranges = [each for each in found.run(min(stop, gap.end)) if isinstance(each, CorruptRange)]
        self._note(gap.start.position, found.place, corrupt_ranges)

    def _walk(self, read: Read, gap: _Gap, place: Place, *, gives_batches: bool = False) -> BatchWalk:
        limit = self._limit
        if self.sound_until(gap.end) > gap.end:
            following = read(gap.end, HEADER_BYTES)
            if len(following) == HEADER_BYTES:
                limit = min(limit, RecordBatch(memoryview(following)).base_offset)
        return BatchWalk(read, place, gap.end, limit, gives_batches=gives_batches)

    def recheck(self, read: Read, place: Place, stop: int, end: int, limit: int) -> Place:
        """Check again from `place` to the position `stop`; returns the place reached, at most `end` (the end of the
        file). All offsets must be below `limit`, including those appended since the segment was opened. Raises OSError.
        """
        found = BatchWalk(read, place, end, limit)
        corrupt_ranges = [each for each in found.run(stop) if isinstance(each, CorruptRange)]
        self._note(place.position, found.place, corrupt_ranges)
        return found.place

    def _note(self, begin: int, after: Place, new: list[CorruptRange]) -> None:
        """Store the results of a check between the positions `begin` and `after`."""
        while True:
            known = self._known
            gaps = _without(known[0], begin, after)
            kept = [each for each in known[1] if each.end <= begin or each.start >= after.position]
            if self._known is known:  # if another thread was not faster
                self._known = gaps, tuple(sorted(kept + new))
                return

    def truncate(self, position: int) -> None:
        """The segment was cut at `position`."""
        gaps, corrupt_ranges = self._known
        self._known = (
            tuple(_Gap(gap.start, min(gap.end, position)) for gap in gaps if gap.start.position < position),
            tuple(each for each in corrupt_ranges if each.start < position),
        )


def _without(gaps: tuple[_Gap, ...], begin: int, after: Place) -> tuple[_Gap, ...]:
    """The rest of `gaps` when everything from `begin` up to `after` was checked."""
    left: list[_Gap] = []
    for gap in gaps:
        if gap.start.position >= after.position or gap.end <= begin:
            left.append(gap)
            continue
        if gap.start.position < begin:
            left.append(_Gap(gap.start, begin))
        if gap.end > after.position:
            left.append(_Gap(after, gap.end))
    if len(left) > _MAX_GAPS:  # many concurrent readers: check the smallest sound part again
        at = min(range(1, len(left)), key=lambda at: left[at].start.position - left[at - 1].end)
        left[at - 1 : at + 1] = [_Gap(left[at - 1].start, left[at].end)]
    return tuple(left)
