"""Refused clients that retry, clients that reauthenticate, and clients that leave."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from broker.security import sasl_session
from protocol.errors import ErrorCode
from protocol.messages.api_versions import ApiVersionsRequest
from protocol.messages.metadata import MetadataRequest
from protocol.messages.security import SaslHandshakeRequest
from protocol.wire.schema import Request
from tests.broker.network.scripted_server import framed, is_closed, run
from tests.broker.security.sasl_server import BEFORE_DEADLINE_S, Client, principals, server
from tests.kit.waiting import eventually_on_loop


def test_whoever_is_refused_has_no_other_try() -> None:
    async def scenario() -> None:
        async with server(connection_failed_authentication_delay_ms="0") as scripted:
            client = Client(await scripted.connect())
            await client.shake_hands()
            refused = await client.authenticate(b"\0alice\0wrong")
            assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            client.send(SaslHandshakeRequest(mechanism="PLAIN"), 1)
            async with asyncio.timeout(BEFORE_DEADLINE_S):
                assert await is_closed(client.reader)
            assert not scripted.server.connections

    run(scenario())


def test_the_mechanism_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sasl_session, "LEAST_BETWEEN_S", 0.0)

    async def scenario() -> None:
        settings = {"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256", "connections.max.reauth.ms": "60000"}
        overrides = {name.replace(".", "_"): value for name, value in settings.items()}
        async with server(connection_failed_authentication_delay_ms="0", **overrides) as scripted:
            client = Client(await scripted.connect())
            await client.shake_hands()
            await client.authenticate()
            await client.shake_hands(mechanism="SCRAM-SHA-256")
            async with asyncio.timeout(BEFORE_DEADLINE_S):
                assert await is_closed(client.reader)

    run(scenario())


@pytest.mark.parametrize(
    ("request_", "version"), [(MetadataRequest(topics=[]), 1), (ApiVersionsRequest(), 0)], ids=["metadata", "versions"]
)
@pytest.mark.parametrize("has_mechanism", [False, True])
def test_nothing_is_served_while_a_client_authenticates_again(
    request_: Request, version: int, has_mechanism: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sasl_session, "LEAST_BETWEEN_S", 0.0)

    async def scenario() -> None:
        async with server(connections_max_reauth_ms="60000") as scripted:
            client = Client(await scripted.connect())
            await client.shake_hands()
            await client.authenticate()
            assert await client.is_served()
            seen = scripted.dispatcher.seen
            if has_mechanism:
                await client.shake_hands()
            else:
                # A handshake with an unknown mechanism: whether it is answered first does not matter.
                client.send(SaslHandshakeRequest(mechanism="none"), 1)
            client.send(request_, version)
            async with asyncio.timeout(BEFORE_DEADLINE_S):
                await client.reader.read()
            assert scripted.dispatcher.seen == seen

    run(scenario())


def test_a_client_authenticates_again_once_in_a_second() -> None:
    async def scenario() -> None:
        async with server(connections_max_reauth_ms="60000") as scripted:
            client = Client(await scripted.connect())
            for _ in range(2):
                await client.shake_hands()
                await client.authenticate()
            client.send(SaslHandshakeRequest(mechanism="PLAIN"), 1)
            assert await client.reader.readexactly(6) == framed(b"ok"), "it is for the handlers to answer"
            assert principals(scripted) == ["User:alice"]

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


def test_nothing_is_kept_of_a_client_that_has_gone() -> None:
    """Otherwise clients that connect and hang up repeatedly would fill the memory with pending deadlines."""

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

            async with asyncio.timeout(BEFORE_DEADLINE_S):
                await eventually_on_loop("it is forgotten", is_forgotten, pause_s=0.05)

    run(scenario())
