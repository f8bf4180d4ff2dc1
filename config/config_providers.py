"""Values that a configuration takes from elsewhere: `${PROVIDER:PATH:KEY}` (KIP-297, KIP-421).

Kafka's own providers are there, by their Java class names: environment variables, properties files, and directories
with a file for each value (Kafka classes `ConfigTransformer`, `AbstractConfig`). Unlike Kafka, a reference that cannot
be resolved is an error when its provider is declared, or when its key is that of a secret: Kafka would take the text
of the reference for the password.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from typing import Final

from config.broker_keys import is_password
from config.definitions import ConfigError, ConfigErrors
from config.properties import load_properties
from protocol.errors import detached

PROVIDERS: Final = "config.providers"
_PACKAGE: Final = "org.apache.kafka.common.config.provider."
_REFERENCE: Final = re.compile(r"\$\{([^}]*?):(?:([^}]*?):)?([^}]*?)\}")

Read = Callable[[str], bytes]
"""Gives the content of a file, or raises OSError."""


def is_provider_key(name: str) -> bool:
    """Whether a key declares a provider, or is a parameter of one."""
    return name == PROVIDERS or name.startswith(f"{PROVIDERS}.")


def has_reference(text: str) -> bool:
    """Whether a value refers to one that is kept elsewhere."""
    return _REFERENCE.search(text) is not None


def refuse_reference(name: str, text: str) -> None:
    """Raise ConfigError when the value of a secret is a reference that nobody has resolved."""
    found = _REFERENCE.search(text) if is_password(name) else None
    if found is not None:
        reason = f"no provider {found[1]} is in {PROVIDERS}, so that {found[0]} itself would be the secret"
        raise ConfigError(name, "[hidden]", reason)


def resolve(properties: Mapping[str, str], environment: Mapping[str, str], read: Read) -> dict[str, str]:
    """`properties` with each reference replaced by what it refers to. Raises ConfigError for all that cannot be."""
    resolved, errors = examine(properties, environment, read)
    if errors:
        raise errors[0] if len(errors) == 1 else ConfigErrors(errors)
    return resolved


def examine(
    properties: Mapping[str, str], environment: Mapping[str, str], read: Read
) -> tuple[dict[str, str], list[ConfigError]]:
    """`properties` with each reference replaced, without those that cannot be resolved, and why they cannot."""
    providers: dict[str, Callable[[str, str], str]] = {}
    errors: list[ConfigError] = []
    for name in (each.strip() for each in properties.get(PROVIDERS, "").split(",") if each.strip()):
        try:
            providers[name] = _provider(name, properties, environment, read)
        except ConfigError as error:
            errors.append(detached(error))
    if errors:
        return {name: text for name, text in properties.items() if not has_reference(text)}, errors
    resolved: dict[str, str] = {}
    for name, text in properties.items():
        if is_provider_key(name) or not has_reference(text):
            resolved[name] = text
            continue

        def value(found: re.Match[str], name: str = name) -> str:
            provider, path, key = found[1], found[2] or "", found[3]
            if provider not in providers:
                refuse_reference(name, found[0])
                return found[0]
            try:
                return providers[provider](path, key)
            except _UnresolvedError as error:
                raise ConfigError(name, found[0], str(error)) from error

        try:
            resolved[name] = _REFERENCE.sub(value, text)
        except ConfigError as error:
            errors.append(detached(error))
    return resolved, errors


class _UnresolvedError(Exception):
    """The message says why a provider has no value."""


class _EnvVarConfigProvider:
    """`${env:NAME}`: an environment variable, one that matches allowlist.pattern where that is set."""

    def __init__(self, parameters: Mapping[str, str], environment: Mapping[str, str]) -> None:
        self._allowed = re.compile(parameters.get("allowlist.pattern", "(?s).*"))
        self._environment = environment

    def __call__(self, path: str, key: str) -> str:
        if path:
            raise _UnresolvedError(f"environment variables have no path: write ${{PROVIDER:{key}}}")
        if key not in self._environment:
            raise _UnresolvedError(f"the environment variable {key} is not set")
        if self._allowed.fullmatch(key) is None:
            raise _UnresolvedError(f"allowlist.pattern {self._allowed.pattern} does not allow the variable {key}")
        return self._environment[key]


class _FileConfigProvider:
    """`${file:PATH:KEY}`: a key of a properties file, below allowed.paths where they are set."""

    def __init__(self, parameters: Mapping[str, str], read: Read) -> None:
        self._allowed = [posixpath.normpath(each) for each in parameters.get("allowed.paths", "").split(",") if each]
        self._read = read

    def __call__(self, path: str, key: str) -> str:
        try:
            values = load_properties(self._content(path))
        except ConfigError as error:
            raise _UnresolvedError(f"the properties file {path} cannot be understood") from error
        if key not in values:
            raise _UnresolvedError(f"the properties file {path} has no key {key}")
        return values[key]

    def _content(self, path: str) -> bytes:
        normal = posixpath.normpath(path)
        if self._allowed and not any(posixpath.commonpath((normal, each)) == each for each in self._allowed):
            raise _UnresolvedError(f"{path} is not below allowed.paths, {', '.join(self._allowed)}")
        try:
            return self._read(normal)
        except (OSError, ValueError) as error:
            raise _UnresolvedError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


class _DirectoryConfigProvider(_FileConfigProvider):
    """`${directory:PATH:FILE}`: the whole content of a file in a directory, below allowed.paths where they are set."""

    def __call__(self, path: str, key: str) -> str:
        if not key or "/" in key or key in {".", ".."}:
            raise _UnresolvedError(f"{key or 'an empty name'} is not the name of a file in {path}")
        try:
            return self._content(f"{path}/{key}").decode()
        except UnicodeDecodeError as error:
            raise _UnresolvedError(f"the file {path}/{key} is not text in UTF-8") from error


def _provider(
    name: str, properties: Mapping[str, str], environment: Mapping[str, str], read: Read
) -> Callable[[str, str], str]:
    prefix = f"{PROVIDERS}.{name}."
    before = f"{prefix}param."
    parameters = {key.removeprefix(before): text for key, text in properties.items() if key.startswith(before)}
    class_name = properties.get(f"{prefix}class", "").strip()
    try:
        if class_name == f"{_PACKAGE}EnvVarConfigProvider":
            return _EnvVarConfigProvider(parameters, environment)
    except re.error as error:
        key = f"{prefix}param.allowlist.pattern"
        raise ConfigError(key, parameters["allowlist.pattern"], f"not a regular expression: {error}") from error
    try:
        if class_name == f"{_PACKAGE}FileConfigProvider":
            return _FileConfigProvider(parameters, read)
        if class_name == f"{_PACKAGE}DirectoryConfigProvider":
            return _DirectoryConfigProvider(parameters, read)
    except ValueError as error:
        raise ConfigError(f"{prefix}param.allowed.paths", parameters["allowed.paths"], str(error)) from error
    known = ", ".join(f"{_PACKAGE}{each}ConfigProvider" for each in ("EnvVar", "File", "Directory"))
    raise ConfigError(f"{prefix}class", class_name or None, f"it must be one of: {known}")
