"""The verdict on every key of a file, and a refused start that lists all reasons at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.broker_config import ELSEWHERE_KEYS, BrokerConfig
from config.broker_keys import BROKER_KEYS
from config.definitions import ConfigError, ConfigErrors
from config.properties import load_properties
from config.review import KeyReview, Verdict, review, suggestion

ZOOKEEPER_FILE = """\
broker.id=1
listeners=SASL_SSL://0.0.0.0:9093,PLAINTEXT://0.0.0.0:9092
advertised.listeners=SASL_SSL://kafka1.example.org:9093,PLAINTEXT://kafka1.example.org:9092
security.inter.broker.protocol=SASL_SSL
num.network.threads=3
num.io.threads=8
log.dirs=/var/lib/kafka
num.partitions=3
default.replication.factor=3
min.insync.replicas=2
log.retention.hours=168
zookeeper.connect=zk1:2181,zk2:2181/kafka
zookeeper.connection.timeout.ms=18000
authorizer.class.name=kafka.security.authorizer.AclAuthorizer
super.users=User:admin
allow.everyone.if.no.acl.found=false
authorizer.zookeeper.url=other:2181
principal.builder.class=org.example.Builder
sasl.enabled.mechanisms=SCRAM-SHA-512
sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="kafka" password="secret-jaas";
ssl.keystore.location=/etc/kafka/keystore.jks
ssl.keystore.password=secret-keystore
ssl.truststore.location=/etc/kafka/truststore.jks
quota.producer.default=1048576
leader.replication.throttled.rate=1000000
retention.ms=1000
log.retention.minuets=5
group.max.size=none
"""  # noqa: E501
REFUSED = {
    "authorizer.zookeeper.url",
    "principal.builder.class",
}


def findings() -> dict[str, KeyReview]:
    return {each.key: each for each in review(load_properties(ZOOKEEPER_FILE.encode()))}


def test_every_key_has_one_verdict() -> None:
    found = findings()
    assert list(found) == [line.partition("=")[0] for line in ZOOKEEPER_FILE.splitlines()]
    by_verdict = {verdict: {key for key, each in found.items() if each.verdict is verdict} for verdict in Verdict}
    assert by_verdict[Verdict.REFUSED] == REFUSED
    assert by_verdict[Verdict.BAD] == {"group.max.size"}
    assert by_verdict[Verdict.UNKNOWN] == {"retention.ms", "log.retention.minuets"}
    assert {"num.network.threads", "quota.producer.default"} < by_verdict[Verdict.WITHOUT_EFFECT]
    assert {
        "broker.id",
        "log.dirs",
        "log.retention.hours",
        "zookeeper.connect",
        "zookeeper.connection.timeout.ms",
        "security.inter.broker.protocol",
        "sasl.mechanism.inter.broker.protocol",
    } < by_verdict[Verdict.SUPPORTED]


def test_notes_say_what_to_do() -> None:
    found = findings()
    assert found["retention.ms"].note == "a topic's key; the broker's default for it is log.retention.ms"
    assert found["log.retention.minuets"].note == "did you mean log.retention.minutes?"
    assert "kafka-configs --entity-type brokers" in found["leader.replication.throttled.rate"].note
    assert suggestion("something.else.entirely") == ""


def test_secrets_are_hidden_and_nothing_else() -> None:
    found = findings()
    hidden = {key for key, each in found.items() if each.value == "[hidden]"}
    assert hidden == {"ssl.keystore.password", "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config"}
    assert found["super.users"].value == "User:admin"


def test_a_file_is_refused_for_all_reasons_at_once(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(ZOOKEEPER_FILE)
    with pytest.raises(ConfigErrors) as caught:
        BrokerConfig.load(path)
    message = str(caught.value)
    for key in REFUSED | {"group.max.size"}:
        assert message.count(f"{key}=") + message.count(f"configuration {key}:") == 1, key
    assert message.startswith(f"{len(REFUSED) + 1} settings cannot be used:\n")
    assert "authorizer.zookeeper.url=other:2181 is not supported" in message
    assert "secret-" not in message


def test_a_quorum_of_several_nodes_comes_first_and_once() -> None:
    with pytest.raises(ConfigErrors) as caught:
        BrokerConfig.of(KRAFT | {"num.partitions": "0", "controller.quorum.voters": "1@a:9093,2@b:9093"})
    first, *others = str(caught.value).splitlines()[1:]
    assert first.startswith(
        "  Configuration controller.quorum.voters=1@a:9093,2@b:9093 is not supported: only a single"
    )
    assert "zookeeper.connect" in first
    assert "KRaft is not implemented" not in "".join(others)


def test_a_rule_about_several_keys_is_a_finding() -> None:
    (bad,) = (each for each in review({"broker.id": "1", "node.id": "2"}) if each.verdict is Verdict.BAD)
    assert bad.key == "node.id"
    assert "same value as" in bad.note
    (unset,) = (each for each in review({"log.retention.hours": "0"}) if each.verdict is Verdict.BAD)
    assert (unset.key, unset.value) == ("log.retention.ms", "(not set)")


def test_one_reason_stays_one_line(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("num.partitions=0\n")
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.load(path)
    assert str(caught.value) == "Invalid value 0 for configuration num.partitions: Value must be at least 1"


def test_keys_that_belong_elsewhere_are_neither_declared_nor_unknown() -> None:
    assert not set(ELSEWHERE_KEYS) & set(BROKER_KEYS)
    config = BrokerConfig(dict.fromkeys(ELSEWHERE_KEYS, "1"))
    assert config.unknown() == []
    assert config.without_effect() == list(ELSEWHERE_KEYS)


def test_one_mistake_is_one_error() -> None:
    for key, text in (
        ("security.inter.broker.protocol", "TELEPATHY"),
        ("log.cleaner.threads", "0"),
        ("max.connections.per.ip.overrides", "x"),
        ("inter.broker.listener.name", ""),
    ):
        _, errors = BrokerConfig.examine({key: text})
        assert [error.name for error in errors] == [key]


KRAFT = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.voters": "1@localhost:9093",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "inter.broker.listener.name": "PLAINTEXT",
    "advertised.listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL",
    "listener.name.controller.ssl.client.auth": "required",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "metadata.log.dir": "/metadata",
}
"""The settings of Kafka's own config/kraft/server.properties, and some that people add."""


