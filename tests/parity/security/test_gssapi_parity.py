"""Every scenario of GSSAPI, played to Apache Kafka and to this broker, in one realm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.apache_kafka import ApacheKafka
from tests.kit.broker_process import BrokerProcess, free_port
from tests.kit.security.kerberos import Realm, module, realm_of_this_process
from tests.parity.known_differences import report
from tests.parity.security.gssapi import GssapiSubject, gssapi_scenarios
from tests.parity.security.subject import SaslTarget
from tests.parity.subject import played

pytestmark = pytest.mark.java


def settings(target: SaslTarget, realm: Realm) -> dict[str, str]:
    listeners = {"PLAINTEXT": target.address, "SASL": target.sasl_address, "SHORT": target.short_address}
    jaas = module(realm.keytab("kafka/localhost"), "kafka/localhost")
    return {
        "listeners": ",".join(f"{name}://{address}" for name, address in listeners.items()),
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,SHORT:SASL_PLAINTEXT",
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.principal.to.local.rules": "RULE:[1:$1](Dave)s/.*/alice/,RULE:[2:$1](alice),RULE:[1:$1]",
        "listener.name.sasl.gssapi.sasl.jaas.config": jaas,
        "listener.name.short.gssapi.sasl.jaas.config": jaas,
        "listener.name.short.gssapi.connections.max.reauth.ms": "60000",
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS;User:alice",
    }


def new_target() -> SaslTarget:
    return SaslTarget(*(f"127.0.0.1:{free_port()}" for _ in range(3)))


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    """A realm with all services."""
    with realm_of_this_process(tmp_path_factory.mktemp("realm")) as made:
        made.keytab("http/localhost")
        yield made


@pytest.fixture(scope="module")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory, realm: Realm) -> Iterator[SaslTarget]:
    """Apache Kafka, running."""
    target = new_target()
    kafka = ApacheKafka(tmp_path_factory.mktemp("apache-kafka"), settings(target, realm), address=target.address)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.security.krb5.conf={realm.config}")
        kafka.start()
    yield target
    kafka.stop()


@pytest.fixture(scope="module")
def odradek(tmp_path_factory: pytest.TempPathFactory, realm: Realm) -> Iterator[SaslTarget]:
    """This broker, running."""
    target = new_target()
    broker = BrokerProcess(tmp_path_factory.mktemp("odradek"), settings(target, realm))
    broker.address = target.address
    broker.start()
    yield target
    assert broker.stop() == 0
    assert "Traceback" not in broker.output.read_text()


@pytest.mark.parametrize("name", gssapi_scenarios())
def test_answers_are_those_of_apache_kafka(
    name: str, apache_kafka: SaslTarget, odradek: SaslTarget, realm: Realm
) -> None:
    scenario = gssapi_scenarios()[name]
    theirs, ours = (played(GssapiSubject(each, name, realm), scenario) for each in (apache_kafka, odradek))
    assert not (said := report(name, theirs, ours)), said
