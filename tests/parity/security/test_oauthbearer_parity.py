"""Every scenario of OAUTHBEARER, played to Apache Kafka and to this broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kit.apache_kafka import ApacheKafka
from tests.kit.broker_process import BrokerProcess
from tests.kit.security.identity_provider import AUDIENCE, ISSUER
from tests.parity.known_differences import report
from tests.parity.security.oauthbearer import elliptic_key, signing_key
from tests.parity.security.subject import SaslTarget, play_sasl, sasl_scenarios
from tests.parity.security.test_sasl_parity import new_target

pytestmark = pytest.mark.java

PACKAGE = "org.apache.kafka.common.security.oauthbearer."


def settings(target: SaslTarget, keys: Path) -> dict[str, str]:
    """SASL accepts signed tokens, SHORT unsigned ones."""
    listeners = {"PLAINTEXT": target.address, "SASL": target.sasl_address, "SHORT": target.short_address}
    keys.write_text(json.dumps({"keys": [signing_key().jwk(), elliptic_key().jwk()]}))
    login = 'unsecuredLoginStringClaim_sub="broker"'
    handler = "oauthbearer.sasl.server.callback.handler.class"
    return {
        "listeners": ",".join(f"{name}://{address}" for name, address in listeners.items()),
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,SHORT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        f"listener.name.sasl.{handler}": f"{PACKAGE}OAuthBearerValidatorCallbackHandler",
        f"listener.name.short.{handler}": f"{PACKAGE}internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler",
        "listener.name.sasl.oauthbearer.sasl.jaas.config": f"{PACKAGE}OAuthBearerLoginModule required {login};",
        "listener.name.short.oauthbearer.sasl.jaas.config": (
            f'{PACKAGE}OAuthBearerLoginModule required {login} unsecuredValidatorRequiredScope="kafka";'
        ),
        "sasl.oauthbearer.jwks.endpoint.url": f"file:{keys}",
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
    }


@pytest.fixture(scope="module")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslTarget]:
    """Apache Kafka, running."""
    target, directory = new_target(), tmp_path_factory.mktemp("apache-kafka")
    kafka = ApacheKafka(directory, settings(target, directory / "keys.json"), address=target.address)
    kafka.start()
    yield target
    kafka.stop()


@pytest.fixture(scope="module")
def odradek(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslTarget]:
    """This broker, running."""
    target, directory = new_target(), tmp_path_factory.mktemp("odradek")
    broker = BrokerProcess(directory, settings(target, directory / "keys.json"))
    broker.address = target.address
    broker.start()
    yield target
    assert broker.stop() == 0
    assert "Traceback" not in broker.output.read_text()


@pytest.mark.parametrize("name", list(sasl_scenarios(of_oauthbearer=True)))
def test_answers_are_those_of_apache_kafka(name: str, apache_kafka: SaslTarget, odradek: SaslTarget) -> None:
    with ThreadPoolExecutor(2) as players:
        theirs, ours = (players.submit(play_sasl, name, target) for target in (apache_kafka, odradek))
        assert not (said := report(name, theirs.result(), ours.result())), said
