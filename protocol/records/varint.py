"""Kafka's varints inside records: zigzag, seven bits to a byte, low ones first (KIP-98, Kafka's `ByteUtils`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from protocol.errors import ApiError, ErrorCode

Column = list[bytes] | tuple[bytes, ...] | bytes
"""One part of each of many records; a single `bytes` where the part is the same in all of them."""

VARINT_MAX_BYTES = 5
VARLONG_MAX_BYTES = 10

SMALL_COUNT = 8192
"""The varints of 0 to 8191 are those of one or two bytes; most numbers in a record are among them."""
FIRST_BYTES = bytes(range(0, 128, 2)) + bytes(range(128, 256, 2)) * 127
"""The first byte of each small varint."""
LAST_BYTES = bytes(range(0, 128, 2)) + b"".join(bytes((high,)) * 64 for high in range(1, 128))
"""The last byte of each small varint; the first once more where it is the only one."""

NULL_LENGTH = b"\x01"
"""The varint of -1, which stands where the length of a missing key or value would."""

UNWRAPPED = 2**62
"""Two timestamps or deltas below it add up to what a long can hold; others need `wrap_int64`."""

_ONE_BYTE = tuple(bytes((first,)) for first in FIRST_BYTES[:64])


@cache
def small_varints() -> tuple[bytes, ...]:
    """The small varints in order. They take half a megabyte, so they are made when they are first needed."""
    return *_ONE_BYTE, *map(bytes, zip(FIRST_BYTES[64:], LAST_BYTES[64:], strict=True))


def wrap_int64(number: int) -> int:
    """As Java's addition of longs leaves it."""
    return (number + 2**63) % 2**64 - 2**63


def encode_varint(number: int) -> bytes:
    """`number`, of at most 64 bits, as varint (or varlong: they differ in their bounds only)."""
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
    """The varint of each number, or the one varint when all are equal; at the speed of C when all are below 8192."""
    first = numbers[0]
    if numbers.count(first) == len(numbers):
        return encode_varint(first)
    if min(numbers) >= 0 and max(numbers) < SMALL_COUNT:
        return list(map(small_varints().__getitem__, numbers))
    return list(map(encode_varint, numbers))


def decode_varint(data: bytes, position: int, max_bytes: int = VARINT_MAX_BYTES) -> tuple[int, int]:
    """The number at `position`, and the position after it.

    Raises ApiError INVALID_RECORD for more than `max_bytes` bytes, IndexError where `data` ends before the varint does.
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
