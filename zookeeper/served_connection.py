"""One connection of a ZooKeeper client: reads frames, and writes replies and events in execution order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from protocol.errors import detached
from zookeeper import wire_format as wire
from zookeeper.access_control import Permission, is_allowed
from zookeeper.commit_queue import CommitResult
from zookeeper.coordination import ConnectionLossError, CoordinationError, NoSpaceError, WatchEvent
from zookeeper.digest_md5 import DigestAuthenticationError
from zookeeper.served_requests import QUEUED, ServedIdentities, ServedRequests
from zookeeper.served_sessions import ServedSession
from zookeeper.wire_format import ConnectRequest, OpCode, RecordReader, WireError

if TYPE_CHECKING:
    from zookeeper.tree_server import TreeServer

logger = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S: Final = 10.0
"""How long a connection may take to send its first request."""
_MOST_UNANSWERED: Final = 1000
"""Unanswered requests of one connection beyond which no more are read."""
_FRAMES_PER_TURN: Final = 50
"""Requests processed in one go: a millisecond or two of work."""
_LENGTH_BYTES: Final = 4


class ServedConnection(asyncio.Protocol):
    """Implements the Connection of `served_sessions`."""

    _transport: asyncio.Transport
    _identities: ServedIdentities
    _deadline: asyncio.TimerHandle

    def __init__(self, server: TreeServer) -> None:
        self._server = server
        self._received = bytearray()
        self._session: ServedSession | None = None
        self._requests: ServedRequests | None = None
        self._unanswered = 0
        self._is_full = False
        """Whether the client does not read its replies."""
        self._is_beginning = False
        """Whether a session is being created for this connection."""
        self._is_ending = False
        self._is_closed = False
        self._is_paused = False
        self._goes_on_later = False

    # -- asyncio's side ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface of asyncio.Transport without being one.
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        address = peer[0] if peer else ""
        self._identities = ServedIdentities(address, self._server.users)
        self._deadline = asyncio.get_running_loop().call_later(_CONNECT_TIMEOUT_S, self.close)
        if not self._server.enter(self, address):
            self.close()

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._take_frames()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._take_frames()

    def connection_lost(self, _error: Exception | None) -> None:
        self.close()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._deadline.cancel()
        self._received.clear()
        if self._requests is not None:
            self._requests.is_heard = False
            # The requests refer to this connection, and a cycle would last until the garbage collector finds it.
            self._requests = None
        if self._session is not None:
            self._server.sessions.leave(self._session, self)
        self._server.leave(self)
        self._transport.close()

    # -- frames in -----------------------------------------------------------------------------------------------------

    def _take_frames(self) -> None:
        """Process received frames up to the limits; the rest waits, and reading pauses."""
        for _ in range(_FRAMES_PER_TURN):
            if self._must_wait:
                self._pause(True)
                return
            frame = self._next_frame()
            if frame is None:
                self._pause(False)
                return
            self._take(frame)
        self._pause(True)
        self._go_on_later()

    @property
    def _must_wait(self) -> bool:
        has_enough = self._unanswered >= _MOST_UNANSWERED or self._goes_on_later
        return self._is_full or self._is_beginning or has_enough or self._is_ending

    def _pause(self, paused: bool) -> None:
        if self._is_closed or paused is self._is_paused:
            return
        self._is_paused = paused
        if paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _go_on_later(self) -> None:
        if self._is_paused and not self._goes_on_later:
            self._goes_on_later = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._goes_on_later = False
        self._take_frames()

    def _next_frame(self) -> bytes | None:
        """The next frame, if it is complete."""
        received = self._received
        if len(received) < _LENGTH_BYTES or self._is_closed:
            return None
        length = int.from_bytes(received[:_LENGTH_BYTES], signed=True)
        if not 0 < length <= wire.MOST_FRAME_BYTES:
            self._answer_command(bytes(received[:_LENGTH_BYTES]))
            return None
        end = _LENGTH_BYTES + length
        if len(received) < end:
            return None
        frame = bytes(received[_LENGTH_BYTES:end])
        del received[:end]
        return frame

    def _answer_command(self, word: bytes) -> None:
        answer = self._server.command(word) if self._session is None else None
        if answer is None:
            logger.warning("A connection is closed: %r is neither a frame's length nor a command", word)
        else:
            self._transport.write(answer)
        self.close()

    def _take(self, frame: bytes) -> None:
        try:
            if self._session is None:
                self._connect(wire.read_connect_request(frame))
            elif self._requests is not None:
                self._session.silent_s = 0.0
                self._request(self._requests, self._session, RecordReader(frame))
        except (WireError, wire.MarshallingError) as error:
            logger.warning("A connection is closed: %s", error)
            self.close()

    # -- the session ---------------------------------------------------------------------------------------------------

    def _connect(self, request: ConnectRequest) -> None:
        if request.last_zxid_seen > self._server.queue.tree.last_zxid:
            # Close without reporting an expired session: only a server that is not behind can know that.
            raise WireError(
                f"its client has seen zxid {request.last_zxid_seen}, and this tree has not: "
                f"its last one is {self._server.queue.tree.last_zxid}"
            )
        if not request.session_id:
            self._is_beginning = True
            self._server.sessions.begin(request.timeout_ms, partial(self._connected, request))
            return
        session = self._server.sessions.resume(request)
        if session is None:
            self._transport.write(wire.connect_response(request, 0, 0, b""))
            self.close()
            return
        self._connected(request, session)

    def _connected(self, request: ConnectRequest, session: ServedSession | None) -> None:
        self._is_beginning = False
        if session is None:
            self.close()
        elif not self._is_closed:
            self._deadline.cancel()
            session.connection = self
            self._session = session
            self._requests = ServedRequests(self._server.queue, session.session_id, self._identities, self._tell)
            self._write(wire.connect_response(request, session.timeout_ms, session.session_id, session.password))
            self._go_on_later()

    def _tell(self, event: WatchEvent) -> None:
        if is_allowed(event.acl, Permission.READ, self._identities.all):
            self._write(wire.watch_event(event))

    # -- requests ------------------------------------------------------------------------------------------------------

    def _request(self, requests: ServedRequests, session: ServedSession, reader: RecordReader) -> None:
        xid, code = reader.i32(), reader.i32()
        if code == OpCode.PING:
            # Answer at once: a slow disk must not end a session.
            self._write(wire.reply(xid, 0))
            return
        if code == OpCode.AUTH:
            self._authenticate(xid, reader)
            return
        if code == OpCode.SASL:
            self._exchange(xid, reader.buffer() or b"")
            return
        self._unanswered += 1
        if code == OpCode.CLOSE_SESSION:
            self._is_ending = True
            self._server.sessions.end(session, partial(self._ended, xid))
            return
        act: Callable[[], object]
        try:
            act = requests.action(code, reader)
        except CoordinationError as error:
            act = partial(_raise, detached(error))
        submit = self._server.queue.write if code in QUEUED else self._server.queue.read
        submit(act, partial(self._answer, xid))

    def _authenticate(self, xid: int, reader: RecordReader) -> None:
        """Authenticate at once: earlier requests continue without the new identity."""
        reader.i32()
        if self._identities.add(reader.string(), reader.buffer() or b""):
            self._write(wire.reply(xid, 0))
            return
        self._write(wire.reply(xid, 0, wire.AUTH_FAILED))
        self.close()

    def _exchange(self, xid: int, token: bytes) -> None:
        try:
            answer = self._identities.evaluate(token)
        except DigestAuthenticationError as error:
            logger.warning("A connection is closed: %s", error)
            self._write(wire.reply(xid, 0, wire.AUTH_FAILED, wire.encode_buffer(None)))
            self.close()
        else:
            self._write(wire.reply(xid, 0, 0, wire.encode_buffer(answer)))

    def _answer(self, xid: int, outcome: CommitResult) -> None:
        self._unanswered -= 1
        if isinstance(outcome.error, NoSpaceError | ConnectionLossError):
            # ZooKeeper's protocol lacks such an answer: the outcome is unknown, as when a server dies.
            self.close()
            return
        if outcome.error is None:
            self._write(wire.reply(xid, outcome.zxid, 0, outcome.result))
        else:
            if not isinstance(outcome.error, CoordinationError):
                logger.error("A request failed", exc_info=outcome.error)
            self._write(wire.reply(xid, outcome.zxid, wire.error_code(outcome.error)))
        self._go_on_later()

    def _ended(self, xid: int, outcome: CommitResult) -> None:
        if outcome.error is None:
            self._write(wire.reply(xid, outcome.zxid))
        self.close()

    def _write(self, data: bytes) -> None:
        if not self._is_closed:
            self._transport.write(data)


def _raise(error: CoordinationError) -> None:
    raise detached(error)
