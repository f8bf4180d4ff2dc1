"""Mapping certificates and tickets to user names: subjects, and the rules of both kinds."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from cryptography.hazmat.primitives.serialization import Encoding

from config.definitions import ConfigError
from security.principals import NoNameError, PrincipalRules, ShortNames, subject_of
from tests.fuzz.mutation import mutated, mutated_text, put_together
from tests.fuzz.runner import Target, Trial
from tests.kit.security.certificates import Authority, subject

NAME = "rules"


class RulesCase(NamedTuple):
    """Rules with names to apply them to, and the users' names if known."""

    rules: str
    names: tuple[str, ...]
    expected: tuple[str | None, ...] | None = None


Known = dict[str, Callable[[str], str | None]]


def first_of(known: Known, rules: Sequence[str], name: str) -> str | None:
    """The result of the first rule that matches `name`."""
    return next((found for rule in rules if (found := known[rule](name)) is not None), None)


# -- ssl.principal.mapping.rules ---------------------------------------------------------------------------------------


def _service(name: str) -> str | None:
    head, comma, rest = name.partition(",OU=Service")
    is_it = comma and head.startswith("CN=") and "," not in head and "\n" not in rest
    return head[3:] if is_it else None


def _pair(name: str) -> str | None:
    parts = name.split(",")
    is_it = len(parts) == 2 and parts[0].startswith("CN=") and parts[1].startswith("O=") and "\n" not in name
    return f"{parts[1][2:]}-{parts[0][3:]}".lower() if is_it else None


SSL: Known = {
    r"RULE:^CN=([^,]*),OU=Service.*/$1/": _service,
    r"RULE:CN=([^,\n]*),O=([^,\n]*)/$2-$1/L": _pair,
    r"RULE:admin\/root/ADMIN/": lambda name: "ADMIN" if name == "admin/root" else None,
    "DEFAULT": lambda name: name,
}
SUBJECTS = ("CN=alice,OU=Service,O=Odradek", "CN=Alice,O=Odradek", "CN=bob,O=x", "admin/root", "O=Odradek", "")
SUBJECT_WORDS = (
    "CN=",
    "O=",
    "OU=Service",
    ",",
    "\\,",
    "+",
    "\\00",
    "alice",
    "#",
    "\n",
    "/",
    "é",
    "$1",
    "\\",
    "DEFAULT",
)
RULE_WORDS = (
    *(
        "RULE:",
        "DEFAULT",
        "/",
        "//",
        ",",
        "$1",
        "${x}",
        "$0",
        "$",
        "\\",
        "\\/",
        "(?<x>",
        "(",
        ")",
        ".*",
        "[a-z]",
        "[",
        "]",
    ),
    *("^CN=", "L", "U", "(?i)", "a{1,9}", "{", "*", "+", "?", "|", "\\p{L}", "\\d", "(?P<y>a)", "\n", " ", "é", "\\1"),
)
SHORT, SHORTEST = 12, 1
"""The lengths of names for random rules. With many repetitions their time is exponential in it, in Java too."""
FEW_REPETITIONS = 8


def short_names(rules: str, words: Sequence[str], draw: random.Random) -> tuple[str, ...]:
    """Names for random rules."""
    length = SHORT if sum(map(rules.count, "*+{?")) <= FEW_REPETITIONS else SHORTEST
    return tuple(put_together(words, draw)[:length] for _ in range(2))


class SslRules:
    """Known rules with random subjects, and vice versa."""

    def make(self, draw: random.Random) -> RulesCase:
        rules = draw.choices(list(SSL), k=draw.randrange(1, 4))
        if draw.random() < 0.5:
            names = tuple(
                mutated_text(each, draw, SUBJECT_WORDS) if draw.random() < 0.8 else each
                for each in draw.choices(SUBJECTS, k=3)
            )
            text = draw.choice([",", " , ", ",\n"]).join(rules)
            return RulesCase(text, names, tuple(first_of(SSL, rules, each) for each in names))
        text = (
            mutated_text(",".join(rules), draw, RULE_WORDS) if draw.random() < 0.8 else put_together(RULE_WORDS, draw)
        )
        return RulesCase(text, short_names(text, SUBJECT_WORDS, draw))

    def check(self, case: RulesCase) -> bool:
        try:
            rules = PrincipalRules.parse(NAME, case.rules)
        except ConfigError:
            assert case.expected is None
            return False
        found = tuple(rules.name_of(each) for each in case.names)
        assert case.expected is None or found == case.expected
        return True


# -- sasl.kerberos.principal.to.local.rules ----------------------------------------------------------------------------

REALM = "EXAMPLE"


def _parts(name: str) -> tuple[list[str], str]:
    """Components and realm; the name has at most one @ and one /."""
    head, _, realm = name.partition("@")
    return head.split("/"), realm


def _one(name: str) -> str | None:
    parts, realm = _parts(name)
    return parts[0] if len(parts) == 1 and realm == REALM else None


