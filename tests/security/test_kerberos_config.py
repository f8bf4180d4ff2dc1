"""GSSAPI: the settings of a listener, of the connections between brokers and of clients."""

from __future__ import annotations

import sys

import pytest

from config.broker_config import BrokerConfig
from config.definitions import ConfigError
from config.environment_variables import with_jaas_file
from security.channel_config import client_channel
from security.kerberos_login import Acceptor, Initiator, KerberosLogin

CLASS = "com.sun.security.auth.module.Krb5LoginModule"
KEY = "listener.name.out.gssapi.sasl.jaas.config"
BASE = {
    "broker.id": "0",
    "listeners": "PLAINTEXT://:9092,OUT://:9093",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OUT:SASL_PLAINTEXT",
    "sasl.kerberos.service.name": "kafka",
    KEY: f'{CLASS} required useKeyTab=true storeKey=true keyTab="/k" principal="kafka/host@R";',
}
LOGIN = KerberosLogin(KEY, "kafka", "kafka/host@R", "/k")
BETWEEN = {"inter.broker.listener.name": "OUT", "zookeeper.connect": "localhost:1"}


def login_of(overrides: dict[str, str]) -> KerberosLogin:
    kerberos = BrokerConfig.of({**BASE, **overrides}).sasl["OUT"].kerberos
    assert kerberos is not None
    return kerberos.login


def test_gssapi_is_the_mechanism_of_a_listener_that_names_none() -> None:
    config = BrokerConfig.of({**BASE, **BETWEEN})
    assert config.sasl["OUT"].mechanisms == ("GSSAPI",)
    assert login_of({}) == LOGIN
    assert config.inter_broker_channel is not None
    assert config.inter_broker_channel.login == LOGIN
    assert config.without_effect() == []


def test_the_keys_of_listener_and_mechanism_go_first() -> None:
    for number, prefix in enumerate(("", "listener.name.out.", "listener.name.out.gssapi.")):
        above = {f"{each}sasl.kerberos.service.name": each or "all" for each in ("", "listener.name.out.")[:number]}
        assert login_of({**above, f"{prefix}sasl.kerberos.service.name": "mine"}).service_name == "mine"
    rules = {
        "sasl.kerberos.principal.to.local.rules": "RULE:[1:$1]",
        "listener.name.out.sasl.kerberos.principal.to.local.rules": "RULE:[1:$1]/U , DEFAULT",
    }
    kerberos = BrokerConfig.of({**BASE, **rules}).sasl["OUT"].kerberos
    assert kerberos is not None
    assert [kerberos.names.name_of(each, "R") for each in ("a@X", "b/c@R")] == ["A", "b"]


def test_the_service_may_be_in_the_login_module() -> None:
    module = BASE[KEY].replace("storeKey", 'serviceName="other" storeKey')
    own = {name: value for name, value in BASE.items() if name != "sasl.kerberos.service.name"}
    kerberos = BrokerConfig.of({**own, KEY: module}).sasl["OUT"].kerberos
    assert kerberos is not None
    assert kerberos.login.service_name == "other"
    with pytest.raises(ConfigError, match=r"Conflicting serviceName values found .* file other, .* Kafka config kafka"):
        login_of({KEY: module})


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        ({"sasl.kerberos.service.name": ""}, f"{KEY}: No serviceName defined in either JAAS or Kafka config"),
        ({KEY: f"{CLASS} required;"}, "a broker needs useKeyTab=true, with keyTab= and principal="),
        ({KEY: f"{CLASS} required useTicketCache=true;"}, "a broker needs useKeyTab=true"),
        (
            {KEY: f'{CLASS} required useKeyTab=true principal="a";'},
            'useKeyTab=true needs keyTab="/a/file" and principal',
        ),
        ({KEY: f'{CLASS} required useKeyTab=true keyTab="/k";'}, 'useKeyTab=true needs keyTab="/a/file" and principal'),
        ({KEY: "a.B required;"}, f"GSSAPI needs the login module {CLASS}"),
        (
            {"sasl.kerberos.principal.to.local.rules": "DEFAULT,RULE:x"},
            r"RULE:x for configuration sasl\.kerberos\.principal\.to\.local\.rules: it must be DEFAULT or RULE",
        ),
        ({"sasl.kerberos.ticket.renew.jitter": "0.1"}, "the Kerberos library gets new tickets from the keytab in time"),
        ({"listener.name.in.sasl.kerberos.service.name": "x"}, "it is of no listener with SASL"),
    ],
)
def test_what_stops_the_start(overrides: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        login_of(overrides)


def test_a_module_in_a_jaas_file() -> None:
    without = {name: value for name, value in BASE.items() if name != KEY}
    text = f"KafkaServer {{ {BASE[KEY]} }};"
    options = "-Djava.security.auth.login.config=/jaas.conf"
    assert login_of(with_jaas_file(without, options, lambda _path: text)) == LOGIN


def client(module: str, **others: str) -> KerberosLogin:
    given = {"sasl.jaas.config": f"{CLASS} required {module};", "sasl.kerberos.service.name": "kafka", **others}
    login = client_channel("SASL_PLAINTEXT", given).login
    assert isinstance(login, KerberosLogin)
    return login


def test_clients() -> None:
    made = client('useKeyTab=TRUE keyTab="FILE:/k" principal="alice"')
    assert made == ("sasl.jaas.config", "kafka", "alice", "/k", None, "GSSAPI")
    made = client('useTicketCache=true ticketCache="/cache"')
    assert made == ("sasl.jaas.config", "kafka", None, None, "/cache", "GSSAPI")
    assert client("useTicketCache=true principal=bob").principal == "bob"
    with pytest.raises(ConfigError, match="or useTicketCache=true: nobody is asked a password"):
        client('useKeyTab=false principal="alice"')
    with pytest.raises(ConfigError, match="No serviceName defined"):
        client("useTicketCache=true", **{"sasl.kerberos.service.name": ""})
    with pytest.raises(ConfigError, match=r"it must look like com\.sun"):
        client_channel("SASL_SSL", {"sasl.kerberos.service.name": "kafka"})


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    for make in (Acceptor, lambda login: Initiator(login, "cache")):
        with pytest.raises(ConfigError, match=rf"{KEY}: GSSAPI needs the package gssapi: pip install 'odradek\[kerb"):
            make(LOGIN)
