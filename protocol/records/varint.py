"""Kafka's varints inside records: zigzag, seven bits to a byte, low ones first (KIP-98, Kafka's `ByteUtils`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from protocol.errors import ApiError, ErrorCode

Column = list[bytes] | tuple[bytes, ...] | bytes
"""One part of each of many records; a single `bytes` if the part is the same in all of them."""

VARINT_MAX_BYTES = 5
VARLONG_MAX_BYTES = 10

SMALL_COUNT = 8192
"""The varints of 0 to 8191 take one or two bytes; most numbers in a record are below this limit."""
FIRST_BYTES = bytes(range(0, 128, 2)) + bytes(range(128, 256, 2)) * 127
"""The first byte of each small varint."""
LAST_BYTES = bytes(range(0, 128, 2)) + b"".join(bytes((high,)) * 64 for high in range(1, 128))
"""The last byte of each small varint, which may also be its first."""

NULL_LENGTH = b"\x01"
"""The varint of -1, the length of a null key or value."""

UNWRAPPED = 2**62
"""The sum of two timestamps or deltas below it fits into a long; others need `wrap_int64`."""

_ONE_BYTE = tuple(bytes((first,)) for first in FIRST_BYTES[:64])


@cache
def small_varints() -> tuple[bytes, ...]:
    """The small varints in order. They take half a megabyte, so they are created on first use."""
    return *_ONE_BYTE, *map(bytes, zip(FIRST_BYTES[64:], LAST_BYTES[64:], strict=True))


def wrap_int64(number: int) -> int:
    """Wrap a number to 64 bits, as Java's addition of longs does."""
    return (number + 2**63) % 2**64 - 2**63


def encode_varint(number: int) -> bytes:
    """Encode `number`, of at most 64 bits, as a varint (or varlong: only their bounds differ)."""
    if 0 <= number < 64:
        return _ONE_BYTE[number]
    if 0 <= number < SMALL_COUNT:
        return small_varints()[number]
    rest = (number << 1) ^ (number >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def varint_column(numbers: Sequence[int]) -> Column:
    """The varint of each number, or a single varint if all are equal; at the speed of C if all are below 8192."""
    first = numbers[0]
    if numbers.count(first) == len(numbers):
        return encode_varint(first)
    if min(numbers) >= 0 and max(numbers) < SMALL_COUNT:
        return list(map(small_varints().__getitem__, numbers))
    return list(map(encode_varint, numbers))


def decode_varint(data: bytes, position: int, max_bytes: int = VARINT_MAX_BYTES) -> tuple[int, int]:
    """The number at `position`, and the position after it.

    Raises ApiError INVALID_RECORD for more than `max_bytes` bytes, IndexError if `data` ends within the varint.
    """
    byte = data[position]
    stop = position + max_bytes
    position += 1
    raw = byte & 0x7F
    shift = 7
    while byte > 0x7F:
        if position == stop:
            raise ApiError(ErrorCode.INVALID_RECORD, f"Varint at byte {stop - max_bytes} is too long")
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        shift += 7
    return (raw >> 1) ^ -(raw & 1), position
