"""Which partition of an internal topic an id belongs to: |Java String.hashCode| modulo the number of partitions."""

from __future__ import annotations

from functools import lru_cache

_MASK = 0xFFFFFFFF
_SIGN = 0x80000000


def java_string_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 units, wrapping at 32 bits, signed."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & _MASK
    return value - (_MASK + 1) if value & _SIGN else value


@lru_cache(maxsize=4096)
def coordinator_partition(key: str, partition_count: int) -> int:
    """The partition of __consumer_offsets (or __transaction_state) that keeps `key`.

    Kafka's Utils.abs, which has no positive number for -2^31, makes it 0.
    """
    value = java_string_hash(key)
    return 0 if value == -_SIGN else abs(value) % partition_count
