"""TLS of one listener: what the keys ssl.* ask for (Kafka classes `SslConfigs`, `DefaultSslEngineFactory`).

A key with the listener's prefix, listener.name.NAME.ssl.*, goes before the key without.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from config.definitions import ConfigError, ConfigKey, Value
from config.security.cipher_suites import openssl_name
from config.security.principal_rules import PrincipalRules

PROTOCOLS: Final = ("TLSv1.2", "TLSv1.3")
STORE_TYPES: Final = ("PEM", "PKCS12", "JKS")
_SUITES_OF_TLS_1_3: Final = frozenset(
    {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}
)


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


class SslConfig(NamedTuple):
    """TLS of one listener. `cipher_suites` are OpenSSL's names for TLS 1.2; empty: its own choice.

    `client_auth` is required, requested or none.
    """

    key_store: Store
    trust_store: Store | None
    client_auth: str
    protocols: tuple[str, ...]
    cipher_suites: tuple[str, ...]
    principal_rules: PrincipalRules


class _Keys:
    """The keys of one listener."""

    def __init__(
        self, listener: str, values: Mapping[str, Value], originals: Mapping[str, str], keys: Mapping[str, ConfigKey]
    ) -> None:
        self._prefix = f"listener.name.{listener.lower()}."
        self._values = values
        self._originals = originals
        self._keys = keys

    def name(self, key: str) -> str:
        """The key that counts, with the listener's prefix if it is set so."""
        return self._prefix + key if self._prefix + key in self._originals else key

    def value(self, key: str) -> Value:
        name = self.name(key)
        return self._values[key] if name == key else self._keys[key]._replace(name=name).parse(self._originals[name])

    def text(self, key: str) -> str | None:
        """None where it is empty."""
        value = self.value(key)
        return value if isinstance(value, str) and value else None

    def words(self, key: str) -> tuple[str, ...]:
        value = self.value(key)
        return value if isinstance(value, tuple) else ()


def parse_ssl(
    listener: str,
    values: Mapping[str, Value],
    originals: Mapping[str, str],
    keys: Mapping[str, ConfigKey],
    *,
    is_sasl: bool,
) -> SslConfig:
    """TLS of `listener`. Raises ConfigError.

    With SASL (`is_sasl`), clients show a certificate only where the listener's own key asks for one (KIP-684).
    """
    own = _Keys(listener, values, originals, keys)
    client_auth = own.text("ssl.client.auth") or "none"
    if is_sasl and own.name("ssl.client.auth") == "ssl.client.auth":
        client_auth = "none"
    key_store = _key_store(own)
    if key_store is None:
        needed = "or with ssl.keystore.type=PEM ssl.keystore.certificate.chain and ssl.keystore.key"
        raise ConfigError(own.name("ssl.keystore.location"), None, f"listener {listener} needs a key: set it {needed}")
    trust_store = _trust_store(own)
    if client_auth != "none" and trust_store is None:
        reason = "it needs ssl.truststore.location or ssl.truststore.certificates: every public authority would count"
        raise ConfigError(own.name("ssl.client.auth"), client_auth, reason)
    protocols, suites = _suites(own, _protocols(own))
    rules = own.text("ssl.principal.mapping.rules") or "DEFAULT"
    parsed = PrincipalRules.parse(own.name("ssl.principal.mapping.rules"), rules)
    return SslConfig(key_store, trust_store, client_auth, protocols, suites, parsed)


def _key_store(own: _Keys) -> Store | None:
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


def _trust_store(own: _Keys) -> Store | None:
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


def _check_inline(own: _Keys, store: str, kind: str, location: str | None, password: str | None) -> None:
    """Rules for a store whose text is in the configuration."""
    if kind != "PEM":
        raise ConfigError(own.name(f"{store}.type"), kind, "keys and certificates as text need the type PEM")
    if location is not None:
        raise ConfigError(own.name(f"{store}.location"), location, "the store is given as text already; remove one")
    if password is not None:
        raise ConfigError(own.name(f"{store}.password"), "[hidden]", "a PEM store has no password")


def _store_type(own: _Keys, name: str) -> str:
    given = own.text(name) or "JKS"
    if given.upper() not in STORE_TYPES:
        raise ConfigError(own.name(name), given, f"it must be one of: {', '.join(STORE_TYPES)}")
    return given.upper()


def _protocols(own: _Keys) -> tuple[str, ...]:
    name = "ssl.enabled.protocols"
    protocols = own.words(name)
    for protocol in protocols:
        if protocol not in PROTOCOLS:
            raise ConfigError(own.name(name), protocols, f"{protocol} is none of {', '.join(PROTOCOLS)}")
    if not protocols:
        raise ConfigError(own.name(name), protocols, f"it must name some of {', '.join(PROTOCOLS)}")
    return protocols


def _suites(own: _Keys, protocols: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The versions for which there are suites, and those of TLS 1.2.

    OpenSSL's suites of TLS 1.3 cannot be chosen from Python, so it is all of them or none.
    """
    name = own.name("ssl.cipher.suites")
    suites = own.words("ssl.cipher.suites")
    if not suites:
        return protocols, ()
    newest = _SUITES_OF_TLS_1_3.intersection(suites)
    if newest and newest != _SUITES_OF_TLS_1_3 and "TLSv1.3" in protocols:
        allowed = ", ".join(sorted(_SUITES_OF_TLS_1_3))
        raise ConfigError(name, suites, f"of TLSv1.3 it must have all suites or none: {allowed}")
    older = tuple(openssl_name(name, suite) for suite in suites if suite not in _SUITES_OF_TLS_1_3)
    spoken = tuple(each for each in protocols if (newest if each == "TLSv1.3" else older))
    if not spoken:
        raise ConfigError(name, suites, f"it has no suite of {', '.join(protocols)} (ssl.enabled.protocols)")
    return spoken, older
