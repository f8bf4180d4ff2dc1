"""TLS of a listener: effective keys, and errors that stop the start."""

from __future__ import annotations

import pytest

from config.broker_config import BrokerConfig
from config.definitions import ConfigError
from security.tls import SslConfig

BASE = {
    "listeners": "PLAINTEXT://:9092,SSL://:9093",
    "ssl.keystore.type": "PEM",
    "ssl.keystore.location": "/keys.pem",
}


def ssl_of(overrides: dict[str, str], listener: str = "SSL") -> SslConfig:
    return BrokerConfig.of({"broker.id": "0", **BASE, **overrides}).ssl[listener]


def test_a_listeners_own_keys_go_first() -> None:
    overrides = {
        "listeners": "PLAINTEXT://:9092,IN://:9093,OUT://:9094",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,IN:SSL,OUT:SSL",
        "listener.name.out.ssl.keystore.location": "/out.p12",
        "listener.name.out.ssl.keystore.type": "pkcs12",
        "listener.name.out.ssl.keystore.password": "secret",
        "listener.name.out.ssl.client.auth": "required",
        "listener.name.out.ssl.principal.mapping.rules": "RULE:^CN=(.*?),.*$/$1/",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/trusted.pem",
    }
    inside, outside = ssl_of(overrides, "IN"), ssl_of(overrides, "OUT")
    assert (inside.key_store.kind, inside.key_store.location, inside.client_auth) == ("PEM", "/keys.pem", "none")
    assert inside.principal_rules.name_of("CN=a,O=b") == "CN=a,O=b"
    assert (outside.key_store.kind, outside.key_store.location) == ("PKCS12", "/out.p12")
    assert outside.key_store.name == "listener.name.out.ssl.keystore.location"
    assert outside.client_auth == "required"
    assert outside.principal_rules.name_of("CN=a,O=b") == "a"


def test_clients_of_sasl_show_a_certificate_where_their_listeners_key_says_so() -> None:
    """KIP-684."""
    sasl = {
        "listeners": "SASL_SSL://:9093",
        "security.inter.broker.protocol": "SASL_SSL",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/trusted.pem",
    }
    own = {"listener.name.sasl_ssl.ssl.client.auth": "required"}
    assert ssl_of({**sasl, "ssl.client.auth": "required"}, "SASL_SSL").client_auth == "none"
    assert ssl_of({**sasl, **own}, "SASL_SSL").client_auth == "required"


def test_suites_decide_which_versions_are_spoken() -> None:
    assert ssl_of({}).protocols == ("TLSv1.2", "TLSv1.3")
    older = ssl_of({"ssl.cipher.suites": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"})
    assert (older.protocols, older.cipher_suites) == (("TLSv1.2",), ("ECDHE-RSA-AES128-GCM-SHA256",))
    newest = "TLS_AES_128_GCM_SHA256,TLS_AES_256_GCM_SHA384,TLS_CHACHA20_POLY1305_SHA256"
    assert ssl_of({"ssl.cipher.suites": newest}).protocols == ("TLSv1.3",)


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        ({"ssl.keystore.location": ""}, r"ssl\.keystore\.location: listener SSL needs a key"),
        ({"ssl.keystore.type": "BCFKS"}, r"BCFKS for .* ssl\.keystore\.type: it must be one of: PEM, PKCS12, JKS"),
        (
            {"ssl.keystore.password": "secret"},
            r"\[hidden\] .* ssl\.keystore\.password: a PEM key store has no password",
        ),
        ({"ssl.keystore.key": "x"}, r"ssl\.keystore\.certificate\.chain: .* go together"),
        ({"ssl.keystore.key": "x", "ssl.keystore.certificate.chain": "y"}, "the store is given as text already"),
        (
            {"ssl.keystore.key": "x", "ssl.keystore.certificate.chain": "y", "ssl.keystore.type": "JKS"},
            "JKS .* need the type PEM",
        ),
        ({"ssl.client.auth": "required"}, "ssl.client.auth: it needs ssl.truststore.location"),
        ({"ssl.client.auth": "Required"}, r"String must be one of: required, requested, none"),
        ({"ssl.enabled.protocols": "TLSv1.1"}, r"TLSv1\.1 is not one of TLSv1\.2, TLSv1\.3"),
        ({"ssl.enabled.protocols": "SSLv3,TLSv1.3"}, r"SSLv3 is not one of TLSv1\.2, TLSv1\.3"),
        ({"ssl.enabled.protocols": ""}, "it must name some of"),
        ({"ssl.protocol": "SSLv3"}, "String must be one of: TLS, TLSv1.2, TLSv1.3"),
        ({"ssl.cipher.suites": "RC4"}, r"ssl\.cipher\.suites: not a suite of TLSv1\.2"),
        ({"ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"}, "of TLSv1.3 it must have all suites or none"),
        (
            {"ssl.cipher.suites": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ssl.enabled.protocols": "TLSv1.3"},
            "it lists no suite for TLSv1.3",
        ),
        ({"ssl.principal.mapping.rules": "RULE:("}, "ssl.principal.mapping.rules: cannot read"),
        ({"ssl.engine.factory.class": "a.B"}, "Java classes cannot be loaded"),
        ({"ssl.provider": "BC"}, "Java classes cannot be loaded"),
        ({"listener.name.SSL.ssl.client.auth": "required"}, r"allowed: listener\.name\.ssl\.ssl\.client\.auth"),
        ({"listener.name.plaintext.ssl.keystore.location": "/k"}, "it is of no listener with TLS"),
        (
            {
                "security.inter.broker.protocol": "SSL",
                "zookeeper.connect": "localhost:1",
                "listener.name.ssl.ssl.endpoint.identification.algorithm": "ldaps",
            },
            r"listener\.name\.ssl\.ssl\.endpoint\.identification\.algorithm: it must be https, or empty",
        ),
    ],
)
def test_what_stops_the_start(overrides: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        ssl_of(overrides)


def test_a_broker_of_its_own_may_have_no_other_listener() -> None:
    alone = {"listeners": "SSL://:9093", "security.inter.broker.protocol": "SSL"}
    assert ssl_of(alone).client_auth == "none"


def test_brokers_reach_one_another_as_the_listeners_keys_say() -> None:
    between = {
        "security.inter.broker.protocol": "SSL",
        "zookeeper.connect": "localhost:1",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/trusted.pem",
        "listener.name.ssl.ssl.enabled.protocols": "TLSv1.3",
    }
    channel = BrokerConfig.of({"broker.id": "0", **BASE, **between}).inter_broker_channel
    assert channel is not None
    assert channel.ssl is not None
    assert channel.login is None
    assert [store and store.location for store in channel.ssl[:2]] == ["/keys.pem", "/trusted.pem"]
    assert (channel.ssl.protocols, channel.ssl.checks_host_name) == (("TLSv1.3",), True)
    unchecked = {**between, "ssl.endpoint.identification.algorithm": ""}
    channel = BrokerConfig.of({"broker.id": "0", **BASE, **unchecked}).inter_broker_channel
    assert channel is not None
    assert channel.ssl is not None
    assert not channel.ssl.checks_host_name
