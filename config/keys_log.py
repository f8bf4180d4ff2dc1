"""Logs on disk: directories, sizes, retention; most are defaults of topic keys."""

from __future__ import annotations

from config.definitions import (
    BOOLEAN,
    CLUSTER_WIDE,
    COMPRESSION_TYPES,
    DOUBLE,
    DOUBLE_MAX,
    INT,
    LIST,
    LONG,
    LONG_MAX,
    METADATA_VERSION,
    STRING,
    ConfigKeys,
    Effect,
    OneOf,
    Range,
    RangeOr,
    Setting,
)


class LogKeys(ConfigKeys):
    """Logs on disk: directories, sizes, retention; most are defaults of topic keys."""

    log_dir = Setting(STRING, "/tmp/kafka-logs", "Directory for data when log.dirs is not set.")  # noqa: S108
    log_dirs_text: Setting[str | None] = Setting(STRING, None, "Comma-separated directories for data.", name="log.dirs")
    log_segment_bytes = Setting(INT, 1_073_741_824, "Maximum size of a segment file.", Range(14), CLUSTER_WIDE)
    log_roll_ms: Setting[int | None] = Setting(
        LONG,
        None,
        "Maximum age of an open segment; log.roll.hours applies when this is not set.",
        update_mode=CLUSTER_WIDE,
    )
    log_roll_hours = Setting(INT, 168, "Maximum age of an open segment, in hours.", Range(1))
    log_roll_jitter_ms: Setting[int | None] = Setting(
        LONG,
        None,
        "Largest random part taken from the roll time, so that logs do not roll together.",
        update_mode=CLUSTER_WIDE,
    )
    log_roll_jitter_hours = Setting(INT, 0, "Largest random part in hours taken from the roll time.", Range(0))
    log_retention_ms: Setting[int | None] = Setting(
        LONG,
        None,
        "How long records are kept, -1 for ever; minutes, then hours, count when this is not set.",
        update_mode=CLUSTER_WIDE,
    )
    log_retention_minutes: Setting[int | None] = Setting(
        INT, None, "How many minutes records are kept when log.retention.ms is not set."
    )
    log_retention_hours = Setting(
        INT, 168, "How many hours records are kept when neither milliseconds nor minutes are set."
    )
    log_retention_bytes = Setting(
        LONG,
        -1,
        "Largest size of a partition before its oldest segments are deleted; -1 for no limit.",
        update_mode=CLUSTER_WIDE,
    )
    log_retention_check_interval_ms = Setting(
        LONG, 300_000, "How often logs are looked through for segments to delete.", Range(1)
    )
    log_cleanup_policy: Setting[tuple[str, ...]] = Setting(
        LIST,
        ("delete",),
        "How old data is cleaned up: delete, compact, or both.",
        OneOf(("compact", "delete")),
        CLUSTER_WIDE,
    )
    log_segment_delete_delay_ms = Setting(
        LONG, 60_000, "How long a deleted segment's file stays on disk.", Range(0), CLUSTER_WIDE
    )
    log_cleaner_enable = Setting(BOOLEAN, True, "Whether compaction runs.")
    log_cleaner_threads = Setting(INT, 1, "Workers that compact logs.", Range(0), CLUSTER_WIDE)
    log_cleaner_backoff_ms = Setting(
        LONG, 15_000, "How long compaction sleeps when there is nothing to do.", Range(0), CLUSTER_WIDE
    )
    log_cleaner_dedupe_buffer_size = Setting(
        LONG, 134_217_728, "Memory for the keys of a compaction run, all workers together.", update_mode=CLUSTER_WIDE
    )
    log_cleaner_io_buffer_size = Setting(
        INT, 524_288, "Memory for reading and writing in compaction, all workers together.", Range(0), CLUSTER_WIDE
    )
    log_cleaner_io_buffer_load_factor = Setting(
        DOUBLE, 0.9, "How full the table of keys may be in a compaction run.", update_mode=CLUSTER_WIDE
    )
    log_cleaner_io_max_bytes_per_second = Setting(
        DOUBLE, DOUBLE_MAX, "Most bytes per second that compaction reads and writes.", update_mode=CLUSTER_WIDE
    )
    log_cleaner_min_cleanable_ratio = Setting(
        DOUBLE, 0.5, "Share of a log that must be uncompacted before it is compacted.", Range(0, 1), CLUSTER_WIDE
    )
    log_cleaner_min_compaction_lag_ms = Setting(
        LONG, 0, "Least time before a record is compacted.", Range(0), CLUSTER_WIDE
    )
    log_cleaner_max_compaction_lag_ms = Setting(
        LONG, LONG_MAX, "Time after which a record must be considered for compaction.", Range(1), CLUSTER_WIDE
    )
    log_cleaner_delete_retention_ms = Setting(
        LONG, 86_400_000, "How long tombstones are kept for readers in a compacted topic.", Range(0), CLUSTER_WIDE
    )
    log_index_interval_bytes = Setting(
        INT, 4096, "Bytes of records between two entries of an index.", Range(0), CLUSTER_WIDE
    )
    log_index_size_max_bytes = Setting(INT, 10_485_760, "Largest size of an index file.", Range(4), CLUSTER_WIDE)
    log_flush_interval_messages = Setting(
        LONG, LONG_MAX, "Records after which a partition is forced to disk.", Range(1), CLUSTER_WIDE
    )
    log_flush_interval_ms: Setting[int | None] = Setting(
        LONG,
        None,
        "Time after which a partition is forced to disk; log.flush.scheduler.interval.ms when not set.",
        update_mode=CLUSTER_WIDE,
    )
    log_flush_scheduler_interval_ms = Setting(LONG, LONG_MAX, "How often the broker looks for logs to force to disk.")
    log_flush_offset_checkpoint_interval_ms = Setting(INT, 60_000, "How often recovery points are written.", Range(0))
    log_flush_start_offset_checkpoint_interval_ms = Setting(
        INT, 60_000, "How often log start offsets are written.", Range(0)
    )
    log_initial_task_delay_ms = Setting(
        LONG, 30_000, "Delay before the housekeeping of logs begins.", Range(0), internal=True
    )
    log_preallocate = Setting(
        BOOLEAN,
        False,
        "Whether a segment's file is created at its full size.",
        update_mode=CLUSTER_WIDE,
        effect=Effect.NEVER,
    )
    log_dir_failure_timeout_ms = Setting(
        LONG,
        30_000,
        "How long a broker goes on when it cannot report a failed directory (KRaft).",
        Range(1),
        effect=Effect.NEVER,
    )
    log_message_timestamp_type = Setting(
        STRING,
        "CreateTime",
        "Whether a record's time is the producer's (CreateTime) or the broker's (LogAppendTime).",
        OneOf(("CreateTime", "LogAppendTime")),
        CLUSTER_WIDE,
    )
    log_message_timestamp_difference_max_ms = Setting(
        LONG, LONG_MAX, "Old form of the two limits on a record's time.", Range(0), CLUSTER_WIDE
    )
    log_message_timestamp_before_max_ms = Setting(
        LONG, LONG_MAX, "How far behind the broker's clock a record's time may be.", Range(0), CLUSTER_WIDE
    )
    log_message_timestamp_after_max_ms = Setting(
        LONG, LONG_MAX, "How far ahead of the broker's clock a record's time may be.", Range(0), CLUSTER_WIDE
    )
    log_message_format_version = Setting(
        STRING,
        "3.0-IV1",
        "Accepted and shown as Kafka does; records are always stored in format v2.",
        METADATA_VERSION,
        effect=Effect.NEVER,
    )
    log_message_downconversion_enable = Setting(
        BOOLEAN,
        True,
        "Whether old consumers get converted records; this broker serves format v2 only.",
        update_mode=CLUSTER_WIDE,
        effect=Effect.NEVER,
    )
    log_local_retention_bytes = Setting(
        LONG,
        -2,
        "Bytes kept on local disk when a topic has remote storage.",
        Range(-2),
        CLUSTER_WIDE,
        effect=Effect.NEVER,
    )
    log_local_retention_ms = Setting(
        LONG,
        -2,
        "How long data stays on local disk when a topic has remote storage.",
        Range(-2),
        CLUSTER_WIDE,
        effect=Effect.NEVER,
    )
    compression_type = Setting(
        STRING,
        "producer",
        "Compression codec of stored batches: `producer` keeps the producer's.",
        COMPRESSION_TYPES,
        CLUSTER_WIDE,
    )
    compression_gzip_level = Setting(
        INT,
        -1,
        "Level used when the broker compresses with gzip; -1 is gzip's default.",
        RangeOr(1, 9, -1),
        CLUSTER_WIDE,
    )
    compression_lz4_level = Setting(
        INT, 9, "Level used when the broker compresses with lz4.", Range(1, 17), CLUSTER_WIDE
    )
    compression_zstd_level = Setting(
        INT, 3, "Level used when the broker compresses with zstd.", Range(-131_072, 22), CLUSTER_WIDE
    )
    num_partitions = Setting(INT, 1, "Partitions of a topic created without a count.", Range(1))
    auto_create_topics_enable = Setting(BOOLEAN, True, "Whether asking for an unknown topic may create it.")
    delete_topic_enable = Setting(BOOLEAN, True, "Whether topics can be deleted.")
    num_recovery_threads_per_data_dir = Setting(
        INT, 1, "Workers per log directory for recovery at start and flushing at the end.", Range(1), CLUSTER_WIDE
    )
    min_insync_replicas = Setting(
        INT, 1, "Replicas that must be in sync before acks=all is accepted.", Range(1), CLUSTER_WIDE
    )
    unclean_leader_election_enable = Setting(
        BOOLEAN,
        False,
        "Whether a replica out of sync may lead when no other is left, losing records.",
        update_mode=CLUSTER_WIDE,
    )
