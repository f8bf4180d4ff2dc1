"""Clients over SASL, with and without TLS: librdkafka, kafka-python and aiokafka."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.compat.security.attempts import PYTHON_CLIENTS, attempt
from tests.kit.broker_process import BrokerProcess, free_port
from tests.kit.security.certificates import Authority

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
PASSWORD = 'se"cret, \\ =;'


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, str]]]:
    """A broker with both kinds of listeners: how clients reach them, by protocol."""
    directory = tmp_path_factory.mktemp("sasl")
    authority = Authority()
    plain, sasl, both = (f"127.0.0.1:{free_port()}" for _ in range(3))
    written = PASSWORD.replace("\\", "\\\\").replace('"', '\\"').replace("\\", "\\\\")
    jaas = f'{PLAIN_MODULE} required username="broker" password="b" user_broker="b" user_alice="{written}";'
    broker = BrokerProcess(
        directory / "broker",
        {
            "listeners": f"PLAINTEXT://{plain},SASL_PLAINTEXT://{sasl},SASL_SSL://{both}",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": jaas,
            "listener.name.sasl_ssl.plain.sasl.jaas.config": jaas,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(authority.issue("broker").write_pem(directory / "broker.pem")),
        },
    )
    broker.address = plain
    broker.start()
    trusted = str(authority.write_pem(directory / "trusted.pem"))
    yield {
        "sasl_plaintext": {"address": sasl, "protocol": "sasl_plaintext"},
        "sasl_ssl": {"address": both, "protocol": "sasl_ssl", "trusted": trusted},
    }
    assert broker.stop() == 0
    assert "Traceback" not in broker.output.read_text()


@pytest.mark.parametrize("protocol", ["sasl_plaintext", "sasl_ssl"])
@pytest.mark.parametrize("client", PYTHON_CLIENTS)
def test_a_user_is_served(client: str, protocol: str, settings: dict[str, dict[str, str]]) -> None:
    alice = {"mechanism": "PLAIN", "username": "alice", "password": PASSWORD, "topic": f"{client}-{protocol}"}
    assert attempt(client, {**settings[protocol], **alice}) == "received 500"


@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("nobody", PASSWORD)])
def test_others_are_told(user: str, password: str, settings: dict[str, dict[str, str]]) -> None:
    given = {"mechanism": "PLAIN", "username": user, "password": password, "topic": "unseen"}
    answer = attempt("librdkafka", {**settings["sasl_plaintext"], **given})
    assert "Authentication failed: Invalid username or password" in answer


def test_a_mechanism_that_the_listener_does_not_have(settings: dict[str, dict[str, str]]) -> None:
    given = {"mechanism": "SCRAM-SHA-256", "username": "alice", "password": PASSWORD, "topic": "unseen"}
    answer = attempt("librdkafka", {**settings["sasl_plaintext"], **given})
    assert "supported mechanisms: PLAIN" in answer
