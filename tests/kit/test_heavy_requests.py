"""The requests of `heavy_requests` equal those that our message classes would write."""

from __future__ import annotations

import struct
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest

from protocol.api_keys import ApiKey
from protocol.messages import REQUEST_TYPES
from protocol.records.batch import read_batches
from protocol.wire.schema import Request
from tests.kit import heavy_requests as heavy

COUNT = 5
HEADER_BYTES = len(b"kkvvcccc") + len(b"llheavy")
"""Key, version, correlation id, and the client id with its length."""


def decoded(data: bytes) -> Any:
    """Decode the request of a frame completely."""
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    api_key, version = struct.unpack_from(">hh", data, 4)
    body = data[4 + HEADER_BYTES :]
    request: Request = REQUEST_TYPES[ApiKey(api_key)].decode(memoryview(body), version)
    assert request.to_bytes(version) == body
    return request


@pytest.mark.parametrize(
    ("make", "numbered"),
    [
        (heavy.fetch_unknown, lambda found: map(attrgetter("partition"), found.topics[0].partitions)),
        (heavy.metadata_of_unknown, lambda found: map(attrgetter("name"), found.topics)),
        (heavy.list_offsets_of_unknown, lambda found: map(attrgetter("partition_index"), found.topics[0].partitions)),
        (heavy.epochs_of_unknown, lambda found: map(attrgetter("partition"), found.topics[0].partitions)),
        (heavy.offset_fetch, lambda found: found.topics[0].partition_indexes),
        (heavy.produce_nothing, lambda found: map(attrgetter("index"), found.topic_data[0].partition_data)),
        (heavy.join_group, lambda found: map(attrgetter("name"), found.protocols)),
        (heavy.create_bad_names, lambda found: map(attrgetter("name"), found.topics)),
    ],
)  # fmt: skip
def test_every_element_is_another(make: Callable[[int], bytes], numbered: Callable[[Any], Any]) -> None:
    found = list(numbered(decoded(make(COUNT))))
    assert len(found) == len(set(found)) == COUNT


def test_one_name_again_and_again() -> None:
    names = [topic.name for topic in decoded(heavy.metadata_of_one(COUNT)).topics]
    assert names == [f"topic-{heavy.MARK}"] * COUNT


def test_a_batch_that_declares_more_than_it_has_is_whole_otherwise() -> None:
    data = decoded(heavy.produce_declared("topic", 1000)).topic_data[0].partition_data[0].records
    (batch,) = read_batches(memoryview(data))
    assert (batch.next_offset, batch.is_valid) == (1000, True)


def test_half_a_frame_is_the_beginning_of_a_frame() -> None:
    data = heavy.half_frame(1000, 0.5)
    assert (int.from_bytes(data[:4], "big"), len(data)) == (1000, 504)
