"""Appends that are not acknowledged yet (Kafka class `DelayedProduce`).

With acks=all a producer is answered once the high watermark has passed its last record, with acks=0 and acks=1 once
flush.messages allows it. Only acks=all has a time limit: what is waited for with the others is this broker's own disk,
for which Kafka holds the request up as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Generic, TypeVar

from broker.replication.purgatory import Woken
from cluster.replication.partition import Partition
from protocol.errors import ApiError, ErrorCode, detached
from protocol.topic_partition import TopicPartition

T = TypeVar("T")


class DelayedProduce(Generic[T]):
    """The appends of one request. The result is the `answer` of the error of each, None where there is none."""

    __slots__ = ("_answer", "_errors", "_find", "_required_acks", "_waiting")

    def __init__(
        self,
        find: Callable[[TopicPartition], Partition],
        required_acks: int,
        appends: Sequence[tuple[TopicPartition, int]],
        answer: Callable[[Sequence[ApiError | None]], T],
    ) -> None:
        """`find` gives the replica here, or raises ApiError. `appends` are the partitions and their last offsets."""
        self._find = find
        self._required_acks = required_acks
        self._answer = answer
        self._errors: list[ApiError | None] = [None] * len(appends)
        self._waiting: dict[TopicPartition, dict[int, int]] = {}
        """The appends to each partition that are not acknowledged: place in `appends` and last offset."""
        for place, (topic_partition, last_offset) in enumerate(appends):
            self._waiting.setdefault(topic_partition, {})[place] = last_offset

    def keys(self) -> Collection[TopicPartition]:
        """The partitions that are waited for."""
        return self._waiting.keys()

    def attempt(self, woken: Woken, expired: bool) -> T | None:
        """See `purgatory.Attempt`."""
        for topic_partition, error in woken.items():
            self._look_at(topic_partition, error)
        if expired:
            late = ApiError(ErrorCode.REQUEST_TIMED_OUT, "the in-sync replicas did not have the records in time")
            for topic_partition in list(self._waiting):
                self._look_at(topic_partition, late)
        return None if self._waiting else self._answer(self._errors)

    def _look_at(self, topic_partition: TopicPartition, error: ApiError | None) -> None:
        """Settle what can be settled of a partition; with `error` everything."""
        waiting = self._waiting.get(topic_partition, {})
        for place, last_offset in list(waiting.items()):
            try:
                if not self._find(topic_partition).is_acknowledged(last_offset, self._required_acks):
                    if error is None:
                        continue
                    raise detached(error)
            except ApiError as refusal:
                self._errors[place] = detached(refusal)
            del waiting[place]
        if not waiting:
            self._waiting.pop(topic_partition, None)
