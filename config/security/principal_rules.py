"""ssl.principal.mapping.rules: from a certificate's subject to a user's name (Kafka class `SslPrincipalMapper`)."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import NamedTuple, Self

from config.definitions import ConfigError

_FIELD = r"((?:\\.|[^\\/])*)"
_RULE = rf"(DEFAULT)|RULE:{_FIELD}/{_FIELD}/([LU]?)"
_NEXT = rf"\s*(?:{_RULE})?\s*(?:,|\Z)"
_SHAPE = "it must be DEFAULT or RULE:pattern/replacement/, with L or U at the end where letters change, comma-separated"
_CHANGES: dict[str, Callable[[str], str]] = {"": str, "L": str.lower, "U": str.upper}


class _Rule(NamedTuple):
    """`pattern` None stands for DEFAULT. `replacement` has text and numbers of groups."""

    pattern: re.Pattern[str] | None
    replacement: tuple[str | int, ...]
    change: Callable[[str], str]

    def apply(self, subject: str) -> str | None:
        if self.pattern is None:
            return subject
        if self.pattern.fullmatch(subject) is None:
            return None
        return self.change(self.pattern.sub(self._replaced, subject))

    def _replaced(self, found: re.Match[str]) -> str:
        return "".join(part if isinstance(part, str) else found[part] or "" for part in self.replacement)


class PrincipalRules:
    """Rules of which the first that matches the whole subject counts."""

    def __init__(self, rules: tuple[_Rule, ...]) -> None:
        self._rules = rules

    @classmethod
    def parse(cls, name: str, text: str) -> Self:
        """The rules that `text`, the value of the key `name`, has. Raises ConfigError."""
        rules = []
        at, text = 0, text.strip()
        while at < len(text):
            found = re.compile(_NEXT).match(text, at)
            if found is None:
                raise ConfigError(name, text, f"cannot read {text[at:]!r}: {_SHAPE}")
            at = found.end()
            default, pattern, replacement, change = found.groups()
            if default:
                rules.append(_Rule(None, (), str))
            elif pattern is not None:
                compiled = _compiled(name, text, pattern)
                rules.append(_Rule(compiled, _replacement(name, text, compiled, replacement), _CHANGES[change]))
        return cls(tuple(rules))

    def name_of(self, subject: str) -> str | None:
        """The user's name; None when no rule matches, and the client is to be refused."""
        return next((name for rule in self._rules if (name := rule.apply(subject)) is not None), None)


def _compiled(name: str, text: str, pattern: str) -> re.Pattern[str]:
    """Java's named groups are rewritten. Raises ConfigError for what Python would not understand as Java does."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return re.compile(re.sub(r"\(\?<(?=[A-Za-z])", "(?P<", pattern), re.ASCII)
    except (re.error, FutureWarning, DeprecationWarning, OverflowError) as error:
        raise ConfigError(name, text, f"the pattern {pattern} cannot be used: {error}") from error


def _replacement(name: str, text: str, pattern: re.Pattern[str], replacement: str) -> tuple[str | int, ...]:
    """Java's notation: $1 and ${name} stand for groups, \\ for the character behind it.

    A number takes as many digits as there are groups; one above them is text, as in Kafka. Raises ConfigError.
    """
    parts: list[str | int] = []
    for found in re.finditer(r"\\(.)|\$(\d+)|\$\{(\w+)\}|([^\\$]+)|(.)", replacement, re.DOTALL):
        escaped, number, group, plain, _ = found.groups()
        if escaped is not None or plain is not None:
            parts.append(plain if escaped is None else escaped)
        elif number is not None and pattern.groups:
            digits = next((length for length in range(len(number), 0, -1) if _has(pattern, number[:length])), 0)
            parts += [int(number[:digits]), number[digits:]] if digits else [f"${number}"]
        elif group in pattern.groupindex:
            parts.append(pattern.groupindex[group])
        else:
            raise ConfigError(name, text, f"the replacement {replacement} has a group that the pattern has not")
    return tuple(parts)


def _has(pattern: re.Pattern[str], number: str) -> bool:
    return int(number) <= pattern.groups
