"""Java's own key store format, JKS, which is frozen (JDK classes `JavaKeyStore`, `KeyProtector`).

Big-endian: magic, version (1 or 2), entries (a tag, an alias, a time; a private key and its chain, or a certificate),
and a SHA-1 over the password, a fixed text and all bytes before it. A private key is XORed with a stream of SHA-1
hashes.
"""

from __future__ import annotations

import hashlib
import struct
from base64 import b64encode
from typing import Final, NamedTuple

JKS_BEGINS: Final = b"\xfe\xed\xfe\xed"
_WHITENER: Final = b"Mighty Aphrodite"
_PRIVATE_KEY, _TRUSTED = 1, 2
_PROTECTED_BY_SUN: Final = bytes.fromhex("06 0a 2b 06 01 04 01 2a 02 11 01 01")
"""The object identifier 1.3.6.1.4.1.42.2.17.1.1 in DER."""
_HASH: Final = 20


class JksError(Exception):
    """An invalid JKS file; the message gives the reason."""


class JksPasswordError(JksError):
    """A wrong password for the store or the key."""


class JksKey(NamedTuple):
    """A private key in its encrypted form, and its chain of certificates in PEM."""

    protected: bytes
    chain: str

    def pem(self, password: str) -> str:
        """Decrypt the private key. Raises JksError."""
        at = self.protected.find(_PROTECTED_BY_SUN)
        if at < 0:
            raise JksError("its private key is not protected in JKS's way")
        text = _octets(self.protected, at + len(_PROTECTED_BY_SUN))
        salt, hidden, check = text[:_HASH], text[_HASH:-_HASH], text[-_HASH:]
        secret, stream, block = password.encode("utf-16-be"), b"", salt
        while len(stream) < len(hidden):
            block = hashlib.sha1(secret + block, usedforsecurity=False).digest()
            stream += block
        plain = bytes(each ^ mask for each, mask in zip(hidden, stream, strict=False))
        if hashlib.sha1(secret + plain, usedforsecurity=False).digest() != check:
            raise JksPasswordError("it does not open the private key")
        return pem("PRIVATE KEY", plain)


class Jks(NamedTuple):
    """The content of a store."""

    keys: tuple[JksKey, ...]
    trusted: str
    """Certificates in PEM."""


def read_jks(content: bytes, password: str | None) -> Jks:
    """Read a store. As in Java, its integrity is not checked without a password. Raises JksError."""
    body, found = content[:-_HASH], content[-_HASH:]
    if password is not None:
        secret = password.encode("utf-16-be")
        if hashlib.sha1(secret + _WHITENER + body, usedforsecurity=False).digest() != found:
            raise JksPasswordError("it does not open the store, or the store is damaged")
    try:
        return _entries(body)
    except (struct.error, IndexError) as error:
        raise JksError("it ends too early") from error


def pem(label: str, der: bytes) -> str:
    """A PEM block."""
    text = b64encode(der).decode()
    lines = "\n".join(text[at : at + 64] for at in range(0, len(text), 64))
    return f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n"


def _entries(body: bytes) -> Jks:
    magic, version, count = struct.unpack_from(">4sII", body)
    if magic != JKS_BEGINS or version not in {1, 2}:
        raise JksError(f"it is not JKS of version 1 or 2: {magic.hex()}, {version}")
    at, keys, trusted = 12, [], []

    def block(width: str) -> bytes:
        nonlocal at
        (size,) = struct.unpack_from(width, body, at)
        start = at + struct.calcsize(width)
        at = start + size
        if at > len(body):
            raise JksError("it ends too early")
        return body[start:at]

    def certificate() -> str:
        if version == 2:
            block(">H")  # its type, X.509
        return pem("CERTIFICATE", block(">I"))

    for _ in range(count):
        (tag,) = struct.unpack_from(">I", body, at)
        at += 4
        block(">H")  # the alias
        at += 8
        if tag == _PRIVATE_KEY:
            protected = block(">I")
            (chain,) = struct.unpack_from(">I", body, at)
            at += 4
            keys.append(JksKey(protected, "".join(certificate() for _ in range(chain))))
        elif tag == _TRUSTED:
            trusted.append(certificate())
        else:
            raise JksError(f"it has an entry of the unknown kind {tag}")
    return Jks(tuple(keys), "".join(trusted))


def _octets(der: bytes, at: int) -> bytes:
    """The OCTET STRING in DER after an algorithm's parameters, which are NULL or missing."""
    if der[at : at + 2] == b"\x05\x00":
        at += 2
    if der[at : at + 1] != b"\x04" or at + 2 > len(der):
        raise JksError("its private key is damaged")
    size, at = der[at + 1], at + 2
    if size & 0x80:
        width = size & 0x7F
        size, at = int.from_bytes(der[at : at + width], "big"), at + width
    if len(der) < at + size or size < 2 * _HASH:
        raise JksError("its private key is damaged")
    return der[at : at + size]
