"""OAUTHBEARER with signed tokens, on `client()`, and with unsigned ones, on `client(short=True)`."""

from __future__ import annotations

import functools
from typing import Any

from protocol.messages.security import SaslAuthenticateRequest, SaslAuthenticateResponse
from tests.kit.security.identity_provider import SigningKey, claims_of, first_message, unsigned
from tests.kit.wire_client import ConnectionClosed
from tests.parity.security.subject import SaslSubject, sasl_scenario

MECHANISM = "OAUTHBEARER"


@functools.cache
def signing_key() -> SigningKey:
    """The issuer's."""
    return SigningKey()


@functools.cache
def elliptic_key() -> SigningKey:
    """The issuer's second key."""
    return SigningKey("ES256", kid="second")


def show(b: SaslSubject, message: bytes, *, short: bool = False, then: bytes = b"\x01", version: int = 2) -> None:
    """Authenticate. The session lifetime is noted as something or nothing; after a refusal `then` follows."""
    with b.client(short=short) as client:
        b.shake(client, MECHANISM)
        for token in (message, then):
            try:
                answer: Any = client.ask(SaslAuthenticateRequest(auth_bytes=token), version)
            except ConnectionClosed:
                b.note("SaslAuthenticate", "<connection closed>")
                return
            assert isinstance(answer, SaslAuthenticateResponse)
            told = bytes(answer.auth_bytes).decode()
            b.note("SaslAuthenticate", (answer.error_code, answer.error_message, told, answer.session_lifetime_ms > 0))
            if answer.error_code or not told:
                break
        if not answer.error_code and not told:
            b.serves(client)


@sasl_scenario
def signed_tokens(b: SaslSubject) -> None:
    for version in range(3):
        show(b, first_message(signing_key().token()), version=version)
    now = claims_of()["iat"]
    for claims in (
        {"scope": ["a", "b"]},
        {"scope": None},
        {"sub": " alice "},
        {"aud": ["kafka", "zookeeper"]},
        {"exp": now - 10, "iat": now - 60},
        {"nbf": now + 10},
    ):
        show(b, first_message(signing_key().token(**claims)))
    show(b, first_message(elliptic_key().token()))
    show(b, first_message(elliptic_key().token(headers={"kid": None})))


@sasl_scenario
def tokens_that_do_not_count(b: SaslSubject) -> None:
    key, now = signing_key(), claims_of()["iat"]
    for claims in (
        {"exp": now - 120},
        {"exp": None},
        {"exp": "soon"},
        {"iat": None},
        {"nbf": now + 120},
        {"iss": "another"},
        {"iss": None},
        {"aud": "another"},
        {"aud": None},
        {"sub": None},
        {"sub": " "},
        {"sub": 7},
        {"scope": ["a", "a"]},
        {"scope": ""},
    ):
        show(b, first_message(key.token(**claims)))
    show(b, first_message(SigningKey(kid=key.kid).token()))
    show(b, first_message(SigningKey(kid="unknown").token()))
    show(b, first_message(unsigned(claims_of())))
    show(b, first_message(unsigned(claims_of(), {"alg": "none", "kid": key.kid})))
    show(b, first_message(key.token().rpartition(".")[0]))
    show(b, first_message("a"))
    show(b, first_message("a.b.c"))
    show(b, first_message(key.token(headers={"crit": ["exp"]})))


@sasl_scenario
def unsigned_tokens(b: SaslSubject) -> None:
    now = claims_of()["iat"]
    for claims in (
        {},
        {"scope": "a kafka"},
        {"scope": ["kafka"]},
        {"scope": "a"},
        {"scope": None},
        {"exp": now - 60},
        {"exp": None},
        {"iat": now + 600},
        {"iat": None},
        {"sub": None},
        {"sub": 7},
    ):
        show(b, first_message(unsigned(claims_of(**claims))), short=True)
    show(b, first_message(signing_key().token()), short=True)
    show(b, first_message(unsigned(claims_of()).rstrip(".")), short=True)


@sasl_scenario
def messages(b: SaslSubject) -> None:
    token = signing_key().token()
    for message in (
        first_message(token, "\x01traceId=1 2\x01other=x"),
        first_message(token, authzid="a=alice"),
        first_message(token, authzid="a=bob"),
        first_message(token, "\x01trace1=1"),
        first_message(token, "\x01trace=\x7f"),
        first_message(token).replace(b"Bearer", b"bEARER "),
        first_message(token).replace(b"n,,", b"y,,"),
        first_message(token)[:-1],
        first_message(token).replace(b"auth=", b"host="),
        b"",
        b"\x01",
        b"\xff",
    ):
        show(b, message)
    show(b, first_message("a.b.c"), then=b"x")


@sasl_scenario
def tokens_shown_again(b: SaslSubject) -> None:
    with b.client() as client:
        b.shake(client, MECHANISM)
        client.ask(SaslAuthenticateRequest(auth_bytes=first_message(signing_key().token())), 2)
        b.shake(client, MECHANISM)
        answer: Any = client.ask(SaslAuthenticateRequest(auth_bytes=first_message(signing_key().token())), 2)
        b.note("SaslAuthenticate", (answer.error_code, answer.session_lifetime_ms > 0))
        b.serves(client)
    with b.client() as client:
        b.shake(client, MECHANISM)
        client.ask(SaslAuthenticateRequest(auth_bytes=first_message(signing_key().token())), 2)
        b.shake(client, MECHANISM)
        b.token(client, first_message(signing_key().token(sub="bob")))
        b.ends(client)
