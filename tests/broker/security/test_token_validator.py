"""Signed tokens: which are valid, whatever else clients send, and where the keys come from."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import random
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt import PyJWS

from broker.broker_environment import system_environment
from broker.security import issuer_keys
from broker.security.token_validator import Tokens, tokens_of
from config.broker_config import BrokerConfig
from config.definitions import ConfigError
from environment.contract import Clock
from environment.system import SystemClock, ThreadExecutor
from security.bearer_exchange import MAX_TOKEN_BYTES
from security.oauth import TokenRules
from security.sasl_exchange import SaslAuthenticationError
from tests.kit.security.certificates import Authority
from tests.kit.security.identity_provider import (
    AUDIENCE,
    ISSUER,
    IdentityProvider,
    SigningKey,
    claims_of,
    first_message,
    identity_provider,
    unsigned,
)

INVALID = b'{"status":"invalid_token"}'


@pytest.fixture(scope="module")
def shared() -> Iterator[IdentityProvider]:
    with identity_provider() as provider:
        yield provider


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with identity_provider() as provider:
        yield provider


def tokens(url: str, **others: Any) -> Tokens:
    """The token validator of a listener whose keys are at `url`."""
    rules = TokenRules("url", url, None, (AUDIENCE,), ISSUER, 30, "scope", "sub", 3_600_000, 50, 100)
    config = BrokerConfig({"broker.id": "0"})
    return tokens_of(rules._replace(**others), system_environment(config))


async def answer(listener: Tokens, token: str) -> str | bytes:
    """The user, or the error sent to the client."""
    exchange = listener.exchange()
    said = await exchange.respond(first_message(token))
    if exchange.user is not None:
        assert said == b""
        assert exchange.credential_expiry_ms is not None
        return exchange.user
    with pytest.raises(SaslAuthenticationError) as refusal:
        await exchange.respond(b"\x01")
    assert str(refusal.value).encode() == said
    return said


def outcome(listener: Tokens, token: str) -> str | bytes:
    return asyncio.run(answer(listener, token))


@pytest.mark.parametrize("algorithm", sorted(issuer_keys.ALGORITHMS))
def test_a_token_that_the_issuer_signed_counts(algorithm: str, provider: IdentityProvider) -> None:
    key = SigningKey(algorithm, kid="another")
    provider.jwks = {"keys": [provider.key.jwk(), key.jwk()]}
    listener = tokens(provider.url("keys"))
    assert outcome(listener, key.token()) == "alice"
    assert outcome(listener, SigningKey(algorithm, kid="another").token()) == INVALID


def hs256(key: SigningKey) -> str:
    """Sign with the public key, as if it were a shared secret."""
    secret = key.private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return signed_with(secret, {"alg": "HS256", "kid": key.kid})


def signed_with(secret: bytes, header: dict[str, Any]) -> str:
    unsigned_part = unsigned(claims_of(), header).rstrip(".")
    signature = hmac.digest(secret, unsigned_part.encode(), hashlib.sha256)
    return f"{unsigned_part}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


REFUSED: dict[str, Callable[[SigningKey], str]] = {
    "of another key": lambda key: SigningKey(kid=key.kid).token(),
    "unsigned": lambda key: unsigned(claims_of()),
    "unsigned, with a kid": lambda key: unsigned(claims_of(), {"alg": "none", "kid": key.kid}),
    "unsigned, in capitals": lambda key: unsigned(claims_of(), {"alg": "None", "kid": key.kid}),
    "signature taken away": lambda key: key.token().rpartition(".")[0] + ".",
    "two parts": lambda key: key.token().rpartition(".")[0],
    "claims of another token": lambda key: ".".join(
        [key.token().split(".")[0], key.token(sub="admin").split(".")[1], key.token().split(".")[2]]
    ),
    "HS256 with the public key": hs256,
    "HS256 with nothing": lambda key: signed_with(b"", {"alg": "HS256", "kid": key.kid}),
    "key in its own header": lambda key: (other := SigningKey()).token(headers={"jwk": other.jwk()}),
    "unknown kid": lambda key: SigningKey(kid="unknown").token(),
    "kid that is no text": lambda key: unsigned(claims_of(), {"alg": "RS256", "kid": ["first"]}) + "AAAA",
    "algorithm of another kind of key": lambda key: SigningKey("ES256", kid=key.kid).token(),
    "critical extensions": lambda key: key.token(headers={"crit": ["exp"]}),
    "expired": lambda key: key.token(exp=claims_of()["iat"] - 31),
    "expired after a while": lambda key: key.token(iat=claims_of()["iat"] - 100, exp=claims_of()["iat"] - 31),
    "no end": lambda key: key.token(exp=None),
    "end that is a text": lambda key: key.token(exp=str(claims_of()["exp"])),
    "end that is true": lambda key: key.token(exp=True),
    "endless": lambda key: key.token(exp=10**300),
    "not issued": lambda key: key.token(iat=None),
    "issued tomorrow": lambda key: key.token(iat=claims_of()["exp"] - 60),
    "not yet": lambda key: key.token(nbf=claims_of()["iat"] + 120),
    "of another issuer": lambda key: key.token(iss=ISSUER + "/"),
    "of no issuer": lambda key: key.token(iss=None),
    "for another audience": lambda key: key.token(aud="zookeeper"),
    "for no audience": lambda key: key.token(aud=None),
    "for audiences that are none": lambda key: key.token(aud=[["kafka"]]),
    "of nobody": lambda key: key.token(sub=None),
    "of an empty name": lambda key: key.token(sub=" "),
    "of half a letter": lambda key: key.token(sub="alice\ud800"),
    "with an odd scope": lambda key: key.token(scope=[1]),
    "with a scope twice": lambda key: key.token(scope=["a", "a"]),
    "with a claim twice": lambda key: PyJWS().encode(
        json.dumps(claims_of())[:-1].encode() + b', "sub": "admin"}', key.private, "RS256", {"kid": key.kid}
    ),
    "huge": lambda key: key.token(filler="x" * MAX_TOKEN_BYTES),
}


@pytest.mark.parametrize("what", REFUSED)
def test_any_other_token_is_refused(what: str, shared: IdentityProvider) -> None:
    # The key is fine; only the token differs.
    assert outcome(tokens(shared.url("keys")), shared.key.token()) == "alice"
    token = REFUSED[what](shared.key)
    if what == "huge":
        with pytest.raises(SaslAuthenticationError):
            outcome(tokens(shared.url("keys")), token + "x" * MAX_TOKEN_BYTES)
    assert outcome(tokens(shared.url("keys")), token) == INVALID


def test_what_is_allowed_within_the_limits(shared: IdentityProvider) -> None:
    listener, key = tokens(shared.url("keys")), shared.key
    now = claims_of()["iat"]
    assert outcome(listener, key.token(exp=now - 20, iat=now - 60)) == "alice"
    assert outcome(listener, key.token(iat=now + 20, nbf=now + 20)) == "alice"
    assert outcome(listener, key.token(aud=["zookeeper", AUDIENCE], scope=None)) == "alice"
    assert outcome(tokens(shared.url("keys"), sub_claim="client_id"), key.token(client_id=" bob ")) == "bob"
    assert outcome(tokens(shared.url("keys"), audiences=()), key.token(aud=None)) == "alice"
    assert outcome(tokens(shared.url("keys"), audiences=()), key.token()) == INVALID
    assert outcome(tokens(shared.url("keys"), issuer=None), key.token(iss=None)) == "alice"


def test_keys_that_nobody_should_sign_with_are_left_out(provider: IdentityProvider) -> None:
    weak, right = SigningKey(kid="weak", bits=1024), SigningKey(kid="right")
    secret = {"kty": "oct", "k": base64.urlsafe_b64encode(b"x" * 32).decode().rstrip("="), "kid": "secret"}
    odd: list[Any] = [weak.jwk(), secret, "no key", {"kty": "RSA", "n": "", "e": ""}, {"kty": ["RSA"]}]
    odd += [right.jwk(kid="encrypts", use="enc"), right.jwk(kid="narrow", alg="PS512"), right.jwk(kid=7)]
    provider.jwks = {"keys": [*odd, right.jwk()]}
    listener = tokens(provider.url("keys"))
    assert outcome(listener, right.token()) == "alice"
    with pytest.warns(match="RSA key"):
        weak_token = weak.token()
    assert outcome(listener, weak_token) == INVALID
    assert outcome(listener, right.token(headers={"kid": "encrypts"})) == INVALID
    assert outcome(listener, right.token(headers={"kid": "narrow"})) == INVALID
    assert outcome(listener, right.token(headers={"kid": "narrow"}, algorithm="PS512")) == "alice"
    assert outcome(listener, signed_with(b"x" * 32, {"alg": "HS256", "kid": "secret"})) == INVALID


def test_a_token_without_a_kid_needs_a_key_that_stands_alone(provider: IdentityProvider) -> None:
    key = SigningKey(kid=None)
    provider.jwks = {"keys": [key.jwk(), SigningKey("ES256").jwk()]}
    assert outcome(tokens(provider.url("keys")), key.token()) == "alice"
    provider.jwks = {"keys": [key.jwk(), provider.key.jwk()]}
    assert outcome(tokens(provider.url("keys")), key.token()) == INVALID


class Time(Clock):
    """A manual clock; its wall clock is this machine's."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def monotonic_s(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return SystemClock().now_ms()


