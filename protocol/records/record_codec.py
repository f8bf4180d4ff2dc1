"""Single records inside a batch: keys, values, headers, timestamps (Kafka's `DefaultRecord`, KIP-98).

Decoding is one loop with the common one and two byte varints unrolled, because a call for each varint would double its
time. Runs of records with the same shape, typical of fixed-size values, are decoded column by column instead
(protocol.records.record_runs), several times as fast. Encoding always goes by columns, so no bytecode runs for each
record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, repeat
from operator import add
from typing import NamedTuple, cast

from protocol.errors import ApiError, detached, invalid_record
from protocol.records.record_runs import CHUNK_RECORDS, find_run
from protocol.records.varint import (
    NULL_LENGTH,
    UNWRAPPED,
    VARLONG_MAX_BYTES,
    Column,
    decode_varint,
    encode_varint,
    varint_column,
    wrap_int64,
)

Header = tuple[str, bytes | None]
"""Key and value of a record header; keys are UTF-8 on the wire and may repeat."""


class Record(NamedTuple):
    """One record. `timestamp` is milliseconds since the epoch, or -1."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()


_new_record = cast("Callable[[tuple[object, ...]], Record]", partial(tuple.__new__, Record))
"""`Record._make` without its check, and without a Python frame for each record."""


# -- decoding --------------------------------------------------------------------------------------------------------


def decode_records(
    data: bytes, count: int, base_offset: int, base_timestamp: int, append_time_ms: int | None
) -> Iterator[Record]:
    """The `count` records that `data` consists of; `append_time_ms` replaces their own timestamps if given.

    The iterator raises ApiError INVALID_RECORD if the bytes are not exactly that many records.
    """
    if count < 0:
        raise invalid_record(f"Found invalid record count {count}")
    return chain.from_iterable(_chunks(data, count, base_offset, base_timestamp, append_time_ms))


def _chunks(
    data: bytes, count: int, base_offset: int, base_timestamp: int, append_time_ms: int | None
) -> Iterator[list[Record]]:
    position = index = 0
    may_overflow = abs(base_timestamp) > UNWRAPPED
    while index < count:
        chunk: list[Record] = []
        wanted = min(count - index, CHUNK_RECORDS)
        failure: ApiError | None = None
        try:
            run = find_run(data, position, wanted)
            if run is None:
                position = _decode_each(data, position, wanted, base_offset, base_timestamp, chunk)
            else:
                position = run.end
                timestamps = map(base_timestamp.__add__, run.timestamp_deltas())
                first_offset = base_offset + run.offset_delta
                offsets = range(first_offset, first_offset + run.size)
                chunk = list(map(_new_record, zip(offsets, timestamps, run.keys(), run.values(), repeat(()))))
        except IndexError:
            failure = invalid_record(f"Record {index + len(chunk)} is cut off")
        except ApiError as error:
            failure = detached(error)
        index += len(chunk)
        if failure is None and index == count and position != len(data):
            chunk.pop()  # as in Kafka, which checks for extra bytes before it returns the last record
            failure = invalid_record(f"{len(data) - position} bytes follow the {count} declared records")
        if append_time_ms is not None:
            chunk = [record._replace(timestamp=append_time_ms) for record in chunk]
        elif may_overflow:
            chunk = [record._replace(timestamp=wrap_int64(record.timestamp)) for record in chunk]
        yield chunk
        if failure is not None:
            raise detached(failure)  # after the reader got the records before the damage
    if count == 0 and data:
        raise invalid_record(f"{len(data)} bytes follow the 0 declared records")


def _decode_each(  # noqa: C901, PLR0912, PLR0915 - unrolled: reading records spends its time in this loop
    data: bytes, position: int, count: int, base_offset: int, base_timestamp: int, out: list[Record]
) -> int:
    """Append `count` records to `out`; returns where they end. Raises IndexError at the end of `data`."""
    size_of_data = len(data)
    append, new = out.append, tuple.__new__
    headers: Sequence[Header]
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
        position += 1  # attributes: all bits are unused

        timestamp = data[position]
        position += 1
        if timestamp > 127:
            byte = data[position]
            position += 1
            if byte > 127:
                timestamp, position = decode_varint(data, position - 2, VARLONG_MAX_BYTES)
                timestamp = wrap_int64(base_timestamp + timestamp)
            else:
                timestamp = base_timestamp + (((timestamp & 127 | byte << 7) >> 1) ^ -(timestamp & 1))
        else:
            timestamp = base_timestamp + ((timestamp >> 1) ^ -(timestamp & 1))

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

        size = data[position]
        position += 1
        if size & 1 and size < 128:
            key = None
        else:
            if size > 127:
                size, position = decode_varint(data, position - 1)
            else:
                size >>= 1
            if size < 0:
                key = None
            else:
                stop = position + size
                key = data[position:stop]
                position = stop

        size = data[position]
        position += 1
        if size & 1 and size < 128:
            value = None
        else:
            if size > 127:
                byte = data[position]
                position += 1
                if byte > 127 or size & 1:
                    size, position = decode_varint(data, position - 2)
                else:
                    size = (size & 127 | byte << 7) >> 1
            else:
                size >>= 1
            if size < 0:
                value = None
            else:
                stop = position + size
                value = data[position:stop]
                position = stop

        if data[position]:
            headers, position = _decode_headers(data, position, end)
        else:
            headers = ()
            position += 1
        if position != end:
            raise invalid_record(f"The fields of a record end {position - end} bytes off its declared size")
        append(new(Record, (base_offset + offset, timestamp, key, value, headers)))
    return position


