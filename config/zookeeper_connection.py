"""A broker's connection to ZooKeeper: the servers of zookeeper.connect, and TLS from the keys zookeeper.ssl.* (Kafka
class `ZkConfigs`, ZooKeeper's `ClientX509Util`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from config.definitions import ConfigError, Value
from security.stores import STORE_TYPES, AllowedChanges, Store
from security.tls import ClientSsl, openssl_name, usable_protocols

CLIENT_SOCKET = "zookeeper.clientCnxnSocket"
KEY_STORE = "zookeeper.ssl.keystore"
TRUST_STORE = "zookeeper.ssl.truststore"
CIPHER_SUITES = "zookeeper.ssl.cipher.suites"

TLS_CONFIG_OPTION = "-zk-tls-config-file"
"""The option of tools that names a properties file; they only use its TLS keys."""

_IDENTIFICATION = "zookeeper.ssl.endpoint.identification.algorithm"
_NAMES_IN_ZOOKEEPER = {
    "zookeeper.ssl.client.enable": "zookeeper.client.secure",
    CLIENT_SOCKET: CLIENT_SOCKET,
    **{f"{KEY_STORE}.{each}": f"zookeeper.ssl.keyStore.{each}" for each in ("location", "password", "type")},
    **{f"{TRUST_STORE}.{each}": f"zookeeper.ssl.trustStore.{each}" for each in ("location", "password", "type")},
    "zookeeper.ssl.protocol": "zookeeper.ssl.protocol",
    "zookeeper.ssl.enabled.protocols": "zookeeper.ssl.enabledProtocols",
    CIPHER_SUITES: "zookeeper.ssl.ciphersuites",
    _IDENTIFICATION: "zookeeper.ssl.hostnameVerification",
    "zookeeper.ssl.crl.enable": "zookeeper.ssl.crl",
    "zookeeper.ssl.ocsp.enable": "zookeeper.ssl.ocsp",
}

_NETTY = "org.apache.zookeeper.ClientCnxnSocketNetty"
_PROTOCOLS = ("TLSv1.2", "TLSv1.3")
_TYPES = {"jks": "JKS", "p12": "PKCS12", "bcfks": "BCFKS", "pem": "PEM"}


def parse_zookeeper_tls(values: Mapping[str, Value]) -> ClientSsl:
    """The TLS settings, if zookeeper.ssl.client.enable is true. Raises ConfigError."""
    if values[CLIENT_SOCKET] != _NETTY:
        raise ConfigError(CLIENT_SOCKET, values[CLIENT_SOCKET], f"zookeeper.ssl.client.enable needs {_NETTY}")
    protocols = _protocols(values)
    return ClientSsl(
        _store(values, KEY_STORE),
        _store(values, TRUST_STORE),
        protocols,
        _cipher_suites(values, protocols),
        _checks_host_name(values),
        AllowedChanges(),
    )


def tls_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """The TLS keys for ZooKeeper among Kafka's `properties`."""
    return {key: value for key, value in properties.items() if key in _NAMES_IN_ZOOKEEPER}


def zookeepers_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """As `tls_properties`, with the names of ZooKeeper's Java client (Kafka's
    `ZkConfigs.ZK_SSL_CONFIG_TO_SYSTEM_PROPERTY_MAP`).
    """
    values = tls_properties(properties)
    if _IDENTIFICATION in values:
        values[_IDENTIFICATION] = str(values[_IDENTIFICATION].upper() == "HTTPS").lower()
    return {_NAMES_IN_ZOOKEEPER[key]: value for key, value in values.items()}


def _store(values: Mapping[str, Value], store: str) -> Store | None:
    """A store. Without a type key, the file name determines the type. The private key has the same password."""
    location, given = _text(values[f"{store}.location"]), _text(values[f"{store}.type"])
    if not location:
        return None
    kind = given.upper() or _TYPES.get(location.rpartition(".")[2].lower(), "")
    name, value = (f"{store}.type", given) if given else (f"{store}.location", location)
    if not kind:
        raise ConfigError(name, value, f"the name ends in none of .pem, .p12 and .jks; set {store}.type")
    if kind not in STORE_TYPES:
        raise ConfigError(name, value, f"{kind} is not read here; these are: {', '.join(STORE_TYPES)}")
    password, password_name = _text(values[f"{store}.password"]) or None, f"{store}.password"
    own = None if kind == "PEM" else password
    return Store(f"{store}.location", kind, location, None, own, password_name, password, password_name)


