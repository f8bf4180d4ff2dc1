"""A certificate authority and the certificates that it issues; all keys are on the curve P-256."""

from __future__ import annotations

import datetime as dt
import ipaddress
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME_DAYS = 3650
LOCAL_HOSTS = ("localhost", "127.0.0.1")
_USES = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only",
         "decipher_only", "crl_sign")  # fmt: skip


class Identity(NamedTuple):
    """A private key with its certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def certificate_pem(self) -> str:
        """Only the certificate, which is public."""
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def key_pem(self) -> str:
        """Only the key, unencrypted."""
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()

    @classmethod
    def from_pem(cls, certificate: bytes, key: bytes) -> Identity:
        """Parse both texts. Raises ValueError if damaged or mismatched, TypeError for another kind of key."""
        found = cls(_elliptic(load_pem_private_key(key, None)), x509.load_pem_x509_certificate(certificate))
        if found.certificate.public_key() != found.key.public_key():
            raise ValueError("the private key is not that of the certificate")
        return found


def subject(name: str, **others: str) -> x509.Name:
    """A subject with a common name; `others` are names of `NameOID`, the least specific first."""
    attributes = [x509.NameAttribute(getattr(NameOID, kind), value) for kind, value in others.items()]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def new_authority(name: str) -> Identity:
    """A self-signed certificate that may sign others."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        _builder(subject(name), subject(name), key, LIFETIME_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return Identity(key, builder.sign(key, hashes.SHA256()))


def issue(
    authority: Identity, name: x509.Name, *, days: int = LIFETIME_DAYS, hosts: tuple[str, ...] = LOCAL_HOSTS
) -> Identity:
    """A new key and a certificate, for clients and for servers at `hosts` (names or addresses). With negative `days` it
    expired that long ago.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = (
        _builder(name, authority.certificate.subject, key, days)
        .add_extension(x509.SubjectAlternativeName([_host(each) for each in hosts]), critical=False)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        # Python 3.13 rejects a certificate that does not name its issuer's key.
        .add_extension(issuer, critical=False)
    )
    return Identity(key, builder.sign(authority.key, hashes.SHA256()))


def _builder(own: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    ends = now + dt.timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(own)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Also valid for peers whose clocks are behind.
        .not_valid_before(min(now, ends) - dt.timedelta(days=1))
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates, key_cert_sign=signs_certificates, **dict.fromkeys(_USES, False)
    )


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _elliptic(key: object) -> ec.EllipticCurvePrivateKey:
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError("the private key is not one of an elliptic curve")
    return key
