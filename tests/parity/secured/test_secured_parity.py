"""Every scenario, played to Apache Kafka and to Odradek, both with an authorizer: the same answers, and the same
refusals in the authorizer's log, except for `known_differences`.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from security.authorization import ACL_AUTHORIZER
from tests.kit.apache_kafka import ApacheKafka
from tests.kit.broker_process import BrokerProcess, free_port
from tests.parity.conftest import SETTINGS
from tests.parity.known_differences import report
from tests.parity.secured.subject import USERS, SecuredSubject, SecuredTarget, secured_scenarios
from tests.parity.transcript import Plain

pytestmark = [pytest.mark.java, pytest.mark.timeout(180)]

SECURITY = {
    "authorizer.class.name": ACL_AUTHORIZER,
    "super.users": "User:ANONYMOUS",
    "delegation.token.secret.key": "secret",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        + " ".join(f'user_{user}="{user}"' for user in USERS)
        + ";"
    ),
}


MANY = ("rights.each_alone", "rights.more_and_more")
"""Scenarios with many requests."""


def started(kind: type[ApacheKafka | BrokerProcess], directory: Path, output: str) -> Iterator[SecuredTarget]:
    """A broker with one listener for the super user and another for users."""
    broker = kind(directory, {**SETTINGS, **SECURITY})
    sasl_address = f"127.0.0.1:{free_port()}"
    with (directory / "server.properties").open("a") as properties:
        properties.write(f"listeners=PLAINTEXT://{broker.address},SASL_PLAINTEXT://{sasl_address}\n")
    broker.start()
    yield SecuredTarget(broker.address, sasl_address, str(directory / "data"), str(directory / output))
    broker.stop()


@pytest.fixture(scope="module")
def secured_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredTarget]:
    yield from started(ApacheKafka, tmp_path_factory.mktemp("secured-kafka"), "server.log")


@pytest.fixture(scope="module")
def secured_odradek(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredTarget]:
    yield from started(BrokerProcess, tmp_path_factory.mktemp("secured-odradek"), "broker.log")


def play(name: str, target: SecuredTarget) -> dict[str, Plain]:
    """Play one scenario; returns its transcript."""
    subject = SecuredSubject(target, name)
    try:
        secured_scenarios()[name](subject)
    finally:
        subject.close()
    return subject.transcript


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name.startswith(MANY) else ()) for name in secured_scenarios()],
)
def test_answers_are_those_of_apache_kafka(
    name: str, secured_kafka: SecuredTarget, secured_odradek: SecuredTarget
) -> None:
    with ThreadPoolExecutor(2) as players:
        theirs, ours = players.map(lambda target: play(name, target), (secured_kafka, secured_odradek))
    assert not (said := report(f"secured.{name}", theirs, ours)), said
