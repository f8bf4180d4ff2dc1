"""Converts topic configurations to log settings."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from cluster.controller.start_up import KEEP_EVERYTHING
from cluster.metadata_image import MetadataImage
from config.broker_config import BrokerConfig
from config.definitions import ConfigError, Value
from config.topic_config import TOPIC_KEYS, parse_topic_config
from protocol.config_resources import ConfigResourceType
from protocol.records.batch import TimestampType
from protocol.records.compression import CompressionType
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


def _log_config(values: Mapping[str, Value], validate_records: ValidateRecords) -> LogConfig:
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
