"""Compaction of a batch: collecting its keys, and removing its obsolete records.

Rules: Kafka's `Cleaner.buildOffsetMapForSegment`, `Cleaner.shouldRetainRecord` and `MemoryRecords.filterTo`; KIP-534
(delete horizon). Values and headers are skipped by size and never decoded: runs of records with the same shape are
processed column by column at the speed of C (protocol.records.record_runs), the others in one loop per pass. Records
that stay are copied unchanged.

The bytes differ from Kafka's in two ways that readers cannot see. The base timestamp of a batch stays when its first
record is removed; Kafka uses that of the first remaining record, and re-encodes every record for it. The timestamps
inside a LogAppendTime batch, which are not used, stay too.

The module works uncompiled, and mypyc can compile it unchanged (`bin/build-fast`).
"""

from __future__ import annotations

from itertools import compress as select
from itertools import repeat
from operator import le
from typing import cast

from protocol.errors import invalid_record
from protocol.records.batch import RecordBatch
from protocol.records.checksum import crc32c
from protocol.records.compression import CompressionType, compress
from protocol.records.record_format import (
    ATTRIBUTES_AT,
    CONTROL_FLAG,
    CRC,
    CRC_AT,
    DELETE_HORIZON_FLAG,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD_BYTES,
    MAGIC_V2,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
)
from protocol.records.record_runs import CHUNK_RECORDS, RecordRun, find_run
from protocol.records.varint import UNWRAPPED, VARLONG_MAX_BYTES, decode_varint, encode_varint, wrap_int64

_IS_INTERPRETED = __file__.endswith(".py")
"""When compiled, the loops are faster than the columns."""
_NOWHERE = -1
"""The offset of a key that is not in the map."""
_MOST_OFFSETS_A_KEY = 64
_BELOW_ALL = -(2**63)
"""The end of an empty map: below all offsets."""


# -- the map ---------------------------------------------------------------------------------------------------------


def note_keys(
    batch: RecordBatch,
    latest: dict[bytes, int],
    capacity: int,
    from_offset: int = 0,
) -> int:
    """Add key -> offset of every keyed record at or above `from_offset` to `latest`, until it holds `capacity` keys.

    Returns the offset up to which the batch is in the map: `batch.next_offset`, or less when `latest` is full. Raises
    ApiError INVALID_RECORD for records that do not parse, and the errors of decompression.
    """
    data = batch.records_payload()
    base_offset, count = batch.base_offset, batch.count
    position = index = 0
    try:
        while index < count:
            wanted = min(count - index, CHUNK_RECORDS)
            run = find_run(data, position, wanted) if _IS_INTERPRETED else None
            if run is not None:
                first = base_offset + run.offset_delta
                if first >= from_offset and len(latest) + run.size <= capacity:
                    if run.has_keys:
                        keys = cast("list[bytes]", run.keys())
                        latest.update(zip(keys, range(first, first + run.size), strict=True))
                    position = run.end
                    index += run.size
                    continue
                wanted = run.size
            position, full_at = _note_each(data, position, wanted, base_offset, latest, capacity, from_offset)
            if full_at >= 0:
                return full_at
            index += wanted
    except IndexError:
        raise invalid_record(f"The records of the batch at offset {base_offset} are cut off") from None
    if position != len(data):
        raise invalid_record(f"{len(data) - position} bytes follow the {count} declared records")
    return batch.next_offset


def _note_each(  # noqa: C901, PLR0912 - unrolled: this loop is half of what compaction costs
    data: bytes,
    position: int,
    count: int,
    base_offset: int,
    latest: dict[bytes, int],
    capacity: int,
    from_offset: int,
) -> tuple[int, int]:
    """Add `count` records to the map; returns where they end, and the offset of the record that did not fit, or -1."""
    size_of_data = len(data)
    for _ in range(count):
        size = data[position]
        position += 1
        if size > 127:
            byte = data[position]
            position += 1
            if byte > 127:
                size, position = decode_varint(data, position - 2)
            else:
                size = ((size & 127 | byte << 7) >> 1) ^ -(size & 1)
        else:
            size = (size >> 1) ^ -(size & 1)
        end = position + size
        if size < 0 or end > size_of_data:
            raise invalid_record(f"Record declares {size} bytes, {size_of_data - position} are left")
        position += 2  # the attributes, all of whose bits are unused, and the first byte of the timestamp
        if data[position - 1] > 127:
            while data[position] > 127:
                position += 1
            position += 1

        offset = data[position]
        position += 1
        if offset > 127:
            byte = data[position]
            position += 1
            if byte > 127:
                offset, position = decode_varint(data, position - 2)
            else:
                offset = ((offset & 127 | byte << 7) >> 1) ^ -(offset & 1)
        else:
            offset = (offset >> 1) ^ -(offset & 1)
        offset += base_offset

        size = data[position]
        if not size & 1:  # the lowest bit of a varint is its sign: a negative length means a null key
            position += 1
            if size > 127:
                size, position = decode_varint(data, position - 1)
            else:
                size >>= 1
            if position + size >= end:
                raise invalid_record(f"Record declares a key of {size} bytes, {end - position} are left")
            if offset >= from_offset:
                if len(latest) >= capacity:
                    return position, offset
                latest[data[position : position + size]] = offset
        position = end
    return position, -1


