"""A connection of a listener that authenticates its clients."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from broker.network.connection import Connection, Dispatch
from cluster.security.principal import Principal

if TYPE_CHECKING:
    from broker.network.socket_server import SocketServer


class Session(Dispatch, Protocol):
    """The authentication of one connection; it handles requests before the dispatcher does."""

    def begin(self, connection: SecuredConnection) -> None:
        """Called when the connection is established."""
        ...

    def end(self) -> None:
        """Called when the connection is lost."""
        ...


class SecuredConnection(Connection):
    """A connection with TLS, SASL or both."""

    __slots__ = ("_has_tls", "_session", "security_protocol")

    def __init__(
        self,
        server: SocketServer,
        dispatcher: Dispatch,
        listener_name: str,
        session: Session | None,
        *,
        has_tls: bool,
    ) -> None:
        """Without a `session` the certificate names the client."""
        super().__init__(server, dispatcher if session is None else session, listener_name)
        self._session = session
        self._has_tls = has_tls
        self.security_protocol = ("" if session is None else "SASL_") + ("SSL" if has_tls else "PLAINTEXT")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._has_tls and not self.closed:
            self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._session is not None:
            self._session.end()
        del self._session

    def handshake_done(self, user: str | None) -> None:
        """See `broker.network.tls_transport.Secured`."""
        if self._session is None:
            if user is not None:
                self.authenticated(Principal("User", user))
        else:
            self._begin()

    def _begin(self) -> None:
        if self._session is not None:
            self._session.begin(self)

    def authenticated(self, principal: Principal) -> None:
        """Serve requests as `principal` from now on; they may be large."""
        self.principal = principal
        self.kinds.clear()
        self._reader.limit(self._server.max_request_bytes)

    def limit_frames(self, max_frame_bytes: int) -> None:
        """Accept only small frames, until the client is authenticated."""
        self._reader.limit(min(max_frame_bytes, self._server.max_request_bytes))

    def end(self) -> None:
        """Close the connection once its replies are sent."""
        if not self.closed:
            self.closed = True
            self._transport.close()
