"""Messages of OAUTHBEARER with tokens signed by the issuer, or not; and the issuer's keys."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from broker.broker_environment import system_environment
from broker.security.issuer_keys import parse_keys
from broker.security.token_validator import tokens_of
from config.broker_config import BrokerConfig
from security.bearer_exchange import TokenError
from security.oauth import TokenRules
from security.sasl_exchange import SaslAuthenticationError
from tests.fuzz.mutation import mutated, mutated_text
from tests.fuzz.runner import Target, Trial
from tests.fuzz.targets.sessions import quiet
from tests.kit.environment import InlineExecutor, ManualClock
from tests.kit.security.identity_provider import AUDIENCE, ISSUER, SigningKey, claims_of, first_message, unsigned

HALF_PAIR = "\ud800"
MESSAGE_WORDS = (
    "\x01",
    "auth=",
    "Bearer ",
    ",",
    "n,",
    "a=alice",
    "a=bob,",
    "=",
    ".",
    "host=x\x01",
    "é",
    "\0",
    " ",
    "\t",
)
JSON_WORDS = (
    '"',
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "1",
    '"n"',
    '"RSA"',
    '"EC"',
    "null",
    "1e9",
    '""',
    '"AQAB"',
    '"\\ud800"',
    "-",
)


class MessageCase(NamedTuple):
    """A message, or a key set."""

    content: bytes
    is_keys: bool = False


class SignedTokens:
    """Complete messages, some with one part changed or with parts of several tokens."""

    def __init__(self, loop: asyncio.AbstractEventLoop, directory: Path) -> None:
        self._loop = loop
        rsa, elliptic, strange = SigningKey(), SigningKey("ES256", kid="second"), SigningKey("ES256", kid="second")
        self._keys = json.dumps({"keys": [rsa.jwk(), elliptic.jwk()]})
        path = directory / "keys.json"
        path.write_text(self._keys)
        rules = TokenRules("url", path.as_uri(), None, (AUDIENCE,), ISSUER, 30, "scope", "sub", 3_600_000, 50, 100)
        clock = ManualClock()
        clock.ms = claims_of()["iat"] * 1000
        environment = system_environment(BrokerConfig({"broker.id": "0"}))
        environment = environment.replace(executor=InlineExecutor(), clock=clock)
        self._tokens = tokens_of(rules, environment)
        self._users = {key.token(sub=user): user for key in (rsa, elliptic) for user in ("alice", "Zoë")}
        self._wrong = [
            strange.token(),
            rsa.token(aud="another"),
            rsa.token(iss="another"),
            rsa.token(exp=1_000_000),
            rsa.token(sub=""),
            elliptic.token(sub=f"a{HALF_PAIR}b"),
            unsigned(claims_of()),
            unsigned(claims_of(), {"alg": "none", "kid": "first"}),
        ]
        self._signed = {token.rpartition(".")[0]: user for token, user in self._users.items()}

    def make(self, draw: random.Random) -> MessageCase:
        if draw.random() < 0.1:
            return MessageCase(mutated_text(self._keys, draw, JSON_WORDS).encode(), is_keys=True)
        token = draw.choice([*self._users, *self._users, *self._wrong])
        match draw.randrange(6):
            case 0:
                return MessageCase(first_message(token))
            case 1:
                others = draw.choices([*self._users, *self._wrong], k=3)
                token = ".".join(other.split(".")[at] for at, other in enumerate(others))
                return MessageCase(first_message(token))
            case 2:
                parts = token.split(".")
                at = draw.randrange(3)
                content = base64.urlsafe_b64decode(parts[at] + "==")
                content = (
                    mutated(content, draw) if at == 2 else mutated_text(content.decode(), draw, JSON_WORDS).encode()
                )
                parts[at] = base64.urlsafe_b64encode(content).decode().rstrip("=")
                return MessageCase(first_message(".".join(parts)))
            case 3:
                return MessageCase(mutated_text(first_message(token).decode(), draw, MESSAGE_WORDS).encode())
            case _:
                return MessageCase(mutated(first_message(token), draw))

    def check(self, case: MessageCase) -> bool:
        if case.is_keys:
            try:
                return bool(parse_keys(case.content))
            except TokenError:
                return False
        user = self._loop.run_until_complete(self._user_of(case.content))
        if user is None:
            assert not any(case.content == first_message(token) for token in self._users)
            return False
        user.encode()
        signed = [known for known, whose in self._signed.items() if whose == user]
        # Different text may encode the same signature.
        assert any(f"{each}.".encode() in case.content for each in signed), user
        return True

    async def _user_of(self, message: bytes) -> str | None:
        exchange = self._tokens.exchange()
        try:
            answer = await exchange.respond(message)
        except SaslAuthenticationError:
            assert exchange.user is None
            return None
        assert (exchange.user is None) is bool(answer)
        if exchange.user is None:
            json.loads(answer)
            try:
                await exchange.respond(b"\x01")
            except SaslAuthenticationError:
                return None
            raise AssertionError("a refused client goes on")
        assert exchange.credential_expiry_ms is not None
        return exchange.user


@contextmanager
def signed_tokens() -> Iterator[Trial]:
    """See `SignedTokens`."""
    loop = asyncio.new_event_loop()
    with tempfile.TemporaryDirectory() as directory, quiet([]):
        try:
            yield SignedTokens(loop, Path(directory))
        finally:
            loop.close()


TARGETS = (Target("oauthbearer", 10, signed_tokens),)