def test_a_single_kraft_node_is_a_broker_alone() -> None:
    config = BrokerConfig.of(KRAFT)
    assert [str(each) for each in config.listeners] == ["PLAINTEXT://:9092"]
    assert [str(each) for each in config.advertised_listeners] == ["PLAINTEXT://localhost:9092"]
    assert config.broker_id == 1
    assert config.values["authorizer.class.name"] == "kafka.security.authorizer.AclAuthorizer"
    assert config.single_node is not None
    assert "controller listeners that are not opened: CONTROLLER" in str(config.single_node)
    verdicts = {each.verdict for each in review(KRAFT)}
    assert verdicts == {Verdict.SUPPORTED, Verdict.WITHOUT_EFFECT}
    # Kafka 4's file replaces the voters by this, and advertises all listeners by default.
    newest = {
        key: text for key, text in KRAFT.items() if key not in {"controller.quorum.voters", "advertised.listeners"}
    }
    config = BrokerConfig.of(newest | {"controller.quorum.bootstrap.servers": "localhost:9093"})
    assert [str(each) for each in config.advertised_listeners] == ["PLAINTEXT://:9092"]


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"process.roles": "broker"}, "process.roles"),
        ({"process.roles": "controller"}, "process.roles"),
        ({"controller.quorum.bootstrap.servers": "a:9093,b:9093"}, "controller.quorum.bootstrap.servers"),
        ({"controller.quorum.voters": "2@localhost:9093"}, "controller.quorum.voters"),
        ({"zookeeper.connect": "localhost:2181"}, "zookeeper.connect"),
    ],
)
def test_a_node_of_a_quorum_is_refused(change: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.of(KRAFT | change)
    assert caught.value.name == key


def test_the_metadata_directory_of_kraft_has_no_effect_and_stops_nothing() -> None:
    assert BrokerConfig.of({"metadata.log.dir": "/metadata"}).without_effect() == ["metadata.log.dir"]
