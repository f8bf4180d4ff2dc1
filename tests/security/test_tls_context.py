"""Stores of keys and certificates: those that load, and the one-line errors of those that do not."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from config.broker_config import BrokerConfig
from config.definitions import ConfigError
from security.tls import TlsLoader
from tests.kit.security.certificates import Authority

AUTHORITY = Authority()
BROKER = AUTHORITY.issue("broker")


def context_of(**settings: str) -> ssl.SSLContext:
    """`settings` have underscores for dots, without the prefix ssl."""
    overrides = {f"ssl.{name.replace('_', '.')}": value for name, value in settings.items()}
    config = BrokerConfig({"broker.id": "0", "listeners": "PLAINTEXT://:9092,SSL://:9093", **overrides})
    return TlsLoader().load(config.ssl["SSL"]).context


def greets(context: ssl.SSLContext, client: ssl.SSLContext) -> str:
    """The subject of the certificate that the server presents, or the error."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    visitor = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    done = set()
    for _ in range(10):
        for each in (visitor, server):
            try:
                each.do_handshake()
                done.add(each)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                return str(error.reason)
        if len(done) == 2:
            return dict(part[0] for part in visitor.getpeercert()["subject"])["commonName"]  # type: ignore[index]
    raise AssertionError("the handshake does not end")


def client_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=AUTHORITY.pem)
    return context


def test_strict_clients_accept_what_is_issued(tmp_path: Path) -> None:
    """Python 3.13 is strict by default."""
    server = context_of(keystore_type="PEM", keystore_location=str(BROKER.write_pem(tmp_path / "broker.pem")))
    client = client_context()
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    assert greets(server, client) == "broker"


def test_every_kind_of_key_store(tmp_path: Path) -> None:
    pem = str(BROKER.write_pem(tmp_path / "broker.pem"))
    encrypted = str(BROKER.write_pem(tmp_path / "encrypted.pem", "secret"))
    pkcs12 = str(BROKER.write_pkcs12(tmp_path / "broker.p12", "secret", AUTHORITY))
    in_one_line = BROKER.key_pem("secret").replace("\n", " ")
    chain = BROKER.certificate_pem.replace("\n", " ")
    contexts = [
        context_of(keystore_type="PEM", keystore_location=pem),
        context_of(keystore_type="PEM", keystore_location=encrypted, key_password="secret"),
        context_of(
            keystore_type="PEM", keystore_key=in_one_line, keystore_certificate_chain=chain, key_password="secret"
        ),
        context_of(keystore_type="PKCS12", keystore_location=pkcs12, keystore_password="secret"),
        # keytool has created PKCS12 by default for years, and Java reads it as JKS.
        context_of(keystore_location=pkcs12, keystore_password="secret", key_password="secret"),
    ]
    assert [greets(context, client_context()) for context in contexts] == ["broker"] * len(contexts)


def test_every_kind_of_trust_store(tmp_path: Path) -> None:
    key = str(BROKER.write_pem(tmp_path / "broker.pem"))
    own = {"keystore_type": "PEM", "keystore_location": key, "client_auth": "required"}
    pem = str(AUTHORITY.write_pem(tmp_path / "trusted.pem"))
    pkcs12 = str(AUTHORITY.write_pkcs12(tmp_path / "trusted.p12", "secret"))
    contexts = [
        context_of(**own, truststore_type="PEM", truststore_location=pem),
        context_of(**own, truststore_type="PEM", truststore_certificates=AUTHORITY.pem),
        context_of(**own, truststore_type="PKCS12", truststore_location=pkcs12, truststore_password="secret"),
    ]
    known, stranger = client_context(), client_context()
    known.load_cert_chain(AUTHORITY.issue("client").write_pem(tmp_path / "client.pem"))
    stranger.load_cert_chain(Authority().issue("client").write_pem(tmp_path / "stranger.pem"))
    for context in contexts:
        assert greets(context, known) == "broker"
        assert greets(context, stranger) == "CERTIFICATE_VERIFY_FAILED"
        assert greets(context, client_context()) == "PEER_DID_NOT_RETURN_A_CERTIFICATE"


