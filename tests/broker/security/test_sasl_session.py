"""A client before authentication, and the lifetime of its session."""

from __future__ import annotations

import asyncio
import struct

import pytest

from broker.network.secured_connection import SecuredConnection
from broker.security import sasl_session
from protocol.api_keys import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.api_versions import ApiVersionsRequest
from protocol.messages.metadata import MetadataRequest
from protocol.messages.security import SaslAuthenticateRequest, SaslHandshakeRequest
from protocol.wire.schema import Request
from security.sasl_config import Login
from tests.broker.network.scripted_server import ScriptedServer, framed, is_closed, run
from tests.broker.security.sasl_server import BEFORE_DEADLINE_S, TOKEN, Client, principals, server


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
                # A pending answer may be dropped when an earlier one ends the connection.
                await asyncio.wait_for(client.reader.read(), 30)
            assert not scripted.dispatcher.seen
            client = Client(await scripted.connect())
            client.send(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3)
            assert await client.reader.readexactly(6) == framed(b"ok")
            for size in (524_289, -1, 3):
                reader, writer = await scripted.connect()
                writer.write(struct.pack(">i", size) + b"abc")
                async with asyncio.timeout(BEFORE_DEADLINE_S):
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
