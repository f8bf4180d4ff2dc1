"""Tokens of GSSAPI, in order and out of it, valid, invalid and nonsense. The transcript omits their random parts."""

from __future__ import annotations

import time
from collections.abc import Callable

from protocol.messages.metadata import DescribeClusterRequest
from protocol.messages.security import SaslAuthenticateRequest
from security.kerberos_login import GssContext, Initiator, KerberosLogin
from tests.kit.security.kerberos import REALM, Realm
from tests.kit.wire_client import ConnectionClosed, WireClient
from tests.parity.security.subject import SaslSubject, SaslTarget

CHOICE = b"\1\0\0\0"
GssapiScenario = Callable[["GssapiSubject"], None]


class GssapiSubject(SaslSubject):
    """Clients with tickets."""

    def __init__(self, target: SaslTarget, scenario: str, realm: Realm) -> None:
        super().__init__(target, scenario)
        self._realm = realm

    def context(self, principal: str = "alice", service: str = "kafka") -> GssContext:
        """A client's side before its first token."""
        login = KerberosLogin("key", service, principal, self._realm.keytab(principal))
        return Initiator(login, f"{principal} {service} {time.monotonic_ns()}").context("localhost")

    def give(self, connection: WireClient, token: bytes, version: int = 2) -> bytes:
        """SaslAuthenticate; returns the answer's token."""
        try:
            answer = connection.ask(SaslAuthenticateRequest(auth_bytes=token), version)
        except ConnectionClosed:
            self.note("SaslAuthenticate", "<connection closed>")
            return b""
        told = (answer.error_code, answer.error_message, bool(answer.auth_bytes), answer.session_lifetime_ms)
        self.note("SaslAuthenticate", told)
        return bytes(answer.auth_bytes)

    def greet(self, connection: WireClient, context: GssContext) -> bytes:
        """Authenticate up to the offer of layers, and return that."""
        self.shake(connection, "GSSAPI")
        context.step(self.give(connection, context.step(b"")))
        offer = self.give(connection, b"")
        self.note("layers", context.unwrap(offer)[0])
        return offer

    def is_cluster_admin(self, connection: WireClient) -> None:
        """Check that the client is alice, a super user."""
        try:
            answer = connection.ask(DescribeClusterRequest(include_cluster_authorized_operations=True), 0)
        except ConnectionClosed:
            self.note("DescribeCluster", "<connection closed>")
        else:
            self.note("DescribeCluster", answer.cluster_authorized_operations)


def complete(b: GssapiSubject) -> None:
    for version in range(3):
        for short in (False, True):
            with b.client(short=short) as client:
                context = b.context()
                b.greet(client, context)
                b.give(client, context.wrap(CHOICE), version)
                b.is_cluster_admin(client)


def without_headers(b: GssapiSubject) -> None:
    with b.client() as client:
        context = b.context()
        b.shake(client, "GSSAPI", 0)
        client.send_frame(context.step(b""))
        b.note("last step", context.step(client.receive_frame()))
        client.send_frame(b"")
        context.unwrap(client.receive_frame())
        client.send_frame(context.wrap(CHOICE))
        # The last token gets no answer.
        b.is_cluster_admin(client)
    with b.client() as client:
        b.shake(client, "GSSAPI", 0)
        client.send_frame(b"nonsense")
        b.ends(client)


def whom_the_client_wants_to_be(b: GssapiSubject) -> None:
    for principal, wanted in (
        ("bob", f"alice@{REALM}"),
        ("bob", "alice"),
        ("alice", f"bob@{REALM}"),
        ("alice", "\xff"),
    ):
        with b.client() as client:
            context = b.context(principal)
            b.greet(client, context)
            b.give(client, context.wrap(CHOICE + wanted.encode("latin-1")))
            b.is_cluster_admin(client)


def choices(b: GssapiSubject) -> None:
    for choice in (b"\0\0\0\0", b"\2\0\xff\xff", b"\4\0\xff\xff", b"\6\0\xff\xff", b"\1\0\xff\xff", b"\3\0\0\0"):
        with b.client() as client:
            context = b.context()
            b.greet(client, context)
            b.give(client, context.wrap(choice))
            b.is_cluster_admin(client)


def short_choices(b: GssapiSubject) -> None:
    for choice in (b"", b"\1", b"\1\0\0"):
        with b.client() as client:
            context = b.context()
            b.greet(client, context)
            b.give(client, context.wrap(choice))


def last_tokens(b: GssapiSubject) -> None:
    for kind in ("plain", "empty", "reflected", "changed"):
        with b.client() as client:
            context = b.context()
            offer = b.greet(client, context)
            good = context.wrap(CHOICE)
            changed = good[:-1] + bytes([good[-1] ^ 1])
            b.give(client, {"plain": CHOICE, "empty": b"", "reflected": offer, "changed": changed}[kind])


def first_tokens(b: GssapiSubject) -> None:
    token = b.context().step(b"")
    for bad in (b"", b"nonsense", token[:-1], token[:-1] + bytes([token[-1] ^ 1]), b"\0" * 1000):
        with b.client() as client:
            b.shake(client, "GSSAPI")
            b.give(client, bad)


def a_token_before_the_offer(b: GssapiSubject) -> None:
    with b.client() as client:
        context = b.context()
        b.shake(client, "GSSAPI")
        context.step(b.give(client, context.step(b"")))
        b.give(client, context.wrap(CHOICE))


def a_token_twice(b: GssapiSubject) -> None:
    token = b.context().step(b"")
    for _ in range(2):
        with b.client() as client:
            b.shake(client, "GSSAPI")
            b.give(client, token)


def another_service(b: GssapiSubject) -> None:
    with b.client() as client:
        b.shake(client, "GSSAPI")
        b.give(client, b.context(service="http").step(b""))


def again(b: GssapiSubject) -> None:
    for other in ("alice", "bob"):
        with b.client(short=True) as client:
            for principal in ("alice", other):
                context = b.context(principal)
                b.greet(client, context)
                b.give(client, context.wrap(CHOICE))
            b.is_cluster_admin(client)


def names(b: GssapiSubject) -> None:
    for principal in ("alice/admin", "carol", "Dave"):
        with b.client() as client:
            context = b.context(principal)
            b.greet(client, context)
            b.give(client, context.wrap(CHOICE))
            b.is_cluster_admin(client)


def names_that_no_rule_is_for(b: GssapiSubject) -> None:
    with b.client() as client:
        context = b.context("nobody/anything")
        b.greet(client, context)
        b.give(client, context.wrap(CHOICE))
        b.is_cluster_admin(client)


_SCENARIOS: tuple[GssapiScenario, ...] = (
    complete,
    without_headers,
    whom_the_client_wants_to_be,
    choices,
    short_choices,
    last_tokens,
    first_tokens,
    a_token_before_the_offer,
    a_token_twice,
    another_service,
    again,
    names,
    names_that_no_rule_is_for,
)


def gssapi_scenarios() -> dict[str, GssapiScenario]:
    """All scenarios by name, whether or not Kerberos is available."""
    return {f"gssapi.{each.__name__}": each for each in _SCENARIOS}
