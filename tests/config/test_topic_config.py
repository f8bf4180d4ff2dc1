"""Overrides of topics: the accepted ones, and the errors of the others."""

from __future__ import annotations

import pytest

from config.topic_config import TOPIC_KEYS, parse_topic_config, validate_topic_config
from protocol.errors import ApiError, ErrorCode


def test_overrides_over_defaults_over_the_table() -> None:
    values = parse_topic_config({"retention.ms": "5"}, {"retention.ms": 6, "segment.bytes": 7})
    assert (values["retention.ms"], values["segment.bytes"], values["segment.ms"]) == (5, 7, 604_800_000)
    assert set(values) == set(TOPIC_KEYS)


def test_what_an_older_broker_stored_is_passed_over() -> None:
    assert "no.such.key" not in parse_topic_config({"no.such.key": "1"})


def test_good_overrides() -> None:
    validate_topic_config({"cleanup.policy": "compact , delete", "retention.ms": "-1"})
    validate_topic_config({"leader.replication.throttled.replicas": "*", "cleanup.policy": ""})
    validate_topic_config({"message.format.version": "2.8-IV1", "compression.zstd.level": "-5"})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"no.such.key": "1"}, "Unknown topic config name: no.such.key"),
        ({"retention.ms": "x"}, "Invalid value x for configuration retention.ms: Not a number of type LONG"),
        ({"segment.bytes": "13"}, "Invalid value 13 for configuration segment.bytes: Value must be at least 14"),
        (
            {"cleanup.policy": "shred"},
            "Invalid value shred for configuration cleanup.policy: String must be one of: compact, delete",
        ),
        (
            {"message.format.version": "9.9"},
            "Invalid value 9.9 for configuration message.format.version: Version 9.9 is not a valid version",
        ),
        (
            {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"},
            "conflict topic config setting min.compaction.lag.ms (10) > max.compaction.lag.ms (5)",
        ),
        (
            {"remote.storage.enable": "true"},
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log \
storage.",
        ),
    ],
)
def test_refused_overrides(overrides: dict[str, str | None], message: str) -> None:
    with pytest.raises(ApiError) as caught:
        validate_topic_config(overrides)
    assert caught.value.error_code is ErrorCode.INVALID_CONFIG
    assert caught.value.message == message


def test_a_default_of_the_broker_can_be_contradicted() -> None:
    with pytest.raises(ApiError, match="conflict topic config setting"):
        validate_topic_config({"max.compaction.lag.ms": "5"}, {"min.compaction.lag.ms": 10})
