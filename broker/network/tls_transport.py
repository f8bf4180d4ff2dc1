"""TLS between a socket and a connection: it is the protocol of the socket's transport, and the transport of the
connection.

OpenSSL works only on memory. So a connection is counted and limited from its acceptance, handshakes run on threads, and
data is decrypted and encrypted where the event loop's own TLS transports would copy it.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import struct
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, cast

from broker.network.handshakes import HANDSHAKE_S, Handshakes, Peers

if TYPE_CHECKING:
    from broker.network.secured_connection import SecuredConnection

logger = logging.getLogger("kafka.network.TlsTransport")

RECEIVE_BYTES: Final = 64 * 1024
"""Encrypted bytes received at once; about as many are sent at once."""
_RECORD_BYTES: Final = 16 * 1024
_RECORD_HEAD: Final = struct.Struct(">BHH")
"""Bytes of a TLS record header: type, version and length."""
_HANDSHAKE_TYPE: Final = 22


class Tls:
    """The TLS settings of one listener."""

    def __init__(
        self,
        context: ssl.SSLContext,
        user_of: Callable[[bytes], str | None],
        handshakes: Handshakes,
        failure_delay_s: float,
    ) -> None:
        """`user_of` returns the user name for a client certificate (DER), or None to refuse it. After a failed
        handshake the connection is closed `failure_delay_s` later.
        """
        self.context = context
        self.user_of = user_of
        self.handshakes = handshakes
        self.failure_delay_s = failure_delay_s
        self.receive_buffer = memoryview(bytearray(RECEIVE_BYTES))
        """Shared by all connections: no data stays in it."""

    def renew(self, context: ssl.SSLContext) -> None:
        """Use another context for new connections."""
        self.context = context


class TlsTransport(asyncio.BufferedProtocol):
    """One connection's TLS. Belongs to the event loop, except for the steps of its handshake."""

    def __init__(self, connection: SecuredConnection, tls: Tls) -> None:
        self._connection = connection
        self._tls = tls
        self._handshakes = tls.handshakes
        self._receive_buffer = tls.receive_buffer
        self._raw: asyncio.Transport
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object: ssl.SSLObject | None = None
        """Set from the first record of the client until the end of the connection."""
        self._has_entered = False
        self._has_ended = False
        self._is_open = False
        self._early = bytearray()
        """Bytes received before the handshake starts or while a thread runs it: OpenSSL's memory BIOs are not
        thread-safe.
        """
        self._is_stepping = False
        self._deadline: asyncio.TimerHandle | None = None
        self._is_paused = False
        self._is_raw_paused = False

    # -- the socket's protocol -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast("asyncio.Transport", transport)
        self._connection.connection_made(cast("asyncio.BaseTransport", self))
        if not self._connection.closed:
            if not self._is_paused:
                self._enter()
            self._adapt_reading()
            # uvloop starts to read after this call, even if reading was paused in it.
            asyncio.get_running_loop().call_soon(self._pause_again)

    def _pause_again(self) -> None:
        if self._is_raw_paused and not self._raw.is_closing():
            self._raw.pause_reading()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._receive_buffer

    def buffer_updated(self, nbytes: int) -> None:
        received = self._receive_buffer[:nbytes]
        if self._has_ended or self._raw.is_closing():
            return
        if self._object is None:
            self._early += received
            self._begin()
        elif self._is_stepping:
            self._early += received
        else:
            self._incoming.write(received)
            self._process_received()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_handshake()
        self._has_ended = True
        self._object = None
        self._early.clear()
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    # -- the handshake -------------------------------------------------------------------------------------------------

    def _enter(self) -> None:
        """Wait for the client's first message; a connection over max.connections waits until it is admitted."""
        self._has_entered = True
        self._deadline = asyncio.get_running_loop().call_later(HANDSHAKE_S, self._on_deadline)
        self._begin()

    def _begin(self) -> None:
        """Start the handshake once the first record is complete: before that, a client costs next to no memory."""
        if self._has_entered and _has_record(self._early):
            self._object = self._tls.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
            self._process_received()

    def _process_received(self) -> None:
        """Process the received bytes."""
        if self._object is None or self._is_stepping:
            return
        if self._early:
            self._incoming.write(self._early)
            self._early.clear()
        if self._is_open:
            self._deliver(self._object)
        else:
            self._is_stepping = True
            self._adapt_reading()
            self._handshakes.leave(self, self._peers)
            self._handshakes.run(self, self._peers, self._object.do_handshake, self._on_step)

    def _on_step(self, future: asyncio.Future[None]) -> None:
        self._is_stepping = False
        # Retrieve the exception even if it is not needed: asyncio logs errors that were never retrieved.
        error = None if future.cancelled() else future.exception()
        handshaken = self._object
        if handshaken is None or future.cancelled() or self._raw.is_closing():
            return
        self._send_outgoing()
        if isinstance(error, ssl.SSLWantReadError):
            self._adapt_reading()
            if self._early:
                self._process_received()
            else:
                self._handshakes.wait_for_peer(self, self._peers)
        elif error is not None:
            self._fail(error)
        else:
            self._complete(handshaken)

    def _complete(self, handshaken: ssl.SSLObject) -> None:
        self._end_handshake()
        certificate = handshaken.getpeercert(binary_form=True)
        try:
            user = None if certificate is None else self._tls.user_of(certificate)
        except ValueError as error:
            self._fail(error)
            return
        if certificate is not None and user is None:
            self._fail(ValueError("no rule of ssl.principal.mapping.rules applies to the client's certificate"))
            return
        self._is_open = True
        self._connection.handshake_done(user)
        self._adapt_reading()
        # The thread has decrypted nothing, but the client's first requests may have come with its last message.
        self._process_received()

    def _fail(self, error: BaseException) -> None:
        """End the connection after connection.failed.authentication.delay.ms, without holding memory for it.

        The alert with the reason has already been sent.
        """
        reason = getattr(error, "reason", None) or error
        logger.info("Failed authentication with %s (SSL handshake failed: %s)", self._connection.peer_name, reason)
        self._end_handshake()
        self._has_ended = True
        self._object = None
        self._early.clear()
        self._adapt_reading()
        asyncio.get_running_loop().call_later(self._tls.failure_delay_s, self._close_after_failure)

    def _close_after_failure(self) -> None:
        if not self._raw.is_closing():
            self._raw.close()

    def _on_deadline(self) -> None:
        self._connection.close(f"its TLS handshake took longer than {HANDSHAKE_S:.0f} s")

    def make_room(self) -> None:
        """See `broker.network.handshakes.Handshaking`."""
        self._connection.close(f"too many TLS handshakes wait, and most of them for {self._connection.client_address}")

    @property
    def _peers(self) -> Peers:
        return self._connection.listener_name, self._connection.client_address

    def _end_handshake(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._handshakes.leave(self, self._peers)

    # -- received bytes ------------------------------------------------------------------------------------------------

    def _deliver(self, opened: ssl.SSLObject) -> None:
        """Decrypt while the connection reads and data is available."""
        is_more = True
        while is_more and not self._is_paused and not self._raw.is_closing():
            buffer = self._connection.get_buffer(-1)
            filled, room = 0, len(buffer)
            try:
                while filled < room:
                    count = opened.read(room - filled, buffer[filled:])
                    filled += count  # type: ignore[operator]
                    if not count:
                        raise ssl.SSLZeroReturnError
            except ssl.SSLWantReadError:
                is_more = False
            except ssl.SSLZeroReturnError:
                self._raw.close()
            except ssl.SSLError as error:
                self._send_outgoing()
                self._connection.close(f"TLS failed: {error.reason or error}")
                return
            if filled:
                self._connection.buffer_updated(filled)
        if self._outgoing.pending:
            self._send_outgoing()

    def _adapt_reading(self) -> None:
        """Read from the socket only while the data can be processed."""
        is_paused = self._is_paused or self._is_stepping or self._has_ended
        if is_paused != self._is_raw_paused and not self._raw.is_closing():
            self._is_raw_paused = is_paused
            if is_paused:
                self._raw.pause_reading()
            else:
                self._raw.resume_reading()

    # -- the connection's transport ------------------------------------------------------------------------------------

    def pause_reading(self) -> None:
        """Stop passing data to the connection."""
        self._is_paused = True
        self._adapt_reading()

    def resume_reading(self) -> None:
        """Pass received data to the connection, in a later event-loop turn, and all that follows."""
        self._is_paused = False
        asyncio.get_running_loop().call_soon(self._continue_reading)

    def _continue_reading(self) -> None:
        if not self._is_paused and not self._raw.is_closing():
            if not self._has_entered:
                self._enter()
            self._adapt_reading()
            if self._is_open:
                self._process_received()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send; keeps no reference to `data`."""
        self.writelines((data,))

    def writelines(self, parts: Iterable[bytes | bytearray | memoryview]) -> None:
        """Like `write`, one part after the other."""
        opened = self._object
        if opened is None or self._raw.is_closing():
            return
        outgoing = self._outgoing
        try:
            for part in parts:
                view, at = memoryview(part), 0
                while at < len(view):
                    at += opened.write(view[at : at + _RECORD_BYTES])
                    if outgoing.pending >= RECEIVE_BYTES:
                        self._raw.write(outgoing.read())
        except ssl.SSLError as error:
            self._connection.close(f"TLS failed: {error.reason or error}", soon=True)
            return
        self._send_outgoing()

    def _send_outgoing(self) -> None:
        if self._outgoing.pending and not self._raw.is_closing():
            self._raw.write(self._outgoing.read())

    def close(self) -> None:
        """Close the connection once everything is sent."""
        self._raw.close()

    def abort(self) -> None:
        """Close the connection at once; unsent data is dropped."""
        self._raw.abort()

    def is_closing(self) -> bool:
        return self._raw.is_closing()

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """The information of the socket's transport."""
        return self._raw.get_extra_info(name, default)


def _has_record(received: bytearray) -> bool:
    """Whether OpenSSL can process `received`: a complete handshake record, or other data, which OpenSSL refuses."""
    if len(received) < _RECORD_HEAD.size:
        return bool(received) and received[0] != _HANDSHAKE_TYPE
    kind: int
    size: int
    kind, _, size = _RECORD_HEAD.unpack_from(received)
    return kind != _HANDSHAKE_TYPE or size > _RECORD_BYTES or len(received) >= _RECORD_HEAD.size + size
