"""Clients over TLS: librdkafka, kafka-python and aiokafka, and brokers that must not start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.security.attempts import PYTHON_CLIENTS, attempt
from tests.kit.broker_process import BrokerProcess, free_port
from tests.kit.security.certificates import Authority, subject


class SecuredBroker:
    """A broker with a plain-text listener for the test, and one that requires certificates."""

    def __init__(self, directory: Path) -> None:
        authority = Authority()
        self.trusted = authority.write_pem(directory / "trusted.pem")
        alice = authority.issue(subject("alice", ORGANIZATION_NAME="Odradek"))
        self.certificate = directory / "alice.crt"
        self.certificate.write_text(alice.certificate_pem)
        self.key = directory / "alice.key"
        self.key.write_text(alice.key_pem())
        store = authority.issue("broker").write_pkcs12(directory / "broker.p12", "secret", authority)
        plain, secure = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.process = BrokerProcess(
            directory / "broker",
            {
                "listeners": f"PLAINTEXT://{plain},OUTSIDE://{secure}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OUTSIDE:SSL",
                "listener.name.outside.ssl.keystore.type": "PKCS12",
                "listener.name.outside.ssl.keystore.location": str(store),
                "listener.name.outside.ssl.keystore.password": "secret",
                "listener.name.outside.ssl.truststore.type": "PEM",
                "listener.name.outside.ssl.truststore.location": str(self.trusted),
                "listener.name.outside.ssl.client.auth": "required",
            },
        )
        self.process.address = plain
        self.settings = {"address": secure, "protocol": "ssl", "trusted": str(self.trusted)}
        self.identity = {"certificate": str(self.certificate), "key": str(self.key)}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    secured = SecuredBroker(tmp_path_factory.mktemp("tls"))
    secured.process.start()
    yield secured
    assert secured.process.stop() == 0


@pytest.mark.parametrize("client", PYTHON_CLIENTS)
def test_a_client_with_a_certificate_is_served(client: str, broker: SecuredBroker) -> None:
    assert attempt(client, {**broker.settings, **broker.identity, "topic": client}) == "received 500"


def test_a_client_without_a_certificate_is_told(broker: SecuredBroker) -> None:
    answer = attempt("librdkafka", {**broker.settings, "topic": "unseen"})
    assert answer.startswith("refused: "), answer
    assert "certificate required" in answer.lower()


@pytest.mark.parametrize(
    ("overrides", "last_words"),
    [
        ({"ssl.keystore.password": "x"}, "for configuration ssl.keystore.password: it does not open the store"),
        ({"ssl.keystore.location": "/none.p12"}, "ssl.keystore.location: it cannot be read: No such file or directory"),
    ],
)
def test_a_bad_store_stops_the_start(overrides: dict[str, str], last_words: str, tmp_path: Path) -> None:
    store = Authority().issue("broker").write_pkcs12(tmp_path / "broker.p12", "secret")
    settings = {"ssl.keystore.location": str(store), "ssl.keystore.password": "secret", **overrides}
    listeners = f"PLAINTEXT://127.0.0.1:{free_port()},SSL://127.0.0.1:{free_port()}"
    broker = BrokerProcess(tmp_path / "broker", {"listeners": listeners, **settings})
    broker.launch()
    assert broker.wait() == 1
    assert last_words in broker.output.read_text().splitlines()[-1]
    assert not (tmp_path / "broker" / "data" / "meta.properties").exists(), "nothing is written"
