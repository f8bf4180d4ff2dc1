"""Single records inside a batch: zigzag varints, keys, values and headers (Kafka's `DefaultRecord`, KIP-98)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from protocol.errors import ApiError, ErrorCode

Header = tuple[str, bytes | None]
"""Key and value of a record header; keys are UTF-8 on the wire and may repeat."""

MIN_RECORD_BYTES = 7
"""Length, attributes, timestamp delta, offset delta, key length, value length, header count: a byte each."""


class Record(NamedTuple):
    """One record. `timestamp` is milliseconds since the epoch, -1 when there is none."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()


def encode_varint(value: int) -> bytes:
    """`value` zigzag encoded, 7 bits to a byte, low ones first: Kafka's varint and varlong alike."""
    rest = (value << 1) ^ (value >> 63)
    if rest < 0x80:
        return bytes((rest,))
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _invalid(reason: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_RECORD, reason)


def decode_varint(data: bytes, position: int) -> tuple[int, int]:
    """The zigzag varint (up to 64 bits) at `position`, and the position after it.

    Raises ApiError INVALID_RECORD for one longer than ten bytes, IndexError at the end of `data`.
    """
    byte = data[position]
    position += 1
    raw = byte & 0x7F
    shift = 7
    while byte > 0x7F:
        if shift > 63:
            raise _invalid(f"Varint at byte {position - 1} is longer than ten bytes")
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        shift += 7
    return (raw >> 1) ^ -(raw & 1), position


def decode_records(
    data: bytes, count: int, base_offset: int, base_timestamp: int, append_time: int | None
) -> Iterator[Record]:
    """The `count` records that `data` consists of; `append_time` replaces their own timestamps where given.

    Raises ApiError INVALID_RECORD when the bytes are not exactly that many records.
    """
    if count < 0 or count * MIN_RECORD_BYTES > len(data):
        raise _invalid(f"Found invalid record count {count} in {len(data)} bytes of records")
    position = 0
    for index in range(count):
        start = position
        try:
            size, position = decode_varint(data, position)
            end = position + size
            if size < 0 or end > len(data):
                raise _invalid(f"Record {index} declares {size} bytes, {len(data) - position} are left")
            position += 1  # attributes: no bit is in use
            timestamp_delta, position = decode_varint(data, position)
            offset_delta, position = decode_varint(data, position)
            key, position = _decode_bytes(data, position, end)
            value, position = _decode_bytes(data, position, end)
            header_count, position = decode_varint(data, position)
            headers: Sequence[Header] = ()
            if header_count:
                headers, position = _decode_headers(data, position, end, header_count)
        except IndexError:
            raise _invalid(f"Record {index} at byte {start} is cut off") from None
        if position != end:
            raise _invalid(f"Record {index} declares {size} bytes, but its fields take {position - end + size}")
        timestamp = base_timestamp + timestamp_delta if append_time is None else append_time
        yield Record(base_offset + offset_delta, timestamp, key, value, headers)
    if position != len(data):
        raise _invalid(f"{len(data) - position} bytes follow the {count} declared records")


def _decode_bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    size, position = decode_varint(data, position)
    if size < 0:
        return None, position
    stop = position + size
    if stop > end:
        raise _invalid(f"Field of {size} bytes at byte {position} does not fit into its record")
    return data[position:stop], stop


def _decode_headers(data: bytes, position: int, end: int, count: int) -> tuple[list[Header], int]:
    if not 0 <= count <= (end - position) // 2:
        raise _invalid(f"Found invalid number of record headers {count}")
    headers: list[Header] = []
    for _ in range(count):
        key, position = _decode_bytes(data, position, end)
        if key is None:
            raise _invalid("Invalid negative header key size")
        value, position = _decode_bytes(data, position, end)
        headers.append((key.decode("utf-8", "replace"), value))
    return headers, position


def encode_headers(headers: Sequence[Header]) -> bytes:
    """Header count and headers as they stand at the end of a record."""
    parts = [encode_varint(len(headers))]
    for key, value in headers:
        raw = key.encode()
        parts += (encode_varint(len(raw)), raw)
        parts += (encode_varint(-1),) if value is None else (encode_varint(len(value)), value)
    return b"".join(parts)
