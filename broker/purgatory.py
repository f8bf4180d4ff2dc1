"""Requests that wait for something to happen or for their time to run out (Kafka's DelayedOperationPurgatory).

A DelayedFetch is watched under each partition it reads. What changes a partition calls `wake(partition)`; waiting
operations are re-examined once per turn of the event loop, however many appends that turn brought.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from protocol.topic_partition import TopicPartition

T = TypeVar("T")


class DelayedOperation(Generic[T]):
    """One waiting operation. `attempt(expired)` gives its result, or None to wait on (never None when expired)."""

    __slots__ = ("_attempt", "_purgatory", "_timer", "future", "keys", "scheduled")

    def __init__(
        self,
        purgatory: Purgatory,
        keys: Iterable[TopicPartition],
        timeout_s: float,
        attempt: Callable[[bool], T | None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self._attempt = attempt
        self._purgatory = purgatory
        self.keys = tuple(keys)
        self.future: asyncio.Future[T] = loop.create_future()
        self.scheduled = False
        self._timer = loop.call_later(timeout_s, self.run, True)
        self.future.add_done_callback(self._forget)

    def run(self, expired: bool = False) -> None:
        """Examine the operation; complete it when it is satisfied or expired."""
        self.scheduled = False
        if self.future.done():
            return
        try:
            result = self._attempt(expired)
        except Exception as error:  # noqa: BLE001 - whoever awaits the future decides what it means
            self.future.set_exception(error)
            return
        if result is not None:
            self.future.set_result(result)

    def _forget(self, _: asyncio.Future[T]) -> None:
        self._timer.cancel()
        self._purgatory.forget(self)


class Purgatory:
    """The waiting operations of one kind. `name` is the metric's label (Fetch, Produce ...)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._watchers: dict[TopicPartition, set[DelayedOperation[object]]] = {}
        self.size = 0

    def watch(
        self, keys: Iterable[TopicPartition], timeout_ms: int, attempt: Callable[[bool], T | None]
    ) -> asyncio.Future[T]:
        """Wait until `attempt` gives a result. Cancelling the future forgets the operation.

        The caller has tried once already; `attempt` runs again when a key is woken, and last when `timeout_ms` passed.
        """
        operation: DelayedOperation[T] = DelayedOperation(self, keys, timeout_ms / 1000, attempt)
        self.size += 1
        for key in operation.keys:
            self._watchers.setdefault(key, set()).add(operation)  # type: ignore[arg-type]
        return operation.future

    def wake(self, key: TopicPartition) -> None:
        """Something about `key` changed."""
        watchers = self._watchers.get(key)
        if watchers:
            loop = asyncio.get_running_loop()
            for operation in watchers:
                if not operation.scheduled:
                    operation.scheduled = True
                    loop.call_soon(operation.run)

    def forget(self, operation: DelayedOperation[T]) -> None:
        """Called by an operation that is done."""
        self.size -= 1
        for key in operation.keys:
            watchers = self._watchers.get(key)
            if watchers is not None:
                watchers.discard(operation)
                if not watchers:
                    del self._watchers[key]
