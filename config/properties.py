"""The .properties format as `java.util.Properties.load` reads it (JDK documentation of that method).

Comments (`#`, `!`), keys ended by `=`, `:` or blanks, backslash escapes with `\\uXXXX`, and logical lines continued
by a backslash before the line's end. The bytes of a file are ISO 8859-1, as Java reads them.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from config.broker_keys import is_password
from config.definitions import ConfigError, ConfigErrors
from protocol.errors import detached

_BLANKS = " \t\f"
_LINE_END = re.compile(r"\r\n|\n|\r")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def load_properties(data: bytes) -> dict[str, str]:
    """Keys and values in the file's order; the last of several equal keys is used.

    Raises ConfigError for a `\\u` escape without four hexadecimal digits.
    """
    return parse_properties(data.decode("iso-8859-1"))


def parse_properties(text: str) -> dict[str, str]:
    """`load_properties` for decoded text."""
    properties: dict[str, str] = {}
    for line in _logical_lines(text):
        key, value = _split(line)
        key = _unescape(key, line)
        properties.pop(key, None)
        properties[key] = _unescape(value, line)
    return properties


def _logical_lines(text: str) -> Iterator[str]:
    logical, continues = "", False
    lines = _LINE_END.split(text)
    if not lines[-1]:
        lines.pop()
    for natural in lines:
        line = natural.lstrip(_BLANKS)
        # A comment may also follow a line with only a backslash: Java only checks whether the logical line has text
        # yet.
        if not logical and (not line or line[0] in "#!"):
            continues = False
            continue
        continues = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        if continues:
            logical += line[:-1]
        else:
            yield logical + line
            logical = ""
    # Java's reader returns an empty last line when the text ends in a backslash, but not when CR LF follows it.
    if logical or (continues and not text.endswith("\r\n")):
        yield logical


def _split(line: str) -> tuple[str, str]:
    """The escaped key and value of a logical line: the first unescaped separator ends the key."""
    position = 0
    while position < len(line) and line[position] not in "=:" + _BLANKS:
        position += 2 if line[position] == "\\" else 1
    value = line[position:].lstrip(_BLANKS)
    if value[:1] and value[0] in "=:":
        value = value[1:].lstrip(_BLANKS)
    return line[:position], value


def _unescape(text: str, line: str) -> str:
    if "\\" not in text:
        return text
    parts: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character == "\\" and position < len(text):
            character = text[position]
            position += 1
            if character == "u":
                digits = text[position : position + 4]
                if not re.fullmatch("[0-9a-fA-F]{4}", digits):
                    raise ConfigError(line, digits, "\\u must be followed by four hexadecimal digits")
                character = chr(int(digits, 16))
                position += 4
            else:
                character = _ESCAPES.get(character, character)
        elif character == "\\":
            continue
        parts.append(character)
    # Characters outside the basic plane are written as two escapes; the surrogate pair becomes one character here.
    return "".join(parts).encode("utf-16-be", "surrogatepass").decode("utf-16-be", "replace")


def properties_text(properties: Mapping[str, str]) -> str:
    """The content of a file with these keys; values must not begin with a blank. Characters outside ISO 8859-1 are
    escaped.
    """
    lines = (f"{key}={value}" for key, value in properties.items())
    text = "".join(f"{_escape(line)}\n" for line in lines)
    return text.encode("iso-8859-1", "backslashreplace").decode("iso-8859-1")


def _escape(line: str) -> str:
    return line.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


PROVIDERS: Final = "config.providers"
_PACKAGE: Final = "org.apache.kafka.common.config.provider."
_REFERENCE: Final = re.compile(r"\$\{([^}]*?):(?:([^}]*?):)?([^}]*?)\}")

Read = Callable[[str], bytes]
"""Returns the content of a file, or raises OSError."""


def is_provider_key(name: str) -> bool:
    """Whether a key declares a provider or one of its parameters."""
    return name == PROVIDERS or name.startswith(f"{PROVIDERS}.")


def has_reference(text: str) -> bool:
    """Whether a value has a reference to a provider."""
    return _REFERENCE.search(text) is not None


def refuse_reference(name: str, text: str) -> None:
    """Raise ConfigError if the value of a secret is an unresolved reference."""
    found = _REFERENCE.search(text) if is_password(name) else None
    if found is not None:
        reason = f"no provider {found[1]} is in {PROVIDERS}, so that {found[0]} itself would be the secret"
        raise ConfigError(name, "[hidden]", reason)


def resolve(properties: Mapping[str, str], environment: Mapping[str, str], read: Read) -> dict[str, str]:
    """`properties` with every reference replaced by its value. Raises ConfigError for all unresolvable references."""
    resolved, errors = examine(properties, environment, read)
    if errors:
        raise errors[0] if len(errors) == 1 else ConfigErrors(errors)
    return resolved


def examine(
    properties: Mapping[str, str], environment: Mapping[str, str], read: Read
) -> tuple[dict[str, str], list[ConfigError]]:
    """`properties` with every reference replaced but without unresolvable ones, and the errors of these."""
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
    """A provider cannot resolve a reference; the message gives the reason."""


class _EnvVarConfigProvider:
    """`${env:NAME}`: an environment variable, which must match allowlist.pattern if that is set."""

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
    """`${file:PATH:KEY}`: a key of a properties file, below allowed.paths if set."""

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
    """`${directory:PATH:FILE}`: the whole content of a file in a directory, below allowed.paths if set."""

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
