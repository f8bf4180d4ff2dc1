"""Walking the batches of a file from a place on, and telling which of them are sound.

Sizes, magic and CRC-32C of a batch are checked, and what the CRC does not cover, against its neighbours: offsets ascend
and stay inside the segment; a leader epoch that two neighbours share and the batch between them does not is wrong. What
fails is a `CorruptRange`, from the first byte that makes no sense to the next batch that does.

A base offset that was changed to another one inside a gap that compaction left cannot be told from a true one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from crc32c import crc32c

from protocol.records.batch import HEADER_BYTES, RecordBatch
from protocol.records.record_format import ATTRIBUTES_AT, HEADER, LOG_OVERHEAD_BYTES, MAGIC_AT, MAGIC_V2

_CHUNK_BYTES = 120 * 1024
"""A size that malloc still takes from its heap: fresh pages for every read would cost more than the CRC does."""
UNKNOWN_EPOCH = -1
_MAGIC = bytes([MAGIC_V2])

Read: TypeAlias = Callable[[int, int], bytes]
"""`File.pread`: (position, size) -> bytes."""


class CorruptRange(NamedTuple):
    """The bytes from `start` to `end` of a segment are no sound batches. They held the offsets from `first_offset` up
    to `end_offset`, as far as can be known.
    """

    start: int
    end: int
    first_offset: int
    end_offset: int
    reason: str


class Place(NamedTuple):
    """A position at which a batch begins; none from there on has an offset below `next_offset`. `epoch` is the leader
    epoch of the batch before, -1 when it is not known.
    """

    position: int
    next_offset: int
    epoch: int


class _Batches:
    """Single batches of a file, out of large reads."""

    def __init__(self, read: Read, end: int) -> None:
        self._read = read
        self.end = end
        self._chunk = memoryview(b"")
        self._chunk_at = 0

    def window(self, position: int) -> memoryview:
        """The bytes of the file from `position` on, a header at least unless it ends."""
        at = position - self._chunk_at
        if at < 0 or len(self._chunk) - at < HEADER_BYTES:
            self._chunk, self._chunk_at, at = memoryview(self._piece(position, self.end)), position, 0
        return self._chunk[at:]

    def _piece(self, position: int, end: int) -> bytes:
        return self._read(position, min(_CHUNK_BYTES, end - position))

    def at(self, position: int) -> RecordBatch | str:
        """The batch at `position` if size, magic and CRC are right, else what is wrong. `buffer` may hold only its
        beginning.
        """
        left = self.end - position
        data = self.window(position)
        if len(data) < HEADER_BYTES:
            return f"{left} bytes are no batch"
        batch = RecordBatch(data)
        size = batch.size_in_bytes
        if batch.magic != MAGIC_V2:
            return f"magic {batch.magic}"
        if not HEADER_BYTES <= size <= left:
            return f"batch length {batch.length}"
        computed = crc32c(data[ATTRIBUTES_AT:size])
        at = position + len(data)
        while at < position + size:  # piece by piece: a length can be wrong by a gigabyte
            piece = self._piece(at, position + size)
            if not piece:
                return "the file ends"
            computed = crc32c(piece, computed)
            at += len(piece)
        if computed != batch.crc:
            return f"stored crc = {batch.crc}, computed crc = {computed}"
        return batch

    def next_sound(self, position: int, first_offset: int, limit: int) -> int:
        """Where the next batch begins that is sound and has offsets from `first_offset` up to `limit`; `end` when there
        is none.
        """
        data = self.window(position)
        if len(data) >= HEADER_BYTES:
            # The size is probably right: most of a batch is records.
            size = RecordBatch(data).size_in_bytes
            after = position + size
            if size >= HEADER_BYTES and (after == self.end or self._is_sound(after, first_offset, limit)):
                return after
        at = position + 1
        while self.end - at >= HEADER_BYTES:
            chunk = self._piece(at, self.end)
            hit = chunk.find(_MAGIC, MAGIC_AT)
            while hit >= 0:
                begin = hit - MAGIC_AT
                base_offset = int.from_bytes(chunk[begin : begin + 8], "big", signed=True)
                if first_offset <= base_offset < limit and self._is_sound(at + begin, first_offset, limit):
                    return at + begin
                hit = chunk.find(_MAGIC, hit + 1)
            if len(chunk) <= MAGIC_AT:
                break
            at += len(chunk) - MAGIC_AT
        return self.end

    def _is_sound(self, position: int, first_offset: int, limit: int) -> bool:
        batch = self.at(position)
        return isinstance(batch, RecordBatch) and _is_inside(batch, first_offset, limit)


def _is_inside(batch: RecordBatch, first_offset: int, limit: int) -> bool:
    return first_offset <= batch.base_offset <= batch.last_offset < limit


Found: TypeAlias = "tuple[int, RecordBatch] | CorruptRange"
"""A sound batch and its position, or what is none."""


def walk(read: Read, place: Place, stop: int, end: int, limit: int) -> Iterator[Found]:
    """(position, header) of the sound batches of a file from `place` on, and the damages between them, in order, at
    least up to the position `stop`; all end at or before `end` and have offsets below `limit`.
    """
    return BatchWalk(read, place, end, limit, gives_batches=True).run(stop)


class BatchWalk:
    """The state of one `walk`."""

    def __init__(self, read: Read, place: Place, end: int, limit: int, *, gives_batches: bool = False) -> None:
        """Without `gives_batches` only those are given out that took a closer look, and all damages."""
        self._gives_batches = gives_batches
        self._batches = _Batches(read, end)
        self.place = place
        """Behind what was given out last."""
        self._end = end
        self._limit = limit
        self._held: tuple[int, RecordBatch] | None = None
        """Sound by itself; the batch that follows may still give it away."""
        self._corrupt_range: tuple[int, str] | None = None
        """Where one began, and what is wrong there."""

    def run(self, stop: int) -> Iterator[Found]:
        position = self.place.position
        while position < self._end and (position < stop or not self._is_settled()):
            if not self._gives_batches and self._is_settled():
                yield from self._settle("")
                position = self._pass_sound(stop)
                if position >= min(stop, self._end):
                    return
            batch = self._batches.at(position)
            held_reason, reason = self._judge(batch)
            yield from self._settle(held_reason)
            if position >= stop and self._corrupt_range is None:
                return
            if reason:
                self._corrupt_range = self._corrupt_range or (position, reason)
            if isinstance(batch, str):
                position = self._batches.next_sound(position, self.place.next_offset, self._limit)
                continue
            if not reason:
                self._held = position, batch
            position += batch.size_in_bytes
        yield from self._settle("")
        if self._corrupt_range is not None:
            first_offset = self.place.next_offset
            yield CorruptRange(
                self._corrupt_range[0], self._end, first_offset, max(first_offset, self._limit), self._corrupt_range[1]
            )
            self.place = self.place._replace(position=self._end)

    def _pass_sound(self, stop: int) -> int:
        """Go over batches that go on where the one before ended, in the same epoch, without an object for each. Returns
        where that comes to an end, which may be anything.
        """
        position, next_offset, epoch = self.place
        limit, unpack = self._limit, HEADER.unpack_from
        window = self._batches.window(position)
        at, end = 0, len(window)
        while position < stop and end - at >= HEADER_BYTES:
            base_offset, length, its_epoch, magic, crc, _, delta, _, _, _, _, _, _ = unpack(window, at)
            after = at + length + LOG_OVERHEAD_BYTES
            goes_on = base_offset == next_offset and its_epoch == epoch and 0 <= delta < limit - base_offset
            if not goes_on or magic != MAGIC_V2 or not at + HEADER_BYTES <= after <= end:
                break
            if crc32c(window[at + ATTRIBUTES_AT : after]) != crc:
                break
            position += after - at
            at = after
            next_offset += delta + 1
        self.place = Place(position, next_offset, epoch)
        return position

    def _is_settled(self) -> bool:
        """Whether nothing that follows could change what is thought of what was read."""
        if self._held is None or self._corrupt_range is not None:
            return self._held is None and self._corrupt_range is None
        batch = self._held[1]
        _, next_offset, epoch = self.place
        return batch.base_offset == next_offset and batch.partition_leader_epoch == epoch

    def _judge(self, batch: RecordBatch | str) -> tuple[str, str]:
        """The faults of the batch that is held and of the one behind it."""
        if isinstance(batch, str):
            return "", batch
        _, next_offset, epoch = self.place
        if not _is_inside(batch, next_offset, self._limit):
            possible = f"{next_offset} to {self._limit - 1}"
            return "", f"offsets {batch.base_offset} to {batch.last_offset} where {possible} are possible"
        if self._held is None:
            return "", ""
        return _contradiction(next_offset, epoch, self._held[1], batch)

    def _settle(self, reason: str) -> Iterator[Found]:
        """The batch that is held was right, or (`reason`) is a part of a damage."""
        if self._held is None:
            return
        position, batch = self._held
        self._held = None
        if reason:
            self._corrupt_range = self._corrupt_range or (position, reason)
            return
        if self._corrupt_range is not None:
            yield CorruptRange(
                self._corrupt_range[0], position, self.place.next_offset, batch.base_offset, self._corrupt_range[1]
            )
            self._corrupt_range = None
        yield position, batch
        self.place = place_after(position, batch)


def _contradiction(next_offset: int, epoch: int, held: RecordBatch, batch: RecordBatch) -> tuple[str, str]:
    """The faults of `held` and of `batch` behind it, each sound by itself; nothing may begin below
    `next_offset`, and `epoch` came before.
    """
    if batch.base_offset < held.next_offset:
        reason = f"offsets {held.base_offset} to {held.last_offset} before offset {batch.base_offset}"
        if held.base_offset == next_offset:
            return "", reason
        if batch.base_offset == next_offset + held.last_offset_delta + 1:
            return reason, ""
        return reason, reason
    if epoch == batch.partition_leader_epoch != held.partition_leader_epoch and epoch != UNKNOWN_EPOCH:
        return f"leader epoch {held.partition_leader_epoch} amid epoch {epoch}", ""
    return "", ""


def place_after(position: int, batch: RecordBatch) -> Place:
    return Place(position + batch.size_in_bytes, batch.next_offset, batch.partition_leader_epoch)
