"""TLS of one listener or client: the keys ssl.* (Kafka classes `SslConfigs`, `DefaultSslEngineFactory`), Java's names
of cipher suites, and OpenSSL contexts.

A key with the listener's prefix, listener.name.NAME.ssl.*, has precedence over the key without it.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Final, NamedTuple

from config.definitions import ConfigError, ConfigKey, Value
from security.openssl_files import FileStamp, secret_file, stamp_of
from security.principals import PrincipalRules
from security.stores import (
    AllowedChanges,
    KeyPem,
    SslKeys,
    Store,
    allowed_changes,
    key_store,
    read_key,
    read_trusted,
    trust_store,
)


def openssl_name(name: str, suite: str) -> str:
    """OpenSSL's name of a TLS 1.2 suite: ECDHE-RSA-AES128-GCM-SHA256 for TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256. Raises
    ConfigError for the key `name`.
    """
    exchange, found, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    if not suite.startswith("TLS_") or not found:
        raise ConfigError(name, suite, "not a suite of TLSv1.2, such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256")
    if cipher.endswith("CHACHA20_POLY1305_SHA256"):
        cipher = cipher.removesuffix("_SHA256")
    cipher = cipher.replace("AES_", "AES").replace("_CBC", "")
    # OpenSSL's names omit plain RSA key exchange.
    exchange = "" if exchange == "RSA" else exchange
    return "-".join(part for part in (*exchange.split("_"), *cipher.split("_")) if part)


PROTOCOLS: Final = ("TLSv1.2", "TLSv1.3")
OBSOLETE_PROTOCOLS: Final = ("TLSv1", "TLSv1.1")
_SUITES_OF_TLS_1_3: Final = frozenset(
    {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}
)


class ClientSsl(NamedTuple):
    """TLS for a client. Without a trust store, it uses the system's authorities."""

    key_store: Store | None
    trust_store: Store | None
    protocols: tuple[str, ...]
    cipher_suites: tuple[str, ...]
    checks_host_name: bool
    allowed_changes: AllowedChanges


class SslConfig(NamedTuple):
    """TLS of one listener. `cipher_suites` are OpenSSL's names for TLS 1.2; empty for OpenSSL's default.

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

    With SASL (`is_sasl`), client certificates are requested only if the listener's own key says so (KIP-684).
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
    """TLS for a client. Raises ConfigError."""
    name = "ssl.endpoint.identification.algorithm"
    algorithm = own.text(name) or ""
    if algorithm.lower() not in ("https", ""):
        raise ConfigError(own.name(name), algorithm, "it must be https, or empty for no check of host names")
    protocols, suites = _suites(own, _protocols(own))
    return ClientSsl(key_store(own), trust_store(own), protocols, suites, bool(algorithm), allowed_changes(own))


def usable_protocols(words: tuple[str, ...]) -> tuple[str, ...]:
    """Drop obsolete versions (RFC 8996) if any other version remains."""
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
    """The versions with at least one suite, and the suites of TLS 1.2.

    Python cannot choose TLS 1.3 suites in OpenSSL, so the configuration must have all of them or none.
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
        raise ConfigError(name, suites, f"it lists no suite for {', '.join(protocols)} (ssl.enabled.protocols)")
    return spoken, older


_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_ADVICE: Final = {
    "CA_MD_TOO_WEAK": "a certificate in its chain is signed with SHA-1 or MD5; issue it again with SHA-256 "
    "(keytool -sigalg SHA256withRSA, openssl -sha256)",
    "EE_KEY_TOO_SMALL": "its key is too short; make one of 2,048 bits or more",
    "CA_KEY_TOO_SMALL": "the key of an authority in its chain is too short; make one of 2,048 bits or more",
}
_CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}

AnySsl = SslConfig | ClientSsl
Stamps = tuple[FileStamp | None, ...]


class LoadedTls(NamedTuple):
    """A context built from a configuration. `stamps` are its stores' stamps from before the read, `chain` is the PEM of
    the key store's certificates.
    """

    config: AnySsl
    stamps: Stamps
    context: ssl.SSLContext
    chain: str | None


