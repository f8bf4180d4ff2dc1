"""Reading a segment batch by batch: recovery after a crash, and building indexes anew (Kafka's `LogSegment.recover`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from protocol.records import HEADER_BYTES, RecordBatch
from storage.log_segment import LogSegment, check_header, scan_headers

_CHUNK_BYTES = 1 << 20


@dataclass(slots=True)
class SegmentScan:
    """What a segment holds up to its first invalid byte."""

    valid_bytes: int = 0
    next_offset: int = 0
    max_timestamp: int = -1
    max_timestamp_offset: int = 0
    batches: int = 0


def recover_segment(
    segment: LogSegment,
    end_offset: int | None,
    index_interval_bytes: int,
    on_batch: Callable[[RecordBatch], None],
    on_bytes: Callable[[int], None],
) -> SegmentScan:
    """Walk all batches of `segment`, build its indexes anew and cut the file behind the last valid one.

    Valid: size, magic and CRC agree, and offsets ascend from the base offset and stay below `end_offset` (the base of the next
    segment), because CRC does not cover the offset. `on_bytes` is told how many were read. Raises UnsupportedFormatError for older
    formats, OSError.
    """
    scan = SegmentScan(next_offset=segment.base_offset, max_timestamp_offset=segment.base_offset)
    offsets, times = segment.offset_index, segment.time_index
    offsets.reset()
    times.reset()
    since_entry = 0
    file, size = segment.file, segment.size
    position = 0
    chunk, chunk_at = memoryview(b""), 0
    while size - position >= HEADER_BYTES:
        at = position - chunk_at
        if len(chunk) - at < HEADER_BYTES:
            chunk, chunk_at, at = memoryview(file.pread(position, min(_CHUNK_BYTES, size - position))), position, 0
            on_bytes(len(chunk))
        header = RecordBatch(chunk[at:])
        length = header.size_in_bytes
        if header.magic in {0, 1}:
            check_header(file.path, position, header)
        if length < HEADER_BYTES or length > size - position:
            break
        if len(chunk) - at < length:
            chunk, chunk_at, at = memoryview(file.pread(position, max(length, min(_CHUNK_BYTES, size - position)))), position, 0
            on_bytes(len(chunk))
        batch = RecordBatch(chunk[at : at + length])
        if not batch.is_valid or batch.base_offset < scan.next_offset or batch.last_offset_delta < 0:
            break
        if end_offset is not None and batch.last_offset >= end_offset:
            break
        on_batch(batch)
        if batch.max_timestamp > scan.max_timestamp:
            scan.max_timestamp, scan.max_timestamp_offset = batch.max_timestamp, batch.last_offset
        if since_entry > index_interval_bytes:
            offsets.append(batch.last_offset, position)
            times.maybe_append(scan.max_timestamp, scan.max_timestamp_offset)
            since_entry = 0
        since_entry += length
        position += length
        scan.next_offset = batch.next_offset
        scan.batches += 1
    scan.valid_bytes = position
    if position < size:
        file.truncate(position)
    segment.recovered(position, scan.max_timestamp, scan.max_timestamp_offset)
    times.maybe_append(scan.max_timestamp, scan.max_timestamp_offset)
    offsets.write_held()
    times.write_held()
    return scan


def rebuild_indexes(segment: LogSegment, index_interval_bytes: int) -> None:
    """Build the indexes of a sound segment anew from its batch headers. Raises ApiError CORRUPT_MESSAGE, OSError."""
    offsets, times = segment.offset_index, segment.time_index
    offsets.reset()
    times.reset()
    since_entry, largest, largest_offset = 0, -1, segment.base_offset
    for position, batch in scan_headers(segment.file, 0, segment.size, _CHUNK_BYTES):
        if batch.max_timestamp > largest:
            largest, largest_offset = batch.max_timestamp, batch.last_offset
        if since_entry > index_interval_bytes:
            offsets.append(batch.last_offset, position)
            times.maybe_append(largest, largest_offset)
            since_entry = 0
        since_entry += batch.size_in_bytes
    segment.recovered(segment.size, largest, largest_offset)
    times.maybe_append(largest, largest_offset)
    offsets.write_held()
    times.write_held()


