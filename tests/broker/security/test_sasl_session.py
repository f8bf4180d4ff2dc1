"""A client before it is authenticated, and how long it counts."""

from __future__ import annotations

import asyncio
import gc
import struct
import weakref
from typing import TypeVar

import pytest

from broker.network.secured_connection import SecuredConnection
from broker.security import sasl_session
from broker.security.listener_security import SecuredListener, security_of_listeners
from broker.this_machine import environment_of_this_machine
from client.security.sasl_tokens import exchange
from cluster.security.sasl_exchange import ScramCredential, TokenCredential
from config.broker_config import BrokerConfig
from config.security.sasl_config import Login
from protocol.api_keys import ApiKey
from protocol.errors import ErrorCode
from protocol.messages import (
    ApiVersionsRequest,
    MetadataRequest,
    RequestHeader,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from protocol.wire.schema import Request, Response
from tests.broker.network.scripted_server import ScriptedServer, framed, is_closed, run
from tests.kit.security.identity_provider import claims_of, first_message, unsigned
from tests.kit.waiting import eventually_on_loop

PASSWORDS = 'user_alice="secret" user_bob="other"'
PACKAGE = "org.apache.kafka.common.security.oauthbearer."
UNSECURED = f"{PACKAGE}internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
UNSECURED_MODULE = f"{PACKAGE}OAuthBearerLoginModule"
R = TypeVar("R", bound=Response)


TOKEN = Login("SCRAM-SHA-256", "token-id", "token's hmac", has_token=True)


def security(token_lifetime_ms: int = 0, **overrides: str) -> SecuredListener:
    """A listener, and a token of alice's that ends in this time."""
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

    async def user(_user: str, mechanism: str) -> str:
        return ScramCredential.from_password(mechanism, "secret", b"salt").to_text()

    environment = environment_of_this_machine(config)

    async def token(_token_id: str, mechanism: str) -> TokenCredential:
        credential = ScramCredential.from_password(mechanism, TOKEN.password, b"salt")
        return TokenCredential("alice", environment.clock.now_ms() + token_lifetime_ms, credential)

    return security_of_listeners(config, environment, user, token)["SASL_PLAINTEXT"]


class Client:
    """Sends single requests. The server answers those that pass with OK."""

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
        """All of an authentication by SCRAM; gives the last answer."""
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


@pytest.mark.parametrize("version", [0, 1, 2])
def test_whoever_knows_the_password_is_served(version: int) -> None:
    async def scenario() -> None:
        async with server() as scripted:
            client = Client(await scripted.connect())
            assert (await client.shake_hands()).mechanisms == ["PLAIN"]
            assert principals(scripted) == ["User:ANONYMOUS"]
            answer = await client.authenticate(version=version)
            assert (answer.error_code, answer.auth_bytes, answer.session_lifetime_ms) == (0, b"", 0)
            assert principals(scripted) == ["User:alice"]
            assert {each.security_protocol for each in scripted.server.connections} == {"SASL_PLAINTEXT"}
            assert await client.is_served()

    run(scenario())


def test_tokens_without_headers_follow_an_old_handshake() -> None:
    async def scenario() -> None:
        async with server(connection_failed_authentication_delay_ms="0") as scripted:
            client = Client(await scripted.connect())
            assert (await client.shake_hands(0)).error_code == ErrorCode.NONE
            assert await client.frame(b"\0alice\0secret") == b""
            assert await client.is_served()
            stranger = Client(await scripted.connect())
            await stranger.shake_hands(0)
            with pytest.raises(asyncio.IncompleteReadError):
                await stranger.frame(b"\0alice\0wrong")

    run(scenario())


def test_nothing_else_is_served_before() -> None:
    async def scenario() -> None:
        async with server() as scripted:
            asked: list[list[tuple[Request, int]]] = [
                [(MetadataRequest(topics=[]), 1)],
                [(SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret"), 2)],
                [(SaslHandshakeRequest(mechanism="PLAIN"), 1), (MetadataRequest(topics=[]), 1)],
                [(SaslHandshakeRequest(mechanism="PLAIN"), 1), (SaslHandshakeRequest(mechanism="PLAIN"), 1)],
                [(SaslHandshakeRequest(mechanism="PLAIN"), 1), (ApiVersionsRequest(), 0)],
            ]
            for requests in asked:
                client = Client(await scripted.connect())
                for request, version in requests:
                    client.send(request, version)
                # An answer that waits behind the one that ends the connection may be dropped.
                await asyncio.wait_for(client.reader.read(), 30)
            assert not scripted.dispatcher.seen
            client = Client(await scripted.connect())
            client.send(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3)
            assert await client.reader.readexactly(6) == framed(b"ok")
            for size in (524_289, -1, 3):
                reader, writer = await scripted.connect()
                writer.write(struct.pack(">i", size) + b"abc")
                assert await is_closed(reader)

    run(scenario())


def test_a_failure_is_told_later_and_ends_the_connection() -> None:
    async def scenario() -> None:
        async with server(connection_failed_authentication_delay_ms="300") as scripted:
            client = Client(await scripted.connect())
            await client.shake_hands()
            began_s = asyncio.get_running_loop().time()
            answer = await client.authenticate(b"\0alice\0wrong")
            assert asyncio.get_running_loop().time() - began_s >= 0.29
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert answer.error_message == "Authentication failed: Invalid username or password"
            assert await is_closed(client.reader)
            unknown = Client(await scripted.connect())
            refused = await unknown.shake_hands(mechanism="GSSAPI")
            assert (refused.error_code, refused.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, ["PLAIN"])
            assert await is_closed(unknown.reader)
            assert not scripted.dispatcher.seen

    run(scenario())


def test_whoever_takes_too_long_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sasl_session, "AUTHENTICATION_S", 0.2)

    async def scenario() -> None:
        async with server() as scripted:
            quick = Client(await scripted.connect())
            await quick.shake_hands()
            await quick.authenticate()
            slow = Client(await scripted.connect())
            await slow.shake_hands()
            assert await is_closed(slow.reader)
            assert await quick.is_served()

    run(scenario())


def test_nothing_is_kept_of_a_client_that_has_gone() -> None:
    """Whoever connects and hangs up, again and again, would fill the memory with what waits for deadlines."""

    async def scenario() -> None:
        async with server() as scripted:
            client = Client(await scripted.connect())
            await client.shake_hands()
            (connection,) = scripted.server.connections
            gone = weakref.ref(connection._session)  # type: ignore[attr-defined]
            del connection
            scripted.writers.pop().close()

            def is_forgotten() -> bool:
                gc.collect()
                return gone() is None

            async with asyncio.timeout(sasl_session.AUTHENTICATION_S / 2):
                await eventually_on_loop("it is forgotten", is_forgotten, pause_s=0.05)

    run(scenario())


def test_a_client_authenticates_again_in_time_as_the_same_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sasl_session, "LEAST_BETWEEN_S", 0.0)

    async def scenario() -> None:
        async with server(connections_max_reauth_ms="60000") as scripted:
            client = Client(await scripted.connect())
            for _ in range(2):
                await client.shake_hands()
                assert (await client.authenticate()).session_lifetime_ms == 60_000
                assert await client.is_served()
            await client.shake_hands()
            answer = await client.authenticate(b"\0bob\0other")
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert "Cannot change principals during re-authentication" in (answer.error_message or "")
            assert await is_closed(client.reader)

    run(scenario())


def test_a_session_that_has_expired_is_closed() -> None:
    async def scenario() -> None:
        async with server(connections_max_reauth_ms="100") as scripted:
            client = Client(await scripted.connect())
            await client.shake_hands()
            assert (await client.authenticate()).session_lifetime_ms == 100
            connection = next(iter(scripted.server.connections))
            assert isinstance(connection, SecuredConnection)
            await asyncio.sleep(0.2)
            client.send(MetadataRequest(topics=[]), 1)
            assert await is_closed(client.reader)
            assert not scripted.dispatcher.seen

    run(scenario())


def has_token(scripted: ScriptedServer) -> list[bool]:
    return [each.principal.has_token for each in scripted.server.connections]


def test_a_token_counts_until_it_ends() -> None:
    async def scenario() -> None:
        async with server(60_000) as scripted:
            client = Client(await scripted.connect())
            assert 50_000 < (await client.log_in()).session_lifetime_ms <= 60_000
            assert (principals(scripted), has_token(scripted)) == (["User:alice"], [True])
            assert await client.is_served()
            other = Client(await scripted.connect())
            await other.shake_hands()
            assert (await other.authenticate()).session_lifetime_ms == 0, "a password has no end"

    run(scenario())


def test_a_session_ends_by_whatever_comes_first() -> None:
    async def scenario() -> None:
        async with server(60_000, connections_max_reauth_ms="5000") as scripted:
            assert (await Client(await scripted.connect()).log_in()).session_lifetime_ms == 5000

    run(scenario())


def test_with_a_token_that_has_ended_nothing_is_served() -> None:
    async def scenario() -> None:
        async with server(-1) as scripted:
            client = Client(await scripted.connect())
            answer = await client.log_in()
            assert (answer.error_code, answer.session_lifetime_ms) == (ErrorCode.NONE, 0)
            client.send(MetadataRequest(topics=[]), 1)
            assert await is_closed(client.reader)
            assert not scripted.dispatcher.seen

    run(scenario())


def test_a_password_may_follow_a_token_of_the_same_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sasl_session, "LEAST_BETWEEN_S", 0.0)

    async def scenario() -> None:
        async with server(60_000) as scripted:
            client = Client(await scripted.connect())
            for login in (TOKEN, TOKEN, Login(TOKEN.mechanism, "alice", "secret")):
                answer = await client.log_in(login)
                assert (answer.error_code, answer.session_lifetime_ms > 0) == (ErrorCode.NONE, login is TOKEN)
                assert has_token(scripted) == [login is TOKEN]
                assert await client.is_served()

    run(scenario())


