"""Names of topics and partitions, and their validation (Kafka class `Topic`)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

from protocol.errors import ApiError, ErrorCode

CONSUMER_OFFSETS: Final = "__consumer_offsets"
TRANSACTION_STATE: Final = "__transaction_state"
MAX_TOPIC_NAME_LENGTH: Final = 249
"""Longest topic name: a directory `<name>-<partition>` with a deletion suffix must still fit into a file name."""

_INTERNAL: Final = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE, "__share_group_state"})
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


class TopicPartition(NamedTuple):
    """One partition of a topic. Its text, `topic-partition`, is also the name of its directory."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """The partitions of each topic, as in requests and responses; the order is kept."""
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, partition in partitions:
        topics[topic].append(partition)
    return topics


def is_internal(topic: str) -> bool:
    """Whether `topic` is an internal topic of the brokers."""
    return topic in _INTERNAL


def validate_topic_name(name: str) -> None:
    """Raise ApiError INVALID_TOPIC_EXCEPTION, with Kafka's message, unless `name` is a valid topic name."""
    if not name:
        reason = "the empty string is not allowed"
    elif name in {".", ".."}:
        reason = f"'{name}' is not allowed"
    elif len(name) > MAX_TOPIC_NAME_LENGTH:
        reason = f"the length of '{name}' is longer than the max allowed length {MAX_TOPIC_NAME_LENGTH}"
    elif not _LEGAL.fullmatch(name):
        reason = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    else:
        return
    raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")
