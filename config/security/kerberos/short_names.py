"""sasl.kerberos.principal.to.local.rules: from a principal to a user's name (Kafka class `KerberosShortNamer`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Self

from config.definitions import ConfigError
from config.security.java_patterns import Replacement, compiled, filled, parse_replacement
from protocol.value import Value

KEY: Final = "sasl.kerberos.principal.to.local.rules"
_NAME: Final = re.compile(r"([^/@]*)(?:/([^/@]*))?@([^/@]*)")
_RULE: Final = re.compile(r"RULE:\[([0-9]{1,9}):([^\]]*)\](?:\(([^)]*)\))?(?:s/([^/]*)/([^/]*)/(g)?)?/?([LU]?)")
_SHAPE: Final = "it must be DEFAULT or RULE:[n:string](regexp)s/pattern/replacement/g, with /L or /U at the end"
_CHANGES: Final[dict[str, Callable[[str], str]]] = {"": str, "L": str.lower, "U": str.upper}


class NoNameError(Exception):
    """No user's name stands for a principal."""


class _Substitution(NamedTuple):
    pattern: re.Pattern[str]
    replacement: Replacement
    most: int
    """How many matches are replaced; 0 for all."""

    def apply(self, text: str) -> str:
        return self.pattern.sub(lambda found: filled(self.replacement, found), text, count=self.most)


class _Rule(NamedTuple):
    """`form` has text and numbers of a principal's parts, of which 0 is the realm."""

    components: int
    form: Replacement
    match: re.Pattern[str] | None
    substitution: _Substitution | None
    change: Callable[[str], str]

    def apply(self, parts: Sequence[str]) -> str | None:
        if len(parts) - 1 != self.components:
            return None
        base = "".join(each if isinstance(each, str) else parts[each] for each in self.form)
        if self.match is not None and self.match.fullmatch(base) is None:
            return None
        return base if self.substitution is None else self.substitution.apply(base)


class ShortNames(Value):
    """Rules of which the first that is for a principal counts. None stands for DEFAULT."""

    rules: tuple[_Rule | None, ...]

    @classmethod
    def parse(cls, name: str, rules: Sequence[str]) -> Self:
        """The rules that the key `name` has. Raises ConfigError."""
        return cls(tuple(None if rule == "DEFAULT" else _parsed(name, rule) for rule in rules))

    def name_of(self, principal: str, default_realm: str) -> str:
        """The user's name. Raises NoNameError, and the client is to be refused."""
        parts = _parts(principal)
        if len(parts) == 1:
            return principal
        for rule in self.rules:
            if rule is None:
                found = parts[1] if parts[0] == default_realm else None
            else:
                found = rule.apply(parts)
            if found is None:
                continue
            if "/" in found or "@" in found:
                raise NoNameError(f"{KEY} makes {found} of {principal}, which is no short name")
            return found if rule is None else rule.change(found)
        raise NoNameError(f"no rule of {KEY} is for {principal} (the default realm is {default_realm or 'unknown'})")


def _parts(principal: str) -> list[str]:
    """Realm and components, or the name alone where there is no realm (`KerberosName`). Raises NoNameError."""
    found = _NAME.fullmatch(principal)
    if found is None:
        if "@" in principal:
            raise NoNameError(f"the principal {principal} has more than two components")
        return [principal]
    primary, instance, realm = found.groups()
    return [realm, primary] if instance is None else [realm, primary, instance]


def _parsed(name: str, rule: str) -> _Rule:
    found = _RULE.fullmatch(rule)
    if found is None:
        raise ConfigError(name, rule, _SHAPE)
    components, form, match, pattern, replacement, every, change = found.groups()
    substitution = None
    if pattern is not None:
        usable = compiled(name, rule, pattern)
        parts = parse_replacement(name, rule, usable, replacement, literal_numbers=False)
        substitution = _Substitution(usable, parts, 0 if every else 1)
    return _Rule(
        int(components),
        _form(name, rule, form, int(components)),
        None if match is None else compiled(name, rule, match),
        substitution,
        _CHANGES[change],
    )


def _form(name: str, rule: str, form: str, components: int) -> Replacement:
    """Raises ConfigError for a number of a part that is not there; Kafka refuses all clients of such a rule."""
    parts: list[str | int] = []
    for plain, number in re.findall(r"([^$]+)|\$([0-9]*)", form):
        if plain:
            parts.append(plain)
        elif not 0 < len(number) < 10 or int(number) > components:
            raise ConfigError(name, rule, f"the parts of {components} components are $0 (the realm) to ${components}")
        else:
            parts.append(int(number))
    return tuple(parts)
