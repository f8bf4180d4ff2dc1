"""The authorizer's own keys, which Kafka leaves to the authorizer's class (`AclAuthorizer`), and those of delegation
tokens (Kafka class `DelegationTokenManagerConfigs`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from config.definitions import BOOLEAN, STRING, ConfigKey, table
from protocol.value import Value

ACL_AUTHORIZER: Final = "kafka.security.authorizer.AclAuthorizer"
CLASS_NAME: Final = "authorizer.class.name"
SUPER_USERS: Final = "super.users"
ALLOW_UNMENTIONED: Final = "allow.everyone.if.no.acl.found"

AUTHORIZER_KEYS: Final = table(
    (
        ConfigKey(SUPER_USERS, STRING, "", "Principals that may do everything, separated by semicolons."),
        ConfigKey(ALLOW_UNMENTIONED, BOOLEAN, False, "Whether everyone may use resources without ACLs."),
    )
)
"""They are read from the properties file, but DescribeConfigs does not return them."""


class Authorization(Value):
    """The settings of the authorizer; `super_users` are principals such as `User:admin`."""

    super_users: frozenset[str]
    allows_unmentioned: bool


def authorization(originals: Mapping[str, str]) -> Authorization | None:
    """The settings, or None without an authorizer. Raises ConfigError, ValueError."""
    if not originals.get(CLASS_NAME):
        return None
    allows = AUTHORIZER_KEYS[ALLOW_UNMENTIONED]
    return Authorization(
        _principals(originals.get(SUPER_USERS, "")), bool(allows.parse(originals.get(ALLOW_UNMENTIONED, "false")))
    )


def authorization_rules(originals: Mapping[str, str]) -> Iterator[tuple[str, bool, str]]:
    """Rules in the form of `config.rules`."""
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


class TokenSettings(NamedTuple):
    """Lifetimes of tokens: the maximum, and until the next renewal. All brokers of a cluster need the same secret
    key.
    """

    secret_key: str
    max_lifetime_ms: int
    expiry_time_ms: int
    expiry_check_interval_ms: int

    def __repr__(self) -> str:
        return f"TokenSettings{self[1:]}"


def settings_of_tokens(values: Mapping[str, Any]) -> TokenSettings | None:
    """The settings from the parsed values of all keys, or None without a secret key, which disables tokens."""
    secret_key = values["delegation.token.secret.key"]
    if secret_key is None:
        secret_key = values["delegation.token.master.key"]
    if not secret_key:
        return None
    return TokenSettings(
        secret_key,
        values["delegation.token.max.lifetime.ms"],
        values["delegation.token.expiry.time.ms"],
        values["delegation.token.expiry.check.interval.ms"],
    )
