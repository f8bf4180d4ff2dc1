"""One request to ZooKeeper on its way, between the event loop and kazoo's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from broker.zookeeper.kazoo_handler import LoopQueue
from cluster.zookeeper.coordination import CoordinationError
from protocol.errors import detached

T = TypeVar("T")


class Caller(Protocol):
    """The session that a call belongs to."""

    @property
    def queue(self) -> LoopQueue:
        """Of the event loop."""
        ...

    def call_ended(self, call: Call[Any], /) -> None:
        """The call has its answer."""
        ...


class Call(Generic[T]):
    """One request on its way. kazoo's thread calls `set` or `set_exception`; the rest happens on the event loop."""

    __slots__ = ("_on_error", "_on_reply", "_session", "future", "request")

    def __init__(
        self,
        session: Caller,
        request: Any,
        on_reply: Callable[[Any], T],
        on_error: Callable[[Exception], CoordinationError],
    ) -> None:
        self.request = request
        self.future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._session = session
        self._on_reply = on_reply
        self._on_error = on_error

    def set(self, value: Any = None) -> None:
        """Take the answer."""
        self._session.queue.put(partial(self._succeed, value))

    def set_exception(self, error: Exception) -> None:
        """Take an error instead."""
        self._session.queue.put(partial(self._fail, detached(error)))

    def _succeed(self, value: Any) -> None:
        self._session.call_ended(self)
        try:
            result = self._on_reply(value)
        except CoordinationError as error:
            self.end_with(error)
        else:
            if not self.future.done():
                self.future.set_result(result)

    def _fail(self, error: Exception) -> None:
        self._session.call_ended(self)
        self.end_with(self._on_error(error))

    def end_with(self, error: CoordinationError) -> None:
        """Raise `error` in who waits."""
        if not self.future.done():
            self.future.set_exception(detached(error))
