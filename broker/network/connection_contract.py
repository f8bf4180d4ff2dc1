"""The interfaces that a connection uses: the dispatcher of its requests, and the server that accepted it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from broker.environment.contract import Clock, Executor
from broker.network.limits import ReceivingTurn
from broker.network.memory import ReplyMemory, RequestMemory
from broker.network.registry import Later, Waiting
from broker.network.reply_writer import Parts, SendBuffer
from protocol.wire.frames import ReceiveBuffer

if TYPE_CHECKING:
    from broker.network.connection import Connection

Dispatched = Parts | Waiting[Parts | None] | Later[Any] | None
"""The parts of a reply, now or later; None when nothing is sent."""


class Dispatch(Protocol):
    """The dispatcher, as a connection uses it."""

    def dispatch(self, connection: Connection, frame: memoryview) -> Dispatched:
        """Serve the request in `frame`.

        Raises CloseConnection or DecodeError when the answer is to hang up. `frame` is valid during the call only.
        """
        ...


class ConnectionOwner(Protocol):
    """The server that accepted a connection, as the connection uses it."""

    clock: Clock
    executor: Executor
    request_memory: RequestMemory
    reply_memory: ReplyMemory
    receiving_turn: ReceivingTurn
    receive_buffer: ReceiveBuffer
    send_buffer: SendBuffer
    max_request_bytes: int
    on_read_error: Callable[[str, OSError], None]

    def connection_made(self, connection: Connection) -> None:
        """A connection is there: count it, or close it."""
        ...

    def connection_lost(self, connection: Connection) -> None:
        """A connection is gone."""
        ...
