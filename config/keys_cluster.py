"""The cluster: the controller, replication, ZooKeeper, KRaft and remote storage."""

from __future__ import annotations

from config.definitions import (
    BOOLEAN,
    CLASS,
    CLUSTER_WIDE,
    DOUBLE,
    INT,
    INT_MAX,
    LIST,
    LONG,
    LONG_MAX,
    NO_KRAFT,
    NO_POLICIES,
    NO_REMOTE_STORAGE,
    NO_REVOCATION,
    NON_EMPTY,
    PASSWORD,
    REPLICA_SELECTORS,
    STRING,
    ConfigKeys,
    Effect,
    OneOf,
    Range,
    RangeOr,
    Setting,
)


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
        "Selector of the replica that a consumer reads from: Kafka's RackAwareReplicaSelector or LeaderSelector.",
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


class CoordinationKeys(ConfigKeys):
    """ZooKeeper, KRaft and remote storage."""

    zookeeper_connect: Setting[str | None] = Setting(
        STRING, None, "ZooKeeper servers as host:port,host:port/path; not set, the broker coordinates itself."
    )
    zookeeper_client_cnxn_socket: Setting[str | None] = Setting(
        STRING, None, "Java class of the ZooKeeper client's socket, needed for TLS.", name="zookeeper.clientCnxnSocket"
    )
    zookeeper_connection_timeout_ms_text: Setting[int | None] = Setting(
        INT,
        None,
        "How long the first connection to ZooKeeper may take; the session timeout when not set.",
        name="zookeeper.connection.timeout.ms",
    )
    zookeeper_max_in_flight_requests = Setting(INT, 10, "Requests to ZooKeeper that may wait for answers.", Range(1))
    zookeeper_session_timeout_ms = Setting(
        INT, 18_000, "ZooKeeper session timeout: a broker silent for longer is considered dead."
    )
    zookeeper_set_acl = Setting(BOOLEAN, False, "Whether znodes are created with access control.")
    zookeeper_metadata_migration_enable = Setting(
        BOOLEAN, False, "Whether a migration from ZooKeeper to KRaft is going on.", refusal=NO_KRAFT
    )
    zookeeper_metadata_migration_min_batch_size = Setting(
        INT, 200, "Records per batch in a migration to KRaft.", Range(1), internal=True, effect=Effect.NEVER
    )
    zookeeper_ssl_cipher_suites: Setting[tuple[str, ...] | None] = Setting(
        LIST, None, "TLS cipher suites towards ZooKeeper."
    )
    zookeeper_ssl_client_enable = Setting(BOOLEAN, False, "Whether ZooKeeper is reached by TLS.")
    zookeeper_ssl_crl_enable = Setting(
        BOOLEAN, False, "Whether revocation lists are checked towards ZooKeeper.", refusal=NO_REVOCATION
    )
    zookeeper_ssl_enabled_protocols: Setting[tuple[str, ...] | None] = Setting(
        LIST, None, "TLS versions towards ZooKeeper."
    )
    zookeeper_ssl_endpoint_identification_algorithm = Setting(
        STRING, "HTTPS", "Whether ZooKeeper's name is checked against its certificate."
    )
    zookeeper_ssl_keystore_location: Setting[str | None] = Setting(STRING, None, "Key store towards ZooKeeper.")
    zookeeper_ssl_keystore_password: Setting[str | None] = Setting(
        PASSWORD, None, "Password of the key store towards ZooKeeper."
    )
    zookeeper_ssl_keystore_type: Setting[str | None] = Setting(
        STRING, None, "Format of the key store towards ZooKeeper."
    )
    zookeeper_ssl_ocsp_enable = Setting(
        BOOLEAN, False, "Whether certificate status is asked for towards ZooKeeper.", refusal=NO_REVOCATION
    )
    zookeeper_ssl_protocol = Setting(STRING, "TLSv1.2", "TLS version towards ZooKeeper.")
    zookeeper_ssl_truststore_location: Setting[str | None] = Setting(STRING, None, "Trust store towards ZooKeeper.")
    zookeeper_ssl_truststore_password: Setting[str | None] = Setting(
        PASSWORD, None, "Password of the trust store towards ZooKeeper."
    )
    zookeeper_ssl_truststore_type: Setting[str | None] = Setting(
        STRING, None, "Format of the trust store towards ZooKeeper."
    )
    process_roles: Setting[tuple[str, ...]] = Setting(
        LIST,
        (),
        "KRaft roles of this process; empty for a broker on ZooKeeper or with embedded coordination.",
        OneOf(("broker", "controller")),
        refusal=NO_KRAFT,
    )
    controller_listener_names: Setting[str | None] = Setting(
        STRING, None, "Listeners of KRaft controllers.", refusal=NO_KRAFT
    )
    controller_quorum_voters: Setting[tuple[str, ...]] = Setting(
        LIST, (), "KRaft controllers as id@host:port.", refusal=NO_KRAFT
    )
    controller_quorum_bootstrap_servers: Setting[tuple[str, ...]] = Setting(
        LIST, (), "Where a KRaft broker finds the controllers.", refusal=NO_KRAFT
    )
    controller_quorum_append_linger_ms = Setting(
        INT, 25, "How long a KRaft leader gathers writes.", effect=Effect.NEVER
    )
    controller_quorum_election_backoff_max_ms = Setting(
        INT, 1000, "Longest pause before a new KRaft election.", effect=Effect.NEVER
    )
    controller_quorum_election_timeout_ms = Setting(
        INT, 1000, "Time without a KRaft leader after which an election starts.", effect=Effect.NEVER
    )
    controller_quorum_fetch_timeout_ms = Setting(
        INT, 2000, "Time without a fetch after which a KRaft voter acts.", effect=Effect.NEVER
    )
    controller_quorum_request_timeout_ms = Setting(
        INT, 2000, "How long a request between KRaft controllers may take.", effect=Effect.NEVER
    )
    controller_quorum_retry_backoff_ms = Setting(
        INT, 20, "Pause between requests of KRaft controllers.", effect=Effect.NEVER
    )
    initial_broker_registration_timeout_ms = Setting(
        INT, 60_000, "How long a KRaft broker tries to register.", effect=Effect.NEVER
    )
    broker_heartbeat_interval_ms = Setting(INT, 2000, "Heartbeat interval of a KRaft broker.", effect=Effect.NEVER)
    broker_session_timeout_ms = Setting(
        INT, 9000, "Time without heartbeats after which a KRaft broker is fenced.", effect=Effect.NEVER
    )
    metadata_log_dir: Setting[str | None] = Setting(
        STRING, None, "Directory of the KRaft metadata log.", effect=Effect.NEVER
    )
    metadata_log_max_record_bytes_between_snapshots = Setting(
        LONG, 20_971_520, "Bytes of KRaft metadata between snapshots.", Range(1), effect=Effect.NEVER
    )
    metadata_log_max_snapshot_interval_ms = Setting(
        LONG, 3_600_000, "Longest time between KRaft snapshots.", Range(0), effect=Effect.NEVER
    )
    metadata_log_segment_bytes = Setting(
        INT, 1_073_741_824, "Segment size of the KRaft metadata log.", Range(12), effect=Effect.NEVER
    )
    metadata_log_segment_min_bytes = Setting(
        INT, 8_388_608, "Least segment size of the KRaft metadata log.", Range(12), internal=True, effect=Effect.NEVER
    )
    metadata_log_segment_ms = Setting(
        LONG, 604_800_000, "Maximum age of an open segment of the KRaft metadata log.", effect=Effect.NEVER
    )
    metadata_max_idle_interval_ms = Setting(
        INT, 500, "How often an idle KRaft controller writes.", Range(0), effect=Effect.NEVER
    )
    metadata_max_retention_bytes = Setting(LONG, 104_857_600, "Bytes of KRaft metadata kept.", effect=Effect.NEVER)
    metadata_max_retention_ms = Setting(LONG, 604_800_000, "How long KRaft metadata is kept.", effect=Effect.NEVER)
    remote_log_storage_system_enable = Setting(
        BOOLEAN, False, "Whether topics may keep old segments in remote storage (KIP-405).", refusal=NO_REMOTE_STORAGE
    )
    remote_fetch_max_wait_ms = Setting(
        INT, 500, "How long a read from remote storage may take.", Range(1), CLUSTER_WIDE, effect=Effect.NEVER
    )
    remote_log_index_file_cache_total_size_bytes = Setting(
        LONG, 1_073_741_824, "Disk space for indexes of remote segments.", Range(1), CLUSTER_WIDE, effect=Effect.NEVER
    )
    remote_log_manager_copier_thread_pool_size = Setting(
        INT, -1, "Workers that copy segments to remote storage.", RangeOr(1, INT_MAX, -1), effect=Effect.NEVER
    )
    remote_log_manager_copy_max_bytes_per_second = Setting(
        LONG, LONG_MAX, "Most bytes per second copied to remote storage.", Range(1), CLUSTER_WIDE, effect=Effect.NEVER
    )
    remote_log_manager_copy_quota_window_num = Setting(
        INT, 11, "Samples kept for the quota on copies to remote storage.", Range(1), effect=Effect.NEVER
    )
    remote_log_manager_copy_quota_window_size_seconds = Setting(
        INT, 1, "Length of one sample for the quota on copies to remote storage.", Range(1), effect=Effect.NEVER
    )
    remote_log_manager_expiration_thread_pool_size = Setting(
        INT, -1, "Workers that delete expired remote segments.", RangeOr(1, INT_MAX, -1), effect=Effect.NEVER
    )
    remote_log_manager_fetch_max_bytes_per_second = Setting(
        LONG, LONG_MAX, "Most bytes per second read from remote storage.", Range(1), CLUSTER_WIDE, effect=Effect.NEVER
    )
    remote_log_manager_fetch_quota_window_num = Setting(
        INT, 11, "Samples kept for the quota on reads from remote storage.", Range(1), effect=Effect.NEVER
    )
    remote_log_manager_fetch_quota_window_size_seconds = Setting(
        INT, 1, "Length of one sample for the quota on reads from remote storage.", Range(1), effect=Effect.NEVER
    )
    remote_log_manager_task_interval_ms = Setting(
        LONG, 30_000, "How often remote storage is attended to.", Range(1), effect=Effect.NEVER
    )
    remote_log_manager_task_retry_backoff_max_ms = Setting(
        LONG, 30_000, "Longest pause after a failure of remote storage.", Range(1), internal=True, effect=Effect.NEVER
    )
    remote_log_manager_task_retry_backoff_ms = Setting(
        LONG, 500, "First pause after a failure of remote storage.", Range(1), internal=True, effect=Effect.NEVER
    )
    remote_log_manager_task_retry_jitter = Setting(
        DOUBLE,
        0.2,
        "Random part of the pause after a failure of remote storage.",
        Range(0, 0.5),
        internal=True,
        effect=Effect.NEVER,
    )
    remote_log_manager_thread_pool_size = Setting(INT, 10, "Workers for remote storage.", Range(1), effect=Effect.NEVER)
    remote_log_metadata_custom_metadata_max_bytes = Setting(
        INT, 128, "Largest metadata of a remote storage plugin.", Range(0), effect=Effect.NEVER
    )
    remote_log_metadata_manager_class_name = Setting(
        STRING,
        "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager",
        "Java class that keeps the list of remote segments.",
        NON_EMPTY,
        effect=Effect.NEVER,
    )
    remote_log_metadata_manager_class_path: Setting[str | None] = Setting(
        STRING, None, "Class path of that class.", effect=Effect.NEVER
    )
    remote_log_metadata_manager_impl_prefix = Setting(
        STRING, "rlmm.config.", "Prefix of that class's own keys.", NON_EMPTY, effect=Effect.NEVER
    )
    remote_log_metadata_manager_listener_name: Setting[str | None] = Setting(
        STRING, None, "Listener that class connects to.", NON_EMPTY, effect=Effect.NEVER
    )
    remote_log_reader_max_pending_tasks = Setting(
        INT, 100, "Reads from remote storage that may wait.", Range(1), effect=Effect.NEVER
    )
    remote_log_reader_threads = Setting(
        INT, 10, "Workers that read from remote storage.", Range(1), effect=Effect.NEVER
    )
    remote_log_storage_manager_class_name: Setting[str | None] = Setting(
        STRING, None, "Java class of the remote storage.", NON_EMPTY, effect=Effect.NEVER
    )
    remote_log_storage_manager_class_path: Setting[str | None] = Setting(
        STRING, None, "Class path of the remote storage.", effect=Effect.NEVER
    )
    remote_log_storage_manager_impl_prefix = Setting(
        STRING, "rsm.config.", "Prefix of the remote storage's own keys.", NON_EMPTY, effect=Effect.NEVER
    )
