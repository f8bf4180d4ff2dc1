"""TLS of one listener: what the keys ssl.* ask for (Kafka classes `SslConfigs`, `DefaultSslEngineFactory`).

A key with the listener's prefix, listener.name.NAME.ssl.*, goes before the key without.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from config.definitions import ConfigError, ConfigKey, Value
from config.security.cipher_suites import openssl_name
from config.security.principal_rules import PrincipalRules
from config.security.store_config import AllowedChanges, SslKeys, Store, allowed_changes, key_store, trust_store

PROTOCOLS: Final = ("TLSv1.2", "TLSv1.3")
OBSOLETE_PROTOCOLS: Final = ("TLSv1", "TLSv1.1")
_SUITES_OF_TLS_1_3: Final = frozenset(
    {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}
)


class ClientSsl(NamedTuple):
    """TLS towards a server. Without a trust store the machine's authorities count."""

    key_store: Store | None
    trust_store: Store | None
    protocols: tuple[str, ...]
    cipher_suites: tuple[str, ...]
    checks_host_name: bool
    allowed_changes: AllowedChanges


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
    allowed_changes: AllowedChanges


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
    own = SslKeys(f"listener.name.{listener.lower()}.", values, originals, keys)
    client_auth = own.text("ssl.client.auth") or "none"
    if is_sasl and own.name("ssl.client.auth") == "ssl.client.auth":
        client_auth = "none"
    own_key = key_store(own)
    if own_key is None:
        needed = "or with ssl.keystore.type=PEM ssl.keystore.certificate.chain and ssl.keystore.key"
        raise ConfigError(own.name("ssl.keystore.location"), None, f"listener {listener} needs a key: set it {needed}")
    trusted = trust_store(own)
    if client_auth != "none" and trusted is None:
        reason = "it needs ssl.truststore.location or ssl.truststore.certificates: every public authority would count"
        raise ConfigError(own.name("ssl.client.auth"), client_auth, reason)
    protocols, suites = _suites(own, _protocols(own))
    rules = own.text("ssl.principal.mapping.rules") or "DEFAULT"
    parsed = PrincipalRules.parse(own.name("ssl.principal.mapping.rules"), rules)
    return SslConfig(own_key, trusted, client_auth, protocols, suites, parsed, allowed_changes(own))


def parse_client_ssl(own: SslKeys) -> ClientSsl:
    """TLS of one who connects. Raises ConfigError."""
    name = "ssl.endpoint.identification.algorithm"
    algorithm = own.text(name) or ""
    if algorithm.lower() not in ("https", ""):
        raise ConfigError(own.name(name), algorithm, "it must be https, or empty for no check of host names")
    protocols, suites = _suites(own, _protocols(own))
    return ClientSsl(key_store(own), trust_store(own), protocols, suites, bool(algorithm), allowed_changes(own))


def usable_protocols(words: tuple[str, ...]) -> tuple[str, ...]:
    """Without versions that are obsolete (RFC 8996), where another one is left: clients negotiate that."""
    usable = tuple(each for each in words if each not in OBSOLETE_PROTOCOLS)
    return usable or words


def _protocols(own: SslKeys) -> tuple[str, ...]:
    name = "ssl.enabled.protocols"
    protocols = usable_protocols(own.words(name))
    for protocol in protocols:
        if protocol not in PROTOCOLS:
            raise ConfigError(own.name(name), protocols, f"{protocol} is not one of {', '.join(PROTOCOLS)}")
    if not protocols:
        raise ConfigError(own.name(name), protocols, f"it must name some of {', '.join(PROTOCOLS)}")
    return protocols


def _suites(own: SslKeys, protocols: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
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
