"""The keys of the authorizer, which Kafka leaves to the authorizer's class (Kafka class `AclAuthorizer`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from config.definitions import ConfigKey, table
from config.vocabulary import BOOLEAN, STRING
from protocol.value import Value

ACL_AUTHORIZER: Final = "kafka.security.authorizer.AclAuthorizer"
CLASS_NAME: Final = "authorizer.class.name"
SUPER_USERS: Final = "super.users"
ALLOW_UNMENTIONED: Final = "allow.everyone.if.no.acl.found"

AUTHORIZER_KEYS: Final = table(
    (
        ConfigKey(SUPER_USERS, STRING, "", "Principals that may do everything, separated by semicolons."),
        ConfigKey(ALLOW_UNMENTIONED, BOOLEAN, False, "Whether everybody may use what no ACL is about."),
    )
)
"""They count in a file, and DescribeConfigs does not tell of them."""


class Authorization(Value):
    """The settings of the authorizer; `super_users` are principals such as `User:admin`."""

    super_users: frozenset[str]
    allows_unmentioned: bool


def authorization(originals: Mapping[str, str]) -> Authorization | None:
    """The settings, None when nothing is authorized. Raises ConfigError, ValueError."""
    if not originals.get(CLASS_NAME):
        return None
    allows = AUTHORIZER_KEYS[ALLOW_UNMENTIONED]
    return Authorization(
        _principals(originals.get(SUPER_USERS, "")), bool(allows.parse(originals.get(ALLOW_UNMENTIONED, "false")))
    )


def authorization_rules(originals: Mapping[str, str]) -> Iterator[tuple[str, bool, str]]:
    """Rules, in the form of `config.rules`."""
    has_authorizer = bool(originals.get(CLASS_NAME))
    for name in AUTHORIZER_KEYS:
        if name in originals:
            needed = f"and there is none: set {CLASS_NAME}={ACL_AUTHORIZER}"
            nobody = f"{name}={originals[name]} is for an authorizer, {needed}"
            yield name, has_authorizer, nobody
    try:
        authorization(originals)
    except ValueError as error:
        yield SUPER_USERS, False, f"Invalid value {originals[SUPER_USERS]} for configuration {SUPER_USERS}: {error}"


def _principals(text: str) -> frozenset[str]:
    """Raises ValueError as Kafka's `SecurityUtils.parseKafkaPrincipal` does."""
    found = [each.strip() for each in text.rstrip("; ").split(";")] if text.strip() else []
    for each in found:
        if ":" not in each:
            raise ValueError(f"expected a string in format principalType:principalName but got {each}")
    return frozenset(found)
