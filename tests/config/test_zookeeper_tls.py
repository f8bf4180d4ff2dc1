"""zookeeper.ssl.*: what they ask for, and what is refused before anything is sent."""

from __future__ import annotations

import ssl

import pytest

from config.broker_config import BrokerConfig
from config.definitions import ConfigError
from config.security.cipher_suites import openssl_name
from config.zookeeper.tls import ZookeeperTls

NETTY = "org.apache.zookeeper.ClientCnxnSocketNetty"


def parse(**settings: str) -> ZookeeperTls | None:
    given = {f"zookeeper.ssl.{name.replace('_', '.')}": value for name, value in settings.items()}
    switch = {"zookeeper.ssl.client.enable": "true", "zookeeper.clientCnxnSocket": NETTY}
    return BrokerConfig(switch | given).zookeeper_tls


def test_defaults_are_kafkas() -> None:
    assert parse() == ZookeeperTls(None, "", None, ("TLSv1.2",), (), checks_host_name=True)


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
    assert tls == ZookeeperTls("/keys", "secret", "/trusted.PEM", ("TLSv1.2",), suites, checks_host_name=False)


@pytest.mark.parametrize("socket", ["", "org.apache.zookeeper.ClientCnxnSocketNIO"])
def test_kafka_speaks_tls_by_netty_only(socket: str) -> None:
    """Kafka then sends plain text to the secure port, until its time is over."""
    with pytest.raises(ConfigError, match=f"clientCnxnSocket: zookeeper.ssl.client.enable needs {NETTY}"):
        BrokerConfig({"zookeeper.ssl.client.enable": "true", "zookeeper.clientCnxnSocket": socket})


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"keystore_location": "/k.jks"}, r"keystore\.location: JKS .* keytool -importkeystore -srckeystore /k\.jks"),
        ({"keystore_location": "/k.p12"}, r"PKCS12 is not read here; make it PEM: openssl pkcs12 -in /k\.p12"),
        ({"truststore_location": "/t.jks"}, r"keytool -list -rfc -keystore /t\.jks > trusted\.pem"),
        (
            {"truststore_location": "/t", "truststore_type": "PKCS12"},
            r"truststore\.type: .*-keystore /t > trusted\.pem",
        ),
        ({"keystore_location": "/k.bcfks"}, "BCFKS is not read here; PEM is"),
        ({"keystore_location": "/keys"}, r"does not end in \.pem; set zookeeper\.ssl\.keystore\.type=PEM"),
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
