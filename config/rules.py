"""Rules about several keys of a broker (Kafka: `KafkaConfig.validateValues`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from config.security.authorization import authorization_rules

_SPOKEN = (3, 9)
"""The release whose versions of the requests between brokers are spoken (`broker.inter_broker.versions`)."""


class Configuration(Protocol):
    """The parts of a BrokerConfig that the rules look at."""

    @property
    def values(self) -> Mapping[str, Any]:
        """The parsed value of each key."""
        ...

    @property
    def originals(self) -> Mapping[str, str]:
        """The text of each key that is set."""
        ...

    @property
    def broker_id_generation_enable(self) -> bool: ...

    @property
    def log_dirs(self) -> tuple[str, ...]: ...

    @property
    def log_roll_time_ms(self) -> int: ...

    @property
    def log_roll_jitter_time_ms(self) -> int: ...

    @property
    def log_retention_time_ms(self) -> int: ...

    @property
    def max_connections_per_ip_overrides(self) -> Mapping[str, int]: ...


def rules(config: Configuration) -> Iterator[tuple[str, bool, str]]:
    """Rules about several keys (Kafka's `KafkaConfig.validateValues`), as (key, whether it holds, what is allowed)."""
    values = config.values
    if config.broker_id_generation_enable:
        allowed = "broker.id must be greater than or equal to -1 and not greater than reserved.broker.max.id"
        yield "broker.id", -1 <= values["broker.id"] <= values["reserved.broker.max.id"], allowed
    else:
        yield "broker.id", values["broker.id"] >= 0, "broker.id must be greater than or equal to 0"
    yield (
        "node.id",
        values["node.id"] == values["broker.id"],
        "You must set `node.id` to the same value as `broker.id`.",
    )
    yield "log.roll.ms", config.log_roll_time_ms >= 1, "log.roll.ms must be greater than or equal to 1"
    jitter = "log.roll.jitter.ms must be greater than or equal to 0"
    yield "log.roll.jitter.ms", config.log_roll_jitter_time_ms >= 0, jitter
    retention = "log.retention.ms must be unlimited (-1) or, greater than or equal to 1"
    yield "log.retention.ms", config.log_retention_time_ms != 0, retention
    directories = "At least one log directory must be defined via log.dirs or log.dir."
    yield "log.dirs", bool(config.log_dirs), directories
    duplicate = f"Duplicate log directory found: {', '.join(config.log_dirs)}"
    yield "log.dirs", len(set(config.log_dirs)) == len(config.log_dirs), duplicate
    threads = values["log.cleaner.threads"]
    # Kafka divides by it without a look: what stops it is "/ by zero".
    yield "log.cleaner.threads", threads >= 1, "log.cleaner.threads must be at least 1"
    buffer = "log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread."
    per_thread = values["log.cleaner.dedupe.buffer.size"] // max(threads, 1)
    yield "log.cleaner.dedupe.buffer.size", per_thread > 1024 * 1024, buffer
    socket_timeout = (
        "replica.socket.timeout.ms should always be at least replica.fetch.wait.max.ms to prevent unnecessary "
        "socket timeouts"
    )
    wait = values["replica.fetch.wait.max.ms"]
    yield "replica.fetch.wait.max.ms", wait <= values["replica.socket.timeout.ms"], socket_timeout
    lag = (
        "replica.fetch.wait.max.ms should always be less than or equal to replica.lag.time.max.ms to prevent frequent "
        "changes in ISR"
    )
    yield "replica.fetch.wait.max.ms", wait <= values["replica.lag.time.max.ms"], lag
    acks = (
        "offsets.commit.required.acks must be greater or equal -1 and less or equal to offsets.topic.replication.factor"
    )
    required = values["offsets.commit.required.acks"]
    yield "offsets.commit.required.acks", -1 <= required <= values["offsets.topic.replication.factor"], acks
    queued = "queued.max.request.bytes must be larger or equal to socket.request.max.bytes"
    queued_bytes = values["queued.max.request.bytes"]
    yield "queued.max.request.bytes", queued_bytes <= 0 or queued_bytes >= values["socket.request.max.bytes"], queued
    no_connection = (
        "max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides property is set."
    )
    overrides = config.max_connections_per_ip_overrides
    yield "max.connections.per.ip", values["max.connections.per.ip"] > 0 or bool(overrides), no_connection
    delay = values["connection.failed.authentication.delay.ms"]
    idle = values["connections.max.idle.ms"]
    idle_rule = (
        f"connection.failed.authentication.delay.ms={delay} should always be less than connections.max.idle.ms={idle} "
        "to prevent failed authentication responses from timing out"
    )
    yield "connections.max.idle.ms", idle < 0 or delay < idle, idle_rule
    metrics = values["metrics.listener"]
    port = "metrics.listener must have a port between 0 and 65535"
    yield "metrics.listener", metrics is None or int(metrics.rpartition(":")[2]) <= 65535, port
    tree = "zookeeper.set.acl needs zookeeper.connect: the broker's own tree has no access control"
    yield "zookeeper.set.acl", not values["zookeeper.set.acl"] or bool(values["zookeeper.connect"]), tree
    sessions = "group.max.session.timeout.ms must be greater than or equal to group.min.session.timeout.ms"
    shortest, longest = values["group.min.session.timeout.ms"], values["group.max.session.timeout.ms"]
    yield "group.max.session.timeout.ms", shortest <= longest, sessions
    yield from authorization_rules(config.originals)


def too_old_protocol(values: Mapping[str, Any]) -> str | None:
    """The reason why other brokers may not understand this one by inter.broker.protocol.version; None where they do."""
    version = values["inter.broker.protocol.version"]
    if not values["zookeeper.connect"] or _release(version) >= _SPOKEN:
        return None
    return (
        f"inter.broker.protocol.version={version} is older than what this broker speaks with others, 3.9: "
        "upgrade the other brokers to 3.9 first, then set it to 3.9 or remove it"
    )


def _release(version: str) -> tuple[int, int]:
    """Major and minor of a version such as 3.9-IV0 or 2.8.1."""
    major, minor, *_ = version.partition("-")[0].split(".")
    return int(major), int(minor)
