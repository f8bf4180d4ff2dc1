"""The topics in consumers' metadata: only what every version of it begins with is read (ConsumerProtocol v0)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

CONSUMER_PROTOCOL_TYPE: Final = "consumer"

_HEAD: Final = struct.Struct(">hi")
_LENGTH: Final = struct.Struct(">h")


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """All topics that these subscriptions name; None when one of them cannot be read."""
    topics: set[str] = set()
    try:
        for subscription in subscriptions:
            topics.update(_topics(subscription))
    except (struct.error, ValueError):
        return None
    return frozenset(topics)


def _topics(subscription: bytes) -> Iterable[str]:
    version, count = _HEAD.unpack_from(subscription)
    if version < 0 or not 0 <= count <= len(subscription) // _LENGTH.size:
        raise ValueError(f"version {version} with {count} topics in {len(subscription)} bytes")
    position = _HEAD.size
    for _ in range(count):
        (size,) = _LENGTH.unpack_from(subscription, position)
        position += _LENGTH.size
        if not 0 <= size <= len(subscription) - position:
            raise ValueError(f"a topic name of {size} bytes at byte {position}")
        yield str(subscription[position : position + size], "utf-8")
        position += size
