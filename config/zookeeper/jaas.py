"""The JAAS file of a Java process, as far as it says who a broker is to ZooKeeper (Kafka class `JaasUtils`).

There is no JVM here, but Kafka's scripts are given the file in KAFKA_OPTS, and so is this broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from config.definitions import ConfigError
from config.security.jaas_file import FILE_PROPERTY, file_of, sections_of
from config.security.kerberos.login import KerberosLogin, client_login
from config.security.login_modules import MODULES, LoginModule

_SWITCH, _SECTION = "zookeeper.sasl.client", "zookeeper.sasl.clientconfig"
_SERVER_SECTION = "zookeeper.sasl.serverconfig"
_SERVER_USER = "zookeeper.sasl.client.username"
_USER = "user_"
_DIGEST = "org.apache.zookeeper.server.auth.DigestLoginModule"
_SAME_OPTIONS = (_DIGEST, MODULES["PLAIN"])
"""ZooKeeper takes user and password of either module."""


class DigestLogin(NamedTuple):
    """A user of ZooKeeper and the password."""

    username: str
    password: str


ZookeeperLogin = DigestLogin | KerberosLogin


def zookeeper_login(properties: Mapping[str, str], read: Callable[[str], str]) -> ZookeeperLogin | None:
    """The broker's user in ZooKeeper; None where no JAAS file has the section, which is `Client` unless
    zookeeper.sasl.clientconfig names another. `read` gives the text of a file. Raises ConfigError.
    """
    section = properties.get(_SECTION, "Client")
    module = _module_of(properties, section, read, *_SAME_OPTIONS, MODULES["GSSAPI"])
    if module is None:
        return None
    options = module.options
    path = file_of(properties)
    if properties.get(_SWITCH, "true").lower() != "true":
        reason = f"the JAAS configuration {path} has the section {section}, and this would leave it unused"
        raise ConfigError(_SWITCH, properties[_SWITCH], reason)
    if module.class_name == MODULES["GSSAPI"]:
        # ZooKeeper's client does not look at the option for the service.
        login = {name: value for name, value in options.items() if name != "serviceName"}
        return client_login(FILE_PROPERTY, login, properties.get(_SERVER_USER, "zookeeper"))
    username, password = options.get("username"), options.get("password")
    if not username or password is None:
        raise ConfigError(FILE_PROPERTY, path, f"the section {section} needs username and password")
    return DigestLogin(username, password)


def zookeeper_users(properties: Mapping[str, str], read: Callable[[str], str]) -> dict[str, str] | None:
    """The passwords, by user, of those whom a server of the tree lets in; None where no JAAS file has the section,
    which is `Server` unless zookeeper.sasl.serverconfig names another. Raises ConfigError.
    """
    module = _module_of(properties, properties.get(_SERVER_SECTION, "Server"), read, *_SAME_OPTIONS)
    if module is None:
        return None
    return {name.removeprefix(_USER): text for name, text in module.options.items() if name.startswith(_USER)}


def _module_of(
    properties: Mapping[str, str], section: str, read: Callable[[str], str], *allowed: str
) -> LoginModule | None:
    """The section's module, one of those that are `allowed`; None without a file, or without the section in it."""
    modules = sections_of(properties, read).get(section)
    if modules is None:
        return None
    if len(modules) != 1 or modules[0].class_name not in allowed:
        reason = f"the section {section} needs the one module {' or '.join((_DIGEST, *allowed[len(_SAME_OPTIONS) :]))}"
        raise ConfigError(FILE_PROPERTY, file_of(properties), reason)
    return modules[0]
