"""Every client over every kind of listener, admitted and refused, with its error."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.compat.security.attempts import PYTHON_CLIENTS
from tests.compat.security.listener_clients import OTHERS, SERVED, Clients
from tests.compat.security.listener_site import MECHANISMS, ListenerSite
from tests.kit.due import due

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

CLIENTS = [*PYTHON_CLIENTS, *(pytest.param(name, marks=pytest.mark.java if name == "java" else ()) for name in OTHERS)]
SASL = [(listener, mechanism) for listener in ("SASL_PLAINTEXT", "SASL_SSL") for mechanism in MECHANISMS]
KINDS = [("PLAINTEXT", ""), ("SSL", ""), ("CERTIFIED", ""), *SASL]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ListenerSite]:
    made = ListenerSite(tmp_path_factory.mktemp("listeners"))
    made.start()
    yield made
    assert made.process.stop() == 0
    said = made.process.output.read_text()
    assert "Traceback" not in said
    assert "never retrieved" not in said


@pytest.fixture(scope="module")
def clients(site: ListenerSite) -> Iterator[Clients]:
    made = Clients(site)
    yield made
    made.close()


@pytest.mark.parametrize(("listener", "mechanism"), due(KINDS))
@pytest.mark.parametrize("client", CLIENTS)
def test_who_is_let_in(client: str, listener: str, mechanism: str, site: ListenerSite, clients: Clients) -> None:
    assert clients.attempt(client, listener, mechanism, site.fitting(listener)) == SERVED


def as_told(reason: str) -> dict[str, str]:
    """Errors of clients that the broker refuses with a SASL error."""
    return {
        "librdkafka": rf"KafkaException: KafkaError{{code=_AUTHENTICATION,.*{reason}",
        # It may find the connection closed before it has read the error.
        "kafka-python": rf"KafkaTimeoutError: .*(SaslAuthenticationFailedError: {reason}|socket disconnected)",
        "aiokafka": rf"KafkaConnectionError: .*SaslAuthenticationFailed: {reason}",
        "kcat": rf"Local: Authentication failure: .*{reason}",
        "java": rf"org\.apache\.kafka\.common\.errors\.SaslAuthenticationException: {reason}",
    }


WRONG_PASSWORD = {
    "PLAIN": "Authentication failed: Invalid username or password",
    **{
        each: f"Authentication failed during authentication due to invalid credentials with SASL mechanism {each}"
        for each in MECHANISMS[1:]
    },
}


def assert_refused(said: str, error: str, site: ListenerSite, logged_before: int, log: str) -> None:
    """Check that the client reported this error, and that the broker logged that reason."""
    assert said.startswith("refused: "), said
    assert re.search(error, said, re.DOTALL), said
    lines = site.process.output.read_text()[logged_before:]
    assert re.search(rf"Failed authentication with 127\.0\.0\.1:?.*{log}", lines), lines


@pytest.mark.parametrize(("listener", "mechanism"), due(SASL))
@pytest.mark.parametrize("client", CLIENTS)
def test_a_wrong_password(client: str, listener: str, mechanism: str, site: ListenerSite, clients: Clients) -> None:
    before = len(site.process.output.read_text())
    said = clients.attempt(client, listener, mechanism, site.known, password="wrong", topic="unseen")
    reason = WRONG_PASSWORD[mechanism]
    assert_refused(said, as_told(reason)[client], site, before, re.escape(reason))


UNTRUSTED_BROKER = {
    # librdkafka says "transport" if the broker's certificate arrived before it waited for it.
    "librdkafka": r"KafkaException: KafkaError\{code=_(SSL|TRANSPORT),.*certificate verify failed",
    "kafka-python": "KafkaTimeoutError: .*CERTIFICATE_VERIFY_FAILED",
    "aiokafka": "KafkaConnectionError: .*CERTIFICATE_VERIFY_FAILED",
    "kcat": "Local: (SSL error|Broker transport failure): .*certificate verify failed",
    "java": r"org\.apache\.kafka\.common\.errors\.SslAuthenticationException: SSL handshake failed.*PKIX path building",
}


@pytest.mark.parametrize(("listener", "mechanism"), [("SSL", ""), ("SASL_SSL", "SCRAM-SHA-256")])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_broker_that_is_not_trusted(
    client: str, listener: str, mechanism: str, site: ListenerSite, clients: Clients
) -> None:
    said = clients.attempt(client, listener, mechanism, site.deceived, topic="unseen")
    assert said.startswith("refused: "), said
    assert re.search(UNTRUSTED_BROKER[client], said, re.DOTALL), said


def by_alert(alert: str) -> dict[str, str]:
    """Errors of clients that the broker refuses with a TLS alert."""
    java = alert.replace(" ", "_")
    return {
        "librdkafka": rf"KafkaException: KafkaError{{code=_TRANSPORT,.*alert {alert}",
        "kafka-python": rf"KafkaTimeoutError: .*alert {alert}",
        "aiokafka": r"KafkaConnectionError: .*Connection at 127\.0\.0\.1:\d+ closed",  # its log lacks the reason, too
        "kcat": rf"Local: Broker transport failure: .*alert {alert}",
        "java": rf"org\.apache\.kafka\.common\.errors\.SslAuthenticationException: .*fatal alert: {java}",
    }


@pytest.mark.parametrize("client", CLIENTS)
def test_no_certificate(client: str, site: ListenerSite, clients: Clients) -> None:
    before = len(site.process.output.read_text())
    said = clients.attempt(client, "CERTIFIED", "", site.known, topic="unseen")
    assert_refused(said, by_alert("certificate required")[client], site, before, "PEER_DID_NOT_RETURN_A_CERTIFICATE")


@pytest.mark.parametrize("client", CLIENTS)
def test_a_certificate_of_a_strange_authority(client: str, site: ListenerSite, clients: Clients) -> None:
    before = len(site.process.output.read_text())
    said = clients.attempt(client, "CERTIFIED", "", site.impostor, topic="unseen")
    assert_refused(said, by_alert("unknown ca")[client], site, before, "CERTIFICATE_VERIFY_FAILED")
