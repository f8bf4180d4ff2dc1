"""Kerberos: logins configured by the options of Krb5LoginModule (Kafka class `KerberosLogin`), and the library, through
the package gssapi: credentials, and both sides of a security context (RFC 2743, 4121).

Contexts wait for files, and clients' contexts also for the key distribution centre. Use them off the event loop, on one
thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeVar

from config.definitions import ConfigError, Value
from security.openssl_files import read_bytes
from security.principals import ShortNames


class KerberosLogin(NamedTuple):
    """A Kerberos identity, from a keytab or from kinit's tickets. `key` is the configuration key to name in errors."""

    key: str
    service_name: str
    """The first component of the brokers' principals."""
    principal: str | None
    keytab: str | None
    """Without one, tickets are used."""
    ticket_cache: str | None = None
    """Without one, the machine's default cache is used."""
    mechanism: str = "GSSAPI"


class KerberosConfig(NamedTuple):
    """GSSAPI of a listener: its own identity, and the names of clients."""

    login: KerberosLogin
    names: ShortNames


def keytab_login(key: str, options: Mapping[str, str], service_name: Value) -> KerberosLogin:
    """The login of a broker, which accepts clients with a keytab. Raises ConfigError."""
    service = _service_name(key, options, service_name)
    if not _is_true(options, "useKeyTab"):
        raise ConfigError(key, "[hidden]", "a broker needs useKeyTab=true, with keyTab= and principal=")
    return _by_keytab(key, options, service)


def client_login(key: str, options: Mapping[str, str], service_name: Value) -> KerberosLogin:
    """The login of a client. Raises ConfigError."""
    service = _service_name(key, options, service_name)
    if _is_true(options, "useKeyTab"):
        return _by_keytab(key, options, service)
    if _is_true(options, "useTicketCache"):
        return KerberosLogin(key, service, options.get("principal"), None, options.get("ticketCache"))
    reason = "it needs useKeyTab=true, with keyTab= and principal=, or useTicketCache=true: nobody is asked a password"
    raise ConfigError(key, "[hidden]", reason)


def _by_keytab(key: str, options: Mapping[str, str], service_name: str) -> KerberosLogin:
    keytab, principal = options.get("keyTab", "").removeprefix("FILE:"), options.get("principal")
    if not keytab or not principal:
        raise ConfigError(key, "[hidden]", 'useKeyTab=true needs keyTab="/a/file" and principal="name@REALM"')
    return KerberosLogin(key, service_name, principal, keytab)


def _service_name(key: str, options: Mapping[str, str], configured: Value) -> str:
    """Kafka's rules and messages."""
    own = options.get("serviceName")
    if own and configured and own != configured:
        text = "Conflicting serviceName values found in JAAS and Kafka configs value in JAAS file"
        raise ConfigError(key, "[hidden]", f"{text} {own}, value in Kafka config {configured}")
    if not own and not configured:
        text = "No serviceName defined in either JAAS or Kafka config; set sasl.kerberos.service.name"
        raise ConfigError(key, "[hidden]", text)
    return own or str(configured)


def _is_true(options: Mapping[str, str], name: str) -> bool:
    return options.get(name, "").lower() == "true"


T = TypeVar("T")

_MISSING: Final = "GSSAPI needs the package gssapi: pip install 'odradek[kerberos]'"


class GssError(Exception):
    """The library rejects a token, or lacks credentials; the message is its reason."""


class GssContext:
    """One side of a security context."""

    def __init__(self, library: Any, context: Any) -> None:
        # Report a failed step at once instead of in the next call.
        context.__DEFER_STEP_ERRORS__ = False
        self._library = library
        self._context = context

    @property
    def is_complete(self) -> bool:
        """Whether both sides have authenticated."""
        return bool(self._context.complete)

    def initiator(self) -> str:
        """The client's principal, once the context is complete. Raises GssError."""
        return _call(self._library, lambda: str(self._context.initiator_name))

    def step(self, token: bytes) -> bytes:
        """Return the next token after the other side's, empty if none is needed. A client starts with an empty one.

        Raises GssError.
        """
        return _call(self._library, self._context.step, token or None) or b""

    def wrap(self, message: bytes) -> bytes:
        """A token with the message, protected against changes. Raises GssError."""
        return bytes(_call(self._library, self._context.wrap, message, False).message)

    def unwrap(self, token: bytes) -> bytes:
        """The message in a token. Raises GssError."""
        return bytes(_call(self._library, self._context.unwrap, token).message)


