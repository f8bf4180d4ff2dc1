"""Requests that wait for an event or a timeout (Kafka's DelayedOperationPurgatory): appends that are not yet
acknowledged (Kafka class `DelayedProduce`), and deletions of records that some replicas have not yet applied (Kafka
class `DelayedDeleteRecords`, KIP-107).

An operation is watched under each partition it concerns. Code that changes a partition calls `wake(partition)`. The
waiting operations are examined once per event-loop turn, however many changes that turn brought. They receive the
changed partitions, so that they need not check the others.

With acks=all a producer is answered once the high watermark has passed its last record, with acks=0 and acks=1 once
flush.messages allows it. Only acks=all has a time limit: the others wait for this broker's own disk, and Kafka, too,
blocks the request for that.

The low watermark of a partition is the lowest log start offset of its live replicas. A client is answered once it has
reached the requested offset: then no future leader can bring the records back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from cluster.replication.partition import Partition
from protocol.errors import ApiError, ErrorCode, detached
from protocol.topic_partition import TopicPartition

T = TypeVar("T")

Woken = dict[TopicPartition, ApiError | None]
"""The partitions that changed since an operation was last examined, each with an error if the awaited event cannot
happen there.
"""
Attempt = Callable[[Woken, bool], T | None]
"""Returns the result of an operation, or None to keep waiting. The second argument is True once the time is over; the
result must not be None then.
"""


class Watcher(Protocol):
    """An object that is notified of changes."""

    def wake(self, key: TopicPartition, error: ApiError | None) -> None:
        """See `Purgatory.wake`."""


class Changes(Protocol):
    """A source of changes: a purgatory, or an intermediary."""

    def enter(self, operation: DelayedOperation[Any], keys: Iterable[TopicPartition]) -> None:
        """Called by an operation that starts."""

    def leave(self, operation: DelayedOperation[Any], keys: Iterable[TopicPartition]) -> None:
        """Called by an operation that has ended."""


class DelayedOperation(Generic[T]):
    """An operation of a `Purgatory`. It records changes from its creation on, and is examined once `wait` has been
    called.
    """

    __slots__ = ("_attempt", "_future", "_keys", "_loop", "_purgatory", "_timer", "_woken")

    def __init__(self, purgatory: Changes, keys: Iterable[TopicPartition], attempt: Attempt[T]) -> None:
        self._loop = asyncio.get_running_loop()
        self._purgatory: Changes | None = purgatory
        self._keys = tuple(keys)
        self._attempt = attempt
        self._woken: Woken = {}
        self._future: asyncio.Future[T] | None = None
        self._timer: asyncio.TimerHandle | None = None
        purgatory.enter(self, self._keys)

    def wait(self, timeout_ms: float | None) -> asyncio.Future[T]:
        """Done when `attempt` returns a result, within `timeout_ms`. Cancelling the future leaves the purgatory."""
        self._future = future = self._loop.create_future()
        future.add_done_callback(self.leave)
        if timeout_ms is not None:
            self._timer = self._loop.call_later(timeout_ms / 1000, self._run, True)
        if self._woken:
            self._loop.call_soon(self._run)
        return future

    def wake(self, key: TopicPartition, error: ApiError | None) -> None:
        """See `Purgatory.wake`."""
        woken = self._woken
        if not woken and self._future is not None:
            self._loop.call_soon(self._run)
        if woken.get(key) is None:
            woken[key] = None if error is None else detached(error)

    def _run(self, expired: bool = False) -> None:
        future = self._future
        if future is None or future.done():
            return
        woken, self._woken = self._woken, {}
        try:
            result = self._attempt(woken, expired)
        except Exception as error:  # noqa: BLE001 - the awaiting code decides what it means
            future.set_exception(error)
            return
        if result is not None:
            future.set_result(result)

    def leave(self, _: asyncio.Future[T] | None = None) -> None:
        """Stop waiting."""
        if self._timer is not None:
            self._timer.cancel()
        if self._purgatory is not None:
            self._purgatory.leave(self, self._keys)
            self._purgatory = None


class Purgatory:
    """The waiting operations of one kind. `name` is the metric's label (Fetch, Produce ...).

    Operations that wait for the same partition are examined in arrival order.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._watchers: dict[TopicPartition, dict[Watcher, None]] = {}
        self.size = 0

    def watch(self, keys: Iterable[TopicPartition], timeout_ms: float | None, attempt: Attempt[T]) -> asyncio.Future[T]:
        """Wait until `attempt` returns a result. The caller has already tried once."""
        return DelayedOperation(self, keys, attempt).wait(timeout_ms)

    def wake(self, key: TopicPartition, error: ApiError | None = None) -> None:
        """Report a change of `key`; with an `error`, the awaited event will not happen."""
        watchers = self._watchers.get(key)
        if watchers:
            for operation in watchers:
                operation.wake(key, error)

    def enter(self, operation: DelayedOperation[T], keys: Iterable[TopicPartition]) -> None:
        """Called by an operation that starts."""
        self.size += 1
        self.add(operation, keys)

    def leave(self, operation: DelayedOperation[T], keys: Iterable[TopicPartition]) -> None:
        """Called by an operation that has ended."""
        self.size -= 1
        self.remove(operation, keys)

    def add(self, watcher: Watcher, keys: Iterable[TopicPartition]) -> None:
        """Notify `watcher` of changes from now on."""
        watchers = self._watchers
        for key in keys:
            known = watchers.get(key)
            if known is None:
                watchers[key] = {watcher: None}
            else:
                known[watcher] = None

    def remove(self, watcher: Watcher, keys: Iterable[TopicPartition]) -> None:
        """Stop notifying it."""
        watchers = self._watchers
        for key in keys:
            known = watchers.get(key)
            if known is not None:
                known.pop(watcher, None)
                if not known:
                    del watchers[key]