# -- the filter ------------------------------------------------------------------------------------------------------


class LatestOffsets:
    """A byte for each offset from `first_offset` on: 1 if it is the newest of its key.

    It makes the look-up of mapped keys unnecessary, which saves half of the work.
    """

    __slots__ = ("first_offset", "flags")

    def __init__(self, first_offset: int, flags: bytearray) -> None:
        self.first_offset = first_offset
        self.flags = flags


def latest_offsets_of(latest: dict[bytes, int], first_offset: int, end_offset: int) -> LatestOffsets | None:
    """The flags for `latest`, which covers the offsets from `first_offset` to `end_offset`.

    Returns None if the flags would take more memory than the keys, or if records have offsets outside their batches.
    """
    if not latest or end_offset - first_offset > _MOST_OFFSETS_A_KEY * len(latest):
        return None
    if min(latest.values()) < first_offset or max(latest.values()) >= end_offset:
        return None
    flags = bytearray(end_offset - first_offset)
    for offset in latest.values():
        flags[offset - first_offset] = 1
    return LatestOffsets(first_offset, flags)


def filter_batch(
    batch: RecordBatch,
    latest: dict[bytes, int],
    map_end_offset: int,
    now_ms: int,
    *,
    delete_retention_ms: int,
    discard: bool = False,
    keep_empty: bool = False,
    ends_empty_transaction: bool = False,
    latest_offsets: LatestOffsets | None = None,
) -> memoryview | bytes | None:
    """Drop the obsolete records of `batch`. Returns None if no records remain, `batch.buffer` itself if all remain,
    otherwise the new batch.

    A record stays if it is at or above `map_end_offset` (the end of the range that `latest` covers), or if no later
    record has its key. Records without a key are dropped, tombstones stay only until the batch's delete horizon. A
    batch with tombstones but without a horizon gets `now_ms + delete_retention_ms`, and so does a marker with
    `ends_empty_transaction`, whose transaction lost all its records. Other control batches are not examined.

    `latest_offsets`, of the same map, makes look-ups unnecessary. `discard` drops every record: those of an aborted
    transaction, or a marker past its horizon. `keep_empty` keeps a batch without records, for its producer's last
    sequence number or epoch. A new batch keeps the offsets, producer, sequence, epoch and codec of the old one; its
    largest timestamp is that of its records.

    Raises ApiError INVALID_RECORD for records that do not parse, and what decompressing raises.
    """
    if discard or batch.count == 0:
        return _emptied(batch) if keep_empty else None
    stamp = DELETE_HORIZON_FLAG & ~batch.attributes
    if batch.attributes & CONTROL_FLAG:
        if not (ends_empty_transaction and stamp):
            return batch.buffer
        map_end_offset = _BELOW_ALL
    flags: bytearray | None = None
    first_flag = 0
    if latest_offsets is not None and not batch.attributes & (TRANSACTIONAL_FLAG | CONTROL_FLAG):
        # Aborted records are not in the map, so offsets alone do not decide for transactional batches.
        first_flag = batch.base_offset - latest_offsets.first_offset
        if first_flag >= 0 and batch.last_offset < map_end_offset:
            flags = latest_offsets.flags
            if flags.find(1, first_flag, first_flag + batch.last_offset_delta + 1) < 0:
                return _emptied(batch) if keep_empty else None
    horizon_ms = batch.delete_horizon_ms
    keep_tombstones = horizon_ms is None or now_ms < horizon_ms
    data = batch.records_payload()
    kept = _filter(batch, data, latest, map_end_offset, flags, first_flag, keep_tombstones=keep_tombstones)
    if kept.count == 0:
        return _emptied(batch) if keep_empty else None
    if (kept.has_tombstones or ends_empty_transaction) and stamp:
        return _rebuilt(batch, data, kept, now_ms + delete_retention_ms)
    return batch.buffer if kept.count == batch.count else _rebuilt(batch, data, kept, None)


class _Kept:
    """The records that stay: start and end of each contiguous stretch, and a summary of their contents."""

    __slots__ = ("count", "has_tombstones", "max_timestamp_delta", "starts", "stops")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.stops: list[int] = []
        self.count: int = 0
        self.has_tombstones: bool = False
        self.max_timestamp_delta: int = _BELOW_ALL