class Acceptor:
    """The broker's side."""

    def __init__(self, login: KerberosLogin) -> None:
        """Raises ConfigError if the keytab lacks a key for the principal, or the package is missing."""
        self._library = library = _loaded(login)
        self._credentials = _of_keytab(library, login)
        try:
            self.default_realm = _call(library, _default_realm, library)
        except GssError:  # as in Kafka: the rule DEFAULT then never applies
            self.default_realm = ""

    def context(self) -> GssContext:
        """A new context."""
        return GssContext(self._library, self._library.SecurityContext(creds=self._credentials, usage="accept"))


class Initiator:
    """The client's side. With a keytab, it renews tickets in time and keeps them in memory."""

    def __init__(self, login: KerberosLogin, cache: str) -> None:
        """`cache` is a unique name for a ticket cache. Raises ConfigError as `Acceptor` does."""
        self._library = _loaded(login)
        self._login = login
        if login.keytab is not None:
            _of_keytab(self._library, login)
            self._store = {"client_keytab": f"FILE:{login.keytab}", "ccache": f"MEMORY:{cache}"}
        else:
            self._store = {} if login.ticket_cache is None else {"ccache": login.ticket_cache}

    def context(self, host: str) -> GssContext:
        """A new context with the broker on `host`. Neither call this nor start a context while another one is starting.

        Raises GssError.
        """
        return _call(self._library, self._context, host)

    def _context(self, host: str) -> GssContext:
        library, flags = self._library, self._library.RequirementFlag
        target = library.Name(f"{self._login.service_name}@{host}", library.NameType.hostbased_service)
        context = library.SecurityContext(
            name=target,
            creds=_credentials(library, self._login, "initiate", self._store),
            mech=library.MechType.kerberos,
            flags=flags.mutual_authentication
            | flags.integrity
            | flags.replay_detection
            | flags.out_of_sequence_detection,
            usage="initiate",
        )
        return GssContext(library, context)


def _loaded(login: KerberosLogin) -> Any:
    try:
        return import_module("gssapi")
    except ImportError as error:
        found = "" if isinstance(error, ModuleNotFoundError) else f" ({error})"
        raise ConfigError(login.key, "[hidden]", f"{_MISSING}{found}") from error


def _of_keytab(library: Any, login: KerberosLogin) -> Any:
    """Credentials for accepting clients with the principal's key in the keytab.

    Raises ConfigError if the keytab lacks that key. The library would only report, to each client, that tickets are
    missing.
    """
    try:
        read_bytes(login.keytab or "")
        return _call(library, _credentials, library, login, "accept", {"keytab": f"FILE:{login.keytab}"})
    except OSError as error:
        reason = f"the keytab {login.keytab} cannot be read: {error.strerror}"
        raise ConfigError(login.key, "[hidden]", reason) from error
    except GssError as error:
        reason = f"the keytab {login.keytab} cannot be used for {login.principal}: {error}"
        raise ConfigError(login.key, "[hidden]", reason) from error


def _credentials(library: Any, login: KerberosLogin, usage: str, store: dict[str, str]) -> Any:
    """Restricted to Kerberos: the library also accepts tokens of other mechanisms, which RFC 4752 does not allow."""
    principal = None
    if login.principal is not None:
        principal = library.Name(login.principal, library.NameType.kerberos_principal)
    mechanisms = [library.MechType.kerberos]
    return library.Credentials(name=principal, usage=usage, mechs=mechanisms, store=store or None)


def _default_realm(library: Any) -> str:
    name = library.Name("anybody", library.NameType.kerberos_principal)
    return str(name.canonicalize(library.MechType.kerberos)).rpartition("@")[2]


def _call(library: Any, function: Callable[..., T], *arguments: object) -> T:
    """Raises GssError for the library's errors, and if it does not support choosing a keytab (Apple's)."""
    try:
        return function(*arguments)
    except library.exceptions.GSSError as error:
        raise GssError(_reason(error)) from error
    except NotImplementedError as error:
        raise GssError(str(error)) from error


def _reason(error: Any) -> str:
    """The mechanism's own message, if it has one."""
    if error.min_code:
        return "; ".join(error.get_all_statuses(error.min_code, False))
    return "; ".join(error.get_all_statuses(error.maj_code, True))
