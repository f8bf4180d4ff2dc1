"""The keys of delegation tokens (Kafka class `DelegationTokenManagerConfigs`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class TokenSettings(NamedTuple):
    """How long tokens live: at most, and between renewals. All brokers of a cluster need the same secret key."""

    secret_key: str
    max_lifetime_ms: int
    expiry_time_ms: int
    expiry_check_interval_ms: int

    def __repr__(self) -> str:
        return f"TokenSettings{self[1:]}"


def settings_of_tokens(values: Mapping[str, Any]) -> TokenSettings | None:
    """The settings in the parsed values of all keys; None without a secret key, when there are no tokens."""
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
