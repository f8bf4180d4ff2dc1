"""Connections over TLS, with SASL or both: whoever is given one may send requests at once."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Final, TypeVar

from client.broker_connection import Connection
from client.environment import new_nonce
from client.errors import AuthenticationError, DisconnectedError
from client.security.sasl_tokens import Exchange, ServerError, exchange
from config.security.channel_config import ChannelConfig
from config.security.sasl_config import Login
from config.security.tls_context import client_context
from protocol.errors import ErrorCode
from protocol.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

logger = logging.getLogger("kafka.security.SaslClientAuthenticator")

P = TypeVar("P", bound=asyncio.BaseProtocol)

_PART_OF_SESSION: Final = 0.85
"""After which of its life a session is given up for a new connection, as Kafka's clients authenticate again then."""


class SecuredNetwork:
    """Opens connections and authenticates on them (Kafka class `SaslClientAuthenticator`).

    Where sessions end (KIP-368), a connection is closed in time, when nothing is asked on it.
    """

    def __init__(self, channel: ChannelConfig) -> None:
        """Raises ConfigError for stores that cannot be used."""
        self._login = channel.login
        self.context = None if channel.ssl is None else client_context(channel.ssl)

    def renew(self, context: ssl.SSLContext) -> None:
        """Open new connections in another context."""
        self.context = context

    async def connect(self, protocol_factory: Callable[[], P], host: str, port: int) -> tuple[asyncio.BaseTransport, P]:
        """See `client.environment.Network`. Raises AuthenticationError too: asking again does not help."""
        loop = asyncio.get_running_loop()
        try:
            name = None if self.context is None else host
            transport, made = await loop.create_connection(
                protocol_factory, host, port, ssl=self.context, server_hostname=name
            )
        except ssl.SSLError as error:
            raise _failed_handshake(error) from error
        assert isinstance(made, Connection), "only connections to brokers can authenticate"
        try:
            await self._begin(made)
        except BaseException as error:
            made.close()
            # With TLS 1.3 a server says only now that it does not trust the client.
            if isinstance(error, DisconnectedError) and isinstance(error.__cause__, ssl.SSLError):
                raise _failed_handshake(error.__cause__) from error
            raise
        return transport, made

    async def _begin(self, connection: Connection) -> None:
        await connection.negotiate()
        if self._login is not None:
            lifetime_ms = await _authenticate(connection, self._login)
            if lifetime_ms:
                connection.retire_after(lifetime_ms / 1000 * _PART_OF_SESSION)


def _failed_handshake(error: ssl.SSLError) -> AuthenticationError:
    reason = getattr(error, "verify_message", None) or error.reason or str(error)
    return AuthenticationError(f"SSL handshake failed: {reason}")


async def _authenticate(connection: Connection, login: Login) -> int:
    """Authenticate, and return for how many milliseconds that counts, 0 for ever.

    Raises AuthenticationError and DisconnectedError.
    """
    shaken = await connection.ask(SaslHandshakeRequest(mechanism=login.mechanism), SaslHandshakeResponse)
    if shaken.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        enabled = ", ".join(shaken.mechanisms)
        text = f"Client SASL mechanism '{login.mechanism}' not enabled in the server, enabled mechanisms are"
        raise AuthenticationError(f"{text} [{enabled}]")
    if shaken.error_code:
        raise AuthenticationError(f"Unexpected error {ErrorCode.of(shaken.error_code).name} of SaslHandshake")
    tokens = exchange(login, new_nonce())
    answer: bytes | None = None
    lifetime_ms = 0
    while (token := await _next(tokens, answer)) is not None:
        response = await connection.ask(SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse)
        if response.error_code:
            raise AuthenticationError(response.error_message or "Authentication failed")
        answer, lifetime_ms = bytes(response.auth_bytes), response.session_lifetime_ms
    return lifetime_ms


async def _next(tokens: Exchange, answer: bytes | None) -> bytes | None:
    """The next token, None after the last. Passwords are hashed on a thread."""

    def step() -> bytes | None:
        try:
            return next(tokens) if answer is None else tokens.send(answer)
        except StopIteration:
            return None

    try:
        return await asyncio.to_thread(step)
    except ServerError as error:
        raise AuthenticationError(f"Authentication failed: {error}") from error
