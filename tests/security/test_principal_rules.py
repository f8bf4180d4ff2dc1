"""ssl.principal.mapping.rules. The first examples come from Kafka's documentation and KIP-371."""

from __future__ import annotations

import pytest

from config.definitions import ConfigError
from security.principals import PrincipalRules

NAME = "ssl.principal.mapping.rules"
SUBJECT = "CN=Duke,OU=JavaSoft,O=Sun Microsystems,C=US"


@pytest.mark.parametrize(
    ("rules", "subject", "user"),
    [
        ("DEFAULT", SUBJECT, SUBJECT),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "CN=kafka,OU=ServiceUsers,O=Unknown", "kafka"),
        ("RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L", "CN=A,OU=B,O=C,L=D,ST=E,C=F", "a@b"),
        ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L", SUBJECT, "duke"),
        ("RULE:^CN=([^,]*),.*$/$1/U", SUBJECT, "DUKE"),
        ("RULE:^CN=x,.*$/$1x/,\n RULE:^CN=(.*?),.*$/u_$1/,DEFAULT".replace("$1x", "x"), SUBJECT, "u_Duke"),
        ("RULE:^CN=nobody$/x/", SUBJECT, None),
        ("RULE:CN=Duke/x/", SUBJECT, None),
        ("RULE:O=Sun Microsystems,C=US/x/", SUBJECT, None),
        ("", SUBJECT, None),
        (",,DEFAULT,", SUBJECT, SUBJECT),
        (r"RULE:^CN=(\w+)\/(\w+)$/$2\/$1/", "CN=a/b", "b/a"),
        (r"RULE:CN=(?<user>\w+),.*/${user}\$/", SUBJECT, "Duke$"),
        ("RULE:(CN=Duke).*/$12/", SUBJECT, "CN=Duke2"),
        ("RULE:(CN=Duke).*/$2/", SUBJECT, "$2"),
        ("RULE:CN=(a)?.*/<$1>/", "CN=", "<>"),
        ("RULE:.*/x/", "CN=", "xx"),
    ],
)
def test_the_first_rule_that_matches_counts(rules: str, subject: str, user: str | None) -> None:
    assert PrincipalRules.parse(NAME, rules).name_of(subject) == user


@pytest.mark.parametrize(
    "rules",
    [
        "default",
        "RULE:",
        "RULE:a",
        "RULE:a/b",
        "RULE:a/b/X",
        "RULE:a/b/LU",
        "RULE:(/b/",
        "RULE:" + "(" * 5000 + ")" * 5000 + "/b/",
        "RULE:a/$1/",
        "RULE:(a)/${b}/",
        "RULE:(a)/$/",
        r"RULE:\p{L}/b/",
        "RULE:[a-z&&[^b]]/b/",
        "DEFAULT DEFAULT",
    ],
)
def test_what_cannot_be_understood_is_refused(rules: str) -> None:
    with pytest.raises(ConfigError, match=f"for configuration {NAME}: "):
        PrincipalRules.parse(NAME, rules)
