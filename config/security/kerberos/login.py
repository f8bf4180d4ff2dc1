"""Kerberos logins: the options of Krb5LoginModule, and sasl.kerberos.service.name (Kafka class `KerberosLogin`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from config.definitions import ConfigError, Value
from config.security.kerberos.short_names import ShortNames


class KerberosLogin(NamedTuple):
    """Who one is, by a keytab or by the tickets that kinit got. `key` is to blame when neither can be used."""

    key: str
    service_name: str
    """The first component of the brokers' principals."""
    principal: str | None
    keytab: str | None
    """None for tickets."""
    ticket_cache: str | None = None
    """None for the machine's default."""
    mechanism: str = "GSSAPI"


class KerberosConfig(NamedTuple):
    """GSSAPI of a listener: as whom it accepts clients, and what they are called."""

    login: KerberosLogin
    names: ShortNames


def keytab_login(key: str, options: Mapping[str, str], service_name: Value) -> KerberosLogin:
    """That of a broker, which accepts clients by the keytab. Raises ConfigError."""
    service = _service_name(key, options, service_name)
    if not _is_true(options, "useKeyTab"):
        raise ConfigError(key, "[hidden]", "a broker needs useKeyTab=true, with keyTab= and principal=")
    return _by_keytab(key, options, service)


def client_login(key: str, options: Mapping[str, str], service_name: Value) -> KerberosLogin:
    """That of whoever connects. Raises ConfigError."""
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
    """Kafka's rules and texts."""
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
