"""TLS towards ZooKeeper: what the keys zookeeper.ssl.* ask for (Kafka class `ZkConfigs`, ZooKeeper's `ClientX509Util`).

Keys and certificates are read from PEM files. Other formats are refused with the command that converts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from config.definitions import ConfigError, Value
from config.security.cipher_suites import openssl_name

CLIENT_SOCKET = "zookeeper.clientCnxnSocket"
KEY_STORE = "zookeeper.ssl.keystore"
TRUST_STORE = "zookeeper.ssl.truststore"
CIPHER_SUITES = "zookeeper.ssl.cipher.suites"

TLS_CONFIG_OPTION = "-zk-tls-config-file"
"""Option of tools for a file of properties, of which they heed those of TLS."""

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
_CONVERSIONS = {
    (KEY_STORE, "JKS"): (
        "keytool -importkeystore -srckeystore {file} -destkeystore keys.p12 -deststoretype PKCS12 && "
        "openssl pkcs12 -in keys.p12 -nodes -out keys.pem"
    ),
    (KEY_STORE, "PKCS12"): "openssl pkcs12 -in {file} -nodes -out keys.pem",
    (TRUST_STORE, "JKS"): "keytool -list -rfc -keystore {file} > trusted.pem",
    (TRUST_STORE, "PKCS12"): "keytool -list -rfc -keystore {file} > trusted.pem",
}


class ZookeeperTls(NamedTuple):
    """Parameters of TLS with ZooKeeper. Without a `trust_store` the system's certificates are trusted, without a
    `key_store` the broker shows no certificate. `cipher_suites` are OpenSSL's names; empty: its own choice.
    """

    key_store: str | None
    key_password: str
    trust_store: str | None
    protocols: tuple[str, ...]
    cipher_suites: tuple[str, ...]
    checks_host_name: bool


def parse_zookeeper_tls(values: Mapping[str, Value]) -> ZookeeperTls:
    """Parameters of TLS where zookeeper.ssl.client.enable is true. Raises ConfigError."""
    if values[CLIENT_SOCKET] != _NETTY:
        raise ConfigError(CLIENT_SOCKET, values[CLIENT_SOCKET], f"zookeeper.ssl.client.enable needs {_NETTY}")
    protocols = _protocols(values)
    return ZookeeperTls(
        _pem_file(values, KEY_STORE),
        _text(values[f"{KEY_STORE}.password"]),
        _pem_file(values, TRUST_STORE),
        protocols,
        _cipher_suites(values, protocols),
        _checks_host_name(values),
    )


def tls_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Those of Kafka's properties that are about TLS with ZooKeeper."""
    return {key: value for key, value in properties.items() if key in _NAMES_IN_ZOOKEEPER}


def zookeepers_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """The same as ZooKeeper's Java client names it (Kafka's `ZkConfigs.ZK_SSL_CONFIG_TO_SYSTEM_PROPERTY_MAP`)."""
    values = tls_properties(properties)
    if _IDENTIFICATION in values:
        values[_IDENTIFICATION] = str(values[_IDENTIFICATION].upper() == "HTTPS").lower()
    return {_NAMES_IN_ZOOKEEPER[key]: value for key, value in values.items()}


def _pem_file(values: Mapping[str, Value], store: str) -> str | None:
    """The store's file. Raises ConfigError for a type other than PEM, which the file's name tells if no key does."""
    location, given = _text(values[f"{store}.location"]), _text(values[f"{store}.type"])
    if not location:
        return None
    kind = given.upper() or _TYPES.get(location.rpartition(".")[2].lower(), "")
    if kind == "PEM":
        return location
    name, value = (f"{store}.type", given) if given else (f"{store}.location", location)
    if not kind:
        raise ConfigError(name, value, f"the name does not end in .pem; set {store}.type=PEM if it is a PEM file")
    conversion = _CONVERSIONS.get((store, kind))
    if conversion is None:
        raise ConfigError(name, value, f"{kind} is not read here; PEM is")
    raise ConfigError(name, value, f"{kind} is not read here; make it PEM: {conversion.format(file=location)}")


def _protocols(values: Mapping[str, Value]) -> tuple[str, ...]:
    """The versions allowed: zookeeper.ssl.enabled.protocols, else only that of zookeeper.ssl.protocol."""
    enabled = values["zookeeper.ssl.enabled.protocols"]
    name = "zookeeper.ssl.enabled.protocols" if enabled else "zookeeper.ssl.protocol"
    protocols = enabled if isinstance(enabled, tuple) and enabled else (_text(values[name]),)
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
