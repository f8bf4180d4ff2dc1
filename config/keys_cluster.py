"""Replication and the controller."""

from __future__ import annotations

from config.definitions import ConfigKeys, Effect, Range, Setting
from config.vocabulary import BOOLEAN, CLASS, CLUSTER_WIDE, INT, LONG, NO_POLICIES, REPLICA_SELECTORS, STRING


class ClusterKeys(ConfigKeys):
    """Replication and the controller."""

    default_replication_factor = Setting(INT, 1, "Replicas of a topic created without a count.")
    replica_lag_time_max_ms = Setting(
        LONG, 30_000, "Time behind the leader after which a follower leaves the in-sync replicas."
    )
    replica_socket_timeout_ms = Setting(INT, 30_000, "How long a follower waits for its leader.")
    replica_socket_receive_buffer_bytes = Setting(
        INT, 65_536, "SO_RCVBUF of a follower's connections.", effect=Effect.NEVER
    )
    replica_fetch_max_bytes = Setting(INT, 1_048_576, "Bytes a follower asks for per partition.", Range(0))
    replica_fetch_wait_max_ms = Setting(INT, 500, "How long a follower lets its leader wait for more data.")
    replica_fetch_min_bytes = Setting(INT, 1, "Least bytes a follower wants in an answer.")
    replica_fetch_response_max_bytes = Setting(INT, 10_485_760, "Most bytes a follower wants in an answer.", Range(0))
    replica_fetch_backoff_ms = Setting(INT, 1000, "Pause of a follower after an error.", Range(0))
    replica_high_watermark_checkpoint_interval_ms = Setting(
        LONG, 5000, "How often high watermarks are written to disk."
    )
    replica_selector_class: Setting[str | None] = Setting(
        STRING,
        None,
        "What chooses the replica a consumer reads from: Kafka's RackAwareReplicaSelector or LeaderSelector.",
        REPLICA_SELECTORS,
    )
    num_replica_fetchers = Setting(INT, 1, "Connections used to follow one other broker.", update_mode=CLUSTER_WIDE)
    num_replica_alter_log_dirs_threads: Setting[int | None] = Setting(
        INT, None, "Workers that move replicas between log directories.", effect=Effect.NEVER
    )
    auto_leader_rebalance_enable = Setting(
        BOOLEAN, True, "Whether leadership goes back to preferred replicas by itself."
    )
    leader_imbalance_per_broker_percentage = Setting(
        INT, 10, "Share of partitions not led by their preferred replica that starts a rebalance."
    )
    leader_imbalance_check_interval_seconds = Setting(
        LONG, 300, "How often leadership is checked for imbalance.", Range(1)
    )
    unclean_leader_election_interval_ms = Setting(
        LONG,
        300_000,
        "How often unclean elections are looked for (KRaft).",
        Range(1),
        internal=True,
        effect=Effect.NEVER,
    )
    controlled_shutdown_enable = Setting(BOOLEAN, True, "Whether a stopping broker hands its leadership over first.")
    controlled_shutdown_max_retries = Setting(INT, 3, "Attempts at a controlled shutdown.")
    controlled_shutdown_retry_backoff_ms = Setting(LONG, 5000, "Pause between attempts at a controlled shutdown.")
    controller_socket_timeout_ms = Setting(INT, 30_000, "How long the controller waits for a broker.")
    eligible_leader_replicas_enable = Setting(
        BOOLEAN, False, "Whether eligible leader replicas are kept (KIP-966), while all brokers of the cluster do."
    )
    create_topic_policy_class_name: Setting[str | None] = Setting(
        CLASS, None, "Java class that may refuse new topics.", refusal=NO_POLICIES
    )
    alter_config_policy_class_name: Setting[str | None] = Setting(
        CLASS, None, "Java class that may refuse changed configurations.", refusal=NO_POLICIES
    )
