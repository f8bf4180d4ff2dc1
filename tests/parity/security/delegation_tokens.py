"""Delegation tokens: created, renewed, expired, described, and used to authenticate. No rights are needed."""

from __future__ import annotations

import base64
import contextlib
import time
from collections.abc import Iterator
from typing import Any

from protocol.messages.delegation_tokens import (
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from protocol.messages.security import SaslAuthenticateRequest, SaslHandshakeRequest
from security.sasl_config import Login
from tests.kit.wire_client import WireClient
from tests.parity.security.subject import SaslSubject, sasl_scenario
from tests.parity.security.token_clients import UNIT_MS, Owner, TokenClients, creation

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
LONGEST_MS = 604_800_000


@contextlib.contextmanager
def clients(b: SaslSubject) -> Iterator[TokenClients]:
    """PLAIN users, each with a connection."""
    connections: dict[str, WireClient] = {}
    with contextlib.ExitStack() as stack:

        def connection_of(user: str) -> WireClient:
            if user not in connections:
                connections[user] = connection = stack.enter_context(b.client())
                connection.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
                proof = f"\0{user}\0{user}'s".encode()
                answer: Any = connection.ask(SaslAuthenticateRequest(auth_bytes=proof), 2)
                assert answer.error_code == 0, answer
            return connections[user]

        yield TokenClients(b, connection_of)


def login(token: Any, mechanism: str = MECHANISMS[0], **others: Any) -> Login:
    """The login of the token in an answer."""
    password = base64.b64encode(bytes(token.hmac)).decode()
    return Login(mechanism, token.token_id, password, has_token=True)._replace(**others)


@sasl_scenario
def tokens_in_every_version(b: SaslSubject) -> None:
    with clients(b) as users:
        for version in range(4):
            token = users.make("alice", creation("bob"), version)
            users.describe("alice", version=version)
            users.describe("bob", ["alice"], version)
            users.renew("alice", token, version=min(version, 2))
            users.expire("bob", token, version=min(version, 2))


@sasl_scenario
def lives_of_tokens(b: SaslSubject) -> None:
    with clients(b) as users:
        for lifetime_ms in (-1, 0, 1, 5 * UNIT_MS, LONGEST_MS, LONGEST_MS + 1, 2**62, -2, -(2**63)):
            users.make("alice", creation(lifetime_ms=lifetime_ms))


@sasl_scenario
def renewals(b: SaslSubject) -> None:
    with clients(b) as users:
        token = users.make("alice", creation("bob", lifetime_ms=200 * UNIT_MS))
        for user, period_ms in (("alice", 5), ("bob", 50), ("alice", 100), ("bob", 1000), ("alice", 3)):
            users.renew(user, token, period_ms * UNIT_MS)
        for period_ms in (-1, -2, -(2**63), 0):
            users.renew("alice", token, period_ms)
        own = users.make("alice", creation())
        users.renew("bob", own)
        users.expire("bob", own)
        users.describe("alice")


@sasl_scenario
def ends_of_tokens(b: SaslSubject) -> None:
    with clients(b) as users:
        token = users.make("alice", creation("bob", lifetime_ms=200 * UNIT_MS))
        for user, period_ms in (("alice", 5), ("bob", 50), ("alice", 1000)):
            users.expire(user, token, period_ms * UNIT_MS)
        users.describe("alice")
        users.expire("alice", token, 0)
        time.sleep(0.01)  # the clock advances
        users.renew("alice", token)
        users.expire("alice", token, UNIT_MS)
        users.describe("alice")
        users.expire("bob", token)
        for change in (users.renew, users.expire):
            change("alice", token)
            change("alice", token, 0)
        users.describe("alice")


@sasl_scenario
def tokens_that_are_not_there(b: SaslSubject) -> None:
    with clients(b) as users:
        token = users.make("alice", creation())
        for hmac in (b"", b"x", bytes(64), bytes(token.hmac)[:-1], bytes(token.hmac) + b"x"):
            other = token.replace(hmac=hmac)
            users.renew("alice", other)
            users.expire("alice", other)


@sasl_scenario
def owners(b: SaslSubject) -> None:
    with clients(b) as users:
        users.make("alice", creation("bob"))
        users.make("alice", creation(owner="bob"))
        bobs = users.make("alice", creation("carol", "a =,", owner="bob"))
        users.make("bob", creation(owner="carol"))
        for user in ("alice", "bob"):
            for named in (None, [], ["alice"], ["bob"], ["carol"], ["nobody"], ["alice", "carol", "alice"]):
                users.describe(user, named)
        users.renew("alice", bobs)
        users.renew("bob", bobs)
        users.expire("alice", bobs)


@sasl_scenario
def strange_principals(b: SaslSubject) -> None:
    with clients(b) as users:
        for renewer in ("Group:bob", ":bob", "user:bob", "User:"):
            users.make("alice", creation("bob", renewer))
        users.make("alice", creation(owner="", owner_type="User"))
        for owner_type in ("Group", "", "user"):
            users.make("alice", creation(owner="bob", owner_type=owner_type))
        users.make("alice", creation("a%3Ab", owner="b%, =\u00e4"))
        users.make("alice", creation("bob", "bob"))
        users.describe("alice")
        request = creation(owner="bob")
        request.owner_principal_type = None
        users.make("alice", request)
        request = creation()
        request.owner_principal_name = request.owner_principal_type = None
        users.make("alice", request)


@sasl_scenario
def tokens_log_in(b: SaslSubject) -> None:
    with clients(b) as users:
        token = users.make("alice", creation("bob", lifetime_ms=50 * UNIT_MS))
        for mechanism in MECHANISMS:
            for each in (login(token, mechanism), login(token, mechanism, password="x")):
                with b.client() as client:
                    b.log_in(client, each, unit_ms=UNIT_MS)
                    b.serves(client)
        with b.client() as client:
            b.log_in(client, login(token), unit_ms=UNIT_MS)
            b.ask(creation(), 3, client)
            b.ask(RenewDelegationTokenRequest(hmac=bytes(token.hmac), renew_period_ms=-1), 2, client)
            b.ask(ExpireDelegationTokenRequest(hmac=bytes(token.hmac), expiry_time_period_ms=-1), 2, client)
            b.ask(DescribeDelegationTokenRequest(owners=None), 3, client)
            b.ask(DescribeDelegationTokenRequest(owners=[]), 3, client)
        users.expire("bob", token)
        with b.client() as client:
            b.log_in(client, login(token))


@sasl_scenario
def passwords_as_tokens(b: SaslSubject) -> None:
    for user in ("alice", "nobody"):
        with b.client() as client:
            b.log_in(client, Login(MECHANISMS[0], user, f"{user}'s", has_token=True))


@sasl_scenario
def tokens_of_others_log_in(b: SaslSubject) -> None:
    with clients(b) as users:
        token = users.make("alice", creation(owner="bob"))
        with b.client() as client:
            b.log_in(client, login(token), unit_ms=UNIT_MS)
            b.serves(client)


@sasl_scenario
def tokens_that_have_ended_log_in(b: SaslSubject) -> None:
    with clients(b) as users:
        token = users.make("alice", creation())
        users.expire("alice", token, 0)
        time.sleep(0.01)
        with b.client() as client:
            b.log_in(client, login(token))
            b.serves(client)


@sasl_scenario
def tokens_again(b: SaslSubject) -> None:
    with clients(b) as users:
        alices, bobs = users.make("alice", creation()), users.make("bob", creation())
        for other in (login(alices), login(bobs), Login(MECHANISMS[0], "alice", "alice's")):
            with b.client() as client:
                b.log_in(client, login(alices), unit_ms=UNIT_MS)
                b.log_in(client, other, unit_ms=UNIT_MS)
                b.serves(client)
                b.ask(DescribeDelegationTokenRequest(owners=[]), 3, client)


@sasl_scenario
def tokens_in_plain_text(b: SaslSubject) -> None:
    owner = Owner(principal_type="User", principal_name="a")
    for version in range(4):
        b.ask(creation(), version)
        b.ask(RenewDelegationTokenRequest(hmac=b"x", renew_period_ms=-1), min(version, 2))
        b.ask(ExpireDelegationTokenRequest(hmac=b"x", expiry_time_period_ms=-1), min(version, 2))
        for asked in (None, [], [owner]):
            b.ask(DescribeDelegationTokenRequest(owners=asked), version)
    b.ask(creation("Group:a", owner="bob"), 3)
