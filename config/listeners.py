"""Listeners: the addresses to listen on and to advertise (Kafka classes `EndPoint`, `KafkaConfig`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from config.definitions import ConfigError, ConfigRuleError
from protocol.value import Value

_ENDPOINT = r"(.*)://\[?([0-9a-zA-Z\-%._:]*)\]?:(-?[0-9]+)"
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class EndPoint(Value):
    """One listener. `host` None means all interfaces; `listener_name` is in upper case."""

    host: str | None
    port: int
    listener_name: str
    security_protocol: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if self.host and ":" in self.host else self.host or ""
        return f"{self.listener_name}://{host}:{self.port}"


def split_csv(text: str) -> tuple[str, ...]:
    """The non-empty elements of a comma-separated list."""
    return tuple(part for part in (piece.strip() for piece in text.split(",")) if part)


def parse_protocol_map(text: str) -> dict[str, str]:
    """listener.security.protocol.map as {listener name: security protocol}. Raises ConfigError."""
    name = "listener.security.protocol.map"
    protocols: dict[str, str] = {}
    for pair in split_csv(text):
        listener, colon, protocol = pair.rpartition(":")
        if not colon:
            raise ConfigError(name, text, "Each entry must be a listener name and its security protocol, NAME:PROTOCOL")
        listener, protocol = listener.strip().upper(), protocol.strip().upper()
        if protocol not in SECURITY_PROTOCOLS:
            raise ConfigError(
                name, text, f"No security protocol {protocol}; it must be one of: {', '.join(SECURITY_PROTOCOLS)}"
            )
        if listener in protocols:
            raise ConfigError(name, text, f"Listener {listener} is listed twice")
        protocols[listener] = protocol
    return protocols


def parse_listeners(
    name: str, text: str, protocols: Mapping[str, str], *, distinct_ports: bool = True
) -> tuple[EndPoint, ...]:
    """The endpoints of `listeners` or `advertised.listeners` (`name` says which). Raises ConfigError naming the key."""
    endpoints = tuple(_parse_endpoint(name, text, part, protocols) for part in split_csv(text))
    names = [endpoint.listener_name for endpoint in endpoints]
    if len(set(names)) != len(names):
        raise ConfigError(name, text, f"Each listener must have a different name, listeners: {text}")
    if distinct_ports:
        _check_ports(name, text, endpoints)
    return endpoints


def _parse_endpoint(name: str, text: str, part: str, protocols: Mapping[str, str]) -> EndPoint:
    match = re.fullmatch(_ENDPOINT, part)
    if match is None:
        raise ConfigError(
            name, text, f"Unable to parse {part} to a broker endpoint; it must look like NAME://host:port"
        )
    listener, host, port = match[1].strip().upper(), match[2], int(match[3])
    if not -1 <= port <= 65535:
        raise ConfigError(name, text, f"Port {port} of {part} is out of range, it must be between 0 and 65535")
    if listener not in protocols:
        raise ConfigError(
            name, text, f"No security protocol defined for listener {listener} in listener.security.protocol.map"
        )
    return EndPoint(host or None, port, listener, protocols[listener])


def _check_ports(name: str, text: str, endpoints: Iterable[EndPoint]) -> None:
    """Check that listeners do not share a port, except for an IPv4 and an IPv6 address (Kafka's rule since 3.5). Port 0
    means any port.
    """
    by_port: dict[int, list[EndPoint]] = {}
    for endpoint in endpoints:
        if endpoint.port != 0:
            by_port.setdefault(endpoint.port, []).append(endpoint)
    for sharing in by_port.values():
        families = sorted(_address_family(endpoint.host) for endpoint in sharing)
        if len(sharing) > 1 and families != [4, 6]:
            raise ConfigError(name, text, f"Each listener must have a different port, listeners: {text}")


def _address_family(host: str | None) -> int:
    """4 or 6 for an IP address, 0 for a name."""
    if host is not None and ":" in host:
        return 6
    return 4 if host is not None and re.fullmatch(r"\d+(\.\d+){3}", host) else 0


def check_advertised(advertised: Sequence[EndPoint], listeners: Sequence[EndPoint], text: str) -> None:
    """Check advertised.listeners by Kafka's rules. Raises ConfigError."""
    if any(endpoint.host == "0.0.0.0" for endpoint in advertised):  # noqa: S104
        raise ConfigRuleError(
            "advertised.listeners",
            text,
            "advertised.listeners cannot use the nonroutable meta-address 0.0.0.0. Use a routable IP address.",
        )
    unknown = {endpoint.listener_name for endpoint in advertised} - {endpoint.listener_name for endpoint in listeners}
    if unknown:
        raise ConfigRuleError(
            "advertised.listeners",
            text,
            "advertised.listeners listener names must be equal to or a subset of the ones defined in listeners. "
            f"Found {','.join(endpoint.listener_name for endpoint in advertised)}. The valid options based on the "
            f"current configuration are {','.join(endpoint.listener_name for endpoint in listeners)}",
        )


def inter_broker_listener(named: str | None, protocol: str | None, advertised: Sequence[EndPoint]) -> str:
    """The inter-broker listener: the one `named`, otherwise the one named like the security `protocol`.

    Both are None if not set. Raises ConfigRuleError.
    """
    if named is not None and protocol is not None:
        raise ConfigRuleError(
            "inter.broker.listener.name",
            named,
            "Only one of inter.broker.listener.name and security.inter.broker.protocol should be set.",
        )
    name = (named if named is not None else protocol or "PLAINTEXT").upper()
    offered = [endpoint.listener_name for endpoint in advertised]
    if name not in offered:
        raise ConfigRuleError(
            "inter.broker.listener.name",
            named,
            "inter.broker.listener.name must be a listener name defined in advertised.listeners. The valid "
            f"options based on currently configured listeners are {','.join(offered)}",
        )
    return name


def parse_ip_overrides(name: str, text: str) -> dict[str, int]:
    """max.connections.per.ip.overrides as {host: limit}. Raises ConfigError."""
    limits: dict[str, int] = {}
    for pair in split_csv(text):
        host, colon, limit = pair.rpartition(":")
        if not colon or not host or not re.fullmatch(r"[0-9]+", limit.strip()):
            raise ConfigError(name, text, f"{pair} must be a host and a number of connections, host:count")
        limits[host.strip()] = int(limit)
    return limits
