"""Markers on their way: what is to be written, and the work of a coordinator that it belongs to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from protocol.errors import ErrorCode
from protocol.topic_partition import TopicPartition
from protocol.value import Value

if TYPE_CHECKING:
    from cluster.transactions.open_transactions import Markers


class Marker(NamedTuple):
    """The end of a producer's transaction in some partitions. Leaders refuse it from a coordinator of an older epoch
    than they know.
    """

    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int
    partitions: Sequence[TopicPartition]


class MarkerWork(Value, eq=False):
    """The markers of one transaction. `marked` is told of partitions that have theirs; nobody is interested any more
    once `is_obsolete`.
    """

    markers: Markers
    coordinator_epoch: int
    marked: Callable[[Sequence[TopicPartition]], None]
    is_obsolete: Callable[[], bool]

    def marker(self, partitions: Sequence[TopicPartition]) -> Marker:
        """The marker for some of the partitions."""
        markers = self.markers
        return Marker(
            markers.producer_id, markers.producer_epoch, markers.is_commit, self.coordinator_epoch, partitions
        )


Outcome = Mapping[tuple[int, TopicPartition], ErrorCode]
"""By producer id and partition. What is not in it is not known to be written."""

WriteMarkers = Callable[[Sequence[Marker]], Awaitable[Outcome]]
"""Has one broker write markers. When it could not be asked, or gave no answer, the outcome is empty."""
