"""Groups, offsets, producer ids and transactions."""

from __future__ import annotations

from config.definitions import (
    BOOLEAN,
    CLUSTER_WIDE,
    INT,
    INT_MAX,
    LIST,
    LONG,
    SHORT,
    STRING,
    ConfigKeys,
    Effect,
    Matching,
    OneOf,
    Range,
    Setting,
)


class CoordinatorKeys(ConfigKeys):
    """Groups, offsets, producer ids and transactions."""

    group_min_session_timeout_ms = Setting(INT, 6000, "Shortest session timeout that a group member may ask for.")
    group_max_session_timeout_ms = Setting(INT, 1_800_000, "Longest session timeout that a group member may ask for.")
    group_initial_rebalance_delay_ms = Setting(
        INT, 3000, "How long a new group waits for more members before its first assignment."
    )
    group_max_size = Setting(INT, INT_MAX, "Members that a group may have.", Range(1))
    group_coordinator_rebalance_protocols: Setting[tuple[str, ...]] = Setting(
        LIST,
        ("classic",),
        "Group protocols served.",
        OneOf(("consumer", "classic", "share", "unknown")),
        effect=Effect.NEVER,
    )
    group_coordinator_threads = Setting(
        INT, 1, "Threads of the new group coordinator in Kafka; accepted and shown.", Range(1), effect=Effect.NEVER
    )
    group_coordinator_append_linger_ms = Setting(
        INT, 10, "How long the new group coordinator gathers writes.", Range(0), effect=Effect.NEVER
    )
    group_coordinator_new_enable = Setting(
        BOOLEAN, False, "Whether the coordinator of KIP-848 is used.", internal=True, effect=Effect.NEVER
    )
    group_consumer_session_timeout_ms = Setting(
        INT, 45_000, "Session timeout of members of the consumer protocol.", Range(1), effect=Effect.NEVER
    )
    group_consumer_min_session_timeout_ms = Setting(
        INT, 45_000, "Shortest session timeout in the consumer protocol.", Range(1), effect=Effect.NEVER
    )
    group_consumer_max_session_timeout_ms = Setting(
        INT, 60_000, "Longest session timeout in the consumer protocol.", Range(1), effect=Effect.NEVER
    )
    group_consumer_heartbeat_interval_ms = Setting(
        INT, 5000, "Heartbeat interval of members of the consumer protocol.", Range(1), effect=Effect.NEVER
    )
    group_consumer_min_heartbeat_interval_ms = Setting(
        INT, 5000, "Shortest heartbeat interval in the consumer protocol.", Range(1), effect=Effect.NEVER
    )
    group_consumer_max_heartbeat_interval_ms = Setting(
        INT, 15_000, "Longest heartbeat interval in the consumer protocol.", Range(1), effect=Effect.NEVER
    )
    group_consumer_max_size = Setting(
        INT, INT_MAX, "Members that a group of the consumer protocol may have.", Range(1), effect=Effect.NEVER
    )
    group_consumer_assignors: Setting[tuple[str, ...]] = Setting(
        LIST,
        (
            "org.apache.kafka.coordinator.group.assignor.UniformAssignor",
            "org.apache.kafka.coordinator.group.assignor.RangeAssignor",
        ),
        "Server-side assignors of the consumer protocol.",
        effect=Effect.NEVER,
    )
    group_consumer_migration_policy = Setting(
        STRING,
        "disabled",
        "Whether groups move between the classic and the consumer protocol.",
        Matching(
            "(?i)disabled|downgrade|upgrade|bidirectional",
            "String must be one of (case insensitive): DISABLED, DOWNGRADE, UPGRADE, BIDIRECTIONAL",
        ),
        internal=True,
        effect=Effect.NEVER,
    )
    group_share_enable = Setting(
        BOOLEAN, False, "Whether share groups are served (KIP-932).", internal=True, effect=Effect.NEVER
    )
    group_share_delivery_count_limit = Setting(
        INT, 5, "Deliveries of a record in a share group.", Range(2, 10), effect=Effect.NEVER
    )
    group_share_heartbeat_interval_ms = Setting(
        INT, 5000, "Heartbeat interval in a share group.", Range(1), effect=Effect.NEVER
    )
    group_share_max_groups = Setting(SHORT, 10, "Share groups allowed.", Range(1, 100), effect=Effect.NEVER)
    group_share_max_heartbeat_interval_ms = Setting(
        INT, 15_000, "Longest heartbeat interval in a share group.", Range(1), effect=Effect.NEVER
    )
    group_share_max_record_lock_duration_ms = Setting(
        INT, 60_000, "Longest acquisition of a record.", Range(30_000, 3_600_000), effect=Effect.NEVER
    )
    group_share_max_session_timeout_ms = Setting(
        INT, 60_000, "Longest session timeout in a share group.", Range(1), effect=Effect.NEVER
    )
    group_share_max_size = Setting(
        SHORT, 200, "Members that a share group may have.", Range(10, 1000), effect=Effect.NEVER
    )
    group_share_min_heartbeat_interval_ms = Setting(
        INT, 5000, "Shortest heartbeat interval in a share group.", Range(1), effect=Effect.NEVER
    )
    group_share_min_record_lock_duration_ms = Setting(
        INT, 15_000, "Shortest acquisition of a record.", Range(1000, 30_000), effect=Effect.NEVER
    )
    group_share_min_session_timeout_ms = Setting(
        INT, 45_000, "Shortest session timeout in a share group.", Range(1), effect=Effect.NEVER
    )
    group_share_partition_max_record_locks = Setting(
        INT, 200, "Records of a partition that may be acquired at a time.", Range(100, 10_000), effect=Effect.NEVER
    )
    group_share_record_lock_duration_ms = Setting(
        INT, 30_000, "How long a record stays acquired.", Range(1000, 60_000), effect=Effect.NEVER
    )
    group_share_session_timeout_ms = Setting(
        INT, 45_000, "Session timeout in a share group.", Range(1), effect=Effect.NEVER
    )
    offset_metadata_max_bytes = Setting(INT, 4096, "Longest text that may go with a committed offset.")
    offsets_load_buffer_size = Setting(INT, 5_242_880, "Bytes read at a time when offsets are loaded.", Range(1))
    offsets_retention_minutes = Setting(INT, 10_080, "How long offsets of an empty group are kept.", Range(1))
    offsets_retention_check_interval_ms = Setting(LONG, 600_000, "How often expired offsets are looked for.", Range(1))
    offsets_topic_num_partitions = Setting(INT, 50, "Partitions of __consumer_offsets when it is created.", Range(1))
    offsets_topic_replication_factor = Setting(SHORT, 3, "Replicas of __consumer_offsets when it is created.", Range(1))
    offsets_topic_segment_bytes = Setting(
        INT, 104_857_600, "Segment size of __consumer_offsets when it is created.", Range(1)
    )
    offsets_topic_compression_codec = Setting(INT, 0, "Codec number for batches of offsets; 0 for none.")
    offsets_commit_timeout_ms = Setting(INT, 5000, "How long a commit of offsets waits for its replicas.", Range(1))
    offsets_commit_required_acks = Setting(
        SHORT, -1, "Acknowledgements a commit of offsets needs; -1 for all.", effect=Effect.NEVER
    )
    producer_id_expiration_ms = Setting(
        INT, 86_400_000, "Time after which an idle producer's sequence numbers are forgotten.", Range(1), CLUSTER_WIDE
    )
    producer_id_expiration_check_interval_ms = Setting(
        INT, 600_000, "How often idle producers are looked for.", Range(1), internal=True
    )
    transaction_max_timeout_ms = Setting(
        INT, 900_000, "Longest transaction timeout that a producer may ask for.", Range(1)
    )
    transactional_id_expiration_ms = Setting(
        INT, 604_800_000, "Time after which an unused transactional id is forgotten.", Range(1)
    )
    transaction_state_log_num_partitions = Setting(
        INT, 50, "Partitions of __transaction_state when it is created.", Range(1)
    )
    transaction_state_log_replication_factor = Setting(
        SHORT, 3, "Replicas of __transaction_state when it is created.", Range(1)
    )
    transaction_state_log_min_isr = Setting(
        INT, 2, "min.insync.replicas of __transaction_state when it is created.", Range(1)
    )
    transaction_state_log_segment_bytes = Setting(
        INT, 104_857_600, "Segment size of __transaction_state when it is created.", Range(1)
    )
    transaction_state_log_load_buffer_size = Setting(
        INT, 5_242_880, "Bytes read at a time when transactions are loaded.", Range(1)
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms = Setting(
        INT, 10_000, "How often timed-out transactions are aborted.", Range(1)
    )
    transaction_remove_expired_transaction_cleanup_interval_ms = Setting(
        INT, 3_600_000, "How often expired transactional ids are removed.", Range(1)
    )
    transaction_partition_verification_enable = Setting(
        BOOLEAN,
        True,
        "Whether a transactional write is checked against its transaction first (KIP-890).",
        update_mode=CLUSTER_WIDE,
    )