def _protocols(values: Mapping[str, Value]) -> tuple[str, ...]:
    """The allowed TLS versions: zookeeper.ssl.enabled.protocols, otherwise only zookeeper.ssl.protocol."""
    enabled = values["zookeeper.ssl.enabled.protocols"]
    name = "zookeeper.ssl.enabled.protocols" if enabled else "zookeeper.ssl.protocol"
    protocols = enabled if isinstance(enabled, tuple) and enabled else (_text(values[name]),)
    protocols = usable_protocols(protocols)
    for protocol in protocols:
        if protocol not in _PROTOCOLS:
            raise ConfigError(name, values[name], f"{protocol} is not one of {', '.join(_PROTOCOLS)}")
    return protocols


def _cipher_suites(values: Mapping[str, Value], protocols: tuple[str, ...]) -> tuple[str, ...]:
    suites = values[CIPHER_SUITES]
    if not isinstance(suites, tuple) or not suites:
        return ()
    if "TLSv1.3" in protocols:
        raise ConfigError(CIPHER_SUITES, suites, "the suites of TLSv1.3 cannot be chosen; allow TLSv1.2 alone")
    return tuple(openssl_name(CIPHER_SUITES, suite) for suite in suites)


def _checks_host_name(values: Mapping[str, Value]) -> bool:
    algorithm = _text(values[_IDENTIFICATION])
    if algorithm.upper() not in {"HTTPS", ""}:
        raise ConfigError(_IDENTIFICATION, algorithm, "HTTPS checks the server's name, and an empty value does not")
    return bool(algorithm)


def _text(value: Value) -> str:
    return value if isinstance(value, str) else ""


KEY = "zookeeper.connect"
DEFAULT_PORT = 2181

_SERVER = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[^\s:/\[\]]+)(?::([0-9]{1,5}))?")
_CHROOT = re.compile(r"(?:/(?!\.{1,2}(?:/|\Z))[^/,\x00-\x1f\x7f-\x9f]+)+")


class ZookeeperAddress(NamedTuple):
    """The place of a cluster's tree. `chroot` is empty for the ensemble's root."""

    servers: tuple[tuple[str, int], ...]
    chroot: str

    def __str__(self) -> str:
        """The servers as host:port, separated by commas, and the chroot."""
        return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.servers) + (
            self.chroot
        )


def parse_zookeeper_connect(text: str) -> ZookeeperAddress:
    """Parse as ZooKeeper's ConnectStringParser does: everything from the first slash on is the chroot, which appears
    once, after the last server; the default port is 2181. Raises ConfigError.
    """
    servers, slash, rest = text.strip().partition("/")
    chroot = slash + rest if rest else ""
    if chroot and "," in chroot:
        raise ConfigError(KEY, text, "the chroot stands once, after the last server: host1:2181,host2:2181/chroot")
    if chroot and _CHROOT.fullmatch(chroot) is None:
        raise ConfigError(KEY, text, f"{chroot} is not the path of a node, such as /kafka")
    parsed = tuple(_parse_server(text, server.strip()) for server in servers.split(",") if server.strip())
    if not parsed:
        raise ConfigError(KEY, text, "it names no server; host:port is needed, such as localhost:2181")
    return ZookeeperAddress(parsed, chroot)


def _parse_server(text: str, server: str) -> tuple[str, int]:
    found = _SERVER.fullmatch(server)
    port = int(found[2] or DEFAULT_PORT) if found is not None else 0
    if found is None or not 0 < port < 65536:
        raise ConfigError(KEY, text, f"'{server}' is not host:port with a port between 1 and 65535")
    return found[1].strip("[]"), port
