"""PLAIN and SCRAM from the server's side. The first SCRAM exchange is that of RFC 7677."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from security import sasl_exchange
from security.sasl_exchange import (
    PlainExchange,
    SaslAuthenticationError,
    ScramCredential,
    ScramExchange,
    TokenCredential,
)

USERS = {"alice": "secret", "Zoë": "pässwörd"}
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
FINAL = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="


def credential(mechanism: str = "SCRAM-SHA-256", password: str = "pencil") -> ScramCredential:
    name = mechanism.removeprefix("SCRAM-").replace("-", "").lower()
    salted = hashlib.pbkdf2_hmac(name, password.encode(), SALT, 4096)
    return ScramCredential.from_salted_password(mechanism, salted, SALT, 4096)


CREDENTIALS = {
    ("user", "SCRAM-SHA-256"): credential(),
    ("user", "SCRAM-SHA-512"): credential("SCRAM-SHA-512"),
    ("a,b=c", "SCRAM-SHA-256"): credential(),
}


async def find(user: str, mechanism: str) -> ScramCredential:
    invented = ScramCredential.invented(mechanism, user, b"server's secret", 4096)
    return CREDENTIALS.get((user, mechanism), invented)


async def find_token(token_id: str, mechanism: str) -> TokenCredential | None:
    return TokenCredential("alice", 1234, credential(mechanism, "hmac")) if token_id == "token" else None


def scram(mechanism: str = "SCRAM-SHA-256") -> ScramExchange:
    return ScramExchange(mechanism, find, find_token, lambda: SERVER_NONCE)


def plain() -> PlainExchange:
    return PlainExchange(USERS, b"server's secret")


def after(exchange: PlainExchange | ScramExchange, *tokens: bytes) -> bytes:
    """The answer to the last token."""
    answer = b""
    for token in tokens:
        answer = asyncio.run(exchange.respond(token))
    return answer


@pytest.mark.parametrize(
    ("token", "user"), [("\0alice\0secret", "alice"), ("alice\0alice\0secret", "alice"), ("\0Zoë\0pässwörd", "Zoë")]
)
def test_a_password_that_fits(token: str, user: str) -> None:
    exchange = plain()
    assert after(exchange, token.encode()) == b""
    assert exchange.user == user


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (b"\0alice\0wrong", "Invalid username or password"),
        (b"\0alice\0secret ", "Invalid username or password"),
        (b"\0nobody\0secret", "Invalid username or password"),
        (b"bob\0alice\0secret", "authorization id that is different from username"),
        (b"\0\0secret", "username not specified"),
        (b"\0alice\0", "password not specified"),
        (b"\0nobody\0", "password not specified"),
        (b"alice\0secret", "expected 3 tokens, got 2"),
        (b"\0alice\0secret\0", "expected 3 tokens, got 4"),
        (b"\0alice\0\xff", "it is not UTF-8"),
    ],
)
def test_a_password_that_does_not(token: bytes, reason: str) -> None:
    exchange = plain()
    with pytest.raises(SaslAuthenticationError, match=reason):
        after(exchange, token)
    assert exchange.user is None


def test_the_exchange_of_the_rfc() -> None:
    exchange = scram()
    challenge = after(exchange, FIRST)
    assert challenge == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert exchange.user is None
    assert after(exchange, FINAL) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert exchange.user == "user"
    with pytest.raises(SaslAuthenticationError):
        after(exchange, FINAL)


def final_of(exchange: ScramExchange, first: str, password: str, mechanism: str, header: str = "n,,") -> bytes:
    """A client's second token, in reply to the server's first."""
    name = mechanism.removeprefix("SCRAM-").replace("-", "").lower()
    challenge = after(exchange, f"{header}{first}".encode()).decode()
    parts = dict(part.split("=", 1) for part in challenge.split(","))
    salted = hashlib.pbkdf2_hmac(name, password.encode(), base64.b64decode(parts["s"]), int(parts["i"]))
    unproved = f"c={base64.b64encode(header.encode()).decode()},r={parts['r']}"
    client_key = hmac.digest(salted, b"Client Key", name)
    signature = hmac.digest(hashlib.new(name, client_key).digest(), f"{first},{challenge},{unproved}".encode(), name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{unproved},p={base64.b64encode(proof).decode()}".encode()


@pytest.mark.parametrize(
    ("user", "written", "header", "mechanism"),
    [
        ("user", "user", "n,,", "SCRAM-SHA-512"),
        ("user", "user", "n,a=user,", "SCRAM-SHA-256"),
        ("a,b=c", "a=2Cb=3Dc", "n,,", "SCRAM-SHA-256"),
    ],
)
def test_names_and_mechanisms(user: str, written: str, header: str, mechanism: str) -> None:
    exchange = scram(mechanism)
    final = final_of(exchange, f"n={written},r=abc", "pencil", mechanism, header)
    assert after(exchange, final).startswith(b"v=")
    assert exchange.user == user


@pytest.mark.parametrize(
    ("first", "password", "user", "expiry_ms"),
    [
        ("n=token,r=abc,tokenauth=true", "hmac", "alice", 1234),
        ("n=token,r=abc,x=y,tokenauth=TRUE", "hmac", "alice", 1234),
        ("n=user,r=abc,tokenauth=false", "pencil", "user", None),
        ("n=user,r=abc,TOKENAUTH=true", "pencil", "user", None),
        ("n=user,r=abc,tokenauth=true,tokenauth=no", "pencil", "user", None),
    ],
)
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_tokens(first: str, password: str, user: str, expiry_ms: int | None, mechanism: str) -> None:
    exchange = scram(mechanism)
    assert after(exchange, final_of(exchange, first, password, mechanism)).startswith(b"v=")
    assert (exchange.user, exchange.credential_expiry_ms) == (user, expiry_ms)


@pytest.mark.parametrize("first", ["n=token,r=abc,tokenauth=true", "n=user,r=abc", "n=alice,r=abc", "n=token,r=abc"])
def test_a_password_is_no_tokens_and_the_other_way_round(first: str) -> None:
    for password in {"hmac", "pencil"} - {"hmac" if "tokenauth" in first else "pencil" if "user" in first else ""}:
        exchange = scram()
        with pytest.raises(SaslAuthenticationError, match="due to invalid credentials"):
            after(exchange, final_of(exchange, first, password, "SCRAM-SHA-256"))
        assert exchange.user is None


@pytest.mark.parametrize("user", ["user", "nobody"])
def test_a_wrong_password_and_an_unknown_user_look_alike(user: str) -> None:
    exchange = scram()
    final = final_of(exchange, f"n={user},r=abc", "wrong", "SCRAM-SHA-256")
    with pytest.raises(SaslAuthenticationError, match="due to invalid credentials with SASL mechanism SCRAM-SHA-256"):
        after(exchange, final)
    assert exchange.user is None
    assert after(scram(), b"n,,n=%s,r=abc" % user.encode()) == after(scram(), b"n,,n=%s,r=abc" % user.encode())


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n,,n=,r=abc",
        b"n,,n=user,r=",
        b"y,,n=user,r=abc",
        b"p=tls-unique,,n=user,r=abc",
        b"n,a=other,n=user,r=abc",
        b"n,,n=a=b,r=abc",
        b"n,,n=user,r=abc,tokenauth=true",
        b"n,a=alice,n=token,r=abc,tokenauth=true",
        b"n,,n=user\0,r=abc",
        b"n,,r=abc,n=user",
        b"\xff",
    ],
)
def test_a_first_token_that_is_none(first: bytes) -> None:
    with pytest.raises(SaslAuthenticationError):
        after(scram(), first)


def test_a_message_may_not_be_long() -> None:
    for size, refused in ((sasl_exchange.MAX_SCRAM_BYTES, False), (sasl_exchange.MAX_SCRAM_BYTES + 1, True)):
        first = b"n,,n=user,r=" + b"x" * (size - 12)
        if refused:
            with pytest.raises(SaslAuthenticationError) as error:
                after(scram(), first)
            assert error.value.reason.endswith(f"a message has {size} bytes")
        else:
            assert after(scram(), first).startswith(b"r=xxx")


@pytest.mark.parametrize("channel", ["", "eSws", "biw=", "bixhPXVzZXIs", "cD10bHMtdW5pcXVlLCw="])
def test_another_channel_is_not_that_of_the_first_token(channel: str) -> None:
    """The client signs its own message, so only the comparison can refuse it (RFC 5802, section 6)."""
    exchange = scram()
    first, salted = "n=user,r=abc", hashlib.pbkdf2_hmac("sha256", b"pencil", SALT, 4096)
    challenge = after(exchange, f"n,,{first}".encode()).decode()
    unproved = f"c={channel},r=abc{SERVER_NONCE}"
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    signature = hmac.digest(hashlib.sha256(client_key).digest(), f"{first},{challenge},{unproved}".encode(), "sha256")
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
    with pytest.raises(SaslAuthenticationError, match="due to invalid credentials"):
        after(exchange, f"{unproved},p={proof}".encode())
    assert exchange.user is None


@pytest.mark.parametrize("proof", [b"", b"AAAA", b"A" * 43 + b"=", b"A" * 88])
def test_a_proof_has_the_length_of_a_hash(proof: bytes) -> None:
    exchange = scram()
    after(exchange, FIRST)
    with pytest.raises(SaslAuthenticationError, match="due to invalid credentials"):
        after(exchange, FINAL.rpartition(b",p=")[0] + b",p=" + proof)
    assert exchange.user is None


@example(at=len(FINAL) - 2, flip=ord("Q") ^ ord("R"))
@given(st.integers(0, len(FINAL) - 1), st.integers(1, 255))
def test_no_byte_of_the_last_token_may_be_another(at: int, flip: int) -> None:
    changed = bytearray(FINAL)
    changed[at] ^= flip
    exchange = scram()
    after(exchange, FIRST)
    with pytest.raises(SaslAuthenticationError):
        after(exchange, bytes(changed))
    assert exchange.user is None


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_nothing_else_is_raised(first: bytes, second: bytes) -> None:
    for exchange, begin in ((scram(), [first]), (scram(), [FIRST, second]), (plain(), [first])):
        with pytest.raises(SaslAuthenticationError):
            after(exchange, *begin)


def test_credentials_are_kept_as_kafka_does() -> None:
    text = credential().to_text()
    assert ScramCredential.from_text(text) == credential()
    assert [part.partition("=")[0] for part in text.split(",")] == ["salt", "stored_key", "server_key", "iterations"]
    for bad in ("", "salt=x", text.replace("4096", "many"), text.replace("salt=W", "salt=!")):
        with pytest.raises(ValueError, match=r".+"):
            ScramCredential.from_text(bad)
