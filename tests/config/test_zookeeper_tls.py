"""zookeeper.ssl.*: the resulting settings, and the errors found before anything is sent."""

from __future__ import annotations

import ssl

import pytest

from config.broker_config import BrokerConfig
from config.definitions import ConfigError
from security.stores import AllowedChanges, Store
from security.tls import ClientSsl, openssl_name

NETTY = "org.apache.zookeeper.ClientCnxnSocketNetty"


def parse(**settings: str) -> ClientSsl | None:
    given = {f"zookeeper.ssl.{name.replace('_', '.')}": value for name, value in settings.items()}
    switch = {"zookeeper.ssl.client.enable": "true", "zookeeper.clientCnxnSocket": NETTY}
    return BrokerConfig(switch | given).zookeeper_tls


def test_defaults_are_kafkas() -> None:
    assert parse() == ClientSsl(None, None, ("TLSv1.2",), (), True, AllowedChanges())


def test_nothing_without_the_switch() -> None:
    config = BrokerConfig({"zookeeper.ssl.keystore.location": "/keys.jks", "zookeeper.ssl.protocol": "none"})
    assert config.zookeeper_tls is None


def test_everything_at_once() -> None:
    tls = parse(
        keystore_location="/keys",
        keystore_type="pem",
        keystore_password="secret",
        truststore_location="/trusted.PEM",
        enabled_protocols="TLSv1.2",
        cipher_suites="TLS_RSA_WITH_AES_128_CBC_SHA, TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        endpoint_identification_algorithm="",
    )
    suites = ("AES128-SHA", "ECDHE-RSA-CHACHA20-POLY1305")
    keys, trusted = (f"zookeeper.ssl.{each}store" for each in ("key", "trust"))
    names = f"{keys}.password", f"{trusted}.password"
    key_store = Store(f"{keys}.location", "PEM", "/keys", None, None, names[0], "secret", names[0])
    trust_store = Store(f"{trusted}.location", "PEM", "/trusted.PEM", None, None, names[1], None, names[1])
    assert tls == ClientSsl(key_store, trust_store, ("TLSv1.2",), suites, False, AllowedChanges())


@pytest.mark.parametrize(("file", "kind"), [("/k.jks", "JKS"), ("/k.p12", "PKCS12")])
def test_the_name_of_a_store_tells_its_type(file: str, kind: str) -> None:
    tls = parse(keystore_location=file, keystore_password="x")
    assert tls is not None
    assert tls.key_store is not None
    assert (tls.key_store.kind, tls.key_store.password, tls.key_store.key_password) == (kind, "x", "x")


@pytest.mark.parametrize("socket", ["", "org.apache.zookeeper.ClientCnxnSocketNIO"])
def test_kafka_speaks_tls_by_netty_only(socket: str) -> None:
    """Kafka then sends plain text to the secure port, until it times out."""
    with pytest.raises(ConfigError, match=f"clientCnxnSocket: zookeeper.ssl.client.enable needs {NETTY}"):
        BrokerConfig({"zookeeper.ssl.client.enable": "true", "zookeeper.clientCnxnSocket": socket})


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"keystore_location": "/k.bcfks"}, "BCFKS is not read here; these are: PEM, PKCS12, JKS"),
        ({"keystore_location": "/keys"}, r"ends in none of \.pem, \.p12 and \.jks; set zookeeper\.ssl\.keystore\.type"),
        ({"protocol": "TLSv1.1"}, r"zookeeper\.ssl\.protocol: TLSv1\.1 is not one of TLSv1\.2, TLSv1\.3"),
        ({"enabled_protocols": "TLSv1.2,SSLv3"}, r"enabled\.protocols: SSLv3 is not one of"),
        ({"cipher_suites": "AES128-SHA"}, r"AES128-SHA .*not a suite of TLSv1\.2"),
        ({"cipher_suites": "TLS_AES_128_GCM_SHA256"}, r"not a suite of TLSv1\.2"),
        ({"cipher_suites": "TLS_RSA_WITH_AES_128_CBC_SHA", "protocol": "TLSv1.3"}, "allow TLSv1.2 alone"),
        ({"endpoint_identification_algorithm": "LDAPS"}, "HTTPS checks the server's name"),
    ],
)
def test_what_is_refused(settings: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse(**settings)


@pytest.mark.parametrize("key", ["zookeeper.ssl.crl.enable", "zookeeper.ssl.ocsp.enable"])
def test_revocation_is_not_promised(key: str) -> None:
    _, errors = BrokerConfig.examine({key: "true"})
    reason = "revoked certificates are not looked for; remove it, and let ZooKeeper's certificates expire soon"
    assert [str(each) for each in errors] == [f"Configuration {key}=true is not supported: {reason}"]


@pytest.mark.parametrize(
    "suite",
    [
        f"TLS_{exchange}_WITH_{cipher}"
        for exchange in ("ECDHE_ECDSA", "ECDHE_RSA", "DHE_RSA")
        for cipher in ("AES_128_GCM_SHA256", "AES_256_GCM_SHA384", "AES_256_CBC_SHA", "CHACHA20_POLY1305_SHA256")
        if (exchange, cipher) != ("DHE_RSA", "CHACHA20_POLY1305_SHA256")
    ]
    + ["TLS_RSA_WITH_AES_256_GCM_SHA384", "TLS_RSA_WITH_AES_128_CBC_SHA256", "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256"],
)
def test_the_suites_that_java_and_openssl_share(suite: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers(openssl_name("ssl.cipher.suites", suite))
    assert openssl_name("ssl.cipher.suites", suite) in {each["name"] for each in context.get_ciphers()}
