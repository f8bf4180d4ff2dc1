"""The incoming side of a client connection: an asyncio protocol that hands requests to the dispatcher in order."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from broker.network.memory import REQUEST_MEMORY
from broker.network.registry import ANYTHING, NOTHING, CloseConnection, Later, RequestKind, Waiting
from broker.network.reply_writer import LARGE_BYTES, Parts, ReplyWriter
from cluster.security.principal import ANONYMOUS
from environment.slices import SLICE_S
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, DecodeError
from protocol.wire.frames import FrameError, FrameReader

if TYPE_CHECKING:
    from broker.network.socket_server import SocketServer

Dispatched = Parts | Waiting[Parts | None] | Later[Any] | None
"""The parts of a reply, now or later, or None if nothing is sent."""


class Dispatch(Protocol):
    """The dispatcher's interface for a connection."""

    def dispatch(self, connection: Connection, frame: memoryview) -> Dispatched:
        """Serve the request in `frame`.

        Raises CloseConnection or DecodeError to close the connection without a reply. `frame` is valid only during the
        call.
        """
        ...


class Barriers(dict[frozenset[ApiKey], int]):
    """Counts the waiting requests by the set of APIs that may overtake them. If empty, every request may."""

    __slots__ = ()

    def add(self, lets_pass: frozenset[ApiKey]) -> None:
        """Add a waiting request that only these APIs may overtake."""
        if lets_pass is not ANYTHING:
            self[lets_pass] = self.get(lets_pass, 0) + 1

    def remove(self, lets_pass: frozenset[ApiKey]) -> None:
        """Remove such a request, which no longer waits."""
        if lets_pass is ANYTHING:
            return
        left = self[lets_pass] - 1
        if left:
            self[lets_pass] = left
        else:
            del self[lets_pass]

    def may_overtake(self, frame: memoryview) -> bool:
        """Whether the request in `frame` may overtake every waiting request."""
        api_key = int.from_bytes(frame[:2], "big")  # the frame may be shorter
        for lets_pass in self:  # noqa: SIM110  all() takes three times as long, on a hot path
            if api_key not in lets_pass:
                return False
        return True


REASON: Final = "quota"
"""The pause reason of a connection over its quota."""


