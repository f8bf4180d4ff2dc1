"""Sessions by OAUTHBEARER: how long they last, and which tokens are refused."""

from __future__ import annotations

import asyncio

import pytest

from broker.security import sasl_session
from protocol.errors import ErrorCode
from protocol.messages.security import SaslAuthenticateResponse
from tests.broker.network.scripted_server import ScriptedServer, framed, is_closed, run
from tests.broker.security.sasl_server import Client, principals, security_of
from tests.kit.security.identity_provider import claims_of, first_message, unsigned

PACKAGE = "org.apache.kafka.common.security.oauthbearer."
UNSECURED = f"{PACKAGE}internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
UNSECURED_MODULE = f"{PACKAGE}OAuthBearerLoginModule"


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
            # The session ends with the token, even if the issuer's clock differs.
            late, answer = await with_token(scripted, bearer(exp=claims_of()["iat"] + 2))
            assert answer.error_code == ErrorCode.NONE
            loop = asyncio.get_running_loop()
            ends_s = loop.time() + 30
            while await late.is_served():
                assert loop.time() < ends_s
                await asyncio.sleep(0.1)
            assert await is_closed(late.reader)

    run(scenario())
