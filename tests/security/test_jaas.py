"""The JAAS file that KAFKA_OPTS names."""

from __future__ import annotations

import pytest

from config.broker_config import BrokerConfig
from config.definitions import ConfigError
from config.environment_variables import with_jaas_file
from security.jaas import MODULES, DigestLogin, system_properties, zookeeper_login
from security.sasl_config import Login

MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"
TEXT = f"""
/* Brokers; */ // and clients
KafkaServer {{ org.apache.kafka.common.security.plain.PlainLoginModule required username="a" user_a="}};"; }};
Client {{  # ZooKeeper
  {MODULE} required
    username=kafka
    password="a \\"secret\\"; of }} signs";
}};
Bad {{ com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true; }};
Nameless {{ {MODULE} required password="hidden"; }};
"""


def login(text: str = TEXT, **properties: str) -> DigestLogin | None:
    given = {f"zookeeper.sasl.{name}": value for name, value in properties.items()}
    return zookeeper_login({"java.security.auth.login.config": "/jaas.conf", **given}, lambda _path: text)


def test_the_user_of_the_section() -> None:
    assert login() == DigestLogin("kafka", 'a "secret"; of } signs')
    plain = f'Client {{ {MODULES["PLAIN"]} required username="kafka" password="x"; }};'
    assert login(plain) == DigestLogin("kafka", "x")
    assert login(clientconfig="Other") is None
    assert login("") is None
    assert zookeeper_login({}, lambda _path: TEXT) is None


def test_kafka_opts() -> None:
    text = "-Xmx1G -Djava.security.auth.login.config='/a b.conf' -Dzookeeper.sasl.clientconfig=Z -Dempty"
    assert system_properties(text) == {
        "java.security.auth.login.config": "/a b.conf",
        "zookeeper.sasl.clientconfig": "Z",
        "empty": "",
    }


def test_kafka_opts_that_are_not_whole() -> None:
    with pytest.raises(ConfigError, match="KAFKA_OPTS: a quotation mark is missing"):
        system_properties('-Dname="value')


@pytest.mark.parametrize(
    ("text", "properties", "complaint"),
    [
        (TEXT, {"client": "false"}, "Invalid value false for configuration zookeeper.sasl.client: .*section Client"),
        (TEXT, {"clientconfig": "Bad"}, 'useKeyTab=true needs keyTab="/a/file" and principal='),
        ("Client { a.B required; };", {}, f"/jaas.conf for .*: the section Client needs the one module {MODULE} or "),
        (TEXT, {"clientconfig": "Nameless"}, "the section Nameless needs username and password"),
        ("Client { a.B required", {}, "a ; is missing"),
        ('Client { a.B required password "hidden"; };', {}, "a = is missing"),
        ("Client", {}, "a { is missing"),
        ('Client { a.B required password="hidden', {}, "a quotation mark is missing"),
    ],
)
def test_what_is_wrong_with_it(text: str, properties: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        login(text, **properties)
    assert "hidden" not in str(caught.value).replace("Invalid value [hidden] for", "")


def test_a_file_that_is_not_there() -> None:
    def read(path: str) -> str:
        raise FileNotFoundError(2, "No such file or directory", path)

    with pytest.raises(ConfigError, match=r"/jaas\.conf for .*login\.config: No such file or directory"):
        zookeeper_login({"java.security.auth.login.config": "/jaas.conf"}, read)


PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
SERVERS = f"""
KafkaServer {{ {SCRAM} required username="broker" password="b\\"\\\\"; {PLAIN} required user_a="one"; }};
out.KafkaServer {{ {PLAIN} required user_a="two"; }};
"""


def test_the_login_modules_of_a_broker() -> None:
    listeners = {
        "broker.id": "0",
        "listeners": "PLAINTEXT://:9092,OUT://:9093,IN://:9094",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OUT:SASL_PLAINTEXT,IN:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN, SCRAM-SHA-512",
        "listener.name.out.sasl.enabled.mechanisms": "PLAIN",
        "inter.broker.listener.name": "IN",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
        "zookeeper.connect": "localhost:1",
    }
    options = "-Djava.security.auth.login.config=/jaas.conf"
    config = BrokerConfig.of(with_jaas_file(listeners, options, lambda _path: SERVERS))
    assert (config.sasl["OUT"].plain_users, config.sasl["IN"].plain_users) == ({"a": "two"}, {"a": "one"})
    assert config.inter_broker_channel is not None
    assert config.inter_broker_channel.login == Login("SCRAM-SHA-512", "broker", 'b"\\')
    own = {**listeners, "listener.name.out.plain.sasl.jaas.config": f'{PLAIN} required user_a="three";'}
    config = BrokerConfig.of(with_jaas_file(own, options, lambda _path: SERVERS))
    assert config.sasl["OUT"].plain_users == {"a": "three"}
    with pytest.raises(ConfigError, match=r"plain\.sasl\.jaas\.config: it must look like"):
        BrokerConfig.of(with_jaas_file(listeners, options, lambda _path: "Client {};"))