def with_time(provider: IdentityProvider, scenario: Callable[[Tokens, Time], Awaitable[None]]) -> None:
    """Run the scenario with tokens on a test clock."""
    clock = Time()
    rules = TokenRules("url", provider.url("keys"), None, (AUDIENCE,), ISSUER, 30, "scope", "sub", 60_000, 1000, 4000)
    environment = system_environment(BrokerConfig({"broker.id": "0"}))
    assert isinstance(environment.executor, ThreadExecutor)
    asyncio.run(_run(scenario(tokens_of(rules, environment.replace(clock=clock)), clock)))


async def _run(awaited: Awaitable[None]) -> None:
    await awaited


def test_an_unknown_key_has_the_keys_read_within_limits(provider: IdentityProvider) -> None:
    async def scenario(listener: Tokens, clock: Time) -> None:
        # All of them wait for the first answer.
        answers = await asyncio.gather(*(answer(listener, provider.key.token()) for _ in range(5)))
        assert (answers, len(provider.asked)) == (["alice"] * 5, 1)
        strange = SigningKey(kid="strange")
        for _ in range(5):
            assert await answer(listener, strange.token()) == INVALID
        assert len(provider.asked) == 1
        clock.seconds += issuer_keys.UNKNOWN_KEY_S
        assert await answer(listener, provider.key.token()) == "alice"
        assert await answer(listener, strange.token(exp=1)) == INVALID
        assert len(provider.asked) == 1
        provider.jwks = {"keys": [strange.jwk()]}
        assert await answer(listener, strange.token()) == "alice"
        assert len(provider.asked) == 2
        # A removed key is no longer valid.
        assert await answer(listener, provider.key.token()) == INVALID

    with_time(provider, scenario)


