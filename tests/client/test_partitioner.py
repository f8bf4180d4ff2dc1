"""Keyed records go to the same partitions as with Kafka's clients; records without keys fill one partition after the
other.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from client.producer import StickyPartition, murmur2, partition_for_key


@pytest.mark.parametrize(
    ("text", "signed_hash"),
    [  # the values of Kafka's test of Utils.murmur2
        ("21", -973932308),
        ("foobar", -790332482),
        ("a-little-bit-long-string", -985981536),
        ("a-little-bit-longer-string", -1486304829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        ("abc", 479470107),
    ],
)
def test_murmur2_is_kafkas(text: str, signed_hash: int) -> None:
    assert murmur2(text.encode()) == signed_hash % 2**32


def test_a_key_has_one_partition() -> None:
    assert partition_for_key(b"foobar", 7) == (-790332482 & 0x7FFFFFFF) % 7


def test_without_keys_a_partition_gets_a_batch_before_another_has_its_turn() -> None:
    sticky = StickyPartition(100, random.Random(1))
    chosen = [sticky.choose(range(3), 25) for _ in range(400)]
    for start in range(0, 400, 4):
        assert len(set(chosen[start : start + 4])) == 1
    assert all(chosen[at] != chosen[at - 4] for at in range(4, 400, 4))
    assert min(Counter(chosen).values()) > 80


def test_the_only_partition_is_chosen_again() -> None:
    sticky = StickyPartition(1, random.Random(1))
    assert {sticky.choose([0], 10) for _ in range(5)} == {0}
