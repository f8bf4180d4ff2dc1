"""The configuration that a broker starts with, and errors that stop it from starting."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from config import broker_keys
from config.broker_config import BrokerConfig
from config.broker_keys import BROKER_KEYS
from config.definitions import ConfigError, ConfigRuleError, Effect, parse_value, value_to_text
from config.listeners import EndPoint
from config.rules import too_old_protocol
from config.topic_config import BROKER_SYNONYMS
from security.authorization import Authorization, authorization, settings_of_tokens
from security.channel_config import client_channel

ROOT = Path(__file__).parents[2]
STORE_KEY = re.compile(r"zookeeper\.ssl\.(keystore|truststore)\.")
"""Keys that are read by their prefix."""
AUTHORIZER = "authorizer.class.name=kafka.security.authorizer.AclAuthorizer"


def load(tmp_path: Path, text: str, **overrides: str) -> BrokerConfig:
    path = tmp_path / "server.properties"
    path.write_text(text)
    return BrokerConfig.load(path, {name.replace("_", "."): value for name, value in overrides.items()})


def test_defaults() -> None:
    config = BrokerConfig({})
    assert config.broker_id == -1
    assert config.num_partitions == 1
    assert config.log_dirs == ("/tmp/kafka-logs",)
    assert config.listeners == (EndPoint(None, 9092, "PLAINTEXT", "PLAINTEXT"),)
    assert config.advertised_listeners == config.listeners
    assert config.inter_broker_listener_name == "PLAINTEXT"
    assert config.log_retention_time_ms == 7 * 24 * 3_600_000
    assert config.log_flush_interval_time_ms == 2**63 - 1


def test_overrides_win(tmp_path: Path) -> None:
    config = load(tmp_path, "num.partitions=3\nbroker.id=7\n", num_partitions="5")
    assert (config.num_partitions, config.broker_id) == (5, 7)


def test_the_sample_is_what_a_user_starts_with() -> None:
    config = BrokerConfig.load(ROOT / "config" / "server.properties")
    assert config.broker_id == 0
    assert [str(listener) for listener in config.listeners] == ["PLAINTEXT://127.0.0.1:9092"]
    assert "zookeeper.connect" not in config.originals
    assert not config.unknown()


def test_every_key_of_the_samples_is_known() -> None:
    # Commented keys too: no one else would find a typo in a sample.
    text = (ROOT / "config" / "server.properties").read_text()
    names = re.findall(r"^#?([a-z]+(?:\.[a-z]+)+)=", text, re.MULTILINE)
    assert len(names) > 15
    assert [name for name in names if name not in BROKER_KEYS] == []


def test_node_id_and_broker_id_are_one() -> None:
    assert BrokerConfig({"node.id": "4"}).broker_id == 4
    assert BrokerConfig({"broker.id": "4"}).originals["node.id"] == "4"
    with pytest.raises(ConfigError, match="same value as"):
        BrokerConfig({"broker.id": "4", "node.id": "5"})


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"log.retention.ms": "5"}, 5),
        ({"log.retention.ms": "-1", "log.retention.hours": "1"}, -1),
        ({"log.retention.minutes": "2", "log.retention.hours": "1"}, 120_000),
        ({"log.retention.hours": "1"}, 3_600_000),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.minutes": "-7"}, -1),
        ({"log.retention.hours": "2147483647"}, 7_730_941_129_200_000),
    ],
)
def test_the_finest_retention_counts(properties: dict[str, str], expected: int) -> None:
    config = BrokerConfig(properties)
    assert config.log_retention_time_ms == expected
    assert config.topic_defaults()["retention.ms"] == expected


def test_topic_defaults_come_from_broker_keys() -> None:
    config = BrokerConfig(
        {
            "log.segment.bytes": "5000",
            "log.roll.hours": "2",
            "log.roll.jitter.ms": "7",
            "log.flush.scheduler.interval.ms": "100",
            "message.max.bytes": "9000",
            "log.cleanup.policy": "compact,delete",
            "log.message.timestamp.difference.max.ms": "60",
            "log.message.timestamp.after.max.ms": "70",
        }
    )
    defaults = config.topic_defaults()
    assert defaults["segment.bytes"] == 5000
    assert defaults["segment.ms"] == 7_200_000
    assert defaults["segment.jitter.ms"] == 7
    assert defaults["flush.ms"] == 100
    assert defaults["max.message.bytes"] == 9000
    assert defaults["cleanup.policy"] == ("compact", "delete")
    assert defaults["message.timestamp.before.max.ms"] == 60
    assert defaults["message.timestamp.after.max.ms"] == 70


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"num.partitions": "0"}, "Invalid value 0 for configuration num.partitions: Value must be at least 1"),
        ({"broker.id": "x"}, "Invalid value x for configuration broker.id: Not a number of type INT"),
        ({"broker.id": "5000"}, "broker.id must be .* not greater than reserved.broker.max.id"),
        ({"broker.id.generation.enable": "false"}, "broker.id must be greater than or equal to 0"),
        *(
            ({key: "0"}, r"log.retention.ms must be unlimited \(-1\) or, greater than or equal to 1")
            for key in ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
        ),
        ({"log.retention.ms": ""}, "Invalid value  for configuration log.retention.ms: Not a number of type LONG"),
        (
            {"log.retention.hours": "9999999999"},
            "for configuration log.retention.hours: Not a number of type INT",
        ),
        ({"log.retention.check.interval.ms": "0"}, "log.retention.check.interval.ms: Value must be at least 1"),
        ({"log.segment.delete.delay.ms": "-1"}, "log.segment.delete.delay.ms: Value must be at least 0"),
        (
            {"log.cleanup.policy": "delete,foo"},
            "foo for configuration log.cleanup.policy: String must be one of",
        ),
        (
            {"log.message.timestamp.before.max.ms": "-1"},
            "log.message.timestamp.before.max.ms: Value must be at least 0",
        ),
        ({"compression.gzip.level": "10"}, "compression.gzip.level: Value must be between 1 and 9 or equal to -1"),
        ({"log.roll.ms": "0"}, "log.roll.ms must be greater than or equal to 1"),
        ({"log.roll.jitter.ms": "-1"}, "log.roll.jitter.ms must be greater than or equal to 0"),
        ({"log.dirs": " , "}, "At least one log directory must be defined"),
        ({"queued.max.request.bytes": "100"}, "queued.max.request.bytes must be larger"),
        ({"max.connections.per.ip": "0"}, "max.connections.per.ip can be set to zero only if"),
        ({"max.connections.per.ip.overrides": "x"}, "x must be a host and a number of connections"),
        ({"offsets.commit.required.acks": "4"}, "offsets.commit.required.acks must be"),
        ({"connections.max.idle.ms": "50"}, "connection.failed.authentication.delay.ms=100 should always be less"),
        ({"log.cleaner.dedupe.buffer.size": "100"}, "must be at least 1MB per cleaner thread"),
        ({"log.cleaner.threads": "0"}, "log.cleaner.threads must be at least 1"),
        ({"replica.fetch.wait.max.ms": "40000"}, "replica.socket.timeout.ms should always be at least"),
        ({"group.max.session.timeout.ms": "5"}, "group.max.session.timeout.ms must be greater"),
        ({"log.validate.records": "some"}, "String must be one of: header, deep"),
        ({"metrics.listener": "nowhere"}, "must be host:port"),
    ],
)
def test_bad_values_name_key_and_what_is_allowed(properties: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        BrokerConfig(properties)
    assert caught.value.name in BROKER_KEYS


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ("listeners=PLAINTEXT://:9092", ["PLAINTEXT://:9092"]),
        ("listeners=PLAINTEXT://[::1]:9092", ["PLAINTEXT://[::1]:9092"]),
        ("listeners=plaintext://localhost:0", ["PLAINTEXT://localhost:0"]),
        (
            "listeners=A://:1, B://[::1]:2\nlistener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT\n\
inter.broker.listener.name=A",
            ["A://:1", "B://[::1]:2"],
        ),
    ],
)
def test_listeners(tmp_path: Path, properties: str, expected: list[str]) -> None:
    assert [str(each) for each in load(tmp_path, properties).listeners] == expected


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"listeners": "localhost:9092"}, "must look like NAME://host:port"),
        ({"listeners": "PLAINTEXT://localhost"}, "must look like NAME://host:port"),
        ({"listeners": "PLAINTEXT://localhost:70000"}, "must be between 0 and 65535"),
        ({"listeners": ""}, "There must be at least one listener"),
        ({"listeners": "PLAINTEXT://:1,PLAINTEXT://:2"}, "Each listener must have a different name"),
        ({"listeners": "PLAINTEXT://:1,SSL://:1"}, "Each listener must have a different port"),
        ({"listeners": "INSIDE://:1"}, "No security protocol defined for listener INSIDE"),
        ({"listeners": "PLAINTEXT://0.0.0.0:9092"}, "nonroutable meta-address 0.0.0.0"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"}, "nonroutable meta-address 0.0.0.0"),
        ({"advertised.listeners": "SSL://host:9092"}, "must be equal to or a subset of the ones defined in listeners"),
        ({"advertised.listeners": ""}, "There must be at least one advertised listener"),
        ({"inter.broker.listener.name": "OTHER"}, "must be a listener name defined in advertised.listeners"),
        (
            {"inter.broker.listener.name": "PLAINTEXT", "security.inter.broker.protocol": "PLAINTEXT"},
            "Only one of inter.broker.listener.name and security.inter.broker.protocol",
        ),
        ({"listener.security.protocol.map": "PLAINTEXT"}, "NAME:PROTOCOL"),
        ({"listener.security.protocol.map": "PLAINTEXT:TELEPATHY"}, "No security protocol TELEPATHY"),
        ({"listener.security.protocol.map": "A:SSL,A:SSL"}, "Listener A is listed twice"),
    ],
)
def test_bad_listeners(properties: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BrokerConfig(properties)


def test_listeners_of_a_container(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        "listeners=INSIDE://0.0.0.0:9092,OUTSIDE://0.0.0.0:9094\n"
        "advertised.listeners=INSIDE://broker:9092,OUTSIDE://localhost:9094\n"
        "listener.security.protocol.map=INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT\n"
        "inter.broker.listener.name=INSIDE\n",
    )
    assert [each.host for each in config.listeners] == ["0.0.0.0", "0.0.0.0"]
    assert [each.host for each in config.advertised_listeners] == ["broker", "localhost"]
    assert config.inter_broker_listener_name == "INSIDE"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "authorizer.class.name: Java classes cannot be loaded; there is kafka.security.authorizer.AclAuthorizer",
        ),
        ("super.users=User:admin", "super.users=User:admin is for an authorizer, and there is none"),
        ("allow.everyone.if.no.acl.found=false", "for an authorizer, and there is none"),
        (f"{AUTHORIZER}\nsuper.users=admin", "Invalid value admin for configuration super.users: expected a string"),
        (f"{AUTHORIZER}\nsuper.users=User:a;;User:b", "expected a string in format principalType:principalName"),
        (f"{AUTHORIZER}\nallow.everyone.if.no.acl.found=yes", "allow.everyone.if.no.acl.found"),
        (f"{AUTHORIZER}\nauthorizer.zookeeper.url=other:2181", "ACLs are kept where zookeeper.connect says"),
        ("process.roles=broker", "only a single node with both roles is read"),
        ("controller.quorum.voters=1@localhost:9093", "KRaft is not implemented"),
        ("remote.log.storage.system.enable=true", "remote storage is not implemented"),
        ("create.topic.policy.class.name=a.B", "policies are not implemented"),
        ("alter.config.policy.class.name=a.B", "policies are not implemented"),
        ("zookeeper.set.acl=true", "set.acl needs zookeeper.connect"),
        ("zookeeper.ssl.client.enable=true", "needs org.apache.zookeeper.ClientCnxnSocketNetty"),
        ("sasl.jaas.config=x", "name the listener and the mechanism"),
        ("sasl.kerberos.kinit.cmd=/opt/kinit", "the Kerberos library gets new tickets from the keytab in time"),
        ("listener.name.outside.ssl.keystore.location=/etc/keys", "it is of no listener with TLS"),
        ("listener.name.outside.plain.sasl.jaas.config=x", "it is of no listener with SASL"),
        ("password.encoder.old.secret=x", "does not re-encode passwords"),
        ("delegation.token.max.lifetime.ms=0", "delegation.token.max.lifetime.ms: Value must be at least 1"),
        ("principal.builder.class=a.B", "Java classes cannot be loaded"),
        ("listener.name.outside.principal.builder.class=a.B", "Java classes cannot be loaded"),
        ("client.quota.callback.class=a.B", "Java classes cannot be loaded"),
        ("listeners=PLAINTEXT://:9092,SASL_SSL://:9093", "listener.name.sasl_ssl.gssapi.sasl.jaas.config"),
        (
            "listeners=OUT://:9092\nlistener.security.protocol.map=OUT:SASL_PLAINTEXT\ninter.broker.listener.name=OUT",
            "listener.name.out.gssapi.sasl.jaas.config: it must look like com.sun.security",
        ),
    ],
)
def test_no_open_broker_by_surprise(tmp_path: Path, line: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        load(tmp_path, line)


def test_super_users(tmp_path: Path) -> None:
    config = load(tmp_path, f"{AUTHORIZER}\nsuper.users=User:a; User:b:c ;\n")
    assert authorization(config.originals) == Authorization(frozenset({"User:a", "User:b:c"}), False)
    assert config.unknown() == config.without_effect() == []
    assert authorization(load(tmp_path, "").originals) is None


def test_secrets_are_not_repeated_in_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "password.encoder.old.secret=do-not-show")
    assert "do-not-show" not in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        "ssl.client.auth=none",
        "process.roles=",
        "authorizer.class.name=",
        "zookeeper.connection.timeout.ms=18000",
        "security.inter.broker.protocol=PLAINTEXT",
        "remote.log.storage.system.enable=false",
    ],
)
def test_defaults_written_out_are_no_promise(tmp_path: Path, line: str) -> None:
    load(tmp_path, line)


def test_unknown_keys_are_told_apart_from_those_without_effect(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        "no.such.key=1\nnum.network.threads=3\nlog.retention.hours=5\nlog.preallocate=true\n"
        "listener.name.plaintext.no.such=1\nlistener.name.plaintext.max.connections=5\n",
    )
    assert config.unknown() == ["no.such.key", "listener.name.plaintext.no.such"]
    assert config.without_effect() == ["num.network.threads", "log.preallocate"]
    assert config.max_connections_per_listener == {"PLAINTEXT": 5}
    assert BrokerConfig({"listener.name.other.max.connections": "5"}).without_effect()
    with pytest.raises(ConfigError, match=r"listener\.name\.plaintext\.max\.connections: Value must be at least 0"):
        BrokerConfig({"listener.name.plaintext.max.connections": "-1"})


def test_dynamic_overrides_make_a_new_configuration() -> None:
    static = BrokerConfig({"num.partitions": "2"})
    changed = static.with_dynamic({"max.connections": "5"})
    assert (static.max_connections, changed.max_connections) == (2**31 - 1, 5)
    assert changed.num_partitions == 2
    with pytest.raises(ConfigRuleError):
        static.with_dynamic({"log.retention.ms": "0"})


def test_a_default_has_the_type_of_its_key() -> None:
    for key in BROKER_KEYS.values():
        text = value_to_text(key.default)
        assert parse_value(key.name, key.type, text) == key.default, key.name


def test_what_has_an_effect_is_read_somewhere() -> None:
    """A key that is never read would mislead the operator into thinking it has an effect."""
    code = "\n".join(
        path.read_text()
        for package in ("broker", "cluster", "zookeeper", "storage", "environment", "config", "security")
        for path in sorted((ROOT / package).rglob("*.py"))
        if not path.name.startswith("keys_") and path.name != "topic_config.py"
    )
    used = set(re.findall(r'"([a-z.A-Z]+)"', code)) | {name for names in BROKER_SYNONYMS.values() for name in names}
    attributes = set(re.findall(r"\.([a-z_]+)", code))
    unread = [
        key.name
        for key in BROKER_KEYS.values()
        if key.effect is Effect.ALWAYS and key.refusal is None and key.name not in used
        if key.name.replace(".", "_") not in attributes and not STORE_KEY.match(key.name)
    ]
    assert not unread, " ".join(unread)


def test_importing_the_package_is_quick() -> None:
    modules = "import sys; import config.broker_config; print(sorted({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", modules], cwd=ROOT, capture_output=True, text=True, check=True)
    # Instead of a timed test: slow modules must not be loaded.
    for heavy in ("asyncio", "logging", "dataclasses", "inspect", "json", "ssl", "socket"):
        assert f"'{heavy}'" not in done.stdout, heavy


@pytest.mark.parametrize("version", ["3.8-IV0", "3.8", "2.8.1", "0.11.0-IV2", "0.8.2"])
def test_brokers_speak_what_release_3_9_speaks(version: str) -> None:
    """An older broker in the cluster would not understand this one. Alone, it has no older peers."""
    key = "inter.broker.protocol.version"
    said = too_old_protocol(BrokerConfig({key: version, "zookeeper.connect": "zk:2181"}).values)
    assert str(said).startswith(f"{key}={version} is older than what this broker speaks with others, 3.9")
    assert too_old_protocol(BrokerConfig({key: version}).values) is None
    for spoken in ("3.9", "3.9-IV0", "4.0-IV0"):
        assert too_old_protocol(BrokerConfig({key: spoken, "zookeeper.connect": "zk:2181"}).values) is None
        assert BrokerConfig({key: spoken, "zookeeper.connect": "zk:2181"}).without_effect() == []


def test_configurations_of_one_text_are_equal() -> None:
    """All parts must be equal: a comparison after a change may only find the change."""
    handler = "org.apache.kafka.common.security.oauthbearer.OAuthBearer"
    login_modules = {
        "plain": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'user_a="b" username="a" password="b"',
        "gssapi": "com.sun.security.auth.module.Krb5LoginModule required "
        'useKeyTab=true storeKey=true keyTab="/k" principal="kafka/host@R"',
    }
    properties = {
        "broker.id": "0",
        "listeners": "A://:9092,B://:9093,C://:9094",
        "listener.security.protocol.map": "A:SSL,B:SASL_SSL,C:SASL_PLAINTEXT",
        "inter.broker.listener.name": "B",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.enabled.mechanisms": "PLAIN,GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.principal.to.local.rules": "RULE:[1:$1](a.*)s/a/b/g/L,DEFAULT",
        **{f"listener.name.b.{name}.sasl.jaas.config": f"{text};" for name, text in login_modules.items()},
        "listener.name.c.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.c.oauthbearer.sasl.server.callback.handler.class": f"{handler}ValidatorCallbackHandler",
        "sasl.oauthbearer.jwks.endpoint.url": "https://issuer.example/keys",
        "org.apache.kafka.sasl.oauthbearer.allowed.urls": "https://issuer.example/keys",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": "/key.pem",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/trusted.pem",
        "ssl.principal.mapping.rules": "RULE:^CN=(.*?),.*$/$1/L,DEFAULT",
        "zookeeper.connect": "a:1,b:2/c",
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
        "zookeeper.ssl.truststore.location": "/trusted.pem",
        "zookeeper.ssl.truststore.type": "PEM",
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:a",
        "delegation.token.secret.key": "secret",
        "max.connections.per.ip.overrides": "127.0.0.1:5",
    }
    one, other = BrokerConfig.of(properties), BrokerConfig.of(dict(properties))
    assert set(one.ssl) == {"A", "B"}
    assert set(one.sasl) == {"B", "C"}
    assert {name: each for name, each in vars(one).items() if vars(other)[name] != each} == {}
    assert authorization(one.originals) == authorization(other.originals)
    assert settings_of_tokens(one.values) == settings_of_tokens(other.values)
    channels = [
        client_channel("SASL_SSL", {"sasl.mechanism": "PLAIN", "sasl.jaas.config": f"{login_modules['plain']};"})
        for _ in range(2)
    ]
    assert channels[0] == channels[1]


KEPT = {
    "num.network.threads": "Kafka's rule about its changes holds (broker/metadata/reconfiguration.py)",
    "background.threads": "the same",
    "log.local.retention.ms": "the same",
    "log.local.retention.bytes": "the same",
    "metadata.log.dir": "a directory of Apache's KRaft there is refused",
    "log.preallocate": "LogConfig has it and says why nobody acts on it",
}
"""Keys without effect that code other than their declaration names anyway."""


def test_no_code_acts_on_a_key_that_is_listed_without_effect() -> None:
    declarations = {"broker_config.py", "topic_config.py", "broker_keys.py", "vocabulary.py", "rules.py", "kraft.py"}
    texts = [
        path.read_text(encoding="utf-8")
        for package in ("broker", "cluster", "zookeeper", "storage", "environment", "config", "security")
        for path in Path(ROOT, package).rglob("*.py")
        if not path.name.startswith("keys_") and path.name not in declarations
    ]
    named = set(re.findall(r"[a-z][a-z0-9_.]*", "\n".join(texts)))
    topic_keys = {name: key for key, names in BROKER_SYNONYMS.items() for name in names}
    listed, _ = BrokerConfig.examine({name: value_to_text(each.default) or "" for name, each in BROKER_KEYS.items()})
    security = ("ssl.", "sasl.", "connections.max.reauth", "password.encoder.", "delegation.token.", "process.roles")
    for name in listed.without_effect():
        if name not in KEPT and not name.startswith(security) and BROKER_KEYS[name].refusal is None:
            assert not named & {name, topic_keys.get(name, name)}, name


def test_keys_of_a_listener_have_an_effect_where_they_are_read() -> None:
    limits = {"max.connections", "max.connection.creation.rate"}
    for name, each in BROKER_KEYS.items():
        if not name.startswith(("ssl.", "sasl.", "connections.max.reauth")):
            key = f"listener.name.plaintext.{name}"
            config = BrokerConfig({key: value_to_text(each.default) or ""})
            assert config.without_effect() == ([] if name in limits else [key])
    config = BrokerConfig({f"listener.name.plaintext.{name}": "7" for name in limits})
    assert config.max_connections_per_listener == {"PLAINTEXT": 7}
    assert config.max_connection_creation_rate_per_listener == {"PLAINTEXT": 7}


def test_code_acts_on_every_key_that_only_kafka_configs_sets() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in Path(ROOT, "broker").rglob("*.py"))
    names = {value: name for name, value in vars(broker_keys).items() if isinstance(value, str)}
    assert {key for key in broker_keys.DYNAMIC_BROKER_KEYS if names[key] not in code} == set()
