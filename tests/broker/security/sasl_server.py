"""A listener with SASL, and a client that sends it single requests."""

from __future__ import annotations

import asyncio
import struct
from typing import TypeVar

from broker.broker_environment import system_environment
from broker.security import sasl_session
from broker.security.listener_security import SecuredListener, security_of_listeners
from config.broker_config import BrokerConfig
from protocol.messages.headers import RequestHeader
from protocol.messages.metadata import MetadataRequest
from protocol.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from protocol.wire.schema import Request, Response
from security.sasl_config import Login
from security.sasl_exchange import ScramCredential, TokenCredential, exchange
from tests.broker.network.scripted_server import ScriptedServer, framed

PASSWORDS = 'user_alice="secret" user_bob="other"'
R = TypeVar("R", bound=Response)
BEFORE_DEADLINE_S = sasl_session.AUTHENTICATION_S / 2
"""Shorter than the authentication deadline, which would close connections that should already be closed."""

TOKEN = Login("SCRAM-SHA-256", "token-id", "token's hmac", has_token=True)


def security(token_lifetime_ms: int = 0, **overrides: str) -> SecuredListener:
    """A listener, and a token for alice that expires after this time."""
    module = f"org.apache.kafka.common.security.plain.PlainLoginModule required {PASSWORDS};"
    settings = {
        "sasl.enabled.mechanisms": "PLAIN" if token_lifetime_ms == 0 else "PLAIN,SCRAM-SHA-256",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": module,
        **{name.replace("_", "."): value for name, value in overrides.items()},
    }
    return security_of(settings, token_lifetime_ms)


def security_of(settings: dict[str, str], token_lifetime_ms: int = 0) -> SecuredListener:
    listeners = {"broker.id": "0", "listeners": "PLAINTEXT://:9092,SASL_PLAINTEXT://:9093"}
    config = BrokerConfig({**listeners, **settings})

    async def user(_user: str, mechanism: str) -> ScramCredential:
        return ScramCredential.from_password(mechanism, "secret", b"salt")

    environment = system_environment(config)

    async def token(_token_id: str, mechanism: str) -> TokenCredential:
        credential = ScramCredential.from_password(mechanism, TOKEN.password, b"salt")
        return TokenCredential("alice", environment.clock.now_ms() + token_lifetime_ms, credential)

    return security_of_listeners(config, environment, user, token)["SASL_PLAINTEXT"]


class Client:
    """Sends single requests. The server answers OK to those that it lets through."""

    def __init__(self, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        self.reader, self._writer = streams

    async def frame(self, content: bytes) -> bytes:
        self._writer.write(framed(content))
        (size,) = struct.unpack(">i", await asyncio.wait_for(self.reader.readexactly(4), 30))
        return await self.reader.readexactly(size)

    def send(self, request: Request, version: int) -> None:
        api_key = request.api_key
        header = RequestHeader(
            request_api_key=int(api_key), request_api_version=version, correlation_id=7, client_id="test"
        )
        self._writer.write(framed(header.to_bytes(api_key.request_header_version(version)) + request.to_bytes(version)))

    async def ask(self, request: Request, version: int, response: type[R]) -> R:
        self.send(request, version)
        (size,) = struct.unpack(">i", await asyncio.wait_for(self.reader.readexactly(4), 30))
        content = await self.reader.readexactly(size)
        head = 4 + response.api_key.response_header_version(version)
        assert content[:4] == struct.pack(">i", 7)
        return response.decode(memoryview(bytearray(content[head:])), version)

    async def shake_hands(self, version: int = 1, mechanism: str = "PLAIN") -> SaslHandshakeResponse:
        return await self.ask(SaslHandshakeRequest(mechanism=mechanism), version, SaslHandshakeResponse)

    async def authenticate(self, token: bytes = b"\0alice\0secret", version: int = 2) -> SaslAuthenticateResponse:
        return await self.ask(SaslAuthenticateRequest(auth_bytes=token), version, SaslAuthenticateResponse)

    async def log_in(self, login: Login = TOKEN) -> SaslAuthenticateResponse:
        """A complete SCRAM authentication; returns the last answer."""
        await self.shake_hands(mechanism=login.mechanism)
        tokens = exchange(login, "nonce")
        challenge = await self.authenticate(next(tokens))
        return await self.authenticate(tokens.send(bytes(challenge.auth_bytes)))

    async def is_served(self) -> bool:
        self.send(MetadataRequest(topics=[]), 1)
        answer = await asyncio.wait_for(self.reader.read(100), 30)
        return answer == framed(b"ok")


def server(token_lifetime_ms: int = 0, **overrides: str) -> ScriptedServer:
    return ScriptedServer(lambda frame: [framed(b"ok")], security=security(token_lifetime_ms, **overrides))


def principals(scripted: ScriptedServer) -> list[str]:
    return [str(each.principal) for each in scripted.server.connections]
