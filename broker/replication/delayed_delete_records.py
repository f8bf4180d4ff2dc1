"""Deletions of records that some replicas have not heard of yet (Kafka class `DelayedDeleteRecords`, KIP-107).

The low watermark of a partition is the least of the log start offsets of its live replicas. A client is answered once
it has reached the offset that was asked for: then no replica that may lead next brings the records back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from broker.replication.purgatory import Woken
from protocol.errors import ApiError, ErrorCode, detached
from protocol.topic_partition import TopicPartition

LowWatermark = int | ApiError
"""The low watermark that was waited for, or why it was not reached."""


class DelayedDeleteRecords:
    """The deletions of one request; the result tells of each, in order."""

    __slots__ = ("_low_watermark_of", "_results", "_waiting")

    def __init__(
        self, low_watermark_of: Callable[[TopicPartition], int], deletions: Sequence[tuple[TopicPartition, int]]
    ) -> None:
        """`low_watermark_of` raises ApiError where this broker does not lead. `deletions` are partitions, and the
        offsets that their low watermarks have to reach.
        """
        self._low_watermark_of = low_watermark_of
        self._results: list[LowWatermark] = [0] * len(deletions)
        self._waiting: dict[TopicPartition, dict[int, int]] = {}
        """The deletions that are not done: place in `deletions` and offset."""
        for place, (topic_partition, offset) in enumerate(deletions):
            self._waiting.setdefault(topic_partition, {})[place] = offset

    def keys(self) -> Collection[TopicPartition]:
        """The partitions that are waited for."""
        return self._waiting.keys()

    def attempt(self, woken: Woken, expired: bool) -> Sequence[LowWatermark] | None:
        """See `purgatory.Attempt`."""
        for topic_partition in list(self._waiting if expired else woken):
            self.look_at(topic_partition)
        if expired:
            late = ApiError(ErrorCode.REQUEST_TIMED_OUT, "not all replicas have heard of the deletion in time")
            for places in self._waiting.values():
                for place in places:
                    self._results[place] = late
            self._waiting.clear()
        return None if self._waiting else self._results

    def look_at(self, topic_partition: TopicPartition) -> None:
        """Settle what is done by now, or never will be."""
        waiting = self._waiting.get(topic_partition, {})
        for place, offset in list(waiting.items()):
            try:
                result: LowWatermark = self._low_watermark_of(topic_partition)
            except ApiError as error:
                result = detached(error)
            if isinstance(result, ApiError) or result >= offset:
                self._results[place] = result
                del waiting[place]
        if not waiting:
            self._waiting.pop(topic_partition, None)