def _filter(
    batch: RecordBatch,
    data: bytes,
    latest: dict[bytes, int],
    map_end_offset: int,
    flags: bytearray | None,
    first_flag: int,
    *,
    keep_tombstones: bool,
) -> _Kept:
    """`flags`, if given, tell for every offset of the batch whether its record is the newest of its key; the flag of
    the base offset is at `first_flag`.
    """
    base_offset, count = batch.base_offset, batch.count
    kept = _Kept()
    position = index = 0
    try:
        while index < count:
            wanted = min(count - index, CHUNK_RECORDS)
            run = find_run(data, position, wanted) if _IS_INTERPRETED else None
            if run is not None and base_offset + run.offset_delta + run.size <= map_end_offset:
                if run.has_keys and (keep_tombstones or run.has_values):
                    _filter_run(run, base_offset + run.offset_delta, latest, flags, first_flag, kept)
                position = run.end
                index += run.size
                continue
            if run is not None:
                wanted = run.size
            position = _filter_each(
                data,
                position,
                wanted,
                base_offset,
                latest,
                map_end_offset,
                flags,
                first_flag,
                kept,
                keep_tombstones=keep_tombstones,
            )
            index += wanted
    except IndexError:
        raise invalid_record(f"The records of the batch at offset {base_offset} are cut off") from None
    if position != len(data):
        raise invalid_record(f"{len(data) - position} bytes follow the {count} declared records")
    return kept


def _filter_run(
    run: RecordRun,
    first_offset: int,
    latest: dict[bytes, int],
    flags: bytearray | None,
    first_flag: int,
    kept: _Kept,
) -> None:
    """Keep the records of `run`, which all have keys, unless a later record replaces them."""
    size = run.size
    if flags is not None:
        at = first_flag + run.offset_delta
        stay = list(select(range(size), flags[at : at + size]))
    else:
        offsets = range(first_offset, first_offset + size)
        found = map(latest.get, cast("list[bytes]", run.keys()), repeat(_NOWHERE))
        stay = list(select(range(size), map(le, found, offsets)))
    if not stay:
        return
    if not run.has_values:
        kept.has_tombstones = True
    deltas = list(run.timestamp_deltas())
    largest = max(deltas) if len(stay) == size else max(map(deltas.__getitem__, stay))
    kept.max_timestamp_delta = max(kept.max_timestamp_delta, largest)
    kept.count += len(stay)
    starts, stops, stride = kept.starts, kept.stops, run.stride
    stop = stops[-1] if stops else -1
    if len(stay) == size:
        stay, stride = [0], run.end - run.start
    for start in map(run.start.__add__, map(stride.__mul__, stay)):
        if start == stop:
            stop = stops[-1] = start + stride
        else:
            starts.append(start)
            stop = start + stride
            stops.append(stop)


def _filter_each(  # noqa: C901, PLR0912, PLR0915 - unrolled: this loop is half of what compaction costs
    data: bytes,
    position: int,
    count: int,
    base_offset: int,
    latest: dict[bytes, int],
    map_end_offset: int,
    flags: bytearray | None,
    first_flag: int,
    kept: _Kept,
    *,
    keep_tombstones: bool,
) -> int:
    """Add the records that stay, out of `count`, to `kept`; returns where the `count` records end."""
    size_of_data = len(data)
    starts, stops = kept.starts, kept.stops
    stop = stops[-1] if stops else -1
    largest = kept.max_timestamp_delta
    for _ in range(count):
        start = position
        size = data[position]
        position += 1
        if size > 127:
            byte = data[position]
            position += 1
            if byte > 127:
                size, position = decode_varint(data, position - 2)
            else:
                size = ((size & 127 | byte << 7) >> 1) ^ -(size & 1)
        else:
            size = (size >> 1) ^ -(size & 1)
        end = position + size
        if size < 0 or end > size_of_data:
            raise invalid_record(f"Record declares {size} bytes, {size_of_data - position} are left")
        timestamp_at = position + 1
        position += 2
        if data[timestamp_at] > 127:
            while data[position] > 127:
                position += 1
            position += 1

        offset = data[position]
        position += 1
        if offset > 127:
            byte = data[position]
            position += 1
            if byte > 127:
                offset, position = decode_varint(data, position - 2)
            else:
                offset = ((offset & 127 | byte << 7) >> 1) ^ -(offset & 1)
        else:
            offset = (offset >> 1) ^ -(offset & 1)
        if flags is not None and (offset < 0 or not flags[first_flag + offset]):
            position = end
            continue
        offset += base_offset

        size = data[position]
        has_key = not size & 1
        position += 1
        if size > 127:
            size, position = decode_varint(data, position - 1)
        else:
            size >>= 1
        if has_key:
            key_at = position
            position += size
            if position >= end:
                raise invalid_record(f"Record declares a key of {size} bytes, {end - key_at} are left")
        if (
            flags is None
            and offset < map_end_offset
            and (not has_key or latest.get(data[key_at:position], _NOWHERE) > offset)
        ):
            position = end
            continue
        if data[position] & 1:  # no value
            if offset < map_end_offset and not keep_tombstones:
                position = end
                continue
            kept.has_tombstones = True
        timestamp = data[timestamp_at]
        if timestamp > 127:
            timestamp, _ = decode_varint(data, timestamp_at, VARLONG_MAX_BYTES)
        else:
            timestamp = (timestamp >> 1) ^ -(timestamp & 1)
        if timestamp > largest:  # noqa: PLR1730 - a call for each record
            largest = timestamp
        kept.count += 1
        if start == stop:
            stops[-1] = end
        else:
            starts.append(start)
            stops.append(end)
        position = stop = end
    kept.max_timestamp_delta = largest
    return position


