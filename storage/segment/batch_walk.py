"""Walking the batches of a file from a place on, and finding out which of them are sound.

The walk checks size, magic and CRC-32C of a batch, and compares the fields outside the CRC with its neighbours. Offsets
must ascend and stay inside the segment. A leader epoch that differs from the one both neighbours share is wrong if only
a change of this batch explains it: epochs only rise, so in 1, 0, 1 the first may be the wrong one. Damage becomes a
`CorruptRange`, from the first invalid byte to the next sound batch. A batch that does not begin where the previous one
ended is trusted only after a later sound batch was seen, whatever lies in between.

A base offset that changed to another one inside a gap left by compaction cannot be detected.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from protocol.records.batch import HEADER_BYTES, RecordBatch
from protocol.records.record_format import MAGIC_AT, MAGIC_V2
from storage.segment.batch_reader import SOUND, BatchReader, Read
from storage.segment.batch_reader import Found as BatchFound

UNKNOWN_EPOCH = -1
_MAGIC = bytes([MAGIC_V2])


class CorruptRange(NamedTuple):
    """Damaged bytes of a segment, from `start` to `end`. As far as can be determined, they held the offsets from
    `first_offset` up to `end_offset`.
    """

    start: int
    end: int
    first_offset: int
    end_offset: int
    reason: str


class Place(NamedTuple):
    """A position where a batch begins; offsets from there on are at least `next_offset`. `epoch` is the leader epoch of
    the previous batch, -1 if unknown; `is_shared` says that the batch before that had the same epoch.
    """

    position: int
    next_offset: int
    epoch: int
    is_shared: bool = False


def _is_inside(batch: RecordBatch, first_offset: int, limit: int) -> bool:
    return first_offset <= batch.base_offset <= batch.last_offset < limit


Found: TypeAlias = "tuple[int, RecordBatch] | CorruptRange"
"""A sound batch and its position, or a corrupt range."""


def walk(read: Read, place: Place, stop: int, end: int, limit: int) -> Iterator[Found]:
    """Iterate over the sound batches of a file from `place` on, as (position, header), and the corrupt ranges between
    them, in order, at least up to the position `stop`. All batches end at or before `end` and have offsets below
    `limit`.
    """
    return BatchWalk(read, place, end, limit, gives_batches=True).run(stop)


class BatchWalk:
    """The state of one `walk`."""

    def __init__(self, read: Read, place: Place, end: int, limit: int, *, gives_batches: bool = False) -> None:
        """Without `gives_batches`, only unusual batches and all corrupt ranges are yielded."""
        self._gives_batches = gives_batches
        self._read = read
        self._reader = BatchReader("", read, end, SOUND)
        self.place = place
        """The end of the last result."""
        self._end = end
        self._limit = limit
        self._held: tuple[int, RecordBatch] | None = None
        """A batch that looks sound; the next batch may still disprove it."""
        self._corrupt_range: tuple[int, str] | None = None
        """Start and reason of the open corrupt range. It lies before the held batch, if any."""
        self._fault_behind: tuple[int, str] | None = None
        """Start and reason of a corrupt range after the held batch, which waits for the next sound batch."""

    def run(self, stop: int) -> Iterator[Found]:
        """Yield all results at least up to the position `stop`. Call it only once."""
        position = self.place.position
        batches = self._reader.batches(position)
        while position < self._end and (position < stop or not self._is_final()):
            if not self._gives_batches and self._is_final():
                yield from self._finish_held("")
                batch = self._pass_sound(batches, stop)
                if batch is None:
                    return
                position = self.place.position
            else:
                batch = self._next(batches)
            held_reason, reason = self._judge(position, batch)
            if reason and not held_reason and not self._is_due():
                self._fault_behind = self._fault_behind or (position, reason)
            else:
                yield from self._finish_held(held_reason)
                if position >= stop and self._corrupt_range is None:
                    return
                if reason:
                    self._corrupt_range = self._corrupt_range or (position, reason)
            if isinstance(batch, str):
                position = self._next_sound(position, self.place.next_offset)
                batches = self._reader.batches(position)
                continue
            if not reason:
                self._held = position, batch
            position += batch.size_in_bytes
        yield from self._finish_held("")
        if self._corrupt_range is not None:
            first_offset = self.place.next_offset
            yield CorruptRange(
                self._corrupt_range[0], self._end, first_offset, max(first_offset, self._limit), self._corrupt_range[1]
            )
            self.place = self.place._replace(position=self._end)

    def _pass_sound(self, batches: Iterator[BatchFound], stop: int) -> RecordBatch | str | None:
        """Skip batches that begin where the previous one ended, in the same epoch, without an object for each. Returns
        the first other batch or fault, or None past `stop` and at the end.
        """
        position, next_offset, epoch, is_shared = self.place
        limit = self._limit
        odd: RecordBatch | str | None = None
        for _, size, window, at, (base_offset, _, its_epoch, _, _, delta, _, _) in batches:
            if base_offset != next_offset or its_epoch != epoch or not 0 <= delta < limit - base_offset:
                odd = RecordBatch(window[at:])
                break
            position += size
            next_offset += delta + 1
            is_shared = True
            if position >= stop:
                break
        else:
            fault = self._reader.fault
            odd = None if fault is None else fault.reason
        self.place = Place(position, next_offset, epoch, is_shared)
        return odd

    def _next(self, batches: Iterator[BatchFound]) -> RecordBatch | str:
        """The next batch if its size, magic and CRC are right, otherwise the fault. `buffer` may hold only the
        beginning of the batch.
        """
        for _, _, window, at, _ in batches:
            return RecordBatch(window[at:])
        fault = self._reader.fault
        return "the file ends" if fault is None else fault.reason

    def _next_sound(self, position: int, first_offset: int) -> int:
        """The position of the next sound batch with offsets from `first_offset` up to the limit; `end` without one."""
        data = self._reader.window(position)
        if len(data) >= HEADER_BYTES:
            # The size is probably right: a batch consists mostly of records.
            size = RecordBatch(data).size_in_bytes
            after = position + size
            if size >= HEADER_BYTES and (after == self._end or self._is_sound(after, first_offset)):
                return after
        at = position + 1
        while self._end - at >= HEADER_BYTES:
            piece = self._read(at, min(SOUND.window_bytes, self._end - at))
            hit = piece.find(_MAGIC, MAGIC_AT)
            while hit >= 0:
                begin = hit - MAGIC_AT
                base_offset = int.from_bytes(piece[begin : begin + 8], "big", signed=True)
                if first_offset <= base_offset < self._limit and self._is_sound(at + begin, first_offset):
                    return at + begin
                hit = piece.find(_MAGIC, hit + 1)
            if len(piece) <= MAGIC_AT:
                break
            at += len(piece) - MAGIC_AT
        return self._end

    def _is_sound(self, position: int, first_offset: int) -> bool:
        batch = self._next(self._reader.batches(position))
        return isinstance(batch, RecordBatch) and _is_inside(batch, first_offset, self._limit)

    def _is_final(self) -> bool:
        """Whether the verdict on everything read so far is final."""
        return self._corrupt_range is None and self._is_due()

    def _is_due(self) -> bool:
        """Whether the held batch, if any, begins where the previous one ended, in the same epoch."""
        if self._held is None:
            return True
        batch = self._held[1]
        _, next_offset, epoch, _ = self.place
        return batch.base_offset == next_offset and batch.partition_leader_epoch == epoch

    def _judge(self, position: int, batch: RecordBatch | str) -> tuple[str, str]:
        """The faults of the held batch and of the next one, at `position`."""
        if isinstance(batch, str):
            return "", batch
        _, next_offset, epoch, is_shared = self.place
        if not _is_inside(batch, next_offset, self._limit):
            possible = f"{next_offset} to {self._limit - 1}"
            return "", f"offsets {batch.base_offset} to {batch.last_offset} where {possible} are possible"
        if self._held is None:
            return "", ""
        held = self._held[1]
        if batch.base_offset < held.next_offset:
            reason = f"offsets {held.base_offset} to {held.last_offset} before offset {batch.base_offset}"
            if held.base_offset == next_offset:
                return "", reason
            return reason, "" if self._is_confirmed(position, batch) else reason
        its_epoch = held.partition_leader_epoch
        if UNKNOWN_EPOCH != epoch == batch.partition_leader_epoch != its_epoch and (its_epoch > epoch or is_shared):
            return f"leader epoch {its_epoch} within epoch {epoch}", ""
        return "", ""

    def _is_confirmed(self, position: int, batch: RecordBatch) -> bool:
        """Whether the offsets of `batch`, at `position`, are right and the held batch is wrong: `batch` begins where
        the held one would end if it had the expected offset, or the next batch begins where `batch` ends.
        """
        if self._held is not None and self._fault_behind is None:
            due = self.place.next_offset + self._held[1].last_offset_delta + 1
            if batch.base_offset == due:
                return True
        after = position + batch.size_in_bytes
        if after >= self._end:
            return batch.next_offset == self._limit
        following = self._next(self._reader.batches(after))
        return isinstance(following, RecordBatch) and following.base_offset == batch.next_offset

    def _finish_held(self, reason: str) -> Iterator[Found]:
        """Finish the held batch: it is sound, or (with `reason`) part of a corrupt range."""
        if self._held is None:
            return
        position, batch = self._held
        self._held = None
        fault_behind, self._fault_behind = self._fault_behind, None
        if reason:
            self._corrupt_range = self._corrupt_range or (position, reason)
            return
        if self._corrupt_range is not None:
            yield CorruptRange(
                self._corrupt_range[0], position, self.place.next_offset, batch.base_offset, self._corrupt_range[1]
            )
        yield position, batch
        self._corrupt_range = fault_behind
        self.place = place_after(position, batch, self.place.epoch)


def place_after(position: int, batch: RecordBatch, epoch_before: int = UNKNOWN_EPOCH) -> Place:
    """The place after a sound batch; `epoch_before` is the leader epoch of the batch before it."""
    epoch = batch.partition_leader_epoch
    return Place(position + batch.size_in_bytes, batch.next_offset, epoch, epoch == epoch_before)
