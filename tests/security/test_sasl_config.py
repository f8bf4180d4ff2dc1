"""SASL of a listener: effective keys, and errors that stop the start."""

from __future__ import annotations

import pytest

from config.broker_config import BrokerConfig
from config.definitions import ConfigError
from security.jaas import MODULES
from security.sasl_config import Login, SaslConfig, login_of

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
JAAS = "listener.name.out.plain.sasl.jaas.config"
BASE = {
    "broker.id": "0",
    "listeners": "PLAINTEXT://:9092,OUT://:9093",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OUT:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    JAAS: f'{PLAIN} required\n username="broker" password="hidden" user_broker="hidden"\n user_alice="a \\"b\\"";',
}

BETWEEN = {
    "inter.broker.listener.name": "OUT",
    "zookeeper.connect": "localhost:1",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
}


def sasl_of(overrides: dict[str, str]) -> SaslConfig:
    return BrokerConfig.of({**BASE, **overrides}).sasl["OUT"]


def test_the_keys_of_listener_and_mechanism_go_first() -> None:
    config = sasl_of({})
    assert config.mechanisms == ("PLAIN", "SCRAM-SHA-512")
    assert config.plain_users == {"broker": "hidden", "alice": 'a "b"'}
    assert config.max_reauth_ms == {"PLAIN": 0, "SCRAM-SHA-512": 0}
    assert config.max_receive_bytes == 524_288
    times = {
        "connections.max.reauth.ms": "1",
        "listener.name.out.connections.max.reauth.ms": "2",
        "listener.name.out.scram-sha-512.connections.max.reauth.ms": "3",
        "listener.name.out.sasl.server.max.receive.size": "1000",
    }
    assert sasl_of(times).max_reauth_ms == {"PLAIN": 2, "SCRAM-SHA-512": 3}
    assert sasl_of(times).max_receive_bytes == 1000
    scram = {"listener.name.out.sasl.enabled.mechanisms": "SCRAM-SHA-256", JAAS: f'{PLAIN} required user_a="b";'}
    with pytest.raises(ConfigError, match="plain is not a mechanism of the listener; allowed: scram-sha-256"):
        sasl_of(scram)


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (
            {"sasl.enabled.mechanisms": "DIGEST"},
            "listener OUT needs some of: GSSAPI, OAUTHBEARER, PLAIN, SCRAM-SHA-256, SCRAM-SHA-512",
        ),
        (
            {"sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER"},
            r"oauthbearer\.sasl\.server\.callback\.handler\.class: it must be",
        ),
        ({"sasl.enabled.mechanisms": "plain"}, "listener OUT needs some of"),
        ({"sasl.enabled.mechanisms": ""}, "listener OUT needs some of"),
        ({JAAS: ""}, "it must look like CLASS required NAME=VALUE;"),
        ({JAAS: f"{PLAIN} required;"}, "it must have users"),
        ({JAAS: f'{PLAIN} required user_a="";'}, "the user 'a' needs a name and a password"),
        ({JAAS: f'{PLAIN} required user_="hidden";'}, "the user '' needs a name and a password"),
        ({JAAS: f'{PLAIN} required user_a="hidden"'}, "a ; is missing at its end"),
        ({JAAS: f'{PLAIN} user_a="hidden";'}, "it must look like CLASS required"),
        ({JAAS: f'{PLAIN} required user_a="hidden'}, "a quotation mark is missing"),
        ({JAAS: f'{PLAIN} required user_a "hidden";'}, "a = is missing"),
        ({JAAS: f'{PLAIN} required user_a="hidden"; {PLAIN} required;'}, "it must have one login module"),
        ({JAAS: f'{SCRAM} required user_a="hidden";'}, "PLAIN needs the login module .*PlainLoginModule"),
        ({"listener.name.out.scram-sha-512.sasl.jaas.config": f"{PLAIN} required;"}, "SCRAM-SHA-512 needs the login"),
        (
            {"listener.name.out.PLAIN.sasl.jaas.config": "hidden"},
            "PLAIN is not a mechanism of the listener; allowed: plain",
        ),
        (
            {"listener.name.OUT.plain.sasl.jaas.config": "hidden"},
            "it is of no listener with SASL; allowed: listener.name.out.",
        ),
        ({"listener.name.out.sasl.server.callback.handler.class": "a.B"}, "it is for the mechanism OAUTHBEARER of"),
        (
            {"inter.broker.listener.name": "OUT", "zookeeper.connect": "localhost:1"},
            "brokers use OUT, so it must be in its sasl.enabled.mechanisms: PLAIN, SCRAM-SHA-512",
        ),
        (
            {**BETWEEN, "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512"},
            "out.scram-sha-512.sasl.jaas.config: it must look like .*ScramLoginModule required username=",
        ),
        (
            {**BETWEEN, JAAS: f'{PLAIN} required user_broker="hidden";'},
            f"{JAAS}: it needs a user and its password",
        ),
    ],
)
def test_what_stops_the_start(overrides: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        sasl_of(overrides)
    assert 'hidden"' not in str(caught.value)


def test_plain_needs_users() -> None:
    without = {name: value for name, value in BASE.items() if name != JAAS}
    with pytest.raises(ConfigError, match=f"{JAAS}: it must look like {PLAIN} required user_alice"):
        BrokerConfig.of(without)


def test_a_broker_logs_in_as_the_listeners_module_says() -> None:
    channel = BrokerConfig.of({**BASE, **BETWEEN}).inter_broker_channel
    assert channel is not None
    assert channel.ssl is None
    assert channel.login == Login("PLAIN", "broker", "hidden")
    assert "hidden" not in repr(channel)


@pytest.mark.parametrize(
    ("mechanism", "option", "has_token"),
    [
        ("SCRAM-SHA-256", 'tokenauth="true"', True),
        ("SCRAM-SHA-512", "tokenauth=TRUE", True),
        ("SCRAM-SHA-512", "tokenauth=false", False),
        ("SCRAM-SHA-512", "", False),
        ("PLAIN", "tokenauth=true", False),
    ],
)
def test_a_login_by_a_token(mechanism: str, option: str, has_token: bool) -> None:
    text = f"{MODULES[mechanism]} required username=id password=hidden {option};"
    login = login_of("sasl.jaas.config", mechanism, text)
    assert login == Login(mechanism, "id", "hidden", has_token)
    assert "hidden" not in repr(login)
