"""A certificate authority for a test, with the stores that brokers and clients use."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

_HOSTS = (x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1")))


class Identity(NamedTuple):
    """A private key with its certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def certificate_pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def key_pem(self, password: str | None = None) -> str:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, _encryption(password)).decode()

    def write_pem(self, path: Path, password: str | None = None) -> Path:
        """Both in one file, as Kafka wants its PEM key store."""
        path.write_text(self.key_pem(password) + self.certificate_pem)
        return path

    def write_pkcs12(self, path: Path, password: str, authority: Authority | None = None) -> Path:
        """A PKCS12 store as keytool and openssl make it."""
        chain = None if authority is None else [authority.identity.certificate]
        content = pkcs12.serialize_key_and_certificates(
            b"odradek", self.key, self.certificate, chain, _encryption(password)
        )
        path.write_bytes(content)
        return path


def subject(name: str, **others: str) -> x509.Name:
    """A subject with a common name; `others` are names of `NameOID`, the least specific first."""
    attributes = [x509.NameAttribute(getattr(NameOID, kind), value) for kind, value in others.items()]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, name)])


class Authority:
    """Signs certificates."""

    def __init__(self, name: str = "authority") -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        own = subject(name)
        builder = _builder(own, own, key, days=30).add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        self.identity = Identity(key, builder.sign(key, hashes.SHA256()))

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

    def issue(self, name: str | x509.Name, *, days: int = 30, hosts: tuple[str, ...] = ()) -> Identity:
        """A certificate for localhost, or for `hosts`; with `days` below 0 it has expired so long ago."""
        key = ec.generate_private_key(ec.SECP256R1())
        own = subject(name) if isinstance(name, str) else name
        builder = _builder(own, self.identity.certificate.subject, key, days)
        builder = builder.add_extension(
            x509.SubjectAlternativeName([x509.DNSName(each) for each in hosts] or _HOSTS), critical=False
        )
        return Identity(key, builder.sign(self.identity.key, hashes.SHA256()))


def _builder(own: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
    ends = dt.datetime.now(dt.UTC) + dt.timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(own)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(ends - dt.timedelta(days=60))
        .not_valid_after(ends)
    )


def _encryption(password: str | None) -> KeySerializationEncryption:
    return NoEncryption() if password is None else BestAvailableEncryption(password.encode())