# -- the new batch ---------------------------------------------------------------------------------------------------


def _emptied(batch: RecordBatch) -> memoryview | bytes:
    """The header of `batch` without records (Kafka's `DefaultRecordBatch.writeEmptyHeader`)."""
    if batch.count == 0:
        return batch.buffer
    kept_flags = LOG_APPEND_TIME_FLAG | TRANSACTIONAL_FLAG | CONTROL_FLAG
    return _with_header(batch, b"", 0, batch.attributes & kept_flags, NO_TIMESTAMP, batch.max_timestamp)


def _rebuilt(batch: RecordBatch, data: bytes, kept: _Kept, horizon_ms: int | None) -> bytes:
    """A batch of the records that stay, with `horizon_ms` as its delete horizon unless None."""
    parts = [data[start:stop] for start, stop in zip(kept.starts, kept.stops, strict=True)]
    attributes, base_timestamp = batch.attributes, batch.base_timestamp
    if attributes & LOG_APPEND_TIME_FLAG:
        max_timestamp = batch.max_timestamp
    elif 0 <= base_timestamp < UNWRAPPED > kept.max_timestamp_delta:
        max_timestamp = max(base_timestamp + kept.max_timestamp_delta, NO_TIMESTAMP)
    else:
        max_timestamp = max(NO_TIMESTAMP, *map(wrap_int64, _timestamps(parts, base_timestamp)))
    if horizon_ms is not None:
        parts = [_with_base_timestamp(part, base_timestamp - horizon_ms) for part in parts]
        attributes |= DELETE_HORIZON_FLAG
        base_timestamp = horizon_ms
    body = b"".join(parts)
    codec = batch.compression
    if codec is not CompressionType.NONE:
        body = compress(codec, body)
    return _with_header(batch, body, kept.count, attributes, base_timestamp, max_timestamp)


def _with_header(
    batch: RecordBatch, body: bytes, count: int, attributes: int, base_timestamp: int, max_timestamp: int
) -> bytes:
    header = bytearray(
        HEADER.pack(
            batch.base_offset,
            HEADER_BYTES + len(body) - LOG_OVERHEAD_BYTES,
            batch.partition_leader_epoch,
            MAGIC_V2,
            0,
            attributes,
            batch.last_offset_delta,
            base_timestamp,
            max_timestamp,
            batch.producer_id,
            batch.producer_epoch,
            batch.base_sequence,
            count,
        )
    )
    CRC.pack_into(header, CRC_AT, crc32c(body, crc32c(memoryview(header)[ATTRIBUTES_AT:])))
    return b"".join((header, body))


def _with_base_timestamp(records: bytes, difference: int) -> bytes:
    """Copies of whole `records` with `difference` added to each timestamp delta."""
    parts: list[bytes] = []
    position = 0
    while position < len(records):
        size, body = decode_varint(records, position)
        delta, rest = decode_varint(records, body + 1, VARLONG_MAX_BYTES)
        end = body + size
        timestamp = encode_varint(wrap_int64(delta + difference))
        parts += (encode_varint(size + len(timestamp) - (rest - body - 1)), records[body : body + 1], timestamp)
        parts.append(records[rest:end])
        position = end
    return b"".join(parts)


def _timestamps(parts: list[bytes], base_timestamp: int) -> list[int]:
    timestamps: list[int] = []
    for records in parts:
        position = 0
        while position < len(records):
            size, body = decode_varint(records, position)
            timestamps.append(base_timestamp + decode_varint(records, body + 1, VARLONG_MAX_BYTES)[0])
            position = body + size
    return timestamps
