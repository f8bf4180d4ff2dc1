"""Key stores and trust stores: the keys ssl.* that configure them, optionally per listener, and their contents in PEM,
PKCS12 or JKS. Each error is one line about the unusable setting.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from config.definitions import ConfigError, ConfigKey, Value
from security.jks import JKS_BEGINS, Jks, JksError, JksPasswordError, read_jks
from security.openssl_files import Pkcs12, read_bytes, read_pkcs12

STORE_TYPES: Final = ("PEM", "PKCS12", "JKS")


class Store(NamedTuple):
    """A key store or trust store. `name` is the key to name in errors; `pem` is set instead of a file's location.

    `password` decrypts the file, `key_password` the private key in it.
    """

    name: str
    kind: str
    location: str | None
    pem: str | None
    password: str | None
    password_name: str
    key_password: str | None = None
    key_password_name: str = ""


class AllowedChanges(NamedTuple):
    """Whether a new certificate may have another subject, and lack alternative names of the old one."""

    subject: bool = False
    alternative_names: bool = False


class SslKeys:
    """The applicable keys: those with `prefix` have precedence over those without."""

    def __init__(
        self, prefix: str, values: Mapping[str, Value], originals: Mapping[str, str], keys: Mapping[str, ConfigKey]
    ) -> None:
        """`values` are parsed values of keys without the prefix, `originals` all configured properties."""
        self._prefix = prefix
        self._values = values
        self._originals = originals
        self._keys = keys

    def name(self, key: str) -> str:
        """The applicable key, with the prefix if it is set that way."""
        return self._prefix + key if self._prefix + key in self._originals else key

    def value(self, key: str) -> Value:
        """Raises ConfigError."""
        name = self.name(key)
        return self._values[key] if name == key else self._keys[key]._replace(name=name).parse(self._originals[name])

    def text(self, key: str) -> str | None:
        """The text, or None if it is empty."""
        value = self.value(key)
        return value if isinstance(value, str) and value else None

    def words(self, key: str) -> tuple[str, ...]:
        """The elements of a list."""
        value = self.value(key)
        return value if isinstance(value, tuple) else ()


def key_store(own: SslKeys) -> Store | None:
    """The configured key store, if any. Raises ConfigError."""
    location, kind = own.text("ssl.keystore.location"), _store_type(own, "ssl.keystore.type")
    chain, key = own.text("ssl.keystore.certificate.chain"), own.text("ssl.keystore.key")
    password, key_password = own.text("ssl.keystore.password"), own.text("ssl.key.password")
    names = own.name("ssl.keystore.password"), key_password, own.name("ssl.key.password")
    if key is None and chain is None:
        if location is None:
            return None
        if kind == "PEM" and password is not None:
            reason = "a PEM key store has no password; the key's is ssl.key.password"
            raise ConfigError(own.name("ssl.keystore.password"), "[hidden]", reason)
        return Store(own.name("ssl.keystore.location"), kind, location, None, password, *names)
    if key is None or chain is None:
        missing = "ssl.keystore.key" if key is None else "ssl.keystore.certificate.chain"
        raise ConfigError(own.name(missing), None, "ssl.keystore.certificate.chain and ssl.keystore.key go together")
    _check_inline(own, "ssl.keystore", kind, location, password)
    return Store(own.name("ssl.keystore.key"), "PEM", None, f"{key}\n{chain}", None, *names)


def trust_store(own: SslKeys) -> Store | None:
    """The configured trust store, if any. Raises ConfigError."""
    location, kind = own.text("ssl.truststore.location"), _store_type(own, "ssl.truststore.type")
    pem, password = own.text("ssl.truststore.certificates"), own.text("ssl.truststore.password")
    password_name = own.name("ssl.truststore.password")
    if pem is not None:
        _check_inline(own, "ssl.truststore", kind, location, password)
        return Store(own.name("ssl.truststore.certificates"), "PEM", None, pem, None, password_name)
    if location is None:
        return None
    if kind == "PEM" and password is not None:
        raise ConfigError(password_name, "[hidden]", "a PEM trust store has no password")
    return Store(own.name("ssl.truststore.location"), kind, location, None, password, password_name)


def allowed_changes(own: SslKeys) -> AllowedChanges:
    """The allowed changes of a key store at run time."""
    return AllowedChanges(own.value("ssl.allow.dn.changes") is True, own.value("ssl.allow.san.changes") is True)


def _check_inline(own: SslKeys, store: str, kind: str, location: str | None, password: str | None) -> None:
    """Checks of a store given as text in the configuration."""
    if kind != "PEM":
        raise ConfigError(own.name(f"{store}.type"), kind, "keys and certificates as text need the type PEM")
    if location is not None:
        raise ConfigError(own.name(f"{store}.location"), location, "the store is given as text already; remove one")
    if password is not None:
        raise ConfigError(own.name(f"{store}.password"), "[hidden]", "a PEM store has no password")


def _store_type(own: SslKeys, name: str) -> str:
    given = own.text(name) or "JKS"
    if given.upper() not in STORE_TYPES:
        raise ConfigError(own.name(name), given, f"it must be one of: {', '.join(STORE_TYPES)}")
    return given.upper()


_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_LINE: Final = 64
_END: Final = "-----END CERTIFICATE-----\n"


class KeyPem(NamedTuple):
    """A private key and its chain of certificates in PEM."""

    key: str
    chain: str


class CertificateNames(NamedTuple):
    """The names in a certificate."""

    subject: str
    alternative_names: frozenset[str]


def identity_of(store: Store, chain: str) -> CertificateNames:
    """The names in the first certificate of `chain`, from a key store. Raises ConfigError."""
    from cryptography.x509 import ExtensionNotFound, SubjectAlternativeName, load_pem_x509_certificate

    try:
        certificate = load_pem_x509_certificate(chain.encode())
        try:
            names = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
        except ExtensionNotFound:
            return CertificateNames(certificate.subject.rfc4514_string(), frozenset())
    except ValueError as error:
        raise ConfigError(
            store.name, store.location or "[hidden]", f"its certificate cannot be read: {error}"
        ) from error
    return CertificateNames(certificate.subject.rfc4514_string(), frozenset(str(each.value) for each in names))


def check_identity(store: Store, before: CertificateNames, after: CertificateNames, allowed: AllowedChanges) -> None:
    """Raise ConfigError if a renewed certificate is for another identity (Kafka class `SslFactory`)."""
    shown = store.location or "[hidden]"
    if not allowed.subject and after.subject != before.subject:
        reason = f"its subject {after.subject} is not the present one, {before.subject} (ssl.allow.dn.changes)"
        raise ConfigError(store.name, shown, reason)
    lacking = before.alternative_names - after.alternative_names
    if not allowed.alternative_names and lacking:
        reason = f"it lacks the present alternative names {', '.join(sorted(lacking))} (ssl.allow.san.changes)"
        raise ConfigError(store.name, shown, reason)


def read_key(store: Store) -> KeyPem:
    """The key and certificates of a key store. Raises ConfigError."""
    if store.kind != "PEM":
        # Like Java, which reads either format regardless of the configured one.
        content = _read(store)
        return _from_jks(store, content) if content.startswith(JKS_BEGINS) else _from_pkcs12(store, content)
    blocks = _blocks(_pem_text(store))
    keys = [text for label, text in blocks if label.endswith("PRIVATE KEY")]
    chain = "".join(text for label, text in blocks if label == "CERTIFICATE")
    if len(keys) != 1:
        raise ConfigError(store.name, store.location or "[hidden]", f"it must have one private key, not {len(keys)}")
    if not chain:
        raise ConfigError(store.name, store.location or "[hidden]", "it does not contain a certificate")
    return KeyPem(keys[0], chain)


def read_trusted(store: Store) -> str:
    """The certificates of a trust store in PEM. Raises ConfigError."""
    if store.kind == "PEM":
        certificates = "".join(text for label, text in _blocks(_pem_text(store)) if label == "CERTIFICATE")
    elif (content := _read(store)).startswith(JKS_BEGINS):
        jks = _open_jks(store, content)
        own = (key.chain.partition(_END)[0] + _END for key in jks.keys)
        certificates = jks.trusted + "".join(own)
    else:
        opened = _open_pkcs12(store, content)
        # As in Java: for an entry with a key, only its own certificate is trusted, not the rest of its chain.
        certificates = "".join(opened.others) if opened.key is None else opened.certificate or ""
    if not certificates:
        name, value = store.name, store.location or "[hidden]"
        raise ConfigError(name, value, "it does not contain a trusted certificate")
    return certificates


def _from_jks(store: Store, content: bytes) -> KeyPem:
    jks = _open_jks(store, content)
    if len(jks.keys) != 1:
        raise ConfigError(store.name, store.location, f"it must have one private key, not {len(jks.keys)}")
    password = store.password if store.key_password is None else store.key_password
    name = store.password_name if store.key_password is None else store.key_password_name
    try:
        return KeyPem(jks.keys[0].pem(password or ""), jks.keys[0].chain)
    except JksPasswordError as error:
        raise ConfigError(name, "[hidden]", str(error)) from error
    except JksError as error:
        raise ConfigError(store.name, store.location, str(error)) from error


def _open_jks(store: Store, content: bytes) -> Jks:
    try:
        return read_jks(content, store.password)
    except JksPasswordError as error:
        raise ConfigError(store.password_name, "[hidden]", f"{error}: {store.location}") from error
    except JksError as error:
        raise ConfigError(store.name, store.location, str(error)) from error


def _from_pkcs12(store: Store, content: bytes) -> KeyPem:
    if store.key_password is not None and store.key_password != store.password:
        reason = "a PKCS12 store has one password, that of ssl.keystore.password"
        raise ConfigError(store.key_password_name, "[hidden]", reason)
    opened = _open_pkcs12(store, content)
    if opened.key is None or opened.certificate is None:
        raise ConfigError(store.name, store.location, "it does not contain a private key with its certificate")
    return KeyPem(opened.key, opened.certificate + "".join(opened.others))


def _open_pkcs12(store: Store, content: bytes) -> Pkcs12:
    try:
        return read_pkcs12(content, store.password)
    except ValueError as error:
        reason = f"it does not open the store {store.location}, or that is neither PKCS12 nor JKS: {error}"
        raise ConfigError(store.password_name, "[hidden]", reason) from error


def _pem_text(store: Store) -> str:
    if store.pem is not None:
        return store.pem
    # A certificate may follow a description in any encoding.
    return _read(store).decode("utf-8", "replace")


def _read(store: Store) -> bytes:
    assert store.location is not None
    try:
        return read_bytes(store.location)
    except OSError as error:
        raise ConfigError(store.name, store.location, f"it cannot be read: {error.strerror}") from error


def _blocks(text: str) -> list[tuple[str, str]]:
    """The labelled blocks of a PEM text, split into the lines that OpenSSL expects: a configuration may have joined
    them.
    """
    blocks = []
    for label, body in _BLOCK.findall(text):
        if ":" not in body:
            joined = "".join(body.split())
            body = "\n" + "\n".join(joined[at : at + _LINE] for at in range(0, len(joined), _LINE)) + "\n"  # noqa: PLW2901
        blocks.append((label, f"-----BEGIN {label}-----{body}-----END {label}-----\n"))
    return blocks