class ThrottledChannel:
    """Mutes one connection until a given time: it processes no request. Its replies are still sent."""

    __slots__ = ("_connection", "_loop", "_timer", "_until_s")

    def __init__(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._until_s = 0.0

    @property
    def is_muted(self) -> bool:
        """Whether the connection is muted now."""
        return self._timer is not None

    def mute(self, time_ms: int) -> float:
        """Mute the connection for this time from now, or longer if it is already muted longer. Returns the end of the
        mute.
        """
        self._until_s = max(self._until_s, self._loop.time() + time_ms / 1000)
        if self._timer is None:
            self._timer = self._loop.call_at(self._until_s, self._at_the_end, self._until_s)
            self._connection.pause_reading(REASON)
        return self._until_s

    def _at_the_end(self, until_s: float) -> None:
        if until_s < self._until_s:
            # Requests that were still running have extended the mute; one timer suffices.
            self._timer = self._loop.call_at(self._until_s, self._at_the_end, self._until_s)
            return
        self._timer = None
        self._connection.resume_reading(REASON)
        self._connection.schedule_processing()

    def close(self) -> None:
        """Cancel the timer of a connection that has closed."""
        if self._timer is not None:
            self._timer.cancel()


logger = logging.getLogger("kafka.network.Connection")
apis_logger = logging.getLogger("kafka.server.KafkaApis")

MAX_WAITING_REQUESTS: Final = 128
"""Requests of one connection that may wait at once. Clients pipeline 5 (Java) to a few dozen."""


class Connection(asyncio.BufferedProtocol):
    """State of one connection. It belongs to the event loop; no thread shares it."""

    security_protocol = "PLAINTEXT"
    __slots__ = (
        "_barriers",
        "_continues",
        "_dispatcher",
        "_held_bytes",
        "_loop",
        "_paused_reasons",
        "_reader",
        "_replies",
        "_served_bytes",
        "_server",
        "_throttled",
        "_transport",
        "_unsent_bytes",
        "_writer",
        "client_address",
        "closed",
        "counted",
        "kinds",
        "last_active_s",
        "listener_name",
        "peer_name",
        "principal",
    )

    def __init__(self, server: SocketServer, dispatcher: Dispatch, listener_name: str) -> None:
        self._server = server
        self._dispatcher = dispatcher
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(server.max_request_bytes, server.receive_buffer)
        self._transport: asyncio.Transport
        self._writer: ReplyWriter
        self.listener_name = listener_name
        self.client_address = ""
        self.peer_name = ""
        self.principal = ANONYMOUS
        """The client's principal. Code that changes it must clear `kinds`."""
        self.last_active_s = 0.0
        """Time of the last traffic, in either direction."""
        self.closed = False
        self.counted = False
        """Whether `ConnectionLimits` counts this connection."""
        self._replies: deque[Parts | asyncio.Future[Parts | None] | Later[Any]] = deque()
        """Replies in request order, beginning with a pending one. A Future or a Later stands for a pending reply."""
        self._barriers = Barriers()
        self._continues = False
        """Whether the next event-loop turn will process the remaining requests."""
        self.kinds: dict[int, RequestKind] = {}
        """The dispatcher's cache of this connection's request kinds, by API key and version as one number."""
        self._paused_reasons: dict[str, None] = {}
        self._throttled: ThrottledChannel | None = None
        self._held_bytes = 0
        """Bytes charged to queued.max.request.bytes: queued requests, large requests in progress, and a partly received
        frame.
        """
        self._served_bytes = 0
        """Bytes of large requests that are being decoded or handled."""
        self._unsent_bytes = 0
        """Bytes of replies that the client has not read, as charged to `ReplyMemory` and last seen by
        `has_moved_since`.
        """

    # -- asyncio: connection -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface of asyncio.Transport without being one.
        self._transport = cast("asyncio.Transport", transport)
        self._writer = ReplyWriter(self, self._server.executor, self._server.send_buffer, self._transport)
        peer = transport.get_extra_info("peername")
        # A dual-stack listener reports an IPv4 peer as ::ffff:a.b.c.d; limits and groups use a.b.c.d.
        self.client_address = str(peer[0]).removeprefix("::ffff:") if peer else ""
        self.peer_name = f"{peer[0]}:{peer[1]}" if peer else "an unknown peer"
        self._server.connection_made(self)
        if self._paused_reasons:
            # uvloop starts to read after this call even if reading was paused in it, so pause again. The connection
            # serves whatever arrives before that, then waits.
            self._loop.call_soon(self._pause_again)

    def _pause_again(self) -> None:
        if self._paused_reasons and not self.closed:
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Release everything that the connection holds, and avoid reference cycles.

        Running requests refer to their connection until they end, and a cycle would last until the garbage collector
        finds it (see `broker.garbage`). So code must not use the attributes deleted here once `closed` is true.
        """
        self.closed = True
        self._writer.discard()
        for reply in self._replies:
            if isinstance(reply, asyncio.Future):
                # Ends a waiting fetch; a request that changes state continues (see the dispatcher).
                reply.cancel()
        self._replies.clear()
        self._account_held(self._served_bytes)
        if self._throttled is not None:
            self._throttled.close()
        self._server.reply_memory.forget(self)
        self._server.connection_lost(self)
        self.kinds.clear()
        self._paused_reasons.clear()
        memory = self._reader.release()
        if memory is not None:
            self._server.receiving_turn.free(memory)
        del self._transport, self._writer, self._reader, self._throttled, self._dispatcher

    def close(self, reason: str, *, level: int = logging.INFO, soon: bool = False) -> None:
        """Close the connection and log the reason. Unsent replies are dropped.

        With `soon`, close in the next event-loop turn: asyncio's transports do not support an abort from within their
        callbacks during a write (`resume_writing`).
        """
        if not self.closed:
            logger.log(level, "Closing connection of %s: %s", self.peer_name, reason)
            self.closed = True
            if soon:
                self._loop.call_soon(self._transport.abort)
            else:
                self._transport.abort()

    # -- requests in ---------------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self.last_active_s = self._loop.time()
        frame = None if self._replies or self._must_wait() else self._reader.only_frame(nbytes)
        if frame is None:
            self._reader.received(nbytes)
            self._process_requests()
            if not self.closed and self._reader.received_of_frame is not None:
                self._server.receiving_turn.count(self, nbytes)
            return
        parts = self._process(frame)
        if parts is not None:
            self._writer.send(parts)
            if self._writer.is_behind:
                self._apply_limits()
        elif self._served_bytes and not self.closed:
            self._apply_limits()

    def eof_received(self) -> bool:
        # A client that half-closes sends no more requests; its outstanding replies are dropped, as in Kafka.
        return False

    def _process_requests(self) -> None:
        """Process the received requests one after another, and keep those that must wait."""
        reader = self._reader
        writer = self._writer
        monotonic_s = self._server.clock.monotonic_s
        ends_s = monotonic_s() + SLICE_S
        try:
            must_wait = self._must_wait()
            while not must_wait:
                frame = reader.next_frame()
                if frame is None:
                    break
                if self._barriers and not self._barriers.may_overtake(frame):
                    reader.put_back()
                    break
                parts = self._process(frame)
                if parts is not None and writer.queue(parts) > LARGE_BYTES:
                    writer.flush()
                    must_wait = self._must_wait()
                elif parts is None or self._throttled is not None:
                    must_wait = self._must_wait()
                now_s = monotonic_s()
                if now_s >= ends_s:
                    self.schedule_processing()
                    break
        except FrameError as error:
            self.close(str(error), level=logging.WARNING)
        reader.keep()
        if self.closed:
            return
        writer.flush()
        self._apply_limits()

    def _continue(self) -> None:
        self._continues = False
        if not self.closed:
            if self._replies:
                self._queue_replies()
            self._process_requests()

    def _must_wait(self) -> bool:
        """Whether every request must wait. `_process_requests` is called when the cause is gone."""
        return (
            self.closed
            or self._continues
            or (self._throttled is not None and self._throttled.is_muted)
            or self._writer.is_behind
            or len(self._replies) >= MAX_WAITING_REQUESTS
            or (self._server.reply_memory.is_exhausted and self._server.reply_memory.must_wait(self))
        )

    def _process(self, frame: memoryview) -> Parts | None:
        """Dispatch one request. Returns its reply if no other reply must precede it."""
        try:
            reply = self._dispatcher.dispatch(self, frame)
        except (CloseConnection, DecodeError, ApiError) as error:
            # An ApiError that reaches this point concerns the whole request: no single item of the response could carry
            # its code.
            self.close(str(error), level=logging.WARNING)
            return None
        except Exception:
            apis_logger.exception("Unexpected error while serving %s", self.peer_name)
            self.close("an unexpected error in the broker", level=logging.ERROR)
            return None
        if reply is None:
            return None
        if isinstance(reply, Later):
            self._replies.append(reply)
            self._barriers.add(reply.lets_pass)
            return None
        if isinstance(reply, Waiting):
            self._replies.append(reply.future)
            if reply.effective is not None and not reply.effective.done():
                self._barriers.add(NOTHING)
                reply.effective.add_done_callback(partial(self._on_effective, reply))
            else:
                self._wait_for_reply(reply)
            return None
        if self._replies:
            self._replies.append(reply)
            return None
        return reply

    def _wait_for_reply(self, waiting: Waiting[Parts | None]) -> None:
        self._barriers.add(waiting.lets_pass)
        waiting.future.add_done_callback(partial(self._on_reply_ready, waiting.lets_pass))

    def _on_effective(self, waiting: Waiting[Parts | None], _: asyncio.Future[None]) -> None:
        self._barriers.remove(NOTHING)
        self._wait_for_reply(waiting)
        self.schedule_processing()

    def _on_reply_ready(self, lets_pass: frozenset[ApiKey], future: asyncio.Future[Parts | None]) -> None:
        self._barriers.remove(lets_pass)
        error = None if future.cancelled() else future.exception()
        if self.closed:
            if error is not None:
                logger.debug("A request of %s failed after it hung up", self.peer_name, exc_info=error)
            return
        if future.cancelled():
            self.close("the broker cancelled a request")
            return
        if error is not None:
            self.reply_failed(error)
            return
        self._queue_replies()
        self._process_requests()

    def send_reply(self, later: Later[Any]) -> None:
        """Send the answer of a waiting request: at once when the connection is otherwise idle, else in the next
        event-loop turn, together with the others that arrive until then.
        """
        self._barriers.remove(later.lets_pass)
        replies, writer = self._replies, self._writer
        is_busy = self._continues or self._paused_reasons or writer.is_behind or self._reader.has_unread
        if is_busy or later.parts is None or len(replies) != 1 or replies[0] is not later:
            self.schedule_processing()
            return
        replies.clear()
        writer.send(later.parts)
        if writer.is_behind:
            self._apply_limits()

    def reply_failed(self, error: BaseException) -> None:
        """Close the connection, because the request failed without an answer."""
        if isinstance(error, CloseConnection | DecodeError | ApiError):
            self.close(str(error), level=logging.WARNING)
            return
        apis_logger.error("Unexpected error while serving %s", self.peer_name, exc_info=error)
        self.close("an unexpected error in the broker", level=logging.ERROR)

    def _queue_replies(self) -> None:
        """Queue the replies that no pending reply precedes any more."""
        replies = self._replies
        while replies:
            first = replies[0]
            if isinstance(first, Later):
                if first.parts is None:
                    break
                first = first.parts
            elif isinstance(first, asyncio.Future):
                if not first.done() or first.cancelled() or first.exception() is not None:
                    break
                first = first.result() or []
            self._writer.queue(first)
            replies.popleft()

    # -- replies out ---------------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        self._writer.pause()

    def resume_writing(self) -> None:
        self.last_active_s = self._loop.time()
        self._writer.resume()

    def replies_sent(self) -> None:
        """See `broker.network.reply_writer.Replying`."""
        self.schedule_processing()

    def reading_failed(self, path: str, error: OSError) -> None:
        """See `broker.network.reply_writer.Replying`."""
        self._server.on_read_error(path, error)

    # -- flow control --------------------------------------------------------------------------------------------------

    def _apply_limits(self) -> None:
        """Charge the memory that this connection holds, and pause reading while requests or replies are waiting."""
        reader = self._reader
        held_bytes = reader.held_bytes + self._served_bytes
        if held_bytes != self._held_bytes:
            self._account_held(held_bytes)
        is_behind = self._writer.is_behind
        if is_behind or self._unsent_bytes:
            self._unsent_bytes = self._writer.unsent_bytes if is_behind else 0
            self._server.reply_memory.hold(self, self._unsent_bytes)
        if is_behind or reader.has_unread or len(self._replies) >= MAX_WAITING_REQUESTS:
            self.pause_reading("backlog")
        elif self._paused_reasons:
            self.resume_reading("backlog")

    def pause_reading(self, reason: str) -> None:
        """Stop reading until every reason has been withdrawn."""
        if not self._paused_reasons and not self._transport.is_closing():
            self._transport.pause_reading()
        self._paused_reasons[reason] = None

    def resume_reading(self, reason: str) -> None:
        """Withdraw `reason`."""
        if reason in self._paused_reasons:
            del self._paused_reasons[reason]
            if not self._paused_reasons and not self._transport.is_closing():
                self._transport.resume_reading()

    def mute(self, time_ms: int) -> None:
        """Process no request for this time; see `ThrottledChannel`."""
        if self._throttled is None:
            self._throttled = ThrottledChannel(self, self._loop)
        self.last_active_s = self._throttled.mute(time_ms)  # not idle until then

    def schedule_processing(self) -> None:
        """Process the received requests in a later event-loop turn."""
        if not self._continues and not self.closed:
            self._continues = True
            self._loop.call_soon(self._continue)

    def _account_held(self, claimed: int) -> None:
        """Charge the bytes of requests to queued.max.request.bytes."""
        memory, growth = self._server.request_memory, claimed - self._held_bytes
        if growth <= 0 < claimed and memory.shrink(self, claimed):
            self._held_bytes = claimed
            return
        if growth <= 0 or not self._served_bytes or REQUEST_MEMORY in self._paused_reasons:
            self._release_held_bytes()
            self.resume_reading(REQUEST_MEMORY)
            growth = claimed
        if claimed:
            self._held_bytes = claimed
            # Adds to the existing charge: other connections must not get the memory of requests in progress.
            memory.take(self, growth, self._reader.kept_bytes)

    def _release_held_bytes(self) -> None:
        if self._held_bytes:
            self._server.request_memory.release(self)
            self._held_bytes = 0

    def hold_request(self, size: int) -> None:
        """Charge a large request until `release_request`. That call follows when the request ends, even if the client
        has disconnected before.
        """
        self._served_bytes += size

    def release_request(self, size: int) -> None:
        """See `hold_request`."""
        self._served_bytes -= size
        if not self.closed:
            self._apply_limits()
        elif not self._served_bytes:
            self._release_held_bytes()

    @property
    def received_of_frame(self) -> int | None:
        """See `broker.network.memory.Receiving`."""
        return None if self._paused_reasons or self.closed else self._reader.received_of_frame

    @property
    def unsent_bytes(self) -> int:
        """Bytes of replies that the client has not read yet."""
        return self._writer.unsent_bytes if self._writer.is_behind else 0

    def has_moved_since(self, time_s: float, now_s: float) -> bool:
        """Whether any byte has moved after `time_s`. Only this check notices bytes that left a full socket."""
        unsent_bytes = self.unsent_bytes
        if unsent_bytes != self._unsent_bytes:
            self._unsent_bytes = unsent_bytes
            self._server.reply_memory.hold(self, unsent_bytes)
            self.last_active_s = now_s
        return self.last_active_s >= time_s