class DelayedProduce(Generic[T]):
    """The appends of one request. The result is `answer` of a list with each append's error, or None for success."""

    __slots__ = ("_answer", "_errors", "_find", "_required_acks", "_waiting")

    def __init__(
        self,
        find: Callable[[TopicPartition], Partition],
        required_acks: int,
        appends: Sequence[tuple[TopicPartition, int]],
        answer: Callable[[Sequence[ApiError | None]], T],
    ) -> None:
        """`find` returns the hosted replica, or raises ApiError. `appends` holds partitions and last offsets."""
        self._find = find
        self._required_acks = required_acks
        self._answer = answer
        self._errors: list[ApiError | None] = [None] * len(appends)
        self._waiting: dict[TopicPartition, dict[int, int]] = {}
        """The unacknowledged appends to each partition: index in `appends` and last offset."""
        for place, (topic_partition, last_offset) in enumerate(appends):
            self._waiting.setdefault(topic_partition, {})[place] = last_offset

    def keys(self) -> Collection[TopicPartition]:
        """The partitions that the operation waits for."""
        return self._waiting.keys()

    def attempt(self, woken: Woken, expired: bool) -> T | None:
        """See `purgatory.Attempt`."""
        for topic_partition, error in woken.items():
            self._check(topic_partition, error)
        if expired:
            late = ApiError(ErrorCode.REQUEST_TIMED_OUT, "the in-sync replicas did not have the records in time")
            for topic_partition in list(self._waiting):
                self._check(topic_partition, late)
        return None if self._waiting else self._answer(self._errors)

    def _check(self, topic_partition: TopicPartition, error: ApiError | None) -> None:
        """Complete the appends to a partition as far as possible; with `error`, all of them."""
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


LowWatermark = int | ApiError
"""The low watermark that was reached, or the reason why it was not."""


class DelayedDeleteRecords:
    """The deletions of one request; the result has one entry for each, in order."""

    __slots__ = ("_low_watermark_of", "_results", "_waiting")

    def __init__(
        self, low_watermark_of: Callable[[TopicPartition], int], deletions: Sequence[tuple[TopicPartition, int]]
    ) -> None:
        """`low_watermark_of` raises ApiError if this broker is not the leader. `deletions` holds partitions, and the
        offsets that their low watermarks must reach.
        """
        self._low_watermark_of = low_watermark_of
        self._results: list[LowWatermark] = [0] * len(deletions)
        self._waiting: dict[TopicPartition, dict[int, int]] = {}
        """The unfinished deletions: index in `deletions` and offset."""
        for place, (topic_partition, offset) in enumerate(deletions):
            self._waiting.setdefault(topic_partition, {})[place] = offset

    def keys(self) -> Collection[TopicPartition]:
        """The partitions that the operation waits for."""
        return self._waiting.keys()

    def attempt(self, woken: Woken, expired: bool) -> Sequence[LowWatermark] | None:
        """See `purgatory.Attempt`."""
        for topic_partition in list(self._waiting if expired else woken):
            self.check(topic_partition)
        if expired:
            late = ApiError(ErrorCode.REQUEST_TIMED_OUT, "not all replicas have heard of the deletion in time")
            for places in self._waiting.values():
                for place in places:
                    self._results[place] = late
            self._waiting.clear()
        return None if self._waiting else self._results

    def check(self, topic_partition: TopicPartition) -> None:
        """Complete the deletions that have succeeded or can no longer succeed."""
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