def test_twice_within_a_second_is_for_the_handlers_to_answer() -> None:
    async def scenario() -> None:
        async with server() as scripted:
            client = Client(await scripted.connect())
            await client.shake_hands()
            await client.authenticate()
            client.send(SaslHandshakeRequest(mechanism="PLAIN"), 1)
            assert await client.reader.readexactly(6) == framed(b"ok")
            assert ApiKey.SASL_HANDSHAKE == 17

    run(scenario())


def bearer(**claims: object) -> bytes:
    """An unsigned token's message."""
    return first_message(unsigned(claims_of(**claims)))


def token_server(**overrides: str) -> ScriptedServer:
    prefix = "listener.name.sasl_plaintext.oauthbearer.sasl."
    settings = {
        f"{prefix}server.callback.handler.class": UNSECURED,
        f"{prefix}jaas.config": f"{UNSECURED_MODULE} required;",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "connection.failed.authentication.delay.ms": "0",
        **{name.replace("_", "."): value for name, value in overrides.items()},
    }
    return ScriptedServer(lambda frame: [framed(b"ok")], security=security_of(settings))


async def with_token(scripted: ScriptedServer, message: bytes) -> tuple[Client, SaslAuthenticateResponse]:
    client = Client(await scripted.connect())
    assert (await client.shake_hands(mechanism="OAUTHBEARER")).error_code == ErrorCode.NONE
    return client, await client.authenticate(message)


