"""An array that is encoded item by item has the same bytes as one that is encoded with its message."""

from __future__ import annotations

import pytest

from protocol.messages.configs import DescribeConfigsResponse
from protocol.wire.encode_compiler import OWN_PART_BYTES
from protocol.wire.encoded_items import PART_BYTES, ItemEncoder

Result, Entry = DescribeConfigsResponse.DescribeConfigsResult, DescribeConfigsResponse.DescribeConfigsResourceResult


def entries(count: int, size: int) -> list[Entry]:
    return [
        Entry(name=f"key{number}", value="v" * size, read_only=False, is_sensitive=False) for number in range(count)
    ]


def result(name: str, configs: list[Entry]) -> Result:
    return Result(error_code=0, error_message=None, resource_type=2, resource_name=name, configs=configs)


@pytest.mark.parametrize("version", [0, 1, 3, 4])
@pytest.mark.parametrize("size", [0, 1, OWN_PART_BYTES, PART_BYTES])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_bytes_are_the_same(version: int, size: int, count: int) -> None:
    size = min(size, 32_000)
    shared = entries(count, size)
    plain = DescribeConfigsResponse(throttle_time_ms=0, results=[result(name, shared) for name in "abc"])
    encoded = ItemEncoder(Entry, DescribeConfigsResponse, version, shared).array()
    results = ItemEncoder(Result, DescribeConfigsResponse, version)
    for name in "abc":
        results.add(result(name, encoded))
    sliced = DescribeConfigsResponse(throttle_time_ms=0, results=results.array())
    assert sliced.to_bytes(version) == plain.to_bytes(version)
    mixed = DescribeConfigsResponse(throttle_time_ms=0, results=[result(name, encoded) for name in "abc"])
    assert mixed.to_bytes(version) == plain.to_bytes(version)
