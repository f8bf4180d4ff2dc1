"""Security of one connection or listener: configuration of clients, of inter-broker connections, and of all listeners
of a broker (Kafka class `ChannelBuilders`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from config.definitions import ConfigError, ConfigKey, RefusedKeyError, Value
from config.keys_security import SaslKeys, SecurityKeys
from config.listeners import EndPoint
from security.kerberos_login import KerberosLogin
from security.oauth import LOGIN_HANDLER_KEY, MECHANISM, URLENCODE, TokenLogin
from security.sasl_config import MECHANISMS, Login, SaslConfig, broker_login, client_token_login, login_of, parse_sasl
from security.stores import SslKeys
from security.tls import ClientSsl, SslConfig, parse_client_ssl, parse_ssl

_CLIENT_KEYS: Final = {
    key.name: key
    for key in (*SecurityKeys.declared(), *SaslKeys.declared(), URLENCODE)
    if key.name.startswith(("ssl.", "sasl."))
}
_BETWEEN_BROKERS: Final = "sasl.mechanism.inter.broker.protocol"


class ChannelConfig(NamedTuple):
    """TLS, a login, or both."""

    ssl: ClientSsl | None
    login: Login | KerberosLogin | TokenLogin | None


def client_channel(protocol: str, properties: Mapping[str, str]) -> ChannelConfig:
    """TLS and SASL of a client with these properties. `protocol` must not be PLAINTEXT. Raises ConfigError."""
    ssl = None
    login: Login | KerberosLogin | TokenLogin | None = None
    if protocol.endswith("SSL"):
        values = _values(properties, "ssl.")
        ssl = parse_client_ssl(SslKeys("", values, properties, _CLIENT_KEYS))
    if protocol.startswith("SASL"):
        values = _values(properties, "sasl.")
        mechanism = properties.get("sasl.mechanism", "GSSAPI")
        if mechanism not in MECHANISMS:
            raise ConfigError("sasl.mechanism", mechanism, f"it must be one of: {', '.join(MECHANISMS)}")
        if mechanism == MECHANISM:
            login = client_token_login(properties, values, _CLIENT_KEYS)
        elif values[LOGIN_HANDLER_KEY]:
            raise RefusedKeyError(
                LOGIN_HANDLER_KEY, properties[LOGIN_HANDLER_KEY], f"it is for the mechanism {MECHANISM}"
            )
        else:
            service_name = values["sasl.kerberos.service.name"]
            login = login_of("sasl.jaas.config", mechanism, properties.get("sasl.jaas.config"), service_name)
    return ChannelConfig(ssl, login)


def _values(properties: Mapping[str, str], begin: str) -> dict[str, Value]:
    """The values of all keys with this prefix. Raises ConfigError, also for settings that need Java."""
    values: dict[str, Value] = {}
    for name, key in _CLIENT_KEYS.items():
        if name.startswith(begin):
            values[name] = key.parse(properties[name]) if name in properties else key.default
            if key.refusal and values[name] not in (key.default, "", ()):
                raise RefusedKeyError(name, "[hidden]" if key.is_sensitive else properties[name], key.refusal)
    return values


def broker_channel(
    listener: str,
    protocol: str,
    values: Mapping[str, Value],
    originals: Mapping[str, str],
    keys: Mapping[str, ConfigKey],
    sasl: SaslConfig | None,
) -> ChannelConfig:
    """How brokers connect to one another on `listener`, which has this SASL. Raises ConfigError."""
    prefix = f"listener.name.{listener.lower()}."
    ssl = None
    login: Login | KerberosLogin | TokenLogin | None = None
    if protocol.endswith("SSL"):
        ssl = parse_client_ssl(SslKeys(prefix, values, originals, keys))
    if sasl is not None:
        mechanism, enabled = str(values[_BETWEEN_BROKERS]), sasl.mechanisms
        if mechanism not in enabled:
            reason = f"brokers use {listener}, so it must be in its sasl.enabled.mechanisms: {', '.join(enabled)}"
            raise ConfigError(_BETWEEN_BROKERS, mechanism, reason)
        if mechanism == "GSSAPI" and sasl.kerberos is not None:
            login = sasl.kerberos.login
        else:
            login = broker_login(listener, mechanism, values, originals, keys)
    return ChannelConfig(ssl, login)


class Listeners(Protocol):
    """The part of a BrokerConfig that `security_of` reads."""

    @property
    def originals(self) -> Mapping[str, str]: ...

    @property
    def values(self) -> Mapping[str, Value]: ...

    @property
    def listeners(self) -> Sequence[EndPoint]: ...

    @property
    def inter_broker_listener_name(self) -> str: ...


class ListenerSecurity(NamedTuple):
    """TLS and SASL by listener name, and the security of connections between brokers (None: PLAINTEXT)."""

    ssl: dict[str, SslConfig]
    sasl: dict[str, SaslConfig]
    inter_broker_channel: ChannelConfig | None


def security_of(config: Listeners, keys: Mapping[str, ConfigKey]) -> ListenerSecurity:
    """Parse the security of all listeners that are not PLAINTEXT. Raises ConfigError."""
    values, originals = config.values, config.originals
    found = ListenerSecurity({}, {}, None)
    for name, protocol in ((each.listener_name, each.security_protocol) for each in config.listeners):
        is_sasl = protocol.startswith("SASL")
        if is_sasl:
            found.sasl[name] = parse_sasl(name, values, originals, keys)
        if protocol.endswith("SSL"):
            found.ssl[name] = parse_ssl(name, values, originals, keys, is_sasl=is_sasl)
        # A standalone broker does not connect to others.
        if name == config.inter_broker_listener_name and protocol != "PLAINTEXT" and values["zookeeper.connect"]:
            channel = broker_channel(name, protocol, values, originals, keys, found.sasl.get(name))
            found = found._replace(inter_broker_channel=channel)
    return found
