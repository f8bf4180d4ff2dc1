"""A broker with SASL listeners from a scenario's view."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from protocol.messages.metadata import MetadataRequest
from protocol.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from security.sasl_config import Login
from security.sasl_exchange import exchange
from tests.kit.wire_client import ConnectionClosed, WireClient
from tests.parity.subject import Subject, Target, played
from tests.parity.transcript import Plain

SaslScenario = Callable[["SaslSubject"], None]
_SCENARIOS: dict[str, SaslScenario] = {}


class SaslTarget(NamedTuple):
    """Addresses of a running broker: in plain text, with SASL, and with sessions that expire."""

    address: str
    sasl_address: str
    short_address: str


class SaslSubject(Subject):
    """Besides its plain-text connection, a scenario opens those of authenticating clients."""

    def __init__(self, target: SaslTarget, scenario: str) -> None:
        super().__init__(Target(target.address), scenario)
        self._target = target

    @contextlib.contextmanager
    def client(self, *, short: bool = False) -> Iterator[WireClient]:
        """An unauthenticated connection; `short` for sessions that expire."""
        address = self._target.short_address if short else self._target.sasl_address
        host, _, port = address.rpartition(":")
        with WireClient(host, int(port), "parity") as connection:
            yield connection

    def shake(self, connection: WireClient, mechanism: str, version: int = 1) -> None:
        """SaslHandshake. Kafka lists the mechanisms in the order of a hash table."""
        label = f"SaslHandshake v{version}"
        try:
            answer = connection.ask(SaslHandshakeRequest(mechanism=mechanism), version)
        except ConnectionClosed:
            self.note(label, "<connection closed>")
            return
        assert isinstance(answer, SaslHandshakeResponse)
        self.note(label, {"error_code": answer.error_code, "mechanisms": ",".join(sorted(answer.mechanisms))})

    def token(self, connection: WireClient, token: bytes, version: int = 2) -> Any:
        """SaslAuthenticate."""
        return self.ask(SaslAuthenticateRequest(auth_bytes=token), version, connection)

    def log_in(self, connection: WireClient, login: Login, version: int = 2, unit_ms: int = 1) -> None:
        """A complete authentication. The transcript omits the random parts of tokens, and rounds the session lifetime
        to a unit.
        """
        self.shake(connection, login.mechanism)
        tokens = exchange(login, "c" * 32)
        token = next(tokens)
        while True:
            try:
                answer = connection.ask(SaslAuthenticateRequest(auth_bytes=token), version)
            except ConnectionClosed:
                self.note("SaslAuthenticate", "<connection closed>")
                return
            assert isinstance(answer, SaslAuthenticateResponse)
            lifetime = round(answer.session_lifetime_ms / unit_ms)
            self.note("SaslAuthenticate", (answer.error_code, answer.error_message, lifetime))
            if answer.error_code:
                return
            try:
                token = tokens.send(bytes(answer.auth_bytes))
            except StopIteration:
                return

    def serves(self, connection: WireClient) -> None:
        """Whether an authenticated client's request is answered."""
        try:
            connection.ask(MetadataRequest(topics=[], allow_auto_topic_creation=False), 9)
        except ConnectionClosed:
            self.note("Metadata", "<connection closed>")
        else:
            self.note("Metadata", "served")

    def ends(self, connection: WireClient) -> None:
        """Whether the broker closes the connection."""
        self.note("hangs up", connection.is_closed())


def sasl_scenario(function: SaslScenario) -> SaslScenario:
    """Register a scenario under `<file>.<function>`."""
    _SCENARIOS[f"{function.__module__.rpartition('.')[2]}.{function.__name__}"] = function
    return function


def sasl_scenarios(*, of_oauthbearer: bool = False) -> dict[str, SaslScenario]:
    """The scenarios by name: those of OAUTHBEARER, or those of the other mechanisms."""
    from tests.parity.security import delegation_tokens, oauthbearer, sasl, scram_users  # noqa: F401  they register

    return {name: each for name, each in _SCENARIOS.items() if name.startswith("oauthbearer.") == of_oauthbearer}


def play_sasl(name: str, target: SaslTarget) -> dict[str, Plain]:
    """Play one scenario against a broker; returns its transcript."""
    return played(SaslSubject(target, name), _SCENARIOS[name])
