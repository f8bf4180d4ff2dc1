"""JAAS: login modules with options, either alone in a key or in sections of the file named in KAFKA_OPTS (Kafka classes
`JaasConfig`, `JaasContext`, `JaasUtils`).

Odradek does not run on a JVM, but Kafka's scripts take the file from KAFKA_OPTS, and so does this broker.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from config.definitions import ConfigError
from config.properties import has_reference
from security.kerberos_login import KerberosLogin, client_login

MODULES: Final = {
    "GSSAPI": "com.sun.security.auth.module.Krb5LoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
"""The Java class of each mechanism."""
_TOKEN = re.compile(r'(?:\s|//[^\n]*|#[^\n]*|/\*.*?\*/)*(?:"((?:[^"\\]|\\.)*)"|([{};=])|([^\s{};="]+)|\Z)', re.DOTALL)
_FLAGS = ("required", "requisite", "sufficient", "optional")

Failure = Callable[[str], Exception]
"""Builds the error for a reason. It must not quote the text, which may be a password."""


class LoginModule(NamedTuple):
    """A Java class and its options."""

    class_name: str
    options: Mapping[str, str]

    def to_text(self) -> str:
        """The format of a configuration key, as read by `parse_module`."""
        options = "".join(f" {name}={_quoted(value)}" for name, value in self.options.items())
        return f"{self.class_name} required{options};"


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def parse_sections(text: str, failure: Failure) -> dict[str, list[LoginModule]]:
    """The modules of each section in a file."""
    tokens = _tokens(text, failure)
    sections: dict[str, list[LoginModule]] = {}
    for name in tokens:
        _expect(tokens, "{", failure)
        modules: list[LoginModule] = []
        for word in tokens:
            if word == "}":
                break
            next(tokens, "")
            modules.append(LoginModule(word, _options(tokens, failure)))
        _expect(tokens, ";", failure)
        sections[name] = modules
    return sections


def parse_module(text: str, failure: Failure) -> LoginModule:
    """The single module in a key such as sasl.jaas.config."""
    tokens = _tokens(text, failure)
    class_name, flag = next(tokens, ""), next(tokens, "")
    if flag.lower() not in _FLAGS:
        raise failure("it must look like CLASS required NAME=VALUE;")
    module = LoginModule(class_name, _options(tokens, failure))
    if next(tokens, None) is not None:
        raise failure("it must have one login module, and end with ;")
    return module


def _options(tokens: Iterator[str], failure: Failure) -> dict[str, str]:
    options: dict[str, str] = {}
    for name in tokens:
        if name == ";":
            return options
        _expect(tokens, "=", failure)
        options[name] = next(tokens, "")
    raise failure("a ; is missing at its end")


def _expect(tokens: Iterator[str], wanted: str, failure: Failure) -> None:
    if next(tokens, None) != wanted:
        raise failure(f"a {wanted} is missing; a section is NAME {{ MODULE required NAME=VALUE; }};")


def _tokens(text: str, failure: Failure) -> Iterator[str]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise failure("a quotation mark is missing")
        at = found.end()
        quoted, sign, word = found.groups()
        if quoted is not None:
            yield re.sub(r"\\(.)", r"\1", quoted)
        elif sign or word:
            yield sign or word


FILE_PROPERTY: Final = "java.security.auth.login.config"
KERBEROS_PROPERTY: Final = "java.security.krb5.conf"
"""Java's counterpart of the variable KRB5_CONFIG."""
SERVER, CLIENT = "KafkaServer", "KafkaClient"
"""Sections."""

Sections = Mapping[str, Sequence[LoginModule]]


def system_properties(options: str) -> dict[str, str]:
    """The system properties in KAFKA_OPTS (-Dname=value). Raises ConfigError."""
    try:
        words = [word[2:] for word in shlex.split(options) if word.startswith("-D")]
    except ValueError as error:
        raise ConfigError("KAFKA_OPTS", "[hidden]", "a quotation mark is missing") from error
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def file_of(properties: Mapping[str, str]) -> str:
    """The path of the JAAS file; empty without one."""
    return properties.get(FILE_PROPERTY, "").removeprefix("=").removeprefix("file:")


