"""One client connection: an asyncio protocol around `FrameReader` and the dispatcher."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol, cast

from broker.network.file_slice import FileSlice, Part
from broker.network.limits import RequestMemory
from broker.registry import CloseConnection
from broker.seams import Executor
from protocol.errors import ApiError, DecodeError
from protocol.frames import FrameError, FrameReader, ReceiveBuffer

logger = logging.getLogger("kafka.network.Connection")

MAX_WAITING_REQUESTS = 128
"""Requests of one connection that may wait at once; reading pauses above it. Clients keep 5 (Java) to a few dozen."""

CHUNK_BYTES = 1 << 20
"""What is read from a log at a time when a reply is sent."""

WRITE_HIGH_WATER_BYTES = 1 << 20

Parts = list[Part]


class Dispatch(Protocol):
    """What a connection needs of the dispatcher."""

    def dispatch(self, connection: Connection, frame: memoryview) -> Parts | Awaitable[Parts | None] | None:
        """The reply's parts, an awaitable of them, or None when nothing is sent.

        Raises CloseConnection or DecodeError when the answer is to hang up. `frame` is valid during the call only.
        """
        ...


class ConnectionOwner(Protocol):
    """What a connection needs of the server that accepted it."""

    executor: Executor
    request_memory: RequestMemory
    receive_buffer: ReceiveBuffer
    max_request_bytes: int
    on_read_error: Callable[[str, OSError], None]

    def connection_made(self, connection: Connection) -> None:
        """A connection is there: count it, or close it."""
        ...

    def connection_lost(self, connection: Connection) -> None:
        """A connection is gone."""
        ...


class Connection(asyncio.BufferedProtocol):
    """State of one connection. Owned by the loop; nothing here is shared with threads."""

    __slots__ = (
        "_dispatcher",
        "_held_bytes",
        "_loop",
        "_outgoing",
        "_paused_reasons",
        "_reader",
        "_reading_file",
        "_replies",
        "_server",
        "_transport",
        "_writing_paused",
        "client_address",
        "closed",
        "counted",
        "last_active_s",
        "listener_name",
        "peer_name",
    )

    def __init__(self, server: ConnectionOwner, dispatcher: Dispatch, listener_name: str) -> None:
        self._server = server
        self._dispatcher = dispatcher
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(server.max_request_bytes, server.receive_buffer)
        self._transport: asyncio.Transport | None = None
        self.listener_name = listener_name
        self.client_address = ""
        self.peer_name = ""
        self.last_active_s = 0.0
        self.closed = False
        self.counted = False
        """Whether `ConnectionLimits` counts this connection."""
        # Per-request state: replies in request order. A Future marks a request that still waits.
        self._replies: deque[Parts | asyncio.Future[Parts | None]] = deque()
        self._outgoing: deque[Part] = deque()
        self._writing_paused = False
        self._reading_file = False
        self._paused_reasons: set[str] = set()
        self._held_bytes = 0
        """Size of a frame that arrives in pieces, as charged to queued.max.request.bytes."""

    # -- asyncio: connection -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface of asyncio.Transport without being one.
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        # A dual-stack listener sees an IPv4 peer as ::ffff:a.b.c.d; limits and groups know it as a.b.c.d.
        self.client_address = str(peer[0]).removeprefix("::ffff:") if peer else ""
        self.peer_name = f"{peer[0]}:{peer[1]}" if peer else "an unknown peer"
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        self._server.connection_made(self)
        if self._paused_reasons:
            # uvloop begins to read after this call whatever was said in it, so say it again. What arrives before that
            # is served; the connection waits then.
            self._loop.call_soon(self._pause_again)

    def _pause_again(self) -> None:
        if self._paused_reasons and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.closed = True
        self._outgoing.clear()
        for reply in self._replies:
            if isinstance(reply, asyncio.Future):
                # A waiting fetch has nobody to wait for; what changes state goes on (see the dispatcher).
                reply.cancel()
        self._replies.clear()
        self._release_held_bytes()
        self._server.connection_lost(self)

    def close(self, reason: str, *, level: int = logging.INFO, soon: bool = False) -> None:
        """Hang up, saying why in the log. Replies that are not sent yet are dropped.

        With `soon` in the next turn of the event loop: asyncio's transports do not bear to be aborted by what they call
        in the midst of a write (`resume_writing`).
        """
        if not self.closed and self._transport is not None:
            logger.log(level, "Closing connection of %s: %s", self.peer_name, reason)
            self.closed = True
            if soon:
                self._loop.call_soon(self._transport.abort)
            else:
                self._transport.abort()

    # -- asyncio: bytes in ---------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self.last_active_s = self._loop.time()
        reader = self._reader
        try:
            for frame in reader.buffer_updated(nbytes):
                self._process(frame)
                if self.closed:
                    return
        except FrameError as error:
            self.close(str(error), level=logging.WARNING)
            return
        if reader.partial_frame_bytes != self._held_bytes:
            self._account_partial_frame(reader.partial_frame_bytes)
        self._balance()

    def eof_received(self) -> bool:
        # A client that half-closes has nothing more to ask; what it was promised is dropped, as Kafka does.
        return False

    def _process(self, frame: memoryview) -> None:
        try:
            reply = self._dispatcher.dispatch(self, frame)
        except (CloseConnection, DecodeError, ApiError) as error:
            # An ApiError that comes this far concerns the request as a whole: there is no item to give its code to.
            self.close(str(error), level=logging.WARNING)
            return
        except Exception:
            logger.exception("Unexpected error while serving %s", self.peer_name)
            self.close("an unexpected error in the broker", level=logging.ERROR)
            return
        if reply is None:
            return
        if isinstance(reply, list):
            if self._replies:
                self._replies.append(reply)
            else:
                self._outgoing.extend(reply)
            return
        future = asyncio.ensure_future(reply)
        self._replies.append(future)
        future.add_done_callback(self._on_reply_ready)

    # -- replies out ---------------------------------------------------------------------------------------------------

    def _on_reply_ready(self, future: asyncio.Future[Parts | None]) -> None:
        if future.cancelled() or self.closed:
            if not future.cancelled() and future.exception() is not None:
                logger.debug("A request of %s failed after it hung up", self.peer_name, exc_info=future.exception())
            return
        error = future.exception()
        if isinstance(error, CloseConnection | ApiError):
            self.close(str(error), level=logging.WARNING)
            return
        if error is not None:
            logger.error("Unexpected error while serving %s", self.peer_name, exc_info=error)
            self.close("an unexpected error in the broker", level=logging.ERROR)
            return
        replies = self._replies
        while replies:
            first = replies[0]
            if isinstance(first, asyncio.Future):
                if not first.done():
                    break
                self._outgoing.extend(first.result() or ())
            else:
                self._outgoing.extend(first)
            replies.popleft()
        self._balance()

    def _balance(self) -> None:
        """Write what can be written, then read on or stop reading according to what is left."""
        if self._outgoing:
            self._pump()
        if bool(self._outgoing) or len(self._replies) > MAX_WAITING_REQUESTS:
            self.pause_reading("backlog")
        elif self._paused_reasons:
            self.resume_reading("backlog")

    def _pump(self) -> None:
        transport = self._transport
        outgoing = self._outgoing
        if transport is None or self.closed:
            outgoing.clear()
            return
        while outgoing and not self._writing_paused and not self._reading_file:
            lines: list[bytes | memoryview | bytearray] = []
            size = 0
            while outgoing and size < CHUNK_BYTES:
                part = outgoing[0]
                if isinstance(part, FileSlice):
                    try:
                        chunk = part.try_read(min(len(part), CHUNK_BYTES))
                    except OSError as error:
                        self._give_up_reply(part, error)
                        return
                    if chunk is None:
                        self._read_cold(part)
                        break
                    if not chunk:
                        self.close(f"{part!r} is no longer readable", level=logging.WARNING, soon=True)
                        return
                    part.advance(len(chunk))
                    if not len(part):
                        outgoing.popleft()
                    lines.append(chunk)
                    size += len(chunk)
                else:
                    lines.append(part)
                    size += len(part)
                    outgoing.popleft()
            if lines:
                transport.writelines(lines)
        # The loop flushes what it was given; `resume_writing` continues here.

    def _read_cold(self, part: FileSlice) -> None:
        """Have a thread bring the next chunk into memory, then go on."""
        self._reading_file = True
        task = asyncio.ensure_future(self._server.executor.run(part.read, min(len(part), CHUNK_BYTES)))
        task.add_done_callback(self._on_cold_read)

    def _on_cold_read(self, future: asyncio.Future[bytes | bytearray]) -> None:
        self._reading_file = False
        if future.cancelled() or self.closed or self._transport is None:
            return
        part = self._outgoing[0]
        error = future.exception()
        if error is not None or not isinstance(part, FileSlice) or not future.result():
            self._give_up_reply(part, error)
            return
        chunk = future.result()
        part.advance(len(chunk))
        if not len(part):
            self._outgoing.popleft()
        self._transport.write(chunk)
        self._balance()

    def _give_up_reply(self, part: Part, error: BaseException | None) -> None:
        """The reply is half sent, or about to be, so that the client cannot be told otherwise."""
        is_deleted = isinstance(error, FileNotFoundError)
        level = logging.WARNING if is_deleted else logging.ERROR
        self.close(f"{part!r} could not be read: {error}", level=level, soon=True)
        if isinstance(error, OSError) and isinstance(part, FileSlice) and not is_deleted:
            self._server.on_read_error(part.path, error)

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._balance()

    # -- flow control --------------------------------------------------------------------------------------------------

    def pause_reading(self, reason: str) -> None:
        """Stop reading until every reason given has been taken back."""
        if not self._paused_reasons and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._paused_reasons.add(reason)

    def resume_reading(self, reason: str) -> None:
        """Take `reason` back."""
        if reason in self._paused_reasons:
            self._paused_reasons.discard(reason)
            if not self._paused_reasons and self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()

    def _account_partial_frame(self, claimed: int) -> None:
        """Charge a frame that arrives in pieces to the broker's memory for requests (queued.max.request.bytes)."""
        self._release_held_bytes()
        if claimed:
            self._held_bytes = claimed
            self._server.request_memory.take(self, claimed)

    def _release_held_bytes(self) -> None:
        if self._held_bytes:
            self._server.request_memory.give_back(self)
            self._held_bytes = 0

    @property
    def is_idle(self) -> bool:
        """Nothing waits and nothing is being sent: connections.max.idle.ms counts from `last_active_s`."""
        return not self._replies and not self._outgoing
