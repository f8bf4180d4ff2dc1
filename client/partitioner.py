"""Which partition a record goes to: by its key, or without one to a partition kept for a batch's worth of bytes.

Keys are hashed as Kafka's clients do (`Utils.murmur2`), so that all of them send a key to the same partition. Records
without a key stick to a random partition until it got `batch.size` bytes (KIP-794), which fills batches and spreads
load evenly all the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from client.environment import Random

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The hash of `data` as an unsigned 32-bit number (MurmurHash 2 by Austin Appleby, with Kafka's seed)."""
    length = len(data)
    result = (_SEED ^ length) & _MASK
    whole = length & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        word ^= word >> 24
        result = (result * _M & _MASK) ^ (word * _M & _MASK)
    if length > whole:
        result ^= int.from_bytes(data[whole:], "little")
        result = result * _M & _MASK
    result ^= result >> 13
    result = result * _M & _MASK
    return result ^ (result >> 15)


def partition_for_key(key: bytes, partition_count: int) -> int:
    """The partition of all records with `key`, as long as the topic keeps its number of partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class StickyPartition:
    """The partition of one topic that records without a key go to for now."""

    def __init__(self, batch_size_bytes: int, rng: Random) -> None:
        self._batch_size_bytes = max(batch_size_bytes, 1)
        self._rng = rng
        self._partition = -1
        self._bytes = 0

    def choose(self, partitions: Sequence[int], size_bytes: int) -> int:
        """The partition for `size_bytes` more, one of `partitions`."""
        if self._partition not in partitions or self._bytes >= self._batch_size_bytes:
            others = [each for each in partitions if each != self._partition]
            self._partition = self._rng.choice(others or partitions)
            self._bytes = 0
        self._bytes += size_bytes
        return self._partition
