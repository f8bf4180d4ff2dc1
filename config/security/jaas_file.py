"""The JAAS file of a Java process: KAFKA_OPTS names it, as for Kafka's scripts (Kafka class `JaasContext`).

There is no JVM here, so it is read as if it were.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from config.config_providers import has_reference
from config.definitions import ConfigError
from config.security.login_modules import MODULES, LoginModule, parse_sections

FILE_PROPERTY: Final = "java.security.auth.login.config"
KERBEROS_PROPERTY: Final = "java.security.krb5.conf"
"""Java's name of the variable KRB5_CONFIG."""
SERVER, CLIENT = "KafkaServer", "KafkaClient"
"""Sections."""

Sections = Mapping[str, Sequence[LoginModule]]


def system_properties(options: str) -> dict[str, str]:
    """The properties that the text of KAFKA_OPTS sets (-Dname=value). Raises ConfigError."""
    try:
        words = [word[2:] for word in shlex.split(options) if word.startswith("-D")]
    except ValueError as error:
        raise ConfigError("KAFKA_OPTS", "[hidden]", "a quotation mark is missing") from error
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def file_of(properties: Mapping[str, str]) -> str:
    """The path of the file; empty where there is none."""
    return properties.get(FILE_PROPERTY, "").removeprefix("=").removeprefix("file:")


def sections_of(properties: Mapping[str, str], read: Callable[[str], str]) -> Sections:
    """The login modules in the file, none where there is no file. `read` gives its text. Raises ConfigError."""
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
                why = "refers to a value elsewhere, and a JAAS file is taken as it is"
                reason = f"{option} in the section {name} {why}"
                raise ConfigError(FILE_PROPERTY, path, reason)
    return sections


def module_text(sections: Sections, names: Sequence[str], mechanism: str) -> str | None:
    """The mechanism's login module as a key has it, from the first of the sections `names` that is there."""
    modules = next((sections[name] for name in names if name in sections), ())
    for module in modules:
        if module.class_name == MODULES.get(mechanism):
            return module.to_text()
    return None
