"""The keys of delegation tokens."""

from __future__ import annotations

from config.broker_config import BrokerConfig
from security.authorization import TokenSettings, settings_of_tokens
from tests.kit.in_process import SETTINGS

SECRET, OLD = "delegation.token.secret.key", "delegation.token.master.key"


def settings(**keys: str) -> tuple[TokenSettings | None, list[str]]:
    """The settings, and the keys without effect."""
    config = BrokerConfig.of(
        {**SETTINGS, **{f"delegation.token.{name.replace('_', '.')}": keys[name] for name in keys}}
    )
    return settings_of_tokens(config.values), [name for name in config.without_effect() if "token" in name]


def test_a_secret_key_by_either_name() -> None:
    assert settings(secret_key="a") == (TokenSettings("a", 604_800_000, 86_400_000, 3_600_000), [])
    assert settings(master_key="b")[0] == TokenSettings("b", 604_800_000, 86_400_000, 3_600_000)
    found, _ = settings(
        secret_key="a", master_key="b", max_lifetime_ms="3", expiry_time_ms="2", expiry_check_interval_ms="1"
    )
    assert found == TokenSettings("a", 3, 2, 1)
    assert "'a'" not in repr(found)


def test_without_one_nothing_counts() -> None:
    assert settings() == (None, [])
    assert settings(max_lifetime_ms="3") == (None, ["delegation.token.max.lifetime.ms"])
    assert settings(secret_key="", master_key="b") == (None, [SECRET, OLD])
