"""Tokens of GSSAPI, from the real library with keys of a real Kerberos. Skips without MIT Kerberos."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from security.gssapi_exchange import MAX_TOKEN_BYTES, GssapiExchange
from security.kerberos_login import Acceptor, GssError, Initiator, KerberosLogin
from security.principals import ShortNames
from security.sasl_exchange import SaslAuthenticationError
from tests.fuzz.mutation import mutated
from tests.fuzz.runner import Target, Trial
from tests.fuzz.targets.passwords import result_of
from tests.kit.security.kerberos import REALM, Realm, realm_of_this_process

BROKER = "kafka/localhost"
CHOICES = (
    b"\1\0\0\0",
    b"\1\0\0\0alice",
    b"\1\xff\xff\xff",
    b"\2\0\0\0",
    b"\4\0\0\0",
    b"\0\0\0\0",
    b"\1",
    b"",
    b"\1" * 500,
)


class TicketCase(NamedTuple):
    """`twist`, if not 0, changes the token of turn `turn`; with `is_alone` that token was made before, so that no
    ticket is used.
    """

    is_alone: bool
    turn: int
    twist: int
    choice: bytes


async def _at_once(function: Callable[[bytes], bytes], token: bytes) -> bytes:
    return function(token)


class Tickets:
    """Complete exchanges of alice's with one changed token, and first tokens alone."""

    def __init__(self, realm: Realm) -> None:
        self._acceptor = Acceptor(KerberosLogin("key", "kafka", f"{BROKER}@{REALM}", realm.keytab(BROKER)))
        alice = KerberosLogin("key", "kafka", f"alice@{REALM}", realm.keytab("alice"))
        # The process caches tickets, and another realm of its tests may have used the same names.
        self._alice = Initiator(alice, f"alice {realm.config}")
        self._names = ShortNames.parse("rules", ["DEFAULT"])
        self._first = self._alice.context("localhost").step(b"")

    def make(self, draw: random.Random) -> TicketCase:
        is_alone = draw.random() < 0.9
        twist = draw.randrange(1, 2**32) if is_alone or draw.random() < 0.7 else 0
        choice = CHOICES[0] if draw.random() < 0.7 else draw.choice(CHOICES)
        return TicketCase(is_alone, 0 if is_alone else draw.randrange(3), twist, choice)

    def check(self, case: TicketCase) -> bool:
        server = GssapiExchange(self._acceptor.context(), self._names, self._acceptor.default_realm, _at_once)
        if case.is_alone:
            return self._alone(case, server)
        client = self._alice.context("localhost")
        token, is_changed = client.step(b""), False
        try:
            for turn in range(4):
                if case.twist and turn == case.turn:
                    changed = self._changed(token, case)
                    is_changed, token = turn > 0 and _protected(changed) != _protected(token), changed
                answer = result_of(server.respond(token))
                if server.user is not None:
                    break
                try:
                    token = client.step(answer) if not client.is_complete else b""
                    if client.is_complete and turn:
                        client.unwrap(answer)
                        token = client.wrap(case.choice)
                except GssError:
                    return False
        except SaslAuthenticationError:
            # Without a mutation, only clients that require a security layer, or send nothing, are refused.
            assert server.user is None
            assert case.twist or len(case.choice) < 4 or not case.choice[0] & 1
            return False
        assert server.user in (None, "alice")
        assert server.user is None or not is_changed, "a changed token is taken"
        assert server.user is None or (len(case.choice) >= 4 and case.choice[0] & 1)
        return server.user is not None

    def _alone(self, case: TicketCase, server: GssapiExchange) -> bool:
        try:
            result_of(server.respond(self._changed(self._first, case)))
        except SaslAuthenticationError:
            return False
        assert server.user is None
        return True

    @staticmethod
    def _changed(token: bytes, case: TicketCase) -> bytes:
        draw = random.Random(case.twist)
        match draw.randrange(10):
            case 0:
                return token[: draw.randrange(len(token) + 1)]
            case 1:
                return draw.randbytes(draw.randrange(200))
            case 2 if draw.random() < 0.1:
                return token * (MAX_TOKEN_BYTES // max(len(token), 1) + 1)
            case _:
                # The headers and their lengths, before the encrypted part, are parsed first.
                return mutated(token[:80], draw) + token[80:] if draw.random() < 0.7 else mutated(token, draw)


def _protected(token: bytes) -> bytes:
    """The protected bytes of a token after the first: all except those that tell how much of its end was rotated to its
    beginning (RFC 4121, RRC).
    """
    return token[:6] + token[8:]


@contextmanager
def tickets() -> Iterator[Trial]:
    """See `Tickets`."""
    with tempfile.TemporaryDirectory() as directory, realm_of_this_process(Path(directory) / "realm") as realm:
        yield Tickets(realm)


TARGETS = (Target("gssapi", 2, tickets),)
