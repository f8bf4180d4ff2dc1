"""Committed offsets as a client and a coordinator exchange them."""

from __future__ import annotations

from typing import Final

from cluster.groups.records import NO_TIMESTAMP, CommittedOffset
from protocol.errors import ErrorCode
from protocol.topic_partition import TopicPartition
from protocol.value import Value, field

Offsets = dict[TopicPartition, CommittedOffset]


PartitionErrors = dict[TopicPartition, ErrorCode]


NO_OFFSET: Final = CommittedOffset(-1, -1, "", NO_TIMESTAMP)
"""The result of a fetch without a committed offset."""


class OffsetDeletion(Value, frozen=False):
    """The result for the group and, with NONE, for each partition."""

    error_code: ErrorCode
    partitions: PartitionErrors = field(default_factory=dict)
