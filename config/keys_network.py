"""The endpoints, threads and limits of the network layer, and the identity of the broker."""

from __future__ import annotations

from config.definitions import (
    BOOLEAN,
    CLASS,
    CLUSTER_WIDE,
    INT,
    INT_MAX,
    LIST,
    LONG,
    LONG_MAX,
    METADATA_VERSION,
    NO_CONTROL_PLANE,
    NO_KRAFT,
    NO_PLUGINS,
    PER_BROKER,
    STRING,
    ConfigKeys,
    Effect,
    OneOf,
    Range,
    Setting,
)


class NetworkKeys(ConfigKeys):
    """The endpoints, threads and limits of the network layer, and the identity of the broker."""

    broker_id = Setting(INT, -1, "Number that identifies this broker in the cluster; -1 asks for a generated one.")
    node_id = Setting(INT, -1, "Another name of broker.id, kept equal to it.")
    broker_id_generation_enable = Setting(
        BOOLEAN, True, "Whether a broker without broker.id gets a generated one, above reserved.broker.max.id."
    )
    reserved_broker_max_id = Setting(INT, 1000, "Largest number that may be given to a broker by hand.", Range(0))
    broker_rack: Setting[str | None] = Setting(
        STRING, None, "Name of the rack or zone this broker stands in; replicas of a partition are spread over racks."
    )
    listeners_text = Setting(
        STRING,
        "PLAINTEXT://:9092",
        "Comma-separated endpoints to listen on, as NAME://host:port; an empty host means every interface.",
        update_mode=PER_BROKER,
        name="listeners",
    )
    advertised_listeners_text: Setting[str | None] = Setting(
        STRING,
        None,
        "Endpoints that clients get when they differ from `listeners`, as containers and NAT need.",
        update_mode=PER_BROKER,
        name="advertised.listeners",
    )
    listener_security_protocol_map = Setting(
        STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "Which security protocol each listener name speaks, as NAME:PROTOCOL pairs.",
        update_mode=PER_BROKER,
    )
    inter_broker_listener_name_text: Setting[str | None] = Setting(
        STRING, None, "Listener that brokers use among themselves.", name="inter.broker.listener.name"
    )
    security_inter_broker_protocol = Setting(
        STRING,
        "PLAINTEXT",
        "Security protocol that brokers use among themselves when no listener name is set for it.",
        OneOf(("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")),
    )
    control_plane_listener_name: Setting[str | None] = Setting(
        STRING, None, "Separate listener for what the controller says to brokers.", refusal=NO_CONTROL_PLANE
    )
    early_start_listeners: Setting[str | None] = Setting(
        STRING, None, "Listeners that accept requests before authorization is ready (KRaft).", refusal=NO_KRAFT
    )
    socket_send_buffer_bytes = Setting(
        INT, 102_400, "SO_SNDBUF of client sockets; -1 keeps the operating system's value.", effect=Effect.NEVER
    )
    socket_receive_buffer_bytes = Setting(
        INT, 102_400, "SO_RCVBUF of client sockets; -1 keeps the operating system's value.", effect=Effect.NEVER
    )
    socket_request_max_bytes = Setting(
        INT, 104_857_600, "Largest request accepted; a larger one closes the connection.", Range(1)
    )
    socket_listen_backlog_size = Setting(INT, 50, "Connections that may wait to be accepted.", Range(1))
    socket_connection_setup_timeout_ms = Setting(
        LONG, 10_000, "How long a connection to another broker may take at first.", effect=Effect.NEVER
    )
    socket_connection_setup_timeout_max_ms = Setting(
        LONG, 30_000, "How long a connection to another broker may take after repeated failures.", effect=Effect.NEVER
    )
    max_connections = Setting(INT, INT_MAX, "Connections accepted by the whole broker.", Range(0), CLUSTER_WIDE)
    max_connections_per_ip = Setting(INT, INT_MAX, "Connections accepted from one address.", Range(0), CLUSTER_WIDE)
    max_connections_per_ip_overrides_text = Setting(
        STRING,
        "",
        "Other limits for single addresses, as host:count pairs.",
        update_mode=CLUSTER_WIDE,
        name="max.connections.per.ip.overrides",
    )
    max_connection_creation_rate = Setting(INT, INT_MAX, "New connections accepted per second.", Range(0), CLUSTER_WIDE)
    connections_max_idle_ms = Setting(
        LONG, 600_000, "Idle time after which a connection is closed; a negative value never closes one."
    )
    queued_max_requests = Setting(
        INT, 500, "Requests that may wait before the network stops being read.", Range(1), effect=Effect.NEVER
    )
    queued_max_request_bytes = Setting(
        LONG, -1, "Bytes of requests that may wait before the network stops being read; -1 for a quarter of the memory."
    )
    num_network_threads = Setting(
        INT,
        3,
        "Threads for the network in Kafka; accepted and shown, this broker has one event loop.",
        Range(1),
        CLUSTER_WIDE,
        effect=Effect.NEVER,
    )
    num_io_threads = Setting(
        INT,
        8,
        "Threads for requests in Kafka; here, for reads and flushes that would block the event loop.",
        Range(1),
        CLUSTER_WIDE,
    )
    background_threads = Setting(
        INT, 10, "Threads for housekeeping in Kafka; accepted and shown.", Range(1), CLUSTER_WIDE, effect=Effect.NEVER
    )
    request_timeout_ms = Setting(INT, 30_000, "How long a request to another broker may wait for its answer.")
    fetch_max_bytes = Setting(INT, 57_671_680, "Most bytes in the answer to one Fetch request.", Range(1024))
    max_incremental_fetch_session_cache_slots = Setting(INT, 1000, "Fetch sessions kept at a time.", Range(0))
    max_request_partition_size_limit = Setting(
        INT, 2000, "Partitions that a single DescribeTopicPartitions answer may hold.", Range(1), effect=Effect.NEVER
    )
    message_max_bytes = Setting(
        INT,
        1_048_588,
        "Largest record batch accepted, after compression, unless the topic says otherwise.",
        Range(0),
        CLUSTER_WIDE,
    )
    fetch_purgatory_purge_interval_requests = Setting(
        INT, 1000, "How many finished Fetch requests may stay in the waiting list.", effect=Effect.NEVER
    )
    producer_purgatory_purge_interval_requests = Setting(
        INT, 1000, "How many finished Produce requests may stay in the waiting list.", effect=Effect.NEVER
    )
    delete_records_purgatory_purge_interval_requests = Setting(
        INT, 1, "How many finished DeleteRecords requests may stay in the waiting list.", effect=Effect.NEVER
    )
    quota_window_num = Setting(INT, 11, "Samples kept for client quotas.", Range(1))
    quota_window_size_seconds = Setting(INT, 1, "Length of one sample for client quotas.", Range(1))
    controller_quota_window_num = Setting(INT, 11, "Samples kept for the quota on topic changes.", Range(1))
    controller_quota_window_size_seconds = Setting(
        INT, 1, "Length of one sample for the quota on topic changes.", Range(1)
    )
    replication_quota_window_num = Setting(INT, 11, "Samples kept for replication quotas.", Range(1))
    replication_quota_window_size_seconds = Setting(INT, 1, "Length of one sample for replication quotas.", Range(1))
    alter_log_dirs_replication_quota_window_num = Setting(
        INT, 11, "Samples kept for the quota on moves between log directories.", Range(1), effect=Effect.NEVER
    )
    alter_log_dirs_replication_quota_window_size_seconds = Setting(
        INT, 1, "Length of one sample for the quota on moves between log directories.", Range(1), effect=Effect.NEVER
    )
    client_quota_callback_class: Setting[str | None] = Setting(
        CLASS, None, "Java class that decides client quotas.", refusal=NO_PLUGINS
    )
    metric_reporters: Setting[tuple[str, ...]] = Setting(
        LIST, (), "Java classes that receive metrics.", update_mode=CLUSTER_WIDE, effect=Effect.NEVER
    )
    metrics_num_samples = Setting(INT, 2, "Samples kept for a metric.", Range(1), effect=Effect.NEVER)
    metrics_recording_level = Setting(STRING, "INFO", "Detail of metrics: INFO, DEBUG or TRACE.", effect=Effect.NEVER)
    metrics_sample_window_ms = Setting(LONG, 30_000, "Length of one sample of a metric.", Range(1), effect=Effect.NEVER)
    auto_include_jmx_reporter = Setting(
        BOOLEAN, True, "Whether Kafka shows metrics by JMX by default; accepted and shown.", effect=Effect.NEVER
    )
    kafka_metrics_polling_interval_secs = Setting(
        INT, 10, "How often kafka.metrics.reporters are called.", Range(1), effect=Effect.NEVER
    )
    kafka_metrics_reporters: Setting[tuple[str, ...]] = Setting(
        LIST, (), "Java classes that receive Yammer metrics.", effect=Effect.NEVER
    )
    telemetry_max_bytes = Setting(
        INT, 1_048_576, "Largest metrics message accepted from a client.", Range(1), effect=Effect.NEVER
    )
    server_max_startup_time_ms = Setting(
        LONG, LONG_MAX, "Longest start-up allowed (KRaft).", Range(0), internal=True, effect=Effect.NEVER
    )
    unstable_api_versions_enable = Setting(
        BOOLEAN,
        False,
        "Whether versions of requests still in development are served.",
        internal=True,
        effect=Effect.NEVER,
    )
    unstable_feature_versions_enable = Setting(
        BOOLEAN, False, "Whether feature levels still in development are offered.", internal=True, effect=Effect.NEVER
    )
    inter_broker_protocol_version = Setting(
        STRING, "3.9-IV0", "Version of the messages that brokers exchange.", METADATA_VERSION
    )
