"""sasl.kerberos.principal.to.local.rules, as parsed by `KerberosShortNamer`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from config.definitions import ConfigError
from security.principals import NoNameError, ShortNames
from tests.kit.jars import QUICK_START, java, kafka_classpath

REALM = "EXAMPLE.COM"


def name_of(principal: str, *rules: str, realm: str = REALM) -> str | None:
    try:
        return ShortNames.parse("rules", rules).name_of(principal, realm)
    except NoNameError:
        return None


@pytest.mark.parametrize(
    ("rules", "principal", "user"),
    [
        # From Kafka's documentation, and its KerberosNameTest.
        (("RULE:[1:$1@$0](.*@MYDOMAIN.COM)s/@.*//", "DEFAULT"), "user@MYDOMAIN.COM", "user"),
        (("RULE:[1:$1](App\\..*)s/App\\.(.*)/$1/g",), "App.service-name@REALM.COM", "service-name"),
        (("RULE:[2:$1](App\\..*)s/App\\.(.*)/$1/g",), "App.service-name/example.com@REALM.COM", "service-name"),
        (("RULE:[1:$1]/L",), "User@REALM.COM", "user"),
        (("RULE:[1:$1]/U",), "User@REALM.COM", "USER"),
        (("RULE:[2:$1]/L",), "TestABC/host@FOO.COM", "testabc"),
        (("RULE:[2:$1](Test.*)s/ABC///L",), "TestABC/host@FOO.COM", "test"),
        (("RULE:[1:$1](.*)s/a/x/",), "banana@FOO.COM", "bxnana"),
        (("RULE:[1:$1](.*)s/a/x/g",), "banana@FOO.COM", "bxnxnx"),
        # The first matching rule applies, and no other one.
        (("DEFAULT",), f"alice@{REALM}", "alice"),
        (("DEFAULT",), f"alice/admin@{REALM}", "alice"),
        (("DEFAULT",), "alice@ELSEWHERE", None),
        (("RULE:[1:$1](bob)", "RULE:[1:x$1]"), f"alice@{REALM}", "xalice"),
        (("RULE:[1:$1@$0]", "DEFAULT"), f"alice@{REALM}", None),
        (("RULE:[2:$1/$2]", "DEFAULT"), f"alice/admin@{REALM}", None),
        (("RULE:[2:$2]",), f"alice@{REALM}", None),
        (("RULE:[2:$2]",), f"alice/@{REALM}", ""),
        (("RULE:[1:$1]",), f"alice/admin@{REALM}", None),
        (("RULE:[1:$1](lic)",), f"alice@{REALM}", None),
        (("DEFAULT",), "alice", "alice"),
        (("DEFAULT",), f"a/b/c@{REALM}", None),
        (("DEFAULT",), "alice@@", None),
        ((), f"alice@{REALM}", None),
        (("RULE:[1:$1]s/(?<x>l)i/${x}$0\\$/",), f"alice@{REALM}", "alli$ce"),
    ],
)
def test_the_name_of_a_principal(rules: tuple[str, ...], principal: str, user: str | None) -> None:
    assert name_of(principal, *rules) == user


def test_without_a_default_realm_the_default_is_for_nobody() -> None:
    assert name_of(f"alice@{REALM}", "DEFAULT", realm="") is None


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        ("default", "it must be DEFAULT or RULE:"),
        ("", "it must be DEFAULT or RULE:"),
        ("DEFAULT/L", "it must be DEFAULT or RULE:"),
        ("RULE:[:$1]", "it must be DEFAULT or RULE:"),
        ("RULE:[1:$1", "it must be DEFAULT or RULE:"),
        ("RULE:[1:$1](a", "it must be DEFAULT or RULE:"),
        ("RULE:[1:$1]s/a/b", "it must be DEFAULT or RULE:"),
        ("RULE:[1:$1]s/a/b/x", "it must be DEFAULT or RULE:"),
        ("RULE:[1:$1]/L/U", "it must be DEFAULT or RULE:"),
        ("RULE:[99999999999:$1]", "it must be DEFAULT or RULE:"),
        ("RULE:[1:$1]([)", r"the pattern \[ cannot be used"),
        ("RULE:[1:$1]s/[/b/", r"the pattern \[ cannot be used"),
        ("RULE:[1:$]", r"the parts of 1 components are \$0 \(the realm\) to \$1"),
        ("RULE:[1:$2]", r"the parts of 1 components are \$0 \(the realm\) to \$1"),
        (f"RULE:[1:${'9' * 5000}]", "the parts of 1 components are"),
        ("RULE:[1:$1]s/a/$1/", r"the replacement \$1 has a group that the pattern has not"),
        ("RULE:[1:$1]s/(a)/$2/", r"the replacement \$2 has a group that the pattern has not"),
        ("RULE:[1:$1]s/a/\\/", "the replacement .* has a group"),
    ],
)
def test_rules_that_cannot_be_read(rule: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=f"for configuration rules: {complaint}"):
        ShortNames.parse("rules", ("DEFAULT", rule))


FORMS = st.lists(st.sampled_from(["$0", "$1", "$2", "$3", "$", "@", "/", "-", "a", "x y"]), max_size=4).map("".join)
MATCHES = st.sampled_from(["", *("(" + each + ")" for each in (".*", "[a-z]+", "alice.*", "[", "\\w+-\\w+", ""))])
PATTERNS = ("@.*", "a", "(.)", "(.)(.)", ".", "b*", "[", "^", "$", "(?<x>l)", "")
REPLACEMENTS = ("", "$0", "$1", "$12", "x", "\\$", "\\", "$", "${x}", "<$1$1>")
SUBSTITUTIONS = st.one_of(
    st.just(""),
    st.builds(
        "s/{}/{}/{}".format, st.sampled_from(PATTERNS), st.sampled_from(REPLACEMENTS), st.sampled_from(["", "g"])
    ),
)
ENDS = st.sampled_from(["", "/L", "/U", "L", "/", "/LU", "g"])
RULES = st.one_of(
    st.just("DEFAULT"),
    st.builds(
        "RULE:[{}:{}]{}{}{}".format, st.sampled_from(["1", "2", "1", "2", "0", ""]), FORMS, MATCHES, SUBSTITUTIONS, ENDS
    ),
    st.text("DEFAULTRULE:[]$1()s/g", max_size=14),
)
PARTS = st.sampled_from(["alice", "Bob", "admin", "a", "", "x y", "ballad"])
PRINCIPALS = st.one_of(
    st.builds("{}@{}".format, PARTS, st.sampled_from([REALM, "OTHER", ""])),
    st.builds("{}/{}@{}".format, PARTS, PARTS, st.sampled_from([REALM, "OTHER", ""])),
    st.text("ab/@", max_size=6),
)
Case = tuple[str, list[str], list[str]]
CASES = st.tuples(
    st.sampled_from([REALM, ""]), st.lists(RULES, max_size=3), st.lists(PRINCIPALS, min_size=1, max_size=4)
)
STRICTER = ("the parts of", "has a group that the pattern has not")
"""Errors that stop this broker, where Kafka starts and then refuses every client that the rule matches."""


def ours(case: Case) -> list[str | None] | str:
    """The names, or the error in the rules."""
    realm, rules, principals = case
    try:
        ShortNames.parse("rules", rules)
    except ConfigError as error:
        return str(error)
    return [name_of(each, *rules, realm=realm) for each in principals]


@given(CASES)
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_a_name_has_neither_slash_nor_realm(case: Case) -> None:
    found = ours(case)
    if not isinstance(found, str):
        for principal, name in zip(case[2], found, strict=True):
            assert name is None or name == principal or not set("/@") & set(name)


@pytest.mark.java
def test_kafka_names_the_same() -> None:
    cases: list[Case] = []

    @settings(max_examples=3000, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(CASES)
    def collect(case: Case) -> None:
        cases.append(case)

    collect()
    program = Path(__file__).with_name("java") / "ShortNames.java"
    asked = "".join(json.dumps(each) + "\n" for each in cases)
    command = java(*QUICK_START, "-cp", kafka_classpath(), str(program))
    done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    named = 0
    for case, line in zip(cases, done.stdout.splitlines(), strict=True):
        theirs, found = json.loads(line), ours(case)
        if isinstance(found, str):
            assert theirs is None or any(each in found for each in STRICTER), (case, theirs, found)
        else:
            assert found == theirs, case
            named += sum(each is not None for each in found)
    assert named > 500
