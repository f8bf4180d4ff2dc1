"""Replication and the controller."""

from __future__ import annotations

from config.definitions import ConfigKey, Range
from config.vocabulary import BOOLEAN, CLASS, CLUSTER_WIDE, INT, LONG, NO_POLICIES, REPLICA_SELECTORS, STRING

KEYS = (
    ConfigKey("default.replication.factor", INT, 1, "Replicas of a topic created without a count."),
    ConfigKey(
        "replica.lag.time.max.ms",
        LONG,
        30_000,
        "Time behind the leader after which a follower leaves the in-sync replicas.",
    ),
    ConfigKey("replica.socket.timeout.ms", INT, 30_000, "How long a follower waits for its leader."),
    ConfigKey("replica.socket.receive.buffer.bytes", INT, 65_536, "SO_RCVBUF of a follower's connections."),
    ConfigKey("replica.fetch.max.bytes", INT, 1_048_576, "Bytes a follower asks for per partition.", Range(0)),
    ConfigKey("replica.fetch.wait.max.ms", INT, 500, "How long a follower lets its leader wait for more data."),
    ConfigKey("replica.fetch.min.bytes", INT, 1, "Least bytes a follower wants in an answer."),
    ConfigKey(
        "replica.fetch.response.max.bytes",
        INT,
        10_485_760,
        "Most bytes a follower wants in an answer.",
        Range(0),
    ),
    ConfigKey("replica.fetch.backoff.ms", INT, 1000, "Pause of a follower after an error.", Range(0)),
    ConfigKey(
        "replica.high.watermark.checkpoint.interval.ms",
        LONG,
        5000,
        "How often high watermarks are written to disk.",
    ),
    ConfigKey(
        "replica.selector.class",
        STRING,
        None,
        "What chooses the replica a consumer reads from: Kafka's RackAwareReplicaSelector or LeaderSelector.",
        REPLICA_SELECTORS,
    ),
    ConfigKey("num.replica.fetchers", INT, 1, "Connections used to follow one other broker.", update_mode=CLUSTER_WIDE),
    ConfigKey("num.replica.alter.log.dirs.threads", INT, None, "Workers that move replicas between log directories."),
    ConfigKey(
        "auto.leader.rebalance.enable",
        BOOLEAN,
        True,
        "Whether leadership goes back to preferred replicas by itself.",
    ),
    ConfigKey(
        "leader.imbalance.per.broker.percentage",
        INT,
        10,
        "Share of partitions not led by their preferred replica that starts a rebalance.",
    ),
    ConfigKey(
        "leader.imbalance.check.interval.seconds",
        LONG,
        300,
        "How often leadership is checked for imbalance.",
        Range(1),
    ),
    ConfigKey(
        "unclean.leader.election.interval.ms",
        LONG,
        300_000,
        "How often unclean elections are looked for (KRaft).",
        Range(1),
        internal=True,
    ),
    ConfigKey(
        "controlled.shutdown.enable",
        BOOLEAN,
        True,
        "Whether a stopping broker hands its leadership over first.",
    ),
    ConfigKey("controlled.shutdown.max.retries", INT, 3, "Attempts at a controlled shutdown."),
    ConfigKey("controlled.shutdown.retry.backoff.ms", LONG, 5000, "Pause between attempts at a controlled shutdown."),
    ConfigKey("controller.socket.timeout.ms", INT, 30_000, "How long the controller waits for a broker."),
    ConfigKey(
        "eligible.leader.replicas.enable",
        BOOLEAN,
        False,
        "Whether eligible leader replicas are kept (KIP-966), while all brokers of the cluster do.",
    ),
    ConfigKey(
        "create.topic.policy.class.name",
        CLASS,
        None,
        "Java class that may refuse new topics.",
        refusal=NO_POLICIES,
    ),
    ConfigKey(
        "alter.config.policy.class.name",
        CLASS,
        None,
        "Java class that may refuse changed configurations.",
        refusal=NO_POLICIES,
    ),
)
