"""The client's side of SASL against the broker's."""

from __future__ import annotations

import asyncio
import base64
import hashlib

import pytest

from security.sasl_config import Login
from security.sasl_exchange import Exchange as ServerExchange
from security.sasl_exchange import (
    PlainExchange,
    SaslAuthenticationError,
    ScramCredential,
    ScramExchange,
    ServerError,
    TokenCredential,
    exchange,
)

SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
USER, PASSWORD = "ä, lice=", "pass,=word é"


def scram_server(mechanism: str, password: str = PASSWORD, iterations: int = 4096) -> ScramExchange:
    salted = hashlib.pbkdf2_hmac(mechanism[6:].replace("-", ""), password.encode(), b"salt", iterations)
    credential = ScramCredential.from_salted_password(mechanism, salted, b"salt", iterations)

    async def find(user: str, _: str) -> ScramCredential:
        return credential if user == USER else ScramCredential.invented(mechanism, user, b"secret", iterations)

    async def find_token(token_id: str, _: str) -> TokenCredential | None:
        return TokenCredential("owner", 1, credential) if token_id == USER else None

    return ScramExchange(mechanism, find, find_token, lambda: "more")


def play(login: Login, server: ServerExchange) -> str | None:
    """The user that the server authenticates, once the client has accepted the server too."""

    async def run() -> None:
        tokens = exchange(login, "nonce")
        token = next(tokens)
        while True:
            answer = await server.respond(token)
            try:
                token = tokens.send(answer)
            except StopIteration:
                return

    asyncio.run(run())
    return server.user


def test_plain() -> None:
    login = Login("PLAIN", USER, PASSWORD)
    assert play(login, PlainExchange({USER: PASSWORD}, b"key")) == USER
    with pytest.raises(SaslAuthenticationError, match="Invalid username or password"):
        play(login, PlainExchange({USER: "other"}, b"key"))


@pytest.mark.parametrize("mechanism", SCRAM)
def test_scram(mechanism: str) -> None:
    login = Login(mechanism, USER, PASSWORD)
    assert play(login, scram_server(mechanism)) == USER
    assert play(login, scram_server(mechanism, iterations=16_384)) == USER
    assert play(login._replace(has_token=True), scram_server(mechanism)) == "owner"
    with pytest.raises(SaslAuthenticationError, match="invalid credentials"):
        play(login, scram_server(mechanism, "other"))
    with pytest.raises(SaslAuthenticationError, match="invalid credentials"):
        play(Login(mechanism, "nobody", PASSWORD), scram_server(mechanism))


SALT = base64.b64encode(b"salt").decode()


@pytest.mark.parametrize(
    ("challenge", "complaint"),
    [
        (f"r=nonce,s={SALT},i=4096", "nonce does not go on"),
        (f"r=monce-more,s={SALT},i=4096", "nonce does not go on"),
        (f"r=nonce-more,s={SALT},i=4095", "asks for 4095 iterations"),
        (f"r=nonce-more,s={SALT},i=100001", "asks for 100001 iterations"),
        (f"r=nonce-more,s={SALT},i=999999999", "asks for 999999999 iterations"),
        ("r=nonce-more,s==,i=4096", "is not that of SCRAM"),
        ("e=other-error", "is not that of SCRAM"),
        (f"m=x,r=nonce-more,s={SALT},i=4096", "is not that of SCRAM"),
        ("\udcff", "is not UTF-8"),
    ],
)
def test_a_server_that_cheats_with_its_first_message(challenge: str, complaint: str) -> None:
    """CVE-2026-10143 of kafka-python, whose clients use any iteration count that a server sends."""
    tokens = exchange(Login(SCRAM[0], USER, PASSWORD), "nonce")
    next(tokens)
    with pytest.raises(ServerError, match=complaint):
        tokens.send(challenge.encode("utf-8", "surrogateescape"))


@pytest.mark.parametrize("last", ["v=AAAA", "v=*", "v=", "e=invalid-proof", ""])
def test_a_server_that_does_not_know_the_password(last: str) -> None:
    tokens = exchange(Login(SCRAM[0], USER, PASSWORD), "nonce")
    next(tokens)
    tokens.send(f"r=nonce-more,s={SALT},i=4096".encode())
    with pytest.raises(ServerError, match=r"does not know the password|is not that of SCRAM"):
        tokens.send(last.encode())
