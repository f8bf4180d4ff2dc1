"""The configuration of one log: the part of a topic's effective configuration that storage needs.

Parsing, defaults from broker keys, documentation and validation live in `config`; the defaults here are Kafka's (class
`LogConfig`).
"""

from __future__ import annotations

from enum import Enum

from protocol.records.batch import TimestampType
from protocol.records.compression import CompressionType
from protocol.value import Value, field

UNLIMITED = 2**63 - 1
"""Kafka's "no limit" for keys where it is not -1."""


class ValidateRecords(Enum):
    """How thoroughly produced batches are checked (`log.validate.records`, a key that only Odradek has)."""

    HEADER = "header"
    """Sizes, CRC, attributes, counts, sequence and timestamps of the batch header; the records stay opaque."""
    DEEP = "deep"
    """As Kafka: also decode every record."""


class LogConfig(Value, kw_only=True):
    """Settings of one log; `_ms` and `_bytes` are the units, -1 means no limit as in Kafka."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 * 1024 * 1024
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * 24 * 3600 * 1000
    retention_bytes: int = -1
    flush_messages: int = UNLIMITED
    flush_ms: int = UNLIMITED
    max_message_bytes: int = 1_048_588
    message_timestamp_type: TimestampType = TimestampType.CREATE_TIME
    message_timestamp_before_max_ms: int = UNLIMITED
    message_timestamp_after_max_ms: int = UNLIMITED
    compression_type: CompressionType | None = None
    """Codec of the stored batches, or None for the producer's (`producer`)."""
    compression_level: int | None = None
    """Level for that codec (KIP-390), or None for the codec's default."""
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    delete_retention_ms: int = 24 * 3600 * 1000
    """How long compaction keeps a tombstone, or the marker of a transaction without other records."""
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = UNLIMITED
    min_cleanable_dirty_ratio: float = 0.5
    preallocate: bool = False
    """Accepted for compatibility without effect: appends extend the file, and after every crash recovery would have to
    distinguish a preallocated tail of zeros from data.
    """
    file_delete_delay_ms: int = 60_000
    min_insync_replicas: int = 1
    unclean_leader_election_enable: bool = False
    validate_records: ValidateRecords = ValidateRecords.HEADER
    max_segment_ms: int = field(init=False)
    """The maximum age of the active segment: `segment_ms`, or less, because only sealed segments can be compacted in
    time.
    """
    is_compacted: bool = field(init=False)
    """Whether compaction removes old values of a key, so that every record needs a key."""
    uses_append_time: bool = field(init=False)
    """Whether records get the time of the append instead of the producer's timestamp."""
    header_suffices: bool = field(init=False)
    """Whether checking the header of a produced batch suffices, except for timestamps in the future."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_compacted", "compact" in self.cleanup_policy)
        limit = self.max_compaction_lag_ms if self.is_compacted and self.max_compaction_lag_ms > 0 else UNLIMITED
        object.__setattr__(self, "max_segment_ms", min(self.segment_ms, limit))
        object.__setattr__(self, "uses_append_time", self.message_timestamp_type is TimestampType.LOG_APPEND_TIME)
        has_rules = self.is_compacted or self.uses_append_time or self.message_timestamp_before_max_ms != UNLIMITED
        object.__setattr__(self, "header_suffices", not has_rules and self.validate_records is ValidateRecords.HEADER)

    @property
    def is_deleted(self) -> bool:
        """Whether segments are deleted when they are too old or the log is too large."""
        return "delete" in self.cleanup_policy