def test_a_token_counts_until_it_ends_or_as_long_as_a_session() -> None:
    async def scenario() -> None:
        async with token_server() as scripted:
            client, answer = await with_token(scripted, bearer())
            assert 3500_000 < answer.session_lifetime_ms <= 3600_000
            assert await client.is_served()
            assert principals(scripted) == ["User:alice"]
        async with token_server(connections_max_reauth_ms="60000") as scripted:
            assert (await with_token(scripted, bearer()))[1].session_lifetime_ms == 60_000
            ends = claims_of()["iat"] + 30
            assert (await with_token(scripted, bearer(exp=ends)))[1].session_lifetime_ms <= 30_000

    run(scenario())


def test_a_refused_token_is_told_twice_and_ends_the_connection() -> None:
    async def scenario() -> None:
        async with token_server() as scripted:
            client, told = await with_token(scripted, bearer(sub=None))
            assert (told.error_code, bytes(told.auth_bytes)) == (0, b'{"status":"invalid_token"}')
            assert (told.session_lifetime_ms, principals(scripted)) == (0, ["User:ANONYMOUS"])
            last = await client.authenticate(b"\x01")
            assert last.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert last.error_message == '{"status":"invalid_token"}'
            assert await is_closed(client.reader)
            assert not scripted.dispatcher.seen

    run(scenario())


def test_whose_token_ends_shows_another_one_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sasl_session, "LEAST_BETWEEN_S", 0.0)

    async def scenario() -> None:
        async with token_server() as scripted:
            client, first = await with_token(scripted, bearer(exp=claims_of()["iat"] + 30))
            assert first.session_lifetime_ms <= 30_000
            await client.shake_hands(mechanism="OAUTHBEARER")
            assert (await client.authenticate(bearer())).session_lifetime_ms > 3500_000
            assert await client.is_served()
            await client.shake_hands(mechanism="OAUTHBEARER")
            assert "Cannot change principals" in ((await client.authenticate(bearer(sub="bob"))).error_message or "")
            # The end of a token is the end of its session, though the clock may be another one.
            late, answer = await with_token(scripted, bearer(exp=claims_of()["iat"] + 2))
            assert answer.error_code == ErrorCode.NONE
            loop = asyncio.get_running_loop()
            ends_s = loop.time() + 30
            while await late.is_served():
                assert loop.time() < ends_s
                await asyncio.sleep(0.1)
            assert await is_closed(late.reader)

    run(scenario())
