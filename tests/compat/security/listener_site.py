"""A broker with every kind of listener, and files for its clients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from tests.kit.broker_process import BrokerProcess, free_port
from tests.kit.security.certificates import Authority

PROTOCOLS = {
    "PLAINTEXT": "PLAINTEXT",
    "SSL": "SSL",
    "CERTIFIED": "SSL",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "SASL_SSL": "SASL_SSL",
}
"""Security protocols by listener name; CERTIFIED requires client certificates."""
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
USER = "alice"
PASSWORD = 'se"cret, \\ =;'
STORE_PASSWORD = "secret"


class Identity(NamedTuple):
    """The files that a client presents and trusts."""

    trusted: str
    trusted_store: str
    certificate: str = ""
    key: str = ""
    key_store: str = ""


class ListenerSite:
    """The broker; call `start` first."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self.addresses = {name: f"127.0.0.1:{free_port()}" for name in PROTOCOLS}
        authority, stranger = Authority(), Authority("stranger")
        self.deceived = Identity(*_trust(stranger, directory, "strange"))
        """Trusts another authority than the broker's."""
        self.known = Identity(*_trust(authority, directory, "trusted"))
        self.certified = _certified(self.known, authority, directory, "alice")
        self.impostor = _certified(self.known, stranger, directory, "impostor")
        written = PASSWORD.replace("\\", "\\\\").replace('"', '\\"').replace("\\", "\\\\")
        jaas = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{written}";'
        self.process = BrokerProcess(
            directory / "broker",
            {
                "listeners": ",".join(f"{name}://{address}" for name, address in self.addresses.items()),
                "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in PROTOCOLS.items()),
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(authority.issue("broker").write_pem(directory / "broker.pem")),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": self.known.trusted,
                "listener.name.certified.ssl.client.auth": "required",
                "sasl.enabled.mechanisms": ",".join(MECHANISMS),
                "listener.name.sasl_plaintext.plain.sasl.jaas.config": jaas,
                "listener.name.sasl_ssl.plain.sasl.jaas.config": jaas,
                **(settings or {}),
            },
        )
        self.process.address = self.addresses["PLAINTEXT"]

    def fitting(self, listener: str) -> Identity:
        """The identity of a client that the listener admits."""
        return self.certified if listener == "CERTIFIED" else self.known

    def start(self) -> None:
        """Start, and create the SCRAM user."""
        self.process.start()
        admin = AdminClient({"bootstrap.servers": self.addresses["PLAINTEXT"]})
        changes = [
            UserScramCredentialUpsertion(USER, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
            for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        ]
        for change in changes:
            for future in admin.alter_user_scram_credentials([change]).values():
                future.result(30)


def _trust(authority: Authority, directory: Path, name: str) -> tuple[str, str]:
    pem = authority.write_pem(directory / f"{name}.pem")
    return str(pem), str(authority.write_pkcs12(directory / f"{name}.p12", STORE_PASSWORD))


def _certified(known: Identity, authority: Authority, directory: Path, name: str) -> Identity:
    issued = authority.issue(USER)
    certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
    certificate.write_text(issued.certificate_pem)
    key.write_text(issued.key_pem())
    store = issued.write_pkcs12(directory / f"{name}.p12", STORE_PASSWORD, authority)
    return known._replace(certificate=str(certificate), key=str(key), key_store=str(store))