def test_keys_count_while_their_endpoint_is_down(provider: IdentityProvider) -> None:
    async def scenario(listener: Tokens, clock: Time) -> None:
        assert listener.keys is not None
        provider.status = 503
        assert await answer(listener, provider.key.token()) == INVALID
        await listener.keys.refresh()
        # Retries after one second, then two, then four.
        for pause_s in (1, 2, 4, 4):
            asked = len(provider.asked)
            clock.seconds += pause_s - 0.5
            await listener.keys.refresh()
            assert len(provider.asked) == asked
            clock.seconds += 0.5
            await listener.keys.refresh()
            assert len(provider.asked) == asked + 1
        provider.status = 200
        clock.seconds += 4
        await listener.keys.refresh()
        assert await answer(listener, provider.key.token()) == "alice"
        asked = len(provider.asked)
        clock.seconds += 59
        await listener.keys.refresh()
        assert len(provider.asked) == asked
        for bad in ({"keys": []}, {"keys": 1}, b"[" * 100_000, b'{"keys": [], "keys": []}', b"\xff", b"x" * (1 << 21)):
            provider.jwks = bad
            clock.seconds += 60
            await listener.keys.refresh()
            assert await answer(listener, provider.key.token()) == "alice"
        assert len(provider.asked) == asked + 6

    with_time(provider, scenario)


