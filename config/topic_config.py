"""The keys of a topic (Kafka class `LogConfig`), their broker-wide counterparts, and the check of overrides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from config.definitions import (
    BOOLEAN,
    COMPRESSION_TYPES,
    DOUBLE,
    INT,
    LIST,
    LONG,
    LONG_MAX,
    METADATA_VERSION,
    STRING,
    THROTTLED_REPLICAS,
    ConfigError,
    ConfigKey,
    ConfigRuleError,
    OneOf,
    Range,
    RangeOr,
    Value,
    table,
)
from protocol.errors import ApiError, ErrorCode

LEADER_THROTTLED_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_THROTTLED_REPLICAS: Final = "follower.replication.throttled.replicas"

TOPIC_KEYS = table(
    (
        ConfigKey(
            "cleanup.policy",
            LIST,
            ("delete",),
            "How old data is cleaned up: delete, compact, or both.",
            OneOf(("compact", "delete")),
        ),
        ConfigKey(
            "compression.gzip.level",
            INT,
            -1,
            "Level used when the broker compresses with gzip; -1 is gzip's default.",
            RangeOr(1, 9, -1),
        ),
        ConfigKey("compression.lz4.level", INT, 9, "Level used when the broker compresses with lz4.", Range(1, 17)),
        ConfigKey(
            "compression.type",
            STRING,
            "producer",
            "Compression codec of stored batches: `producer` keeps the producer's.",
            COMPRESSION_TYPES,
        ),
        ConfigKey(
            "compression.zstd.level",
            INT,
            3,
            "Level used when the broker compresses with zstd.",
            Range(-131_072, 22),
        ),
        ConfigKey(
            "delete.retention.ms",
            LONG,
            86_400_000,
            "How long tombstones are kept for readers in a compacted topic.",
            Range(0),
        ),
        ConfigKey("file.delete.delay.ms", LONG, 60_000, "How long a deleted segment's file stays on disk.", Range(0)),
        ConfigKey("flush.messages", LONG, LONG_MAX, "Records after which a partition is forced to disk.", Range(1)),
        ConfigKey("flush.ms", LONG, LONG_MAX, "Time after which a partition is forced to disk.", Range(0)),
        ConfigKey(
            FOLLOWER_THROTTLED_REPLICAS,
            LIST,
            (),
            "Replicas limited by the followers' throttle, as partition:broker pairs or `*`.",
            THROTTLED_REPLICAS,
        ),
        ConfigKey("index.interval.bytes", INT, 4096, "Bytes of records between two entries of an index.", Range(0)),
        ConfigKey(
            LEADER_THROTTLED_REPLICAS,
            LIST,
            (),
            "Replicas limited by the leaders' throttle, as partition:broker pairs or `*`.",
            THROTTLED_REPLICAS,
        ),
        ConfigKey(
            "local.retention.bytes",
            LONG,
            -2,
            "Bytes kept on local disk when the topic has remote storage; -2 means retention.bytes.",
            Range(-2),
        ),
        ConfigKey(
            "local.retention.ms",
            LONG,
            -2,
            "How long data stays on local disk when the topic has remote storage; -2 means retention.ms.",
            Range(-2),
        ),
        ConfigKey(
            "max.compaction.lag.ms",
            LONG,
            LONG_MAX,
            "Time after which a record must be considered for compaction.",
            Range(1),
        ),
        ConfigKey("max.message.bytes", INT, 1_048_588, "Largest record batch accepted, after compression.", Range(0)),
        ConfigKey(
            "message.downconversion.enable",
            BOOLEAN,
            True,
            "Whether old consumers get converted records; this broker serves format v2 only.",
        ),
        ConfigKey(
            "message.format.version",
            STRING,
            "3.0-IV1",
            "Accepted and shown as Kafka does; records are always stored in format v2.",
            METADATA_VERSION,
        ),
        ConfigKey(
            "message.timestamp.after.max.ms",
            LONG,
            LONG_MAX,
            "How far ahead of the broker's clock a record's time may be.",
            Range(0),
        ),
        ConfigKey(
            "message.timestamp.before.max.ms",
            LONG,
            LONG_MAX,
            "How far behind the broker's clock a record's time may be.",
            Range(0),
        ),
        ConfigKey(
            "message.timestamp.difference.max.ms",
            LONG,
            LONG_MAX,
            "Old form of the two limits on a record's time.",
            Range(0),
        ),
        ConfigKey(
            "message.timestamp.type",
            STRING,
            "CreateTime",
            "Whether a record's time is the producer's (CreateTime) or the broker's (LogAppendTime).",
            OneOf(("CreateTime", "LogAppendTime")),
        ),
        ConfigKey(
            "min.cleanable.dirty.ratio",
            DOUBLE,
            0.5,
            "Share of the log that must be uncompacted before it is compacted.",
            Range(0, 1),
        ),
        ConfigKey("min.compaction.lag.ms", LONG, 0, "Least time before a record is compacted.", Range(0)),
        ConfigKey(
            "min.insync.replicas", INT, 1, "Replicas that must be in sync before acks=all is accepted.", Range(1)
        ),
        ConfigKey("preallocate", BOOLEAN, False, "Whether a segment's file is created at its full size."),
        ConfigKey("remote.log.copy.disable", BOOLEAN, False, "Whether copying to remote storage has stopped."),
        ConfigKey(
            "remote.log.delete.on.disable",
            BOOLEAN,
            False,
            "Whether remote data is deleted when remote storage is switched off.",
        ),
        ConfigKey("remote.storage.enable", BOOLEAN, False, "Whether old segments go to remote storage (KIP-405)."),
        ConfigKey(
            "retention.bytes",
            LONG,
            -1,
            "Largest size of a partition before its oldest segments are deleted; -1 for no limit.",
        ),
        ConfigKey("retention.ms", LONG, 604_800_000, "How long records are kept; -1 for ever.", Range(-1)),
        ConfigKey("segment.bytes", INT, 1_073_741_824, "Maximum size of a segment file.", Range(14)),
        ConfigKey("segment.index.bytes", INT, 10_485_760, "Largest size of an index file.", Range(4)),
        ConfigKey(
            "segment.jitter.ms",
            LONG,
            0,
            "Largest random part taken from segment.ms, so that logs do not roll together.",
            Range(0),
        ),
        ConfigKey("segment.ms", LONG, 604_800_000, "Maximum age of an open segment.", Range(1)),
        ConfigKey(
            "unclean.leader.election.enable",
            BOOLEAN,
            False,
            "Whether a replica out of sync may lead when no other is left, losing records.",
        ),
    )
)

BROKER_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "segment.bytes": ("log.segment.bytes",),
    "segment.ms": ("log.roll.ms", "log.roll.hours"),
    "segment.jitter.ms": ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    "segment.index.bytes": ("log.index.size.max.bytes",),
    "flush.messages": ("log.flush.interval.messages",),
    "flush.ms": ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    "retention.bytes": ("log.retention.bytes",),
    "retention.ms": ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    "max.message.bytes": ("message.max.bytes",),
    "index.interval.bytes": ("log.index.interval.bytes",),
    "delete.retention.ms": ("log.cleaner.delete.retention.ms",),
    "min.compaction.lag.ms": ("log.cleaner.min.compaction.lag.ms",),
    "max.compaction.lag.ms": ("log.cleaner.max.compaction.lag.ms",),
    "file.delete.delay.ms": ("log.segment.delete.delay.ms",),
    "min.cleanable.dirty.ratio": ("log.cleaner.min.cleanable.ratio",),
    "cleanup.policy": ("log.cleanup.policy",),
    "unclean.leader.election.enable": ("unclean.leader.election.enable",),
    "min.insync.replicas": ("min.insync.replicas",),
    "compression.type": ("compression.type",),
    "compression.gzip.level": ("compression.gzip.level",),
    "compression.lz4.level": ("compression.lz4.level",),
    "compression.zstd.level": ("compression.zstd.level",),
    "preallocate": ("log.preallocate",),
    "message.format.version": ("log.message.format.version",),
    "message.timestamp.type": ("log.message.timestamp.type",),
    "message.timestamp.difference.max.ms": ("log.message.timestamp.difference.max.ms",),
    "message.timestamp.before.max.ms": ("log.message.timestamp.before.max.ms",),
    "message.timestamp.after.max.ms": ("log.message.timestamp.after.max.ms",),
    "message.downconversion.enable": ("log.message.downconversion.enable",),
    "local.retention.ms": ("log.local.retention.ms",),
    "local.retention.bytes": ("log.local.retention.bytes",),
}
"""Broker keys that give a topic key its default, in order of precedence (Kafka class `ServerTopicConfigSynonyms`)."""


def parse_topic_config(
    overrides: Mapping[str, str | None], defaults: Mapping[str, Value] | None = None
) -> dict[str, Value]:
    """Every topic key's value: from `overrides`, then `defaults` (the broker's), then the table.

    Raises ConfigError for an invalid or contradictory value. Unknown names are ignored, as Kafka does when it reads the
    configuration stored by an older broker.
    """
    values: dict[str, Value] = {name: declared.default for name, declared in TOPIC_KEYS.items()}
    values.update(defaults or {})
    for name, text in overrides.items():
        declared = TOPIC_KEYS.get(name)
        if declared is not None:
            values[name] = declared.parse(text)
    return values


def validate_topic_config(overrides: Mapping[str, str | None], defaults: Mapping[str, Value] | None = None) -> None:
    """Check overrides that a client wants to set (Kafka's `LogConfig.validate`).

    Raises ApiError(INVALID_CONFIG) with Kafka's message for an unknown name, an invalid value or a contradiction.
    """
    try:
        check_topic_config(overrides, defaults)
    except ConfigError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from error


def check_topic_config(overrides: Mapping[str, str | None], defaults: Mapping[str, Value] | None = None) -> None:
    """As `validate_topic_config`, but a single invalid value raises ConfigError, for responses with its message."""
    for name in overrides:
        if name not in TOPIC_KEYS:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
    values = parse_topic_config(overrides, defaults)
    try:
        check_compaction_lags(values)
    except ConfigRuleError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from error
    if values["remote.storage.enable"]:
        raise ConfigRuleError(
            "remote.storage.enable",
            overrides.get("remote.storage.enable"),
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage.",
        )


def check_compaction_lags(values: Mapping[str, Value]) -> None:
    """Raise ConfigRuleError if a topic with these `values` could never be compacted: its records would be due for
    compaction before compaction is allowed.
    """
    least, most = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    if isinstance(least, int) and isinstance(most, int) and least > most:
        raise ConfigRuleError(
            "min.compaction.lag.ms",
            str(least),
            f"conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})",
        )
