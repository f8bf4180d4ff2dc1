"""OpenSSL contexts for a listener and for one who connects, from their configuration."""

from __future__ import annotations

import ssl
from typing import Final, NamedTuple

from config.definitions import ConfigError
from config.security.secret_files import FileStamp, secret_file, stamp_of
from config.security.ssl_config import ClientSsl, SslConfig
from config.security.store_config import Store
from config.security.stores import KeyPem, read_key, read_trusted

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
    """A context made from a configuration. `stamps` are those of its stores before they were read, `chain` is the PEM
    of the key store's certificates.
    """

    config: AnySsl
    stamps: Stamps
    context: ssl.SSLContext
    chain: str | None


class TlsLoader:
    """Makes contexts. Reads each key store once, however many listeners name it: it takes 0.3 s to open a PKCS12 store
    with a key of 4,096 bits.

    Holds private keys: a loader lives no longer than a start or a look at the stores.
    """

    def __init__(self) -> None:
        self._keys: dict[tuple[Store, FileStamp | None], KeyPem] = {}

    def load(self, config: AnySsl) -> LoadedTls:
        """Raises ConfigError, also for a key that is not that of its certificate and for one that its password does not
        open.
        """
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
    """The stamps of the key store and the trust store."""
    stores = config.key_store, config.trust_store
    return tuple(None if each is None or each.location is None else stamp_of(each.location) for each in stores)


def server_context(config: SslConfig) -> ssl.SSLContext:
    """The context in which a listener accepts clients. Raises ConfigError as `TlsLoader.load`."""
    return TlsLoader().load(config).context


def client_context(config: ClientSsl) -> ssl.SSLContext:
    """The context in which one connects. Raises ConfigError as `TlsLoader.load`."""
    return TlsLoader().load(config).context


def _server_context(config: SslConfig, key: KeyPem) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    # Clients do not resume sessions, and tickets of TLS 1.3 would be made for each handshake.
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
    """To the versions and suites that are allowed."""
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
        # Without this OpenSSL would ask on the terminal.
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
    """OpenSSL's reason, and what to do about it."""
    advice = _ADVICE.get(getattr(error, "reason", None) or "")
    return f"OpenSSL cannot use it: {error}" + (f": {advice}" if advice else "")


def _load_trusted(context: ssl.SSLContext, store: Store) -> None:
    try:
        context.load_verify_locations(cadata=read_trusted(store))
    except ssl.SSLError as error:
        raise ConfigError(store.name, store.location or "[hidden]", _refusal(error)) from error
    # As Java: every certificate of the store is trusted for itself, not only one that signed itself.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
