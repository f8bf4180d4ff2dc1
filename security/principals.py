"""Names of users: ssl.principal.mapping.rules for certificate subjects (Kafka class `SslPrincipalMapper`, RFC 2253),
and sasl.kerberos.principal.to.local.rules for Kerberos principals (Kafka class `KerberosShortNamer`). Patterns and
replacements of both use the notation of `java.util.regex`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Self

from config.definitions import ConfigError
from protocol.value import Value

Replacement = tuple[str | int, ...]
"""Text, and group numbers."""


def compiled(name: str, text: str, pattern: str) -> re.Pattern[str]:
    """Compile a pattern from `text`, the value of the key `name`. Java's named groups are converted.

    Raises ConfigError for syntax that Python would interpret differently from Java.
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
    """Parse Java's notation: $1 and ${name} stand for groups, \\ escapes the next character.

    A number takes as many digits as form an existing group. With `literal_numbers`, a higher one is text if the pattern
    has groups. Raises ConfigError.
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
    """The replacement for a match."""
    return "".join(part if isinstance(part, str) else found[part] or "" for part in replacement)


_FIELD = r"((?:\\.|[^\\/])*)"
_RULE = rf"(DEFAULT)|RULE:{_FIELD}/{_FIELD}/([LU]?)"
_NEXT = rf"\s*(?:{_RULE})?\s*(?:,|\Z)"
_SHAPE = "it must be DEFAULT or RULE:pattern/replacement/, with L or U at the end where letters change, comma-separated"
_CHANGES: dict[str, Callable[[str], str]] = {"": str, "L": str.lower, "U": str.upper}


class _Rule(NamedTuple):
    """A `pattern` of None is DEFAULT. `replacement` consists of text and group numbers."""

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
    """Mapping rules; the first one to match the whole subject applies."""

    rules: tuple[_Rule, ...]

    @classmethod
    def parse(cls, name: str, text: str) -> Self:
        """Parse `text`, the value of the key `name`. Raises ConfigError."""
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
                # As in Kafka, a number above the group count is text.
                parts = parse_replacement(name, text, usable, replacement, literal_numbers=True)
                rules.append(_Rule(usable, parts, _CHANGES[change]))
        return cls(tuple(rules))

    def name_of(self, subject: str) -> str | None:
        """The user's name, or None if no rule matches, so that the client must be rejected."""
        return next((name for rule in self.rules if (name := rule.apply(subject)) is not None), None)


KEY: Final = "sasl.kerberos.principal.to.local.rules"
_NAME: Final = re.compile(r"([^/@]*)(?:/([^/@]*))?@([^/@]*)")
_NAME_RULE: Final = re.compile(r"RULE:\[([0-9]{1,9}):([^\]]*)\](?:\(([^)]*)\))?(?:s/([^/]*)/([^/]*)/(g)?)?/?([LU]?)")
_NAME_SHAPE: Final = "it must be DEFAULT or RULE:[n:string](regexp)s/pattern/replacement/g, with /L or /U at the end"


class NoNameError(Exception):
    """A principal that cannot be mapped to a user's name."""


class _Substitution(NamedTuple):
    pattern: re.Pattern[str]
    replacement: Replacement
    most: int
    """Maximum of replacements; 0 for all."""

    def apply(self, text: str) -> str:
        return self.pattern.sub(lambda found: filled(self.replacement, found), text, count=self.most)


class _KerberosRule(NamedTuple):
    """`form` consists of text and the numbers of a principal's parts, where 0 is the realm."""

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
    """Mapping rules; the first applicable one determines the name. A rule of None is DEFAULT."""

    rules: tuple[_KerberosRule | None, ...]

    @classmethod
    def parse(cls, name: str, rules: Sequence[str]) -> Self:
        """Parse the rules in the key `name`. Raises ConfigError."""
        return cls(tuple(None if rule == "DEFAULT" else _parsed(name, rule) for rule in rules))

    def name_of(self, principal: str, default_realm: str) -> str:
        """The user's name. Raises NoNameError if the client must be rejected."""
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
                raise NoNameError(f"{KEY} turns {principal} into {found}, which is not a short name")
            return found if rule is None else rule.change(found)
        raise NoNameError(f"no rule of {KEY} is for {principal} (the default realm is {default_realm or 'unknown'})")


