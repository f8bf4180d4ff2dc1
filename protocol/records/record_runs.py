"""Runs of records with the same shape, decoded a column at a time.

Producers of fixed-size values (metrics, binary structures, every load test) write long stretches of records whose bytes
differ only in timestamp delta, offset delta and contents. Such a stretch is a table: the bytes that define its shape
are a constant stride apart, so slices with that stride check thousands of records in a few calls, and extract the
contents without a loop over fields.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import NamedTuple

from protocol.records.varint import FIRST_BYTES, LAST_BYTES, VARLONG_MAX_BYTES, decode_varint
from protocol.value import Value

CHUNK_RECORDS = 512
"""The most records processed together: enough for columns to pay off, few enough for the processor's cache."""

MIN_RUN_RECORDS = 16
"""Shorter runs are not worth the effort."""

_CONTINUED = bytes(byte >= 0x80 for byte in range(256))
"""Translation table: whether a byte of a varint has the continuation bit."""
_ZIGZAG = tuple((raw >> 1) ^ -(raw & 1) for raw in range(128))


class _Shape(Value):
    """The places of the parts in each record of a run, relative to its start; `stride` is the record's total size."""

    stride: int
    timestamp_at: int
    offset_at: int
    key_length_at: int
    key_at: int
    key_size: int
    value_at: int
    value_length_at: int
    value_size: int


class RecordRun(NamedTuple):
    """`size` records of `data` from `start` to `end`, with consecutive offset deltas from `offset_delta` and without
    headers. The columns are extracted on demand.
    """

    data: bytes
    start: int
    end: int
    size: int
    offset_delta: int
    shape: _Shape

    @property
    def stride(self) -> int:
        """Bytes from one record to the next."""
        return self.shape.stride

    @property
    def has_keys(self) -> bool:
        """Whether all records have keys; otherwise none has."""
        return self.shape.key_size >= 0

    @property
    def has_values(self) -> bool:
        """Whether all records have values; otherwise none has."""
        return self.shape.value_size >= 0

    def timestamp_deltas(self) -> Iterable[int]:
        return _timestamp_deltas(self.data, self.start, self.end, self.shape)

    def keys(self) -> Iterable[bytes | None]:
        return _fields(self.data, self.start + self.shape.key_at, self.size, self.shape.stride, self.shape.key_size)

    def values(self) -> Iterable[bytes | None]:
        return _fields(self.data, self.start + self.shape.value_at, self.size, self.shape.stride, self.shape.value_size)


def find_run(data: bytes, position: int, limit: int) -> RecordRun | None:
    """The run that begins at `position`, of at most `limit` records, or None.

    All other bytes, including errors, are left to the decoder of single records. Raises as `decode_varint`.
    """
    if limit < MIN_RUN_RECORDS:
        return None
    found = _shape_at(data, position)
    if found is None:
        return None
    shape, offset_delta = found
    count = _run_length(data, position, offset_delta, shape, min(limit, (len(data) - position) // shape.stride))
    if count < MIN_RUN_RECORDS:
        return None
    return RecordRun(data, position, position + count * shape.stride, count, offset_delta, shape)


def _shape_at(data: bytes, start: int) -> tuple[_Shape, int] | None:
    """Shape and offset delta of the record at `start`, if records of that shape can make a run."""
    size, body = decode_varint(data, start)
    timestamp_at = body + 1
    _, offset_at = decode_varint(data, timestamp_at, VARLONG_MAX_BYTES)
    offset_delta, key_length_at = decode_varint(data, offset_at)
    key_size, key_at = decode_varint(data, key_length_at)
    value_length_at = key_at + max(key_size, 0)
    value_size, value_at = decode_varint(data, value_length_at)
    end = body + size
    if value_at + max(value_size, 0) + 1 != end or offset_at - timestamp_at > 2 or key_length_at - offset_at > 2:
        return None
    if offset_delta < 0:
        return None
    shape = _Shape(
        end - start,
        timestamp_at - start,
        offset_at - start,
        key_length_at - start,
        key_at - start,
        key_size,
        value_at - start,
        value_length_at - start,
        value_size,
    )
    return shape, offset_delta


def _run_length(data: bytes, start: int, offset_delta: int, shape: _Shape, limit: int) -> int:
    """The number of records from `start` on with `shape` and consecutive offset deltas, at most `limit`."""
    stride = shape.stride

    def column(at: int) -> bytes:
        return data[start + at : start + limit * stride : stride]

    constant = (
        *range(shape.timestamp_at - 1),
        *range(shape.key_length_at, shape.key_at),
        *range(shape.value_length_at, shape.value_at),
        stride - 1,
    )
    for at in constant:
        limit = min(limit, _leading(column(at)))
    if data[start + stride - 1]:
        return 0
    for at in range(shape.timestamp_at, shape.offset_at):
        limit = min(limit, _leading(column(at).translate(_CONTINUED)))
    expected = slice(offset_delta, offset_delta + limit)
    width = shape.key_length_at - shape.offset_at
    low, high = column(shape.offset_at), column(shape.key_length_at - 1)
    if low != FIRST_BYTES[expected] or (width == 2 and high != LAST_BYTES[expected]):
        return 0
    if width == 1 and low.translate(_CONTINUED).count(1):
        return 0
    return limit


def _leading(column: bytes) -> int:
    """The number of bytes at the start of `column` that equal the first one."""
    first = column[:1]
    return len(column) if column.count(first) == len(column) else len(column) - len(column.lstrip(first))


def _timestamp_deltas(data: bytes, start: int, end: int, shape: _Shape) -> Iterable[int]:
    low = data[start + shape.timestamp_at : end : shape.stride]
    if shape.offset_at - shape.timestamp_at == 1:
        return map(_ZIGZAG.__getitem__, low)
    high = data[start + shape.timestamp_at + 1 : end : shape.stride]
    return [((raw := a & 127 | b << 7) >> 1) ^ -(raw & 1) for a, b in zip(low, high, strict=True)]


def _fields(data: bytes, start: int, count: int, stride: int, size: int) -> Iterable[bytes | None]:
    if size < 0:
        return repeat(None, count)
    return [data[at : at + size] for at in range(start, start + count * stride, stride)]