def _admin(name: str) -> str | None:
    parts, realm = _parts(name)
    return "root" if len(parts) == 2 and parts[1] == "admin" and realm == REALM else None


def _any_host(name: str) -> str | None:
    parts, _ = _parts(name)
    return parts[0].upper() if len(parts) == 2 else None


KERBEROS: Known = {
    f"RULE:[1:$1@$0](.*@{REALM})s/@.*//": lambda name: None if "\n" in name else _one(name),
    f"RULE:[2:$2@$0](admin@{REALM})s/.*/root/": _admin,
    "RULE:[2:$1]/U": _any_host,
    "DEFAULT": lambda name: _parts(name)[0][0] if _parts(name)[1] == REALM else None,
}
TICKETS = (f"alice@{REALM}", f"bob/admin@{REALM}", f"kafka/host@{REALM}", "eve@OTHER", "eve/admin@OTHER", "alice")
TICKET_WORDS = ("@", "/", "alice", "admin", REALM, f"@{REALM}", "OTHER", "\\", "\n", "é", ".", "root", "$1")
SHORT_RULE_WORDS = (*RULE_WORDS, "RULE:[1:", "RULE:[2:", "$2", "s/", "/g", "/L", "@", ":", "9")


class KerberosRules:
    """Like `SslRules`, for principals of Kerberos. Without a realm the name is taken unchanged."""

    def make(self, draw: random.Random) -> RulesCase:
        rules = draw.choices(list(KERBEROS), k=draw.randrange(1, 4))
        if draw.random() < 0.5:
            names = tuple(
                mutated_text(each, draw, TICKET_WORDS) if draw.random() < 0.8 else each
                for each in draw.choices(TICKETS, k=3)
            )
            return RulesCase("\t".join(rules), names, tuple(_expected(rules, each) for each in names))
        words = SHORT_RULE_WORDS
        text = mutated_text("\t".join(rules), draw, words) if draw.random() < 0.8 else put_together(words, draw)
        return RulesCase(text, short_names(text, TICKET_WORDS, draw))

    def check(self, case: RulesCase) -> bool:
        try:
            rules = ShortNames.parse(NAME, case.rules.split("\t"))
        except ConfigError:
            assert case.expected is None
            return False
        found: list[str | None] = []
        for each in case.names:
            try:
                found.append(rules.name_of(each, REALM))
            except NoNameError:
                found.append(None)
            name = found[-1]
            assert name is None or "@" not in name, each
            assert name is None or "/" not in name or ("@" not in each and name == each), each
        assert case.expected is None or tuple(found) == case.expected
        return True


def _expected(rules: Sequence[str], name: str) -> str | None:
    if "@" not in name:
        return name
    if name.count("@") > 1 or name.partition("@")[0].count("/") > 1 or "/" in name.partition("@")[2]:
        return None
    found = first_of(KERBEROS, rules, name)
    return None if found is None or "/" in found or "@" in found else found


# -- certificates ------------------------------------------------------------------------------------------------------


def _certificates() -> list[tuple[bytes, str]]:
    authority = Authority()
    named = {
        "CN=alice,O=Odradek": subject("alice", ORGANIZATION_NAME="Odradek"),
        "CN=a\\,b\\=c,O=d\\+e": subject("a,b=c", ORGANIZATION_NAME="d+e"),
        "CN=\\ é ü\\ ": subject(" é ü "),
        "CN=" + "x" * 60: subject("x" * 60),
    }
    return [(authority.issue(name).certificate.public_bytes(Encoding.DER), text) for text, name in named.items()]


class CertificateCase(NamedTuple):
    """A certificate, and its subject if known."""

    der: bytes
    text: str | None = None


class Certificates:
    """Certificates whose signatures were already verified, so the mutated bytes did not come from an authority."""

    def __init__(self) -> None:
        self._known = _certificates()

    def make(self, draw: random.Random) -> CertificateCase:
        der, text = draw.choice(self._known)
        kind = draw.random()
        if kind < 0.1:
            return CertificateCase(der, text)
        if kind < 0.6:
            # Most of a certificate comes after the subject; the first bytes decide how it is parsed.
            return CertificateCase(mutated(der[:300], draw) + der[300:])
        return CertificateCase(mutated(der, draw) if kind < 0.9 else draw.randbytes(draw.randrange(200)))

    def check(self, case: CertificateCase) -> bool:
        try:
            found = subject_of(case.der)
        except ValueError:
            assert case.text is None
            return False
        assert case.text is None or found == case.text
        return True


@contextmanager
def ssl_rules() -> Iterator[Trial]:
    """See `SslRules`."""
    yield SslRules()


@contextmanager
def kerberos_rules() -> Iterator[Trial]:
    """See `KerberosRules`."""
    yield KerberosRules()


@contextmanager
def certificates() -> Iterator[Trial]:
    """See `Certificates`."""
    yield Certificates()


TARGETS = (
    Target("ssl-rules", 40, ssl_rules),
    Target("kerberos-rules", 40, kerberos_rules),
    Target("certificates", 100, certificates),
)
