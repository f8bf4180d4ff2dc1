"""Requests that wait for something to happen or for their time to run out (Kafka's DelayedOperationPurgatory).

An operation is watched under each partition it concerns. What changes a partition calls `wake(partition)`. The waiting
operations are examined once per turn of the event loop, however many changes that turn brought, and are told which
partitions changed, so that they need not look at the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from protocol.errors import ApiError, detached
from protocol.topic_partition import TopicPartition

T = TypeVar("T")

Woken = dict[TopicPartition, ApiError | None]
"""The partitions that changed since an operation was last examined; with the error if what is waited for will not
happen there.
"""
Attempt = Callable[[Woken, bool], T | None]
"""Gives the result of an operation, or None to wait on. The second argument says that the time is over; the result may
not be None then.
"""


class Watcher(Protocol):
    """Whoever is to hear of changes."""

    def wake(self, key: TopicPartition, error: ApiError | None) -> None:
        """See `Purgatory.wake`."""


class Changes(Protocol):
    """A source of changes: a purgatory, or what passes them on."""

    def enter(self, operation: DelayedOperation[Any], keys: Iterable[TopicPartition]) -> None:
        """Called by an operation that begins."""

    def leave(self, operation: DelayedOperation[Any], keys: Iterable[TopicPartition]) -> None:
        """Called by an operation that is done."""


class DelayedOperation(Generic[T]):
    """An operation of a `Purgatory`. Changes are noted from the beginning; it is examined once `wait` was called."""

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
        """Done when `attempt` gives a result, at the latest after `timeout_ms`. Cancelling it leaves the purgatory."""
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
        except Exception as error:  # noqa: BLE001 - whoever awaits the future decides what it means
            future.set_exception(error)
            return
        if result is not None:
            future.set_result(result)

    def leave(self, _: asyncio.Future[T] | None = None) -> None:
        """Wait no more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._purgatory is not None:
            self._purgatory.leave(self, self._keys)
            self._purgatory = None


class Purgatory:
    """The waiting operations of one kind. `name` is the metric's label (Fetch, Produce ...).

    Operations that wait for the same partition are examined in the order in which they came.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._watchers: dict[TopicPartition, dict[Watcher, None]] = {}
        self.size = 0

    def watch(self, keys: Iterable[TopicPartition], timeout_ms: float | None, attempt: Attempt[T]) -> asyncio.Future[T]:
        """Wait until `attempt` gives a result. The caller has tried once already."""
        return DelayedOperation(self, keys, attempt).wait(timeout_ms)

    def wake(self, key: TopicPartition, error: ApiError | None = None) -> None:
        """Something about `key` changed; with an `error`, what is waited for will not happen."""
        watchers = self._watchers.get(key)
        if watchers:
            for operation in watchers:
                operation.wake(key, error)

    def enter(self, operation: DelayedOperation[T], keys: Iterable[TopicPartition]) -> None:
        """Called by an operation that begins."""
        self.size += 1
        self.add(operation, keys)

    def leave(self, operation: DelayedOperation[T], keys: Iterable[TopicPartition]) -> None:
        """Called by an operation that is done."""
        self.size -= 1
        self.remove(operation, keys)

    def add(self, watcher: Watcher, keys: Iterable[TopicPartition]) -> None:
        """Tell `watcher` of changes from now on."""
        watchers = self._watchers
        for key in keys:
            known = watchers.get(key)
            if known is None:
                watchers[key] = {watcher: None}
            else:
                known[watcher] = None

    def remove(self, watcher: Watcher, keys: Iterable[TopicPartition]) -> None:
        """Tell it no longer."""
        watchers = self._watchers
        for key in keys:
            known = watchers.get(key)
            if known is not None:
                known.pop(watcher, None)
                if not known:
                    del watchers[key]