def test_nobody_is_let_in_where_nobody_answers(provider: IdentityProvider) -> None:
    listener = tokens(provider.url("keys"))
    provider.close()
    assert outcome(listener, provider.key.token()) == INVALID


def test_an_answer_that_sends_elsewhere_is_none(provider: IdentityProvider) -> None:
    provider.status = 302
    assert outcome(tokens(provider.url("keys")), provider.key.token()) == INVALID
    assert provider.asked == ["/keys"]


def test_keys_in_a_file(tmp_path: Path) -> None:
    key, file = SigningKey("ES384"), tmp_path / "the keys.json"
    url = f"file:{tmp_path}/the%20keys.json"
    with pytest.raises(ConfigError, match=r"for configuration url: .*cannot be read: No such file"):
        tokens(url)
    file.write_text("{}")
    with pytest.raises(ConfigError, match="its JWKS has no keys"):
        tokens(url)
    file.write_text(json.dumps({"keys": [key.jwk()]}))
    assert outcome(tokens(url), key.token()) == "alice"


def test_an_endpoint_with_tls_is_asked_by_whom_it_is_known(tmp_path: Path) -> None:
    authority = Authority()
    trusted = authority.write_pem(tmp_path / "trusted.pem")
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
    with identity_provider(authority, tmp_path) as provider:
        url = provider.url("keys")
        settings = {
            "broker.id": "0",
            "listeners": "PLAINTEXT://:9092,SASL_PLAINTEXT://:9093",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.sasl_plaintext.oauthbearer.sasl.server.callback.handler.class": (
                "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
            ),
            "sasl.oauthbearer.jwks.endpoint.url": url,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "org.apache.kafka.sasl.oauthbearer.allowed.urls": url,
        }
        name = "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config"
        known = {name: f'{module} ssl.truststore.type="PEM" ssl.truststore.location="{trusted}";'}
        for given, expected in (({}, INVALID), (known, "alice")):
            config = BrokerConfig.of({**settings, **given})
            rules = config.sasl["SASL_PLAINTEXT"].tokens
            assert rules is not None
            assert outcome(tokens_of(rules, system_environment(config)), provider.key.token()) == expected


def test_no_bytes_are_an_error_or_somebody(shared: IdentityProvider) -> None:
    """However a valid message is mutated, the client is refused with an error message, or is alice."""
    chance = random.Random(7)
    good = first_message(shared.key.token(), "\x01traceid=a b")

    async def scenario() -> None:
        listener = tokens(shared.url("keys"))
        for _ in range(3000):
            changed = bytearray(good)
            for _ in range(chance.randrange(1, 4)):
                at = chance.randrange(len(changed))
                changed[at : at + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
            exchange = listener.exchange()
            try:
                said = await exchange.respond(bytes(changed))
            except SaslAuthenticationError as error:
                assert str(error).startswith("Authentication failed")
            else:
                assert said == INVALID or exchange.user == "alice"

    asyncio.run(scenario())
