"""Repairing a segment after a crash: batch by batch, up to the first that is not whole (Kafka's
`LogSegment.recover`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from protocol.records import HEADER_BYTES, RecordBatch
from storage.indexes import IndexBuilder
from storage.log_segment import MAX_RELATIVE_OFFSET, LogSegment

_CHUNK_BYTES = 1 << 20


def recover_segment(
    segment: LogSegment,
    end_offset: int | None,
    index_interval_bytes: int,
    on_batch: Callable[[RecordBatch], None],
    on_bytes: Callable[[int], None],
) -> int:
    """Walk all batches of `segment`, build its indexes anew and cut the file behind the last valid one; returns the
    next offset.

    Valid: size, magic and CRC agree; and, because the CRC does not cover them, offsets ascend from the base offset
    and stay below `end_offset` (the base of the next segment). `on_batch` sees each valid batch, `on_bytes` how
    many bytes were read. Raises OSError.
    """
    builder = IndexBuilder(segment.base_offset, index_interval_bytes)
    next_offset, valid_bytes = segment.base_offset, 0
    limit = segment.base_offset + MAX_RELATIVE_OFFSET + 1
    if end_offset is not None:
        limit = min(limit, end_offset)
    for position, batch in _without_impostor(segment.base_offset, _valid_batches(segment, limit, on_bytes)):
        on_batch(batch)
        builder.add(batch, position)
        next_offset = batch.next_offset
        valid_bytes = position + batch.size_in_bytes
    if segment.size:
        segment.cut(valid_bytes)
        segment.use_indexes(builder)
    return next_offset


def _valid_batches(
    segment: LogSegment, limit: int, on_bytes: Callable[[int], None]
) -> Iterator[tuple[int, RecordBatch]]:
    """The batches up to the first that is damaged or has offsets outside the segment."""
    for position, batch in _whole_batches(segment, on_bytes):
        if not batch.is_valid or not segment.base_offset <= batch.base_offset <= batch.last_offset < limit:
            return
        yield position, batch


def _without_impostor(held_from: int, batches: Iterator[tuple[int, RecordBatch]]) -> Iterator[tuple[int, RecordBatch]]:
    """The batches up to the first whose offsets do not ascend; without the last of these if it alone is to blame.

    A flipped bit can raise the base offset of a batch. It then seems to skip offsets that its successor goes on with.
    `held_from` is the offset that should come first.
    """
    held: tuple[int, RecordBatch] | None = None
    for position, batch in batches:
        if held is not None:
            if batch.base_offset < held[1].next_offset:
                if batch.base_offset < held_from or held[1].base_offset == held_from:
                    yield held
                return
            yield held
            held_from = held[1].next_offset
        held = position, batch
    if held is not None:
        yield held


def _whole_batches(segment: LogSegment, on_bytes: Callable[[int], None]) -> Iterator[tuple[int, RecordBatch]]:
    """Position and content of what could be a batch, until the sizes no longer make sense."""
    file, end = segment.file, segment.size
    position = 0
    chunk, chunk_at = memoryview(b""), 0
    while end - position >= HEADER_BYTES:
        at = position - chunk_at
        wanted = HEADER_BYTES
        if len(chunk) - at >= HEADER_BYTES:
            header = RecordBatch(chunk[at:])
            wanted = header.size_in_bytes
            if not HEADER_BYTES <= wanted <= end - position:
                return
            if len(chunk) - at >= wanted:
                yield position, RecordBatch(chunk[at : at + wanted])
                position += wanted
                continue
        chunk = memoryview(file.pread(position, min(max(wanted, _CHUNK_BYTES), end - position)))
        chunk_at = position
        on_bytes(len(chunk))
        if len(chunk) < wanted:
            return