def _decode_headers(data: bytes, position: int, end: int) -> tuple[list[Header], int]:
    count, position = decode_varint(data, position)
    if not 0 <= count <= (end - position) // 2:
        raise invalid_record(f"Found invalid number of record headers {count}")
    headers: list[Header] = []
    for _ in range(count):
        size, position = decode_varint(data, position)
        if size < 0 or position + size > end:
            raise invalid_record(f"Invalid header key size {size}")
        key = data[position : position + size].decode("utf-8", "replace")
        position += size
        size, position = decode_varint(data, position)
        value = None if size < 0 else data[position : position + size]
        position += max(size, 0)
        headers.append((key, value))
    return headers, position


# -- encoding --------------------------------------------------------------------------------------------------------


def encode_records(
    timestamp_deltas: Sequence[int],
    offset_deltas: Sequence[int],
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[Sequence[Header]],
) -> bytes:
    """Encode records; each is one row across the columns."""
    if len(values) == 1:
        # Coordinators mostly write batches of one record, which take three times as long by columns.
        return _encode_record(timestamp_deltas[0], offset_deltas[0], keys[0], values[0], headers[0])
    columns: list[Column] = [
        b"\0",  # attributes
        varint_column(timestamp_deltas),
        varint_column(offset_deltas),
        *_nullable_columns(keys),
        *_nullable_columns(values),
        list(map(encode_headers, headers)) if any(headers) else b"\0",
    ]
    return _join_columns(columns, len(values))


def _encode_record(
    timestamp_delta: int, offset_delta: int, key: bytes | None, value: bytes | None, headers: Sequence[Header]
) -> bytes:
    parts = [b"\0", encode_varint(timestamp_delta), encode_varint(offset_delta)]
    for each in (key, value):
        parts += (NULL_LENGTH,) if each is None else (encode_varint(len(each)), each)
    parts.append(encode_headers(headers) if headers else b"\0")
    parts.insert(0, encode_varint(sum(map(len, parts))))
    return b"".join(parts)


def _join_columns(columns: Sequence[Column], count: int) -> bytes:
    """Encode `count` records: each is a row of `columns`, prefixed with its size."""
    constant_size = 0
    merged: list[Column] = []
    sizes: Iterable[int] | None = None
    for column in columns:
        if not isinstance(column, bytes):
            sizes = map(len, column) if sizes is None else map(add, sizes, map(len, column))
            merged.append(column)
            continue
        constant_size += len(column)
        if merged and isinstance(merged[-1], bytes):
            merged[-1] += column
        else:
            merged.append(column)
    total = [constant_size] * count if sizes is None else list(map(constant_size.__add__, sizes))
    rows = [varint_column(total), *merged]
    return b"".join(
        chain.from_iterable(
            zip(*(repeat(column, count) if isinstance(column, bytes) else column for column in rows), strict=True)
        )
    )


def _nullable_columns(fields: Sequence[bytes | None]) -> tuple[Column, ...]:
    """Lengths and contents; if all fields are null, only the lengths."""
    missing = fields.count(None)
    if missing == len(fields):
        return (NULL_LENGTH,)
    if missing:
        lengths = [NULL_LENGTH if field is None else encode_varint(len(field)) for field in fields]
        return (lengths, [field or b"" for field in fields])
    present = cast("list[bytes]", fields)
    return (varint_column(list(map(len, present))), present)


def encode_headers(headers: Sequence[Header]) -> bytes:
    """The encoded header count and headers, the end of a record."""
    parts = [encode_varint(len(headers))]
    for key, value in headers:
        raw = key.encode()
        parts += (encode_varint(len(raw)), raw)
        parts += (NULL_LENGTH,) if value is None else (encode_varint(len(value)), value)
    return b"".join(parts)
