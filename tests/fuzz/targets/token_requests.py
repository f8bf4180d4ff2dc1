"""Delegation token requests to a whole broker, from clients that authenticated by SASL or are super users.

A model knows the owner and the renewers of each token.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from cluster.security.principal import Principal
from protocol.errors import DecodeError
from protocol.messages.delegation_tokens import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from protocol.wire.schema import Request, Response
from security.authorization import ACL_AUTHORIZER
from tests.fuzz.mutation import mutated
from tests.fuzz.runner import Target, Trial
from tests.fuzz.targets.sessions import quiet
from tests.kit.in_process import InProcessBroker, Wire
from tests.kit.wire_requests import framed, request_bytes
from tests.protocol.values import SeededSource, build

USERS = ("User:alice", "User:bob", "User:admin", "Group:alice")
ADMIN = "User:admin"
SETTINGS = {
    "listeners": "SASL://127.0.0.1:9092",
    "listener.security.protocol.map": "SASL:SASL_PLAINTEXT",
    "inter.broker.listener.name": "SASL",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        "username=admin password=admin user_admin=admin;"
    ),
    "delegation.token.secret.key": "the brokers' secret",
    "authorizer.class.name": ACL_AUTHORIZER,
    "super.users": ADMIN,
}
REQUESTS: dict[type[Request], type[Response]] = {
    CreateDelegationTokenRequest: CreateDelegationTokenResponse,
    RenewDelegationTokenRequest: RenewDelegationTokenResponse,
    ExpireDelegationTokenRequest: ExpireDelegationTokenResponse,
    DescribeDelegationTokenRequest: DescribeDelegationTokenResponse,
}
KINDS = list(REQUESTS)
MOST_TOKENS = 40


class RequestCase(NamedTuple):
    """The request's type, its values and its changes, and which existing tokens it names, are drawn from `seed`."""

    user: str
    kind: int
    version: int
    seed: int
    is_changed: bool


class Known(NamedTuple):
    """An existing token."""

    hmac: bytes
    owner: str
    renewers: frozenset[str]
    requester: str


class Values(SeededSource):
    """Users' names, and the HMACs of existing tokens."""

    def __init__(self, seed: int, tokens: list[Known]) -> None:
        super().__init__(seed)
        self._tokens = tokens

    def text(self) -> str:
        return (
            self._random.choice(["User", "User", "alice", "bob", "admin", "", "Group"])
            if self.chance()
            else super().text()
        )

    def binary(self) -> bytes:
        if self._tokens and self._random.random() < 0.8:
            hmac = self._random.choice(self._tokens).hmac
            return hmac if self._random.random() < 0.8 else mutated(hmac, self._random)
        return super().binary()

    def integer(self, low: int, high: int) -> int:
        return self._random.choice([-1, 0, 1000, 10**9, 2**62]) if self.chance() else super().integer(low, high)


