"""The notation of JAAS: login modules with options, in sections of a file or alone in a key (`JaasConfig`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

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
"""Makes the error for a reason, which never repeats the text: it may be a password."""


class LoginModule(NamedTuple):
    """A Java class and its options."""

    class_name: str
    options: Mapping[str, str]

    def to_text(self) -> str:
        """As a key has it, and as `parse_module` reads it."""
        options = "".join(f" {name}={_quoted(value)}" for name, value in self.options.items())
        return f"{self.class_name} required{options};"


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def parse_sections(text: str, failure: Failure) -> dict[str, list[LoginModule]]:
    """The modules of each section of a file."""
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
    """The one module of a key such as sasl.jaas.config."""
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
