"""The JAAS file of a Java process, as far as it says who a broker is to ZooKeeper (Kafka class `JaasUtils`).

There is no JVM here, but Kafka's scripts are given the file in KAFKA_OPTS, and so is this broker.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from config.definitions import ConfigError

FILE_PROPERTY = "java.security.auth.login.config"
_SWITCH, _SECTION = "zookeeper.sasl.client", "zookeeper.sasl.clientconfig"
_SERVER_SECTION = "zookeeper.sasl.serverconfig"
_USER = "user_"
_DIGEST = "org.apache.zookeeper.server.auth.DigestLoginModule"
_TOKEN = re.compile(r'(?:\s|//[^\n]*|#[^\n]*|/\*.*?\*/)*(?:"((?:[^"\\]|\\.)*)"|([{};=])|([^\s{};="]+)|\Z)', re.DOTALL)


class DigestLogin(NamedTuple):
    """A user of ZooKeeper and the password."""

    username: str
    password: str


class _Module(NamedTuple):
    class_name: str
    options: Mapping[str, str]


def system_properties(options: str) -> dict[str, str]:
    """The properties that the text of KAFKA_OPTS sets (-Dname=value). Raises ConfigError."""
    try:
        words = [word[2:] for word in shlex.split(options) if word.startswith("-D")]
    except ValueError as error:
        raise ConfigError("KAFKA_OPTS", "[hidden]", "a quotation mark is missing") from error
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def zookeeper_login(properties: Mapping[str, str], read: Callable[[str], str]) -> DigestLogin | None:
    """The broker's user in ZooKeeper; None where no JAAS file has the section, which is `Client` unless
    zookeeper.sasl.clientconfig names another. `read` gives the text of a file. Raises ConfigError.
    """
    section = properties.get(_SECTION, "Client")
    options = _digest_options(properties, section, read)
    if options is None:
        return None
    path = _path(properties)
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


def _path(properties: Mapping[str, str]) -> str:
    return properties.get(FILE_PROPERTY, "").removeprefix("=").removeprefix("file:")


def _digest_options(
    properties: Mapping[str, str], section: str, read: Callable[[str], str]
) -> Mapping[str, str] | None:
    """The options of the section's module; None without a file, or without the section in it."""
    path = _path(properties)
    if not path:
        return None
    try:
        text = read(path)
    except (OSError, UnicodeError) as error:
        raise ConfigError(FILE_PROPERTY, path, getattr(error, "strerror", None) or "it is not text") from error
    modules = _parse(text, path).get(section)
    if modules is None:
        return None
    if len(modules) != 1 or modules[0].class_name != _DIGEST:
        raise ConfigError(FILE_PROPERTY, path, f"the section {section} needs the one module {_DIGEST}")
    return modules[0].options


def _parse(text: str, path: str) -> dict[str, list[_Module]]:
    """The modules of each section."""
    tokens = _tokens(text, path)
    sections: dict[str, list[_Module]] = {}
    for name in tokens:
        _expect(tokens, "{", path)
        modules: list[_Module] = []
        for word in tokens:
            if word == "}":
                break
            next(tokens, "")
            modules.append(_Module(word, _options(tokens, path)))
        _expect(tokens, ";", path)
        sections[name] = modules
    return sections


def _options(tokens: Iterator[str], path: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for name in tokens:
        if name == ";":
            return options
        _expect(tokens, "=", path)
        options[name] = next(tokens, "")
    raise ConfigError(FILE_PROPERTY, path, "a ; is missing at its end")


def _expect(tokens: Iterator[str], wanted: str, path: str) -> None:
    # What is there instead may be a password.
    if next(tokens, None) != wanted:
        reason = f"a {wanted} is missing; a section is NAME {{ MODULE required NAME=VALUE; }};"
        raise ConfigError(FILE_PROPERTY, path, reason)


def _tokens(text: str, path: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ConfigError(FILE_PROPERTY, path, "a quotation mark is missing")
        at = found.end()
        quoted, sign, word = found.groups()
        if quoted is not None:
            yield re.sub(r"\\(.)", r"\1", quoted)
        elif sign or word:
            yield sign or word
