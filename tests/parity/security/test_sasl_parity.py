"""Every scenario of SASL, played to Apache Kafka and to this broker."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.kit.apache_kafka import ApacheKafka
from tests.kit.broker_process import BrokerProcess, free_port
from tests.parity.known_differences import report
from tests.parity.security.scram_users import alter, upsertion
from tests.parity.security.subject import SaslSubject, SaslTarget, play_sasl, sasl_scenarios

pytestmark = pytest.mark.java

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
JAAS = f'{MODULE} required user_alice="alice\'s" user_bob="bob\'s";'
SCRAM_USERS = {"alice": "alice's", "a =,": "\u20ac", "\u00e4": "\u20ac"}


def settings(target: SaslTarget) -> dict[str, str]:
    listeners = {"PLAINTEXT": target.address, "SASL": target.sasl_address, "SHORT": target.short_address}
    given = {
        "listeners": ",".join(f"{name}://{address}" for name, address in listeners.items()),
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,SHORT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.short.plain.connections.max.reauth.ms": "60000",
        "delegation.token.secret.key": "secret",
    }
    for name in ("sasl", "short"):
        given[f"listener.name.{name}.plain.sasl.jaas.config"] = JAAS
        for mechanism in ("scram-sha-256", "scram-sha-512"):
            module = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            given[f"listener.name.{name}.{mechanism}.sasl.jaas.config"] = module
    return given


def new_target() -> SaslTarget:
    return SaslTarget(*(f"127.0.0.1:{free_port()}" for _ in range(3)))


def create_users(target: SaslTarget) -> None:
    """Users of SCRAM."""
    subject = SaslSubject(target, "users")
    for user, password in SCRAM_USERS.items():
        for number, name in ((1, "sha256"), (2, "sha512")):
            salted = hashlib.pbkdf2_hmac(name, password.encode(), b"salt", 4096)
            alter(subject, upsertion(user, number, salted=salted))
    subject.close()


@pytest.fixture(scope="module")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslTarget]:
    """Apache Kafka, running."""
    target = new_target()
    kafka = ApacheKafka(tmp_path_factory.mktemp("apache-kafka"), settings(target), address=target.address)
    kafka.start()
    create_users(target)
    yield target
    kafka.stop()


@pytest.fixture(scope="module")
def odradek(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslTarget]:
    """This broker, running."""
    target = new_target()
    broker = BrokerProcess(tmp_path_factory.mktemp("odradek"), settings(target))
    broker.address = target.address
    broker.start()
    create_users(target)
    yield target
    assert broker.stop() == 0
    assert "Traceback" not in broker.output.read_text()


@pytest.mark.parametrize("name", list(sasl_scenarios()))
def test_answers_are_those_of_apache_kafka(name: str, apache_kafka: SaslTarget, odradek: SaslTarget) -> None:
    with ThreadPoolExecutor(2) as players:
        theirs, ours = (players.submit(play_sasl, name, target) for target in (apache_kafka, odradek))
        assert not (said := report(name, theirs.result(), ours.result())), said