def sections_of(properties: Mapping[str, str], read: Callable[[str], str]) -> Sections:
    """The login modules in the JAAS file, by section; empty without a file. `read` returns a file's text. Raises
    ConfigError.
    """
    path = file_of(properties)
    if not path:
        return {}
    try:
        text = read(path)
    except (OSError, UnicodeError) as error:
        raise ConfigError(FILE_PROPERTY, path, getattr(error, "strerror", None) or "it is not text") from error
    sections = parse_sections(text, lambda reason: ConfigError(FILE_PROPERTY, path, reason))
    for name, modules in sections.items():
        for option, value in (pair for module in modules for pair in module.options.items()):
            if has_reference(value):
                why = "refers to a value elsewhere, which a JAAS file cannot do"
                reason = f"{option} in the section {name} {why}"
                raise ConfigError(FILE_PROPERTY, path, reason)
    return sections


def module_text(sections: Sections, names: Sequence[str], mechanism: str) -> str | None:
    """The mechanism's login module as text for a key, from the first existing section among `names`."""
    modules = next((sections[name] for name in names if name in sections), ())
    for module in modules:
        if module.class_name == MODULES.get(mechanism):
            return module.to_text()
    return None


_SWITCH, _SECTION = "zookeeper.sasl.client", "zookeeper.sasl.clientconfig"
_SERVER_SECTION = "zookeeper.sasl.serverconfig"
_SERVER_USER = "zookeeper.sasl.client.username"
_USER = "user_"
_DIGEST = "org.apache.zookeeper.server.auth.DigestLoginModule"
_SAME_OPTIONS = (_DIGEST, MODULES["PLAIN"])
"""ZooKeeper accepts user and password from either module."""


class DigestLogin(NamedTuple):
    """A ZooKeeper user and password."""

    username: str
    password: str


ZookeeperLogin = DigestLogin | KerberosLogin


def zookeeper_login(properties: Mapping[str, str], read: Callable[[str], str]) -> ZookeeperLogin | None:
    """The broker's user in ZooKeeper, or None if the JAAS file or its section is missing. The section is `Client`
    unless zookeeper.sasl.clientconfig names another one. `read` returns a file's text. Raises ConfigError.
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
        # ZooKeeper's client ignores the option serviceName.
        login = {name: value for name, value in options.items() if name != "serviceName"}
        return client_login(FILE_PROPERTY, login, properties.get(_SERVER_USER, "zookeeper"))
    username, password = options.get("username"), options.get("password")
    if not username or password is None:
        raise ConfigError(FILE_PROPERTY, path, f"the section {section} needs username and password")
    return DigestLogin(username, password)


def zookeeper_users(properties: Mapping[str, str], read: Callable[[str], str]) -> dict[str, str] | None:
    """The passwords, by user, of the clients of a tree's server, or None if the JAAS file or its section is missing.
    The section is `Server` unless zookeeper.sasl.serverconfig names another one. Raises ConfigError.
    """
    module = _module_of(properties, properties.get(_SERVER_SECTION, "Server"), read, *_SAME_OPTIONS)
    if module is None:
        return None
    return {name.removeprefix(_USER): text for name, text in module.options.items() if name.startswith(_USER)}


def _module_of(
    properties: Mapping[str, str], section: str, read: Callable[[str], str], *allowed: str
) -> LoginModule | None:
    """The section's module, which must be one of `allowed`, or None if the file or the section is missing."""
    modules = sections_of(properties, read).get(section)
    if modules is None:
        return None
    if len(modules) != 1 or modules[0].class_name not in allowed:
        reason = f"the section {section} needs the one module {' or '.join((_DIGEST, *allowed[len(_SAME_OPTIONS) :]))}"
        raise ConfigError(FILE_PROPERTY, file_of(properties), reason)
    return modules[0]
