"""ssl.principal.mapping.rules: from a certificate's subject to a user's name (Kafka class `SslPrincipalMapper`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple, Self

from config.definitions import ConfigError
from config.security.java_patterns import Replacement, compiled, filled, parse_replacement
from protocol.value import Value

_FIELD = r"((?:\\.|[^\\/])*)"
_RULE = rf"(DEFAULT)|RULE:{_FIELD}/{_FIELD}/([LU]?)"
_NEXT = rf"\s*(?:{_RULE})?\s*(?:,|\Z)"
_SHAPE = "it must be DEFAULT or RULE:pattern/replacement/, with L or U at the end where letters change, comma-separated"
_CHANGES: dict[str, Callable[[str], str]] = {"": str, "L": str.lower, "U": str.upper}


class _Rule(NamedTuple):
    """`pattern` None stands for DEFAULT. `replacement` has text and numbers of groups."""

    pattern: re.Pattern[str] | None
    replacement: Replacement
    change: Callable[[str], str]

    def apply(self, subject: str) -> str | None:
        if self.pattern is None:
            return subject
        if self.pattern.fullmatch(subject) is None:
            return None
        return self.change(self.pattern.sub(lambda found: filled(self.replacement, found), subject))


class PrincipalRules(Value):
    """Rules of which the first that matches the whole subject counts."""

    rules: tuple[_Rule, ...]

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
                usable = compiled(name, text, pattern)
                # A number above those of the groups is text, as in Kafka.
                parts = parse_replacement(name, text, usable, replacement, literal_numbers=True)
                rules.append(_Rule(usable, parts, _CHANGES[change]))
        return cls(tuple(rules))

    def name_of(self, subject: str) -> str | None:
        """The user's name; None when no rule matches, and the client is to be refused."""
        return next((name for rule in self.rules if (name := rule.apply(subject)) is not None), None)
