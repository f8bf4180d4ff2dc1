"""Answers that a fault breaks on their way to a client: half of one, or one twice."""

from __future__ import annotations

import asyncio
from functools import partial

from broker.network.connection import Connection, Dispatch, Dispatched
from broker.network.registry import CloseConnection, Waiting
from broker.network.reply_writer import FileSlice, Part, Parts

Answer = asyncio.Future[Parts | None]


class BrokenReplies:
    """Stands between the connections and the dispatcher of a broker under test."""

    def __init__(self, dispatcher: Dispatch) -> None:
        self._dispatcher = dispatcher
        self._is_dispatching = False
        self._wanted: list[tuple[str, str]] = []
        """How to break the answer to the request that is being dispatched, and the reason; at most one."""

    def dispatch(self, connection: Connection, frame: memoryview) -> Dispatched:
        """See `broker.network.connection.Dispatch`."""
        self._wanted.clear()
        self._is_dispatching = True
        try:
            reply = self._dispatcher.dispatch(connection, frame)
        finally:
            self._is_dispatching = False
        if not self._wanted:
            return reply
        how, reason = self._wanted.pop()
        assert isinstance(reply, Waiting), "a handler with a fault answers later"
        return reply.replace(future=_broken(reply.future, how, reason, connection))

    def break_next(self, how: str, reason: str) -> None:
        """Break the answer to the request that is being dispatched. Its handler calls this, and answers later.

        Raises CloseConnection for a large request, whose answer can only be withheld.
        """
        if not self._is_dispatching:
            raise CloseConnection(reason)
        self._wanted.append((how, reason))


def _broken(whole: Answer, how: str, reason: str, connection: Connection) -> Answer:
    """The broken answer, once the whole one is there. A client that leaves cancels both."""
    loop = asyncio.get_running_loop()
    broken: Answer = loop.create_future()

    def finish(done: Answer) -> None:
        if broken.done():
            return
        if done.cancelled():
            broken.cancel()
        elif (error := done.exception()) is not None:
            broken.set_exception(error)
        else:
            data = b"".join(map(_read, done.result() or ()))
            broken.set_result([data[: len(data) // 2]] if how == "half" else [data, data])
            if how == "half":
                # After the callbacks that `set_result` has scheduled, which send it.
                loop.call_soon(partial(connection.close, reason))

    def give_up(ended: Answer) -> None:
        if ended.cancelled():
            whole.cancel()

    whole.add_done_callback(finish)
    broken.add_done_callback(give_up)
    return broken


def _read(part: Part) -> bytes | bytearray | memoryview:
    return part.read(len(part)) if isinstance(part, FileSlice) else part