def _parts(principal: str) -> list[str]:
    """Realm and components, or just the name if it lacks a realm (`KerberosName`). Raises NoNameError."""
    found = _NAME.fullmatch(principal)
    if found is None:
        if "@" in principal:
            raise NoNameError(f"the principal {principal} has more than two components")
        return [principal]
    primary, instance, realm = found.groups()
    return [realm, primary] if instance is None else [realm, primary, instance]


def _parsed(name: str, rule: str) -> _KerberosRule:
    found = _NAME_RULE.fullmatch(rule)
    if found is None:
        raise ConfigError(name, rule, _NAME_SHAPE)
    components, form, match, pattern, replacement, every, change = found.groups()
    substitution = None
    if pattern is not None:
        usable = compiled(name, rule, pattern)
        parts = parse_replacement(name, rule, usable, replacement, literal_numbers=False)
        substitution = _Substitution(usable, parts, 0 if every else 1)
    return _KerberosRule(
        int(components),
        _form(name, rule, form, int(components)),
        None if match is None else compiled(name, rule, match),
        substitution,
        _CHANGES[change],
    )


def _form(name: str, rule: str, form: str, components: int) -> Replacement:
    """Raises ConfigError for the number of a missing part; Kafka rejects all clients of such a rule."""
    parts: list[str | int] = []
    for plain, number in re.findall(r"([^$]+)|\$([0-9]*)", form):
        if plain:
            parts.append(plain)
        elif not 0 < len(number) < 10 or int(number) > components:
            raise ConfigError(name, rule, f"the parts of {components} components are $0 (the realm) to ${components}")
        else:
            parts.append(int(number))
    return tuple(parts)


_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_ENCODINGS: Final = {12: "utf-8", 19: "utf-8", 20: "utf-8", 22: "utf-8", 27: "utf-8", 30: "utf-16-be"}
"""Tags of the string types in Java. T61String is read as UTF-8, as in Java."""
_ESCAPED: Final = ',=+<>#;"\\'
_VERSION_TAG: Final = 0xA0


class _Element(NamedTuple):
    tag: int
    content: bytes
    encoded: bytes


def subject_of(certificate: bytes) -> str:
    """The subject of a DER certificate, the most specific part first. Raises ValueError for other content."""
    body = _elements(_elements(certificate, 1)[0].content, 1)[0]
    fields = _elements(body.content, 6)
    # version (optional), serial number, algorithm, issuer, validity, subject
    subject = fields[5 if fields[0].tag == _VERSION_TAG else 4]
    return ",".join(_relative_name(each.content) for each in reversed(_elements(subject.content)))


def _relative_name(content: bytes) -> str:
    return "+".join(_attribute(*_elements(each.content, 2)[:2]) for each in _elements(content))


def _attribute(kind: _Element, value: _Element) -> str:
    identifier = _object_identifier(kind.content)
    keyword = _KEYWORDS.get(identifier)
    if keyword is None or value.tag not in _ENCODINGS:
        return f"{keyword or identifier}=#{value.encoded.hex()}"
    return f"{keyword}={_escaped(value.content.decode(_ENCODINGS[value.tag], 'replace'))}"


def _escaped(text: str) -> str:
    begin = len(text) - len(text.lstrip(" \r"))
    end = len(text.rstrip(" \r"))
    parts = []
    for at, letter in enumerate(text):
        if letter == "\0":
            parts.append("\\00")
        elif letter in _ESCAPED or not begin <= at < end:
            parts.append(f"\\{letter}")
        else:
            parts.append(letter)
    return "".join(parts)


def _object_identifier(content: bytes) -> str:
    numbers, number = [], 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(number)
            number = 0
    if not numbers:
        raise ValueError("an object identifier is empty")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _elements(encoded: bytes, at_least: int = 0) -> list[_Element]:
    """A sequence of elements (ITU-T X.690, definite lengths, tags of one byte).

    Raises ValueError for fewer than `at_least`.
    """
    found, at = [], 0
    while at < len(encoded):
        if at + 2 > len(encoded):
            raise ValueError("an element is cut short")
        size, begin = encoded[at + 1], at + 2
        if size >= 0x80:
            begin += size & 0x7F
            size = int.from_bytes(encoded[at + 2 : begin], "big")
        if begin + size > len(encoded):
            raise ValueError("an element is cut short")
        found.append(_Element(encoded[at], encoded[begin : begin + size], encoded[at : begin + size]))
        at = begin + size
    if len(found) < at_least:
        raise ValueError("not a certificate")
    return found
