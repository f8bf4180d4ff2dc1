"""Java's own key store format, against keytool."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from config.broker_config import BrokerConfig
from config.definitions import ConfigError
from config.review import Verdict, review
from security.jks import JksError, JksPasswordError, read_jks
from security.stores import read_key, read_trusted
from security.tls import SslConfig, TlsLoader
from tests.kit.security.certificates import Authority

pytestmark = pytest.mark.java
AUTHORITY = Authority()
BROKER = AUTHORITY.issue("broker")


def keytool(*arguments: object) -> None:
    subprocess.run(["keytool", *map(str, arguments)], check=True, capture_output=True)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with keys.jks, whose key has a separate password, and trusted.jks."""
    directory = tmp_path_factory.mktemp("jks")
    pkcs12 = BROKER.write_pkcs12(directory / "keys.p12", "storepass", AUTHORITY)
    source = ("-srckeystore", pkcs12, "-srcstorepass", "storepass", "-srcalias", "odradek")
    target = ("-destkeystore", directory / "keys.jks", "-deststoretype", "JKS", "-deststorepass", "storepass")
    keytool("-importkeystore", *source, *target, "-destkeypass", "keypass")
    certificate = AUTHORITY.write_pem(directory / "ca.pem")
    trusted = ("-keystore", directory / "trusted.jks", "-storetype", "JKS", "-storepass", "storepass")
    keytool("-importcert", "-noprompt", "-alias", "ca", "-file", certificate, *trusted)
    return directory


def settings(stores: Path, **changes: str) -> dict[str, str]:
    return {
        "broker.id": "0",
        "listeners": "PLAINTEXT://:9092,SSL://:9093",
        "ssl.keystore.location": str(stores / "keys.jks"),
        "ssl.keystore.password": "storepass",
        "ssl.key.password": "keypass",
        "ssl.truststore.location": str(stores / "trusted.jks"),
        **{f"ssl.{key.replace('_', '.')}": value for key, value in changes.items()},
    }


def ssl_of(stores: Path, **changes: str) -> SslConfig:
    return BrokerConfig(settings(stores, **changes)).ssl["SSL"]


def test_keys_and_certificates_are_those_that_keytool_wrote(stores: Path) -> None:
    config = ssl_of(stores)
    key = read_key(config.key_store)
    assert key.key == BROKER.key_pem()
    assert key.chain == BROKER.certificate_pem + AUTHORITY.pem
    assert config.trust_store is not None
    assert read_trusted(config.trust_store) == AUTHORITY.pem
    assert read_trusted(config.key_store) == BROKER.certificate_pem
    TlsLoader().load(config)


def test_a_wrong_password_and_a_damaged_store_are_named(stores: Path, tmp_path: Path) -> None:
    for changes, name in (
        ({"keystore_password": "wrong"}, "ssl.keystore.password"),
        ({"key_password": "wrong"}, "ssl.key.password"),
        ({"truststore_password": "wrong"}, "ssl.truststore.password"),
    ):
        with pytest.raises(ConfigError) as caught:
            TlsLoader().load(ssl_of(stores, **changes))
        assert caught.value.name == name
    content = (stores / "keys.jks").read_bytes()
    with pytest.raises(JksPasswordError):
        read_jks(content[:50] + bytes([content[50] ^ 1]) + content[51:], "storepass")


def test_every_cut_of_a_store_is_an_error_of_its_own(stores: Path) -> None:
    """Without a password Java does not verify a store, so any text may be read."""
    content = (stores / "keys.jks").read_bytes()
    for size in range(4, len(content) - 20):
        with pytest.raises(JksError):
            read_jks(content[:size] + b"\0" * 20, None).keys[0].pem("keypass")


def test_zookeeper_is_reached_with_the_same_stores(stores: Path) -> None:
    for kind, file in (("JKS", "keys.jks"), ("PKCS12", "keys.p12")):
        if kind == "JKS":
            keytool(
                "-keypasswd",
                "-alias",
                "odradek",
                "-keystore",
                stores / file,
                "-storetype",
                "JKS",
                "-storepass",
                "storepass",
                "-keypass",
                "keypass",
                "-new",
                "storepass",
            )
        config = BrokerConfig(
            {
                "zookeeper.connect": "a:1",
                "zookeeper.ssl.client.enable": "true",
                "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
                "zookeeper.ssl.keystore.location": str(stores / file),
                "zookeeper.ssl.keystore.password": "storepass",
                "zookeeper.ssl.truststore.location": str(stores / "trusted.jks"),
                "zookeeper.ssl.truststore.password": "storepass",
            }
        ).zookeeper_tls
        assert config is not None
        assert TlsLoader().load(config).chain == BROKER.certificate_pem + AUTHORITY.pem


def test_check_config_opens_stores(tmp_path: Path) -> None:
    found = {each.key: each for each in review(settings(tmp_path))}
    assert found["ssl.keystore.location"].verdict is Verdict.BAD
    assert "No such file" in found["ssl.keystore.location"].note


def test_obsolete_versions_of_tls_are_left_out(tmp_path: Path) -> None:
    config = BrokerConfig(settings(tmp_path, enabled_protocols="TLSv1.2,TLSv1.1,TLSv1"))
    assert config.ssl["SSL"].protocols == ("TLSv1.2",)
    said = config.remarks()["ssl.enabled.protocols"]
    assert said == "TLSv1.1, TLSv1 is obsolete and not offered; the other versions are"


def test_a_weak_signature_is_named_with_what_to_do(tmp_path: Path) -> None:
    store = ("-keystore", tmp_path / "keys.jks", "-storetype", "JKS", "-storepass", "storepass")
    pair = ("-genkeypair", "-keyalg", "RSA", "-keysize", "2048", "-keypass", "keypass", *store)
    keytool(*pair, "-alias", "ca", "-dname", "CN=ca")
    signed = ("-signer", "ca", "-signerkeypass", "keypass", "-sigalg", "MD5withRSA")
    keytool(*pair, "-alias", "own", "-dname", "CN=own", *signed)
    keytool("-delete", "-alias", "ca", *store)
    with pytest.raises(ConfigError, match=r"CA_MD_TOO_WEAK.*issue it again with SHA-256"):
        TlsLoader().load(ssl_of(tmp_path, truststore_location=""))
