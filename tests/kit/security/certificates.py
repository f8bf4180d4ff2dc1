"""A certificate authority for a test, with the stores that brokers and clients use."""

from __future__ import annotations

from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)

from security import certificate_authority
from security.certificate_authority import subject

__all__ = ["Authority", "Identity", "subject"]


class Identity(certificate_authority.Identity):
    """A private key with its certificate, as files."""

    def key_pem(self, password: str | None = None) -> str:
        """The private key, encrypted if a password is given."""
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, _encryption(password)).decode()

    def write_pem(self, path: Path, password: str | None = None) -> Path:
        """Write key and certificate to one file, as Kafka's PEM key stores require."""
        path.write_text(self.key_pem(password) + self.certificate_pem)
        return path

    def write_pkcs12(self, path: Path, password: str, authority: Authority | None = None) -> Path:
        """A PKCS12 store like those of keytool and openssl."""
        chain = None if authority is None else [authority.identity.certificate]
        content = pkcs12.serialize_key_and_certificates(
            b"odradek", self.key, self.certificate, chain, _encryption(password)
        )
        path.write_bytes(content)
        return path


class Authority:
    """Signs certificates."""

    def __init__(self, name: str = "authority") -> None:
        self.identity = certificate_authority.new_authority(name)

    @property
    def pem(self) -> str:
        return self.identity.certificate_pem

    def write_pem(self, path: Path) -> Path:
        """A trust store, also for librdkafka's ssl.ca.location."""
        path.write_text(self.pem)
        return path

    def write_pkcs12(self, path: Path, password: str) -> Path:
        """A trust store."""
        trusted = pkcs12.PKCS12Certificate(self.identity.certificate, b"authority")
        path.write_bytes(pkcs12.serialize_java_truststore([trusted], _encryption(password)))
        return path

    def issue(
        self, name: str | x509.Name, *, days: int = 30, hosts: tuple[str, ...] = certificate_authority.LOCAL_HOSTS
    ) -> Identity:
        """A certificate for this machine, or for `hosts`; a negative `days` gives one that expired that long ago."""
        own = subject(name) if isinstance(name, str) else name
        return Identity(*certificate_authority.issue(self.identity, own, days=days, hosts=hosts))


def _encryption(password: str | None) -> KeySerializationEncryption:
    return NoEncryption() if password is None else BestAvailableEncryption(password.encode())
