"""Patterns and replacements of keys that Kafka hands to `java.util.regex`, in Java's notation."""

from __future__ import annotations

import re
import warnings

from config.definitions import ConfigError

Replacement = tuple[str | int, ...]
"""Text, and numbers of groups."""


def compiled(name: str, text: str, pattern: str) -> re.Pattern[str]:
    """A pattern in `text`, the value of the key `name`. Java's named groups are rewritten.

    Raises ConfigError for what Python would not understand as Java does.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return re.compile(re.sub(r"\(\?<(?=[A-Za-z])", "(?P<", pattern), re.ASCII)
    except (re.error, FutureWarning, DeprecationWarning, OverflowError, RecursionError) as error:
        raise ConfigError(name, text, f"the pattern {pattern} cannot be used: {error}") from error


def parse_replacement(
    name: str, text: str, pattern: re.Pattern[str], replacement: str, *, literal_numbers: bool
) -> Replacement:
    """Java's notation: $1 and ${name} stand for groups, \\ for the character behind it.

    A number takes as many digits as there are groups; with `literal_numbers` one above them is text, where there are
    any. Raises ConfigError.
    """
    parts: list[str | int] = []
    for found in re.finditer(r"\\(.)|\$([0-9]{1,9})|\$\{(\w+)\}|([^\\$]+)|(.)", replacement, re.DOTALL):
        escaped, number, group, plain, _ = found.groups()
        if escaped is not None or plain is not None:
            parts.append(plain if escaped is None else escaped)
        elif number is not None and (pattern.groups if literal_numbers else int(number[0]) <= pattern.groups):
            digits = next((length for length in range(len(number), 0, -1) if int(number[:length]) <= pattern.groups), 0)
            parts += [int(number[:digits]), number[digits:]] if digits else [f"${number}"]
        elif group in pattern.groupindex:
            parts.append(pattern.groupindex[group])
        else:
            raise ConfigError(name, text, f"the replacement {replacement} has a group that the pattern has not")
    return tuple(parts)


def filled(replacement: Replacement, found: re.Match[str]) -> str:
    """The text in the place of a match."""
    return "".join(part if isinstance(part, str) else found[part] or "" for part in replacement)
