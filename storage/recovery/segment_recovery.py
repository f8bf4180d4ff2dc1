"""Repairing a segment after a crash: batch by batch, up to the first that is not whole (Kafka's
`LogSegment.recover`).

This is the loop that a start after a crash waits for, so it makes no object for a batch but the tuple of its fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from crc32c import crc32c

from protocol.records.batch import HEADER_BYTES, RecordBatch
from protocol.records.record_format import ATTRIBUTES_AT, HEADER, LOG_OVERHEAD_BYTES, MAGIC_V2
from storage.log.batch_walk import CorruptRange, Place, walk
from storage.log.indexes import IndexBuilder
from storage.log.log_segment import MAX_RELATIVE_OFFSET, LogSegment
from storage.recovery.segment_split import refuse_overflow

_CHUNK_BYTES = 1 << 20

_Found: TypeAlias = tuple[int, int, int, int, int, int, int, memoryview, int]
"""Position, size, base offset, last offset, largest timestamp, leader epoch and producer id of a batch; and the piece
of the file that it is in, and where in it.
"""


def recover_segment(
    segment: LogSegment,
    end_offset: int | None,
    index_interval_bytes: int,
    on_batch: Callable[[RecordBatch], None],
    on_bytes: Callable[[int], None],
    recovery_point: int = 0,
    *,
    may_have_gaps: bool = True,
) -> int:
    """Walk all batches of `segment`, build its indexes anew and cut the file behind the last valid one; returns the
    next offset.

    What is below `recovery_point` was on stable storage, so what is wrong there is no torn end: the segment goes on
    behind such a `CorruptRange`, and the log does not end before that offset.

    Valid: size, magic and CRC agree; and, because the CRC does not cover them, offsets ascend from the base offset
    and stay below `end_offset` (the base of the next segment). `on_batch` sees each valid batch that begins a leader
    epoch or has a producer id (its header at least, and all of a control batch), `on_bytes` how many bytes were read.
    Raises OSError, and SegmentOverflowError when it is to be split first; `may_have_gaps` is for `find_overflow`, too.
    """
    if segment.size == 0:
        return segment.base_offset  # thousands of partitions may be empty: no file is looked at for them
    builder = IndexBuilder(segment.base_offset, index_interval_bytes)
    add = builder.add_batch
    next_offset, valid_bytes, latest_epoch = segment.base_offset, 0, -1
    limit = segment.base_offset + MAX_RELATIVE_OFFSET + 1
    if end_offset is not None:
        limit = min(limit, end_offset)
    found = _without_impostor(segment.base_offset, _valid_batches(segment, limit, on_bytes))
    for position, size, base_offset, last_offset, max_timestamp, epoch, producer_id, chunk, at in found:
        if (
            base_offset > next_offset
            and next_offset + last_offset - base_offset + 1 == recovery_point
            and position + size == segment.size
            and end_offset is None
        ):
            # The last batch: nothing follows to give a raised offset away, but where the log ended when it was flushed.
            limit = recovery_point
            break
        if producer_id >= 0 or epoch > latest_epoch:
            latest_epoch = max(latest_epoch, epoch)
            on_batch(RecordBatch(chunk[at : at + size]))
        add(last_offset, max_timestamp, size, position)
        next_offset = last_offset + 1
        valid_bytes = position + size
    refuse_overflow(segment, valid_bytes, end_offset, recovery_point, may_have_gaps=may_have_gaps)
    corrupt_ranges: list[CorruptRange] = []
    if next_offset < recovery_point and valid_bytes < segment.size:
        place = Place(valid_bytes, next_offset, latest_epoch)
        place, corrupt_ranges = _go_on_behind_damage(
            segment, place, limit, end_offset, recovery_point, builder, on_batch
        )
        valid_bytes, next_offset, _ = place
    segment.cut(valid_bytes)
    segment.use_indexes(builder)
    segment.batches.take_checked(tuple(corrupt_ranges))
    return next_offset


def _go_on_behind_damage(
    segment: LogSegment,
    place: Place,
    limit: int,
    end_offset: int | None,
    recovery_point: int,
    builder: IndexBuilder,
    on_batch: Callable[[RecordBatch], None],
) -> tuple[Place, list[CorruptRange]]:
    """Recover what is sound from `place` on, where a batch is not, as far as it was on stable storage. Gives where the
    segment ends, and the damages before it. The other arguments are those of `recover_segment`.
    """
    valid_bytes, next_offset, epoch = place
    corrupt_ranges: list[CorruptRange] = []
    for each in walk(segment.file.pread, place, segment.size, segment.size, limit):
        if isinstance(each, CorruptRange):
            if each.first_offset >= recovery_point:
                break
            if each.end == segment.size:
                next_offset = recovery_point if end_offset is None else end_offset
            corrupt_ranges.append(each if each.end < segment.size else each._replace(end_offset=next_offset))
            valid_bytes = each.end
        else:
            position, batch = each
            on_batch(segment.batches.read_batch(position, batch.size_in_bytes) if batch.is_control else batch)
            builder.add(batch, position)
            next_offset, valid_bytes = batch.next_offset, position + batch.size_in_bytes
    return Place(valid_bytes, next_offset, epoch), corrupt_ranges


def _without_impostor(held_from: int, batches: Iterator[_Found]) -> Iterator[_Found]:
    """The batches up to the first whose offsets do not ascend; without the last of these if it alone is to blame.

    A flipped bit can raise the base offset of a batch. It then seems to skip offsets that its successor goes on with.
    `held_from` is the offset that should come first.
    """
    held: _Found | None = None
    for batch in batches:
        if held is not None:
            if batch[2] <= held[3]:
                if batch[2] < held_from or held[2] == held_from:
                    yield held
                return
            yield held
            held_from = held[3] + 1
        held = batch
    if held is not None:
        yield held


def _valid_batches(segment: LogSegment, limit: int, on_bytes: Callable[[int], None]) -> Iterator[_Found]:
    """The batches up to the first that is damaged or has offsets outside the segment."""
    pread, end, first_offset = segment.file.pread, segment.size, segment.base_offset
    unpack = HEADER.unpack_from
    position = at = 0
    chunk = memoryview(b"")
    left = 0  # bytes of `chunk` from `at` on
    while end - position >= HEADER_BYTES:
        wanted = HEADER_BYTES
        if left >= HEADER_BYTES:
            (base, length, epoch, magic, crc, _, delta, _, max_timestamp, producer_id, _, _, _) = unpack(chunk, at)
            wanted = length + LOG_OVERHEAD_BYTES
            if magic != MAGIC_V2 or not HEADER_BYTES <= wanted <= end - position:
                return
            if left >= wanted:
                after = at + wanted
                if not first_offset <= base <= base + delta < limit or crc32c(chunk[at + ATTRIBUTES_AT : after]) != crc:
                    return
                yield position, wanted, base, base + delta, max_timestamp, epoch, producer_id, chunk, at
                position += wanted
                left -= wanted
                at = after
                continue
        chunk = memoryview(pread(position, min(max(wanted, _CHUNK_BYTES), end - position)))
        at, left = 0, len(chunk)
        on_bytes(left)
        if left < wanted:
            return
