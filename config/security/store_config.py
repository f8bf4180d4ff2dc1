"""Key stores and trust stores, as the keys ssl.* name them, with those of one listener in front of the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from config.definitions import ConfigError, ConfigKey, Value

STORE_TYPES: Final = ("PEM", "PKCS12", "JKS")


class Store(NamedTuple):
    """A key store or trust store. `name` is the key to blame when the file is bad; `pem` is set where no file is.

    `password` opens the file, `key_password` the private key in it.
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
    """Whether a new certificate may be for another subject, and lack alternative names that the old one has."""

    subject: bool = False
    alternative_names: bool = False


class SslKeys:
    """The keys that count: those with `prefix` go before those without."""

    def __init__(
        self, prefix: str, values: Mapping[str, Value], originals: Mapping[str, str], keys: Mapping[str, ConfigKey]
    ) -> None:
        """`values` are those without the prefix, `originals` what is set."""
        self._prefix = prefix
        self._values = values
        self._originals = originals
        self._keys = keys

    def name(self, key: str) -> str:
        """The key that counts, with the prefix if it is set so."""
        return self._prefix + key if self._prefix + key in self._originals else key

    def value(self, key: str) -> Value:
        """Raises ConfigError."""
        name = self.name(key)
        return self._values[key] if name == key else self._keys[key]._replace(name=name).parse(self._originals[name])

    def text(self, key: str) -> str | None:
        """None where it is empty."""
        value = self.value(key)
        return value if isinstance(value, str) and value else None

    def words(self, key: str) -> tuple[str, ...]:
        """The parts of a list."""
        value = self.value(key)
        return value if isinstance(value, tuple) else ()


def key_store(own: SslKeys) -> Store | None:
    """None where none is named. Raises ConfigError."""
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
    """None where none is named. Raises ConfigError."""
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
    """Of a key store while it is used."""
    return AllowedChanges(own.value("ssl.allow.dn.changes") is True, own.value("ssl.allow.san.changes") is True)


def _check_inline(own: SslKeys, store: str, kind: str, location: str | None, password: str | None) -> None:
    """Rules for a store whose text is in the configuration."""
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
