"""SASL on one connection (Kafka class `SaslServerAuthenticator`): authenticates the client before other requests.

Until then only ApiVersions, SaslHandshake and SaslAuthenticate are accepted, in small frames and for a limited time.
With connections.max.reauth.ms, or if it used a token, a client must authenticate again in time, as the same user, or is
disconnected (KIP-368).
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Coroutine
from typing import Any, Final

from broker.network.connection import Connection, Dispatch, Dispatched
from broker.network.registry import NOTHING, CloseConnection, Waiting
from broker.network.reply_writer import Parts
from broker.network.secured_connection import SecuredConnection
from cluster.security.principal import Principal
from environment.contract import Clock
from protocol.api_keys import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.headers import RequestHeader
from protocol.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from protocol.wire.schema import Response
from security.sasl_config import SaslConfig
from security.sasl_exchange import Exchange, SaslAuthenticationError

logger = logging.getLogger("kafka.network.SaslServerAuthenticator")

AUTHENTICATION_S: Final = 10.0
"""Maximum time for a client to authenticate."""
LEAST_BETWEEN_S: Final = 1.0
"""Minimum interval between re-authentications."""
_START: Final = struct.Struct(">hhi")
_SIZE: Final = struct.Struct(">i")
_VERSIONS: Final = {ApiKey.SASL_HANDSHAKE: (0, 1), ApiKey.SASL_AUTHENTICATE: (0, 2)}
_HANDSHAKE: Final = _SIZE.pack(ApiKey.SASL_HANDSHAKE)[2:]


class SaslSession:
    """The authentication of one connection. Owned by the event loop."""

    def __init__(
        self,
        dispatcher: Dispatch,
        config: SaslConfig,
        new_exchange: Callable[[str], Exchange],
        clock: Clock,
        failure_delay_s: float,
    ) -> None:
        """`new_exchange` starts an exchange of a mechanism. `failure_delay_s` is
        connection.failed.authentication.delay.ms.
        """
        self._dispatcher = dispatcher
        self._config = config
        self._new_exchange = new_exchange
        self._clock = clock
        self._failure_delay_s = failure_delay_s
        self._connection: SecuredConnection
        self._deadline: asyncio.TimerHandle | None = None
        self._exchange: Exchange | None = None
        self._mechanism = ""
        self._has_no_headers = False
        """Whether tokens come without headers, as after a handshake in version 0."""
        self._is_authenticated = False
        self._principal: Principal | None = None
        """Set by the first authentication; later ones must not change it."""
        self._again_s: float | None = None
        """When the client last started to re-authenticate."""
        self._expires_s: float | None = None
        self._lifetime_ms = 0
        """Remaining lifetime at the last authentication; 0 if unlimited, or if the token had expired."""

    def begin(self, connection: SecuredConnection) -> None:
        """See `broker.network.secured_connection.Session`."""
        self._connection = connection
        connection.limit_frames(self._config.max_receive_bytes)
        self._await_authentication()

    def end(self) -> None:
        """See `broker.network.secured_connection.Session`. Drops the timer, which would keep the connection in
        memory.
        """
        self._cancel_deadline()

    def dispatch(self, connection: Connection, frame: memoryview) -> Dispatched:
        """See `broker.network.connection.Dispatch`."""
        if self._is_authenticated:
            if frame[:2] != _HANDSHAKE or not self._begins_again():
                if self._expires_s is not None and self._clock.monotonic_s() > self._expires_s:
                    reason = "has not authenticated again in time (connections.max.reauth.ms, or the end of its token)"
                    raise CloseConnection(f"{self._principal} {reason}")
                return self._dispatcher.dispatch(connection, frame)
        elif self._has_no_headers:
            return self._later(self._answer_without_header(bytes(frame)))
        try:
            api_key, version, correlation_id = _START.unpack_from(frame)
        except struct.error:
            raise CloseConnection("a request is shorter than any header") from None
        if api_key == ApiKey.API_VERSIONS and self._exchange is None and self._principal is None:
            return self._dispatcher.dispatch(connection, frame)
        expected = ApiKey.SASL_HANDSHAKE if self._exchange is None else ApiKey.SASL_AUTHENTICATE
        if api_key == ApiKey.SASL_HANDSHAKE and expected != api_key and version <= 1:
            reply = SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])
            reason = "a second SaslHandshake came instead of a token"
            return self._later(self._refuse(_encoded(reply, version, correlation_id), reason))
        low, high = _VERSIONS[expected]
        if api_key != expected or not low <= version <= high:
            raise CloseConnection(f"a request of API {api_key} in version {version} came instead of {expected.name}")
        _, body_at = RequestHeader.decode_prefix(frame, expected.request_header_version(version))
        if expected is ApiKey.SASL_HANDSHAKE:
            handshake = SaslHandshakeRequest.decoder(version)(frame, body_at)
            return self._shake_hands(handshake, version, correlation_id)
        token = SaslAuthenticateRequest.decoder(version)(frame, body_at).auth_bytes
        return self._later(self._answer(bytes(token), version, correlation_id))

    def _begins_again(self) -> bool:
        """Whether a handshake of an authenticated client starts a re-authentication. Otherwise it is an error.

        It is always an error if sessions do not expire.
        """
        now_s = self._clock.monotonic_s()
        if self._expires_s is None or (self._again_s is not None and now_s - self._again_s < LEAST_BETWEEN_S):
            return False
        self._again_s = now_s
        self._is_authenticated = False
        self._await_authentication()
        return True

    def _await_authentication(self) -> None:
        self._exchange = None
        self._has_no_headers = False
        self._deadline = asyncio.get_running_loop().call_later(AUTHENTICATION_S, self._on_deadline)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_deadline(self) -> None:
        self._connection.close(f"its client has not authenticated within {AUTHENTICATION_S:.0f} s")

    def _shake_hands(
        self, request: SaslHandshakeRequest, version: int, correlation_id: int
    ) -> Parts | Waiting[Parts | None]:
        is_known = request.mechanism in self._config.mechanisms
        error = ErrorCode.NONE if is_known else ErrorCode.UNSUPPORTED_SASL_MECHANISM
        reply = SaslHandshakeResponse(error_code=error, mechanisms=list(self._config.mechanisms))
        parts = _encoded(reply, version, correlation_id)
        if not is_known:
            return self._later(self._refuse(parts, f"the listener does not have the mechanism {request.mechanism!r}"))
        if self._principal is not None and request.mechanism != self._mechanism:
            reason = f"Cannot change SASL mechanism during re-authentication from {self._mechanism}"
            return self._later(self._refuse(parts, reason))
        self._mechanism = request.mechanism
        self._exchange = self._new_exchange(request.mechanism)
        self._has_no_headers = version == 0
        return parts

    # -- tokens --------------------------------------------------------------------------------------------------------

    def _later(self, answer: Coroutine[Any, Any, Parts | None]) -> Waiting[Parts | None]:
        """Block further requests of the client until `answer` is done."""
        return Waiting(asyncio.ensure_future(answer), NOTHING)

    async def _answer(self, token: bytes, version: int, correlation_id: int) -> Parts | None:
        try:
            answer = await self._step(token)
        except SaslAuthenticationError as error:
            failed = SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=str(error), auth_bytes=b""
            )
            return await self._refuse(_encoded(failed, version, correlation_id), error.reason)
        reply = SaslAuthenticateResponse(
            error_code=ErrorCode.NONE,
            error_message="",
            auth_bytes=answer,
            session_lifetime_ms=self._lifetime_ms if self._is_authenticated else 0,
        )
        return _encoded(reply, version, correlation_id)

    async def _answer_without_header(self, token: bytes) -> Parts | None:
        try:
            answer = await self._step(token)
        except SaslAuthenticationError as error:
            return await self._refuse(None, error.reason)
        if self._is_authenticated and self._mechanism == "GSSAPI":
            return None  # As in Java: clients of that version do not wait for an answer to the last token.
        return [bytearray(_SIZE.pack(len(answer)) + answer)]

    async def _step(self, token: bytes) -> bytes:
        exchange = self._exchange
        assert exchange is not None
        answer = await exchange.respond(token)
        if exchange.user is None:
            return answer
        principal = Principal("User", exchange.user, has_token=exchange.has_token)
        if self._principal is not None and principal != self._principal:
            change = f"from {_dotted(self._principal)}: {_dotted(principal)}"
            raise SaslAuthenticationError(f"Cannot change principals during re-authentication {change}")
        self._principal = principal
        self._is_authenticated = True
        self._exchange = None
        self._cancel_deadline()
        self._limit_session(exchange.credential_expiry_ms)
        self._connection.authenticated(principal)
        return answer

    def _limit_session(self, credential_expiry_ms: int | None) -> None:
        """Set the end of the session, if it is limited. After a token has expired, its requests are refused."""
        limit_ms = self._config.max_reauth_ms[self._mechanism]
        ends_ms = [limit_ms] if limit_ms else []
        if credential_expiry_ms is not None:
            ends_ms.append(credential_expiry_ms - self._clock.now_ms())
        self._lifetime_ms = max(min(ends_ms, default=0), 0)
        self._expires_s = self._clock.monotonic_s() + self._lifetime_ms / 1000 if ends_ms else None

    async def _refuse(self, last_words: Parts | None, reason: str) -> Parts | None:
        """Close the connection after a delay, with a last response. Frees the exchange before waiting."""
        connection = self._connection
        self._exchange = None
        logger.info("Failed authentication with %s (%s)", connection.peer_name, reason)
        await asyncio.sleep(self._failure_delay_s)
        loop = asyncio.get_running_loop()
        # Close after the turn that sends the response.
        loop.call_soon(loop.call_soon, connection.end)
        return last_words


def _dotted(principal: Principal) -> str:
    """Format a principal in the way that Kafka uses only here."""
    return f"{principal.kind}.{principal.name}"


def _encoded(reply: Response, version: int, correlation_id: int) -> Parts:
    api_key = type(reply).api_key
    head = struct.pack(">i", correlation_id) + (b"\0" if api_key.response_header_version(version) else b"")
    body = head + reply.to_bytes(version)
    return [bytearray(_SIZE.pack(len(body)) + body)]