class TlsLoader:
    """Builds contexts. Reads each key store only once, even if several listeners use it, because opening a PKCS12 store
    with a key of 4,096 bits takes 0.3 s.

    It holds private keys, so keep a loader only during a start or a check of the stores.
    """

    def __init__(self) -> None:
        self._keys: dict[tuple[Store, FileStamp | None], KeyPem] = {}

    def load(self, config: AnySsl) -> LoadedTls:
        """Raises ConfigError, also if the key does not match its certificate or its password is wrong."""
        stamps = stamps_of(config)
        if isinstance(config, SslConfig):
            pem = self._key(config.key_store, stamps[0])
            return LoadedTls(config, stamps, _server_context(config, pem), pem.chain)
        own = None if config.key_store is None else self._key(config.key_store, stamps[0])
        return LoadedTls(config, stamps, _client_context(config, own), None if own is None else own.chain)

    def _key(self, store: Store, stamp: FileStamp | None) -> KeyPem:
        nameless = store._replace(name="", password_name="", key_password_name="")
        pem = self._keys.get((nameless, stamp))
        if pem is None:
            pem = self._keys[nameless, stamp] = read_key(store)
        return pem


def stamps_of(config: AnySsl) -> Stamps:
    """The stamps of key store and trust store."""
    stores = config.key_store, config.trust_store
    return tuple(None if each is None or each.location is None else stamp_of(each.location) for each in stores)


def client_context(config: ClientSsl) -> ssl.SSLContext:
    """The context for connecting to a server. Raises ConfigError as `TlsLoader.load`."""
    return TlsLoader().load(config).context


def _server_context(config: SslConfig, key: KeyPem) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    # Clients do not resume sessions, but TLS 1.3 would create tickets in each handshake.
    context.num_tickets = 0
    _limit(context, config)
    _load_key(context, config.key_store, key)
    if config.trust_store is not None:
        _load_trusted(context, config.trust_store)
    context.verify_mode = _CLIENT_AUTH[config.client_auth]
    return context


def _client_context(config: ClientSsl, key: KeyPem | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = config.checks_host_name
    _limit(context, config)
    if config.key_store is not None and key is not None:
        _load_key(context, config.key_store, key)
    if config.trust_store is None:
        context.load_default_certs()
    else:
        _load_trusted(context, config.trust_store)
    return context


def _limit(context: ssl.SSLContext, config: AnySsl) -> None:
    """Restrict the context to the allowed versions and suites."""
    versions = [_VERSIONS[each] for each in config.protocols]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    for suite in config.cipher_suites:
        _set_ciphers(context, suite)
    if config.cipher_suites:
        _set_ciphers(context, ":".join(config.cipher_suites))


def _set_ciphers(context: ssl.SSLContext, suites: str) -> None:
    try:
        context.set_ciphers(suites)
    except ssl.SSLError as error:
        raise ConfigError("ssl.cipher.suites", suites, "OpenSSL does not have this suite") from error


def _load_key(context: ssl.SSLContext, store: Store, pem: KeyPem) -> None:
    shown = store.location or "[hidden]"
    asked = False

    def password() -> str:
        # Without this, OpenSSL would prompt on the terminal.
        nonlocal asked
        asked = True
        return store.key_password or ""

    with secret_file((pem.key + pem.chain).encode()) as path:
        try:
            context.load_cert_chain(path, password=password)
        except (ssl.SSLError, ValueError) as error:
            if asked and store.key_password is None:
                reason = f"the private key in {store.name} is encrypted; set its password"
                raise ConfigError(store.key_password_name, None, reason) from error
            if asked:
                raise ConfigError(store.key_password_name, "[hidden]", "it does not open the private key") from error
            if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
                reason = "the private key is not that of the first certificate"
                raise ConfigError(store.name, shown, reason) from error
            raise ConfigError(store.name, shown, _refusal(error)) from error


def _refusal(error: Exception) -> str:
    """OpenSSL's reason, with advice."""
    advice = _ADVICE.get(getattr(error, "reason", None) or "")
    return f"OpenSSL cannot use it: {error}" + (f": {advice}" if advice else "")


def _load_trusted(context: ssl.SSLContext, store: Store) -> None:
    try:
        context.load_verify_locations(cadata=read_trusted(store))
    except ssl.SSLError as error:
        raise ConfigError(store.name, store.location or "[hidden]", _refusal(error)) from error
    # As in Java: each certificate in the store is trusted by itself, not only self-signed ones.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
