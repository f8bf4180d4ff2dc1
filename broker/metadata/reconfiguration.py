"""Checks of a dynamic configuration by parts of the broker, with Kafka's messages (`validateReconfiguration`)."""

from __future__ import annotations

from collections.abc import Mapping

from config.broker_config import BrokerConfig
from config.definitions import ConfigError
from config.topic_config import BROKER_SYNONYMS
from protocol.errors import ApiError, ErrorCode

_THREAD_KEYS = (
    "num.io.threads",
    "num.network.threads",
    "num.replica.fetchers",
    "num.recovery.threads.per.data.dir",
    "background.threads",
)
_TOPIC_DEFAULTS = frozenset(name for names in BROKER_SYNONYMS.values() for name in names)
_FOR_EVER, _AS_WHOLE = -1, -2
"""Special values of local retention: unlimited, and same as the total retention."""


def check_local_retention(properties: Mapping[str, str], current: BrokerConfig, proposed: BrokerConfig) -> None:
    """Kafka's `DynamicLogConfig.validateReconfiguration`, which runs when a topic default changes."""
    before = current.originals
    if not any(name in _TOPIC_DEFAULTS and before.get(name) != text for name, text in properties.items()):
        return
    for whole, kept, local in (
        ("log.retention.ms", proposed.log_retention_time_ms, "log.local.retention.ms"),
        ("log.retention.bytes", proposed.values["log.retention.bytes"], "log.local.retention.bytes"),
    ):
        here = proposed.values[local]
        assert isinstance(kept, int)
        assert isinstance(here, int)
        if kept < 0 or here == _AS_WHOLE:
            continue
        if here == _FOR_EVER:
            raise reconfiguration_error(
                f"{ConfigError(local, here)}: Value must not be -1 as {whole} value is set as {kept}."
            )
        if here > kept:
            raise reconfiguration_error(
                f"{ConfigError(local, here)}: Value must not be more than {whole} property value: {kept}"
            )


def check_worker_counts(current: BrokerConfig, proposed: BrokerConfig) -> None:
    """Kafka lets a thread pool at most double or halve at a time; scripts rely on the error message."""
    for name in (*_THREAD_KEYS, "log.cleaner.threads"):
        now, wanted = current.values[name], proposed.values[name]
        if not isinstance(now, int) or not isinstance(wanted, int) or now == wanted:
            continue
        cleaner, present = name == "log.cleaner.threads", f"the current value {now}"
        if wanted < 1 and not cleaner:
            reason = "should be at least 1"
        elif wanted < now // 2:
            reason = f"{'cannot be reduced to less than' if cleaner else 'should be at least'} half {present}"
        elif wanted > now * 2:
            rule = "cannot be increased to more than" if cleaner else "should not be greater than"
            reason = f"{rule} double {present}"
        else:
            continue
        where = "Log cleaner threads" if cleaner else _thread_count_error(name, wanted)
        raise reconfiguration_error(f"{where} {reason}")


def _thread_count_error(name: str, wanted: int) -> str:
    return f"Dynamic thread count update validation failed for {name}={wanted}, value"


def reconfiguration_error(reason: str) -> ApiError:
    """The error for a configuration that a part of the broker rejects, in Kafka's words."""
    return ApiError(
        ErrorCode.INVALID_REQUEST,
        f"Invalid value org.apache.kafka.common.config.ConfigException: {reason} "
        "for configuration Invalid dynamic configuration",
    )
