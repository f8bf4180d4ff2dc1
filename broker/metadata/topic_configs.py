"""Converts topic configurations to log settings, and applies the changes that requests ask for (Kafka class
`ConfigAdminManager`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from cluster.controller.start_up import KEEP_EVERYTHING
from cluster.metadata_image import MetadataImage
from config.broker_config import BrokerConfig
from config.definitions import ConfigError, ConfigKey, ConfigType, value_to_text
from config.definitions import Value as ConfigValue
from config.topic_config import TOPIC_KEYS, parse_topic_config
from protocol.config_resources import AlterConfigOp, ConfigResourceType
from protocol.errors import ApiError, ErrorCode
from protocol.records.batch import TimestampType
from protocol.records.compression import CompressionType
from protocol.value import Value
from storage.log_config import LogConfig, ValidateRecords

logger = logging.getLogger("kafka.server.TopicConfigHandler")

_TIMESTAMP_TYPES = {"CreateTime": TimestampType.CREATE_TIME, "LogAppendTime": TimestampType.LOG_APPEND_TIME}
_COMPRESSION_TYPES = {"producer": None, "uncompressed": CompressionType.NONE} | {
    codec.name.lower(): codec for codec in CompressionType if codec is not CompressionType.NONE
}


def log_config_of(broker_config: BrokerConfig, image: MetadataImage, topic: str) -> LogConfig:
    """The effective configuration of a topic's logs: its overrides over the broker's defaults. Invalid values, which
    other tools may write into the tree, are ignored; an invalid retention keeps everything.
    """
    overrides, defaults = image.config(ConfigResourceType.TOPIC, topic), broker_config.topic_defaults()
    try:
        values = parse_topic_config(overrides, defaults)
    except ConfigError:
        values = parse_topic_config(_usable(topic, overrides), defaults)
    return _log_config(values, ValidateRecords(broker_config.log_validate_records))


def _usable(topic: str, overrides: Mapping[str, str]) -> Mapping[str, str]:
    usable: dict[str, str] = {}
    for name, text in overrides.items():
        try:
            parse_topic_config({name: text})
        except ConfigError as error:
            logger.error("Configuration %s of topic %s is ignored: %s", name, topic, error)
            usable.update({name: KEEP_EVERYTHING[name]} if name in KEEP_EVERYTHING else {})
        else:
            usable[name] = text
    return usable


def _log_config(values: Mapping[str, ConfigValue], validate_records: ValidateRecords) -> LogConfig:
    typed: Mapping[str, Any] = values
    codec = _COMPRESSION_TYPES[typed["compression.type"]]
    return LogConfig(
        segment_bytes=typed["segment.bytes"],
        segment_ms=typed["segment.ms"],
        segment_jitter_ms=typed["segment.jitter.ms"],
        segment_index_bytes=typed["segment.index.bytes"],
        index_interval_bytes=typed["index.interval.bytes"],
        retention_ms=typed["retention.ms"],
        retention_bytes=typed["retention.bytes"],
        flush_messages=typed["flush.messages"],
        flush_ms=typed["flush.ms"],
        max_message_bytes=typed["max.message.bytes"],
        message_timestamp_type=_TIMESTAMP_TYPES[typed["message.timestamp.type"]],
        message_timestamp_before_max_ms=_timestamp_limit(typed, "message.timestamp.before.max.ms"),
        message_timestamp_after_max_ms=_timestamp_limit(typed, "message.timestamp.after.max.ms"),
        compression_type=codec,
        compression_level=None if codec is None else typed.get(f"compression.{codec.name.lower()}.level"),
        cleanup_policy=frozenset(typed["cleanup.policy"]),
        delete_retention_ms=typed["delete.retention.ms"],
        min_compaction_lag_ms=typed["min.compaction.lag.ms"],
        max_compaction_lag_ms=typed["max.compaction.lag.ms"],
        min_cleanable_dirty_ratio=typed["min.cleanable.dirty.ratio"],
        preallocate=typed["preallocate"],
        file_delete_delay_ms=typed["file.delete.delay.ms"],
        min_insync_replicas=typed["min.insync.replicas"],
        unclean_leader_election_enable=typed["unclean.leader.election.enable"],
        validate_records=validate_records,
    )


def _timestamp_limit(values: Mapping[str, Any], name: str) -> int:
    """The older single limit applies unless the newer one is set (KIP-937)."""
    limit: int = values[name]
    if limit == TOPIC_KEYS[name].default:
        limit = values["message.timestamp.difference.max.ms"]
    return limit


class Change(Value):
    """One key of a request; `operation` is unchecked."""

    name: str
    operation: int
    value: str | None


class Resource(Value):
    """One resource of a request, with its changes. `replaces`: all other keys are reset to their defaults."""

    resource_type: int
    name: str
    changes: Sequence[Change]
    replaces: bool = False


class _Lookup(Protocol):
    def __call__(self, name: str, /) -> ConfigKey | None: ...


def apply(change: Change, overrides: dict[str, str], declared: _Lookup) -> None:
    """Apply a change to `overrides` (Kafka's `ConfigAdminManager.prepareIncrementalConfigs`)."""
    operation = operation_of(change)
    if operation is AlterConfigOp.DELETE or change.value is None:
        overrides.pop(change.name, None)
    elif operation is AlterConfigOp.SET:
        overrides[change.name] = change.value
    else:
        key = declared(change.name)
        if key is None:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{change.name} is not known, so it is no list")
        if key.type is not ConfigType.LIST:
            raise ApiError(
                ErrorCode.INVALID_CONFIG,
                f"Config value {operation.name.lower()} is not allowed for config key: {change.name}",
            )
        before = overrides.get(change.name, value_to_text(key.default) or "")
        overrides[change.name] = _list_after(operation, before, change.value)


def _list_after(operation: AlterConfigOp, before: str, given: str) -> str:
    elements = [element for element in before.split(",") if element]
    if operation is AlterConfigOp.APPEND:
        elements.extend(element for element in given.split(",") if element not in elements)
    else:
        for element in given.split(","):
            if element in elements:
                elements.remove(element)
    return ",".join(elements)


def operation_of(change: Change) -> AlterConfigOp:
    """Convert the operation. As in Kafka, an unknown one raises ApiError(UNKNOWN_SERVER_ERROR)."""
    try:
        return AlterConfigOp(change.operation)
    except ValueError:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"no operation has the number {change.operation}") from None


def parse_id(text: str, what: str) -> int:
    """Parse a broker id like `Integer.parseInt`."""
    sign, digits = (text[0], text[1:]) if text[:1] in ("+", "-") else ("", text)
    if not digits.isascii() or not digits.isdigit():
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{what} must be an integer, but it is: {text}")
    return int(sign + digits)
