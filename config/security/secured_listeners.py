"""TLS and SASL of all listeners of a broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from config.definitions import ConfigKey, Value
from config.listeners import EndPoint
from config.security.channel_config import ChannelConfig, broker_channel
from config.security.sasl_config import SaslConfig, parse_sasl
from config.security.ssl_config import SslConfig, parse_ssl


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
        # A broker on its own asks no other.
        if name == config.inter_broker_listener_name and protocol != "PLAINTEXT" and values["zookeeper.connect"]:
            channel = broker_channel(name, protocol, values, originals, keys, found.sasl.get(name))
            found = found._replace(inter_broker_channel=channel)
    return found
