"""The messages of OAUTHBEARER, and unsigned tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from security.bearer_exchange import (
    MAX_TOKEN_BYTES,
    BearerExchange,
    BearerToken,
    TokenError,
    decoded_object,
    json_object,
    parse_first_message,
    unsecured_token,
)
from security.oauth import UnsecuredRules
from security.sasl_exchange import SaslAuthenticationError
from tests.kit.security.identity_provider import claims_of, first_message, unsigned

WRONG = "Authentication failed during authentication due to invalid credentials with SASL mechanism OAUTHBEARER"
RULES = UnsecuredRules("sub", "scope", (), 0)


def test_a_message_has_a_token_and_extensions() -> None:
    found = parse_first_message(b"n,a=alice,\x01host=a b\x01auth=BEARER  a.b-_c.\x01port=1\r\n\x01\x01")
    assert found == ("a.b-_c.", "alice", {"host": "a b", "port": "1\r\n"})


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,\x01\x01",
        b"y,,\x01auth=Bearer a.b.c\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01",
        b"n,,\x01auth=Bearer a.b.c\x01\x01x",
        b"n,,auth=Bearer a.b.c\x01\x01",
        b"n,,\x01auth=Basic a.b.c\x01\x01",
        b"n,,\x01auth=Bearer\x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,,\x01host=a\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01auth=Bearer d.e.f\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01a=1\x01a=2\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01a1=x\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01a=\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01a=\x7f\x01\x01",
        b"n,a=al,ice,\x01auth=Bearer a.b.c\x01\x01",
        "n,,\x01auth=Bearer a.b.c\x01a=é\x01\x01".encode(),
        b"n,,\x01auth=Bearer " + b"a" * (2 * MAX_TOKEN_BYTES) + b"\x01\x01",
    ],
)
def test_any_other_message_is_refused(message: bytes) -> None:
    with pytest.raises(SaslAuthenticationError) as caught:
        parse_first_message(message)
    assert str(caught.value) == WRONG


@given(
    st.binary(max_size=200) | st.builds(lambda pairs: b"n,," + b"\x01".join(pairs), st.lists(st.binary(max_size=20)))
)
@settings(max_examples=500, deadline=None)
def test_no_bytes_break_it(message: bytes) -> None:
    try:
        parse_first_message(message)
    except SaslAuthenticationError:
        return
    assert message.startswith(b"n,")


def exchange(refusals: list[str], *, scope: str | None = None) -> BearerExchange:
    """Accepts only the token `good`, which is alice's."""

    async def validate(token: str) -> BearerToken:
        if token != "good":
            raise TokenError("it is bad", scope)
        return BearerToken("alice", 1234)

    return BearerExchange(validate, refusals.append)


def test_a_token_that_counts_completes_the_exchange() -> None:
    async def scenario() -> None:
        made = exchange([])
        assert await made.respond(first_message("good", authzid="a=alice")) == b""
        assert (made.user, made.credential_expiry_ms) == ("alice", 1234)
        with pytest.raises(SaslAuthenticationError, match=WRONG):
            await made.respond(first_message("good"))

    asyncio.run(scenario())


@pytest.mark.parametrize("then", [b"\x01", b"", first_message("good")])
@pytest.mark.parametrize(
    ("scope", "told"),
    [(None, '{"status":"invalid_token"}'), ("[a, b]", '{"status":"insufficient_scope", "scope":"[a, b]"}')],
)
def test_after_a_refusal_nothing_helps(scope: str | None, told: str, then: bytes) -> None:
    async def scenario() -> None:
        refusals: list[str] = []
        made = exchange(refusals, scope=scope)
        assert (await made.respond(first_message("bad"))).decode() == told
        assert refusals == ["it is bad"]
        with pytest.raises(SaslAuthenticationError) as caught:
            await made.respond(then)
        assert (str(caught.value), made.user) == (told if then == b"\x01" else WRONG, None)

    asyncio.run(scenario())


def test_nobody_is_somebody_else() -> None:
    async def scenario() -> None:
        made = exchange([])
        with pytest.raises(
            SaslAuthenticationError, match=r"authorization id \(bob\) that is different from the token's"
        ):
            await made.respond(first_message("good", authzid="a=bob"))
        assert made.user is None

    asyncio.run(scenario())


def now_ms() -> int:
    """At least the creation time of the previous token."""
    return int(1000 * claims_of()["iat"])


def test_an_unsigned_token_says_who_one_is() -> None:
    found = unsecured_token(unsigned(claims_of(scope=None, iat=None)), now_ms(), RULES)
    assert found.user == "alice"
    assert found.expires_ms > now_ms()
    others = UnsecuredRules("name", "scp", ("a", "b"), 0)
    assert unsecured_token(unsigned(claims_of(name="bob", scp=["b", "c", "a"])), now_ms(), others).user == "bob"
    with pytest.raises(TokenError) as caught:
        unsecured_token(unsigned(claims_of(name="bob", scp=["a"])), now_ms(), others)
    assert caught.value.scope == "[a, b]"


BAD: dict[str, Callable[[], str]] = {
    "signed": lambda: unsigned(claims_of()) + "AAAA",
    "with another algorithm": lambda: unsigned(claims_of(), {"alg": "RS256"}),
    "without algorithm": lambda: unsigned(claims_of(), {}),
    "expired": lambda: unsigned(claims_of(exp=now_ms() // 1000)),
    "without end": lambda: unsigned(claims_of(exp=None)),
    "issued later": lambda: unsigned(claims_of(iat=now_ms() // 1000 + 60)),
    "of nobody": lambda: unsigned(claims_of(sub=None)),
    "of a number": lambda: unsigned(claims_of(sub=7)),
    "empty": lambda: "..",
    "not base64": lambda: "a.b+.",
}


@pytest.mark.parametrize("what", BAD)
def test_other_unsigned_tokens_are_refused(what: str) -> None:
    with pytest.raises(TokenError):
        unsecured_token(BAD[what](), now_ms(), RULES)


@pytest.mark.parametrize(
    "text", [b'{"a": 1, "a": 2}', b'{"a": NaN}', b'{"a": Infinity}', b"[]", b"1", b"", b"\xff", b'{"a":' * 50_000]
)
def test_json_is_strict(text: bytes) -> None:
    with pytest.raises(TokenError):
        json_object(text, "text")


def test_parts_that_are_no_json() -> None:
    for part in ("a", "====", "e30 ", "W10", "é"):
        with pytest.raises(TokenError):
            decoded_object(part, "header")
    found: dict[str, Any] = decoded_object("e30", "header")
    assert found == {}