class TokenRequests:
    """A broker with a small number of tokens."""

    def __init__(self, loop: asyncio.AbstractEventLoop, broker: InProcessBroker) -> None:
        self._loop = loop
        self._broker = broker
        self._tokens: dict[str, Known] = {}
        self.errors: list[str] = []

    def make(self, draw: random.Random) -> RequestCase:
        kind = draw.randrange(len(KINDS))
        version = draw.randint(KINDS[kind].min_version, KINDS[kind].max_version)
        return RequestCase(draw.choice(USERS), kind, version, draw.randrange(2**32), draw.random() < 0.3)

    def check(self, case: RequestCase) -> bool:
        if len(self._tokens) > MOST_TOKENS:
            self._loop.run_until_complete(self._forget())
        accepted = self._loop.run_until_complete(self._ask(case))
        assert not self.errors, self.errors
        return accepted

    def _wire(self, user: str) -> Wire:
        wire = self._broker.connect()
        kind, _, name = user.partition(":")
        # Skip authentication: another target covers the requests before it.
        session: Any = wire.connection._session  # type: ignore[attr-defined]
        session._is_authenticated = True
        wire.connection.authenticated(Principal(kind, name))  # type: ignore[attr-defined]
        return wire

    async def _ask(self, case: RequestCase) -> bool:
        request_type = KINDS[case.kind]
        tokens = list(self._tokens.values())
        request = build(request_type, case.version, Values(case.seed, tokens))
        content = request_bytes(request, case.version, 7)
        if case.is_changed:
            content = content[:8] + mutated(content[8:], random.Random(case.seed))
        wire = self._wire(case.user)
        wire.feed(framed(content))
        for _ in range(200):
            if wire.is_closed or wire.transport.written:
                break
            await asyncio.sleep(0)
        written = bytes(wire.transport.written)
        wire.close()
        await asyncio.sleep(0)
        if not written:
            return False
        head = 8 + request_type.api_key.response_header_version(case.version)
        answer: Any = REQUESTS[request_type].decode(written[head:], case.version)
        if case.is_changed:
            request = _as_read(request_type, content, case.version)
        if answer.error_code:
            return False
        self._judge(case, request, answer)
        return True

    def _judge(self, case: RequestCase, request: Any, answer: Any) -> None:
        """Whether the model allows the operation."""
        if isinstance(answer, CreateDelegationTokenResponse):
            owner = case.user
            if case.version >= 3 and request.owner_principal_name:
                owner = f"{request.owner_principal_type}:{request.owner_principal_name}"
            assert owner == case.user or case.user == ADMIN, "a token for another one"
            assert f"{answer.principal_type}:{answer.principal_name}" == owner
            renewers = frozenset(f"{each.principal_type}:{each.principal_name}" for each in request.renewers)
            self._tokens[answer.token_id] = Known(bytes(answer.hmac), owner, renewers, case.user)
        elif isinstance(answer, DescribeDelegationTokenResponse):
            for token in answer.tokens:
                known = self._tokens[token.token_id]
                assert bytes(token.hmac) == known.hmac
                assert case.user in (ADMIN, known.owner, known.requester, *known.renewers), "a token of another one"
        else:
            found = {id_: each for id_, each in self._tokens.items() if each.hmac == bytes(request.hmac)}
            assert found, "no such token was made"
            ((token_id, known),) = found.items()
            assert case.user in (known.owner, *known.renewers), "a token of another one"
            if isinstance(request, ExpireDelegationTokenRequest) and request.expiry_time_period_ms < 0:
                del self._tokens[token_id]

    async def _forget(self) -> None:
        """Expire all tokens."""
        for known in list(self._tokens.values()):
            wire = self._wire(known.owner)
            await wire.ask(ExpireDelegationTokenRequest(hmac=known.hmac, expiry_time_period_ms=-1), 2)
            wire.close()
        self._tokens.clear()


def _as_read(request_type: type[Request], content: bytes, version: int) -> Any:
    """The request that the broker decoded from a mutated one and answered."""
    from protocol.messages.headers import RequestHeader

    _, body_at = RequestHeader.decode_prefix(memoryview(content), request_type.api_key.request_header_version(version))
    try:
        return request_type.decoder(version)(memoryview(content), body_at)
    except DecodeError:
        raise AssertionError("a request that cannot be read is answered") from None


@contextmanager
def token_requests() -> Iterator[Trial]:
    """See `TokenRequests`."""
    loop = asyncio.new_event_loop()
    broker = InProcessBroker(**SETTINGS)
    loop.run_until_complete(broker.__aenter__())
    trial = TokenRequests(loop, broker)
    loop.set_exception_handler(lambda _, context: trial.errors.append(repr(context)))
    try:
        with quiet(trial.errors):
            yield trial
        loop.run_until_complete(broker.__aexit__())
    finally:
        loop.close()


TARGETS = (Target("token-requests", 3, token_requests),)
