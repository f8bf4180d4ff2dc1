"""Connections with TLS, SASL or both, which are ready for requests once opened."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Final, TypeVar

from client.broker_connection import BrokerConnection
from client.environment import new_nonce
from client.errors import AuthenticationError, DisconnectedError
from protocol.errors import ErrorCode
from protocol.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from security.channel_config import ChannelConfig
from security.kerberos_login import KerberosLogin
from security.oauth import TokenLogin
from security.sasl_config import Login
from security.sasl_exchange import ClientExchange, ServerError, exchange
from security.tls import TlsLoader

logger = logging.getLogger("kafka.security.SaslClientAuthenticator")

P = TypeVar("P", bound=asyncio.BaseProtocol)

_PART_OF_SESSION: Final = 0.85
"""The part of a session's lifetime after which a new connection replaces it; Kafka's clients re-authenticate at this
point.
"""


class SecuredNetwork:
    """Opens connections and authenticates on them (Kafka class `SaslClientAuthenticator`).

    If sessions expire (KIP-368), a connection is closed in time, while it is idle.
    """

    def __init__(self, channel: ChannelConfig) -> None:
        """Raises ConfigError for unusable stores and keytabs."""
        self._login = channel.login
        self._new_exchange = None if channel.login is None else _exchanges(channel.login)
        self._beginning = asyncio.Lock()
        """Serializes connections while they get Kerberos tickets and OAuth tokens, which are then cached."""
        self.tls = None if channel.ssl is None else TlsLoader().load(channel.ssl)
        """The initial TLS context, or None without TLS."""
        self._context = None if self.tls is None else self.tls.context

    def renew(self, context: ssl.SSLContext) -> None:
        """Use another TLS context for new connections."""
        self._context = context

    async def connect(self, protocol_factory: Callable[[], P], host: str, port: int) -> tuple[asyncio.BaseTransport, P]:
        """See `client.environment.Network`. Also raises AuthenticationError, which a retry does not fix."""
        loop = asyncio.get_running_loop()
        try:
            name = None if self._context is None else host
            transport, made = await loop.create_connection(
                protocol_factory, host, port, ssl=self._context, server_hostname=name
            )
        except ssl.SSLError as error:
            raise _failed_handshake(error) from error
        assert isinstance(made, BrokerConnection), "only connections to brokers can authenticate"
        try:
            await self._begin(made, host)
        except BaseException as error:
            made.close()
            # With TLS 1.3 a server only refuses the client's certificate now.
            if isinstance(error, DisconnectedError) and isinstance(error.__cause__, ssl.SSLError):
                raise _failed_handshake(error.__cause__) from error
            raise
        return transport, made

    async def _begin(self, connection: BrokerConnection, host: str) -> None:
        await connection.negotiate()
        if self._login is not None and self._new_exchange is not None:
            tokens = self._new_exchange(host)
            lifetime_ms = await _authenticate(connection, self._login.mechanism, tokens, self._beginning)
            if lifetime_ms:
                connection.retire_after(lifetime_ms / 1000 * _PART_OF_SESSION)


def _exchanges(login: Login | KerberosLogin | TokenLogin) -> Callable[[str], ClientExchange]:
    """A function that starts a SASL exchange with the broker on a host. Raises ConfigError for unusable keytabs and
    stores.
    """
    if isinstance(login, KerberosLogin):
        from security.gssapi_exchange import gssapi_tokens
        from security.kerberos_login import Initiator

        initiator = Initiator(login, new_nonce())
        return lambda host: gssapi_tokens(initiator, host)
    if isinstance(login, TokenLogin):
        from client.oauth_tokens import TokenHolder

        holder = TokenHolder(login)
        return lambda _: holder.exchange()
    return lambda _: exchange(login, new_nonce())


def _failed_handshake(error: ssl.SSLError) -> AuthenticationError:
    reason = getattr(error, "verify_message", None) or error.reason or str(error)
    return AuthenticationError(f"SSL handshake failed: {reason}")


async def _authenticate(
    connection: BrokerConnection, mechanism: str, tokens: ClientExchange, beginning: asyncio.Lock
) -> int:
    """Authenticate, and return the session lifetime in milliseconds, 0 for unlimited. The first token is created under
    a lock.

    Raises AuthenticationError and DisconnectedError.
    """
    shaken = await connection.ask(SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse)
    if shaken.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        enabled = ", ".join(shaken.mechanisms)
        text = f"Client SASL mechanism '{mechanism}' not enabled in the server, enabled mechanisms are"
        raise AuthenticationError(f"{text} [{enabled}]")
    if shaken.error_code:
        raise AuthenticationError(f"Unexpected error {ErrorCode.of(shaken.error_code).name} of SaslHandshake")
    lifetime_ms = 0
    async with beginning:
        token = await _next(tokens, None)
    while token is not None:
        response = await connection.ask(SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse)
        if response.error_code:
            raise AuthenticationError(response.error_message or "Authentication failed")
        lifetime_ms = response.session_lifetime_ms
        token = await _next(tokens, bytes(response.auth_bytes))
    return lifetime_ms


async def _next(tokens: ClientExchange, answer: bytes | None) -> bytes | None:
    """The next token, or None after the last. A thread hashes passwords and fetches tickets and tokens."""

    def step() -> bytes | None:
        try:
            return next(tokens) if answer is None else tokens.send(answer)
        except StopIteration:
            return None

    try:
        return await asyncio.to_thread(step)
    except ServerError as error:
        raise AuthenticationError(f"Authentication failed: {error}") from error
