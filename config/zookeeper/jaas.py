"""The JAAS file of a Java process, as far as it says who a broker is to ZooKeeper (Kafka class `JaasUtils`).

There is no JVM here, but Kafka's scripts are given the file in KAFKA_OPTS, and so is this broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from config.definitions import ConfigError
from config.security.jaas_file import FILE_PROPERTY, file_of, sections_of
from config.security.login_modules import MODULES

_SWITCH, _SECTION = "zookeeper.sasl.client", "zookeeper.sasl.clientconfig"
_SERVER_SECTION = "zookeeper.sasl.serverconfig"
_USER = "user_"
_DIGEST = "org.apache.zookeeper.server.auth.DigestLoginModule"
_SAME_OPTIONS = (_DIGEST, MODULES["PLAIN"])
"""ZooKeeper takes user and password of either module."""


class DigestLogin(NamedTuple):
    """A user of ZooKeeper and the password."""

    username: str
    password: str


def zookeeper_login(properties: Mapping[str, str], read: Callable[[str], str]) -> DigestLogin | None:
    """The broker's user in ZooKeeper; None where no JAAS file has the section, which is `Client` unless
    zookeeper.sasl.clientconfig names another. `read` gives the text of a file. Raises ConfigError.
    """
    section = properties.get(_SECTION, "Client")
    options = _digest_options(properties, section, read)
    if options is None:
        return None
    path = file_of(properties)
    if properties.get(_SWITCH, "true").lower() != "true":
        reason = f"the JAAS configuration {path} has the section {section}, and this would leave it unused"
        raise ConfigError(_SWITCH, properties[_SWITCH], reason)
    username, password = options.get("username"), options.get("password")
    if not username or password is None:
        raise ConfigError(FILE_PROPERTY, path, f"the section {section} needs username and password")
    return DigestLogin(username, password)


def zookeeper_users(properties: Mapping[str, str], read: Callable[[str], str]) -> dict[str, str] | None:
    """The passwords, by user, of those whom a server of the tree lets in; None where no JAAS file has the section,
    which is `Server` unless zookeeper.sasl.serverconfig names another. Raises ConfigError.
    """
    options = _digest_options(properties, properties.get(_SERVER_SECTION, "Server"), read)
    if options is None:
        return None
    return {name.removeprefix(_USER): password for name, password in options.items() if name.startswith(_USER)}


def _digest_options(
    properties: Mapping[str, str], section: str, read: Callable[[str], str]
) -> Mapping[str, str] | None:
    """The options of the section's module; None without a file, or without the section in it."""
    modules = sections_of(properties, read).get(section)
    if modules is None:
        return None
    path = file_of(properties)
    if len(modules) != 1 or modules[0].class_name not in _SAME_OPTIONS:
        raise ConfigError(FILE_PROPERTY, path, f"the section {section} needs the one module {_DIGEST}")
    return modules[0].options