def test_a_store_with_a_key_trusts_that_entry_alone(tmp_path: Path) -> None:
    key = str(BROKER.write_pem(tmp_path / "broker.pem"))
    alice = AUTHORITY.issue("alice")
    store = str(alice.write_pkcs12(tmp_path / "alice.p12", "secret", AUTHORITY))
    context = context_of(
        keystore_type="PEM", keystore_location=key, client_auth="required", truststore_location=store,
        truststore_password="secret",
    )  # fmt: skip
    for identity, outcome in ((alice, "broker"), (AUTHORITY.issue("bob"), "CERTIFICATE_VERIFY_FAILED")):
        client = client_context()
        client.load_cert_chain(identity.write_pem(tmp_path / "client.pem"))
        assert greets(context, client) == outcome


def test_only_the_versions_and_suites_that_are_allowed(tmp_path: Path) -> None:
    own = {"keystore_type": "PEM", "keystore_location": str(BROKER.write_pem(tmp_path / "broker.pem"))}
    newest = client_context()
    newest.minimum_version = ssl.TLSVersion.TLSv1_3
    assert greets(context_of(**own), newest) == "broker"
    assert "PROTOCOL" in greets(context_of(**own, enabled_protocols="TLSv1.2"), newest)
    suite = context_of(**own, cipher_suites="TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384")
    other = client_context()
    other.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    assert greets(suite, client_context()) == "broker"
    assert greets(suite, other) == "NO_SHARED_CIPHER"


def test_what_cannot_be_used_is_named_in_one_line(tmp_path: Path) -> None:
    other = AUTHORITY.issue("other")
    broker = str(BROKER.write_pem(tmp_path / "broker.pem"))
    encrypted = str(BROKER.write_pem(tmp_path / "encrypted.pem", "secret"))
    mixed = tmp_path / "mixed.pem"
    mixed.write_text(other.key_pem() + BROKER.certificate_pem)
    lonely = tmp_path / "lonely.pem"
    lonely.write_text(BROKER.key_pem())
    trusted = str(AUTHORITY.write_pem(tmp_path / "trusted.pem"))
    pkcs12 = str(BROKER.write_pkcs12(tmp_path / "broker.p12", "secret"))
    jks = tmp_path / "keys.jks"
    jks.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    pem = {"keystore_type": "PEM"}
    complaints = [
        ({**pem, "keystore_location": "/none.pem"}, "keystore.location: it cannot be read: No such file"),
        ({**pem, "keystore_location": encrypted}, "ssl.key.password: the private key in ssl.keystore.location is enc"),
        ({**pem, "keystore_location": encrypted, "key_password": "x"}, "ssl.key.password: it does not open the priv"),
        ({**pem, "keystore_location": str(mixed)}, "the private key is not that of the first certificate"),
        ({**pem, "keystore_location": str(lonely)}, "it does not contain a certificate"),
        ({**pem, "keystore_location": trusted}, "it must have one private key, not 0"),
        ({"keystore_location": pkcs12, "keystore_password": "x"}, "ssl.keystore.password: it does not open the store"),
        ({"keystore_location": pkcs12}, "ssl.keystore.password: it does not open the store"),
        (
            {"keystore_location": pkcs12, "keystore_password": "secret", "key_password": "x"},
            "ssl.key.password: a PKCS12 store has one password",
        ),
        ({"keystore_location": str(jks)}, "ssl.keystore.location: it ends too early"),
        (
            {"keystore_location": str(jks), "keystore_password": "x"},
            "ssl.keystore.password: it does not open the store",
        ),
        (
            {**pem, "keystore_location": broker, "truststore_location": str(lonely), "truststore_type": "PEM"},
            "ssl.truststore.location: it does not contain a trusted certificate",
        ),
        (
            {**pem, "keystore_location": broker, "cipher_suites": "TLS_NO_WITH_SUCH_SUITE"},
            "OpenSSL does not have this suite",
        ),
    ]
    for settings, complaint in complaints:
        with pytest.raises(ConfigError) as found:
            context_of(**settings)
        assert complaint in str(found.value)
        assert "\n" not in str(found.value)
        assert "secret" not in str(found.value)
