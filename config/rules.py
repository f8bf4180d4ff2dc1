"""Checks that can prevent the start: rules about several keys (Kafka: `KafkaConfig.validateValues`), and keys that
require security or durability that Odradek lacks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from config.broker_keys import BROKER_KEYS, LISTENER_KEY, declared_key
from config.definitions import NO_KRAFT, NO_OTHER_ACLS, ConfigError, RefusedKeyError
from protocol.errors import detached
from security.authorization import authorization_rules

if TYPE_CHECKING:
    from config.broker_config import BrokerConfig

_SPOKEN = (3, 9)
"""The release whose inter-broker request versions are used (`broker.inter_broker.command_codec`)."""


def rules(config: BrokerConfig) -> Iterator[tuple[str, bool, str]]:
    """Rules about several keys (Kafka's `KafkaConfig.validateValues`), as (key, whether the rule holds, allowed
    values).
    """
    values: Mapping[str, Any] = config.values
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
    # Kafka divides by this value unchecked, and fails with "/ by zero".
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
    """The reason why brokers with this inter.broker.protocol.version may not understand this one, or None."""
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


_PATTERNS = (
    # Undeclared keys that would change access rights; the last field says whether to show the value.
    (re.compile(r"authorizer\.zookeeper\..*"), NO_OTHER_ACLS, True),
    (
        re.compile(r"sasl\.jaas\.config\Z"),
        "name the listener and the mechanism: listener.name.NAME.MECHANISM.sasl.jaas.config",
        False,
    ),
    (
        re.compile(r"(?!listener\.name\.[^.]+\.oauthbearer\.)(.*\.)?sasl\.(login|server)\.callback\.handler\.class\Z"),
        "it is for the mechanism OAUTHBEARER of a listener: listener.name.NAME.oauthbearer.sasl...",
        True,
    ),
)
_SASL_KEY = re.compile(r"(.*\.)?(sasl\..*|connections\.max\.reauth\.ms)\Z")


def refusals(config: BrokerConfig) -> list[ConfigError]:
    """An error for each refused key about security, durability or KRaft that is set; `process.roles` first."""
    errors: list[ConfigError] = []
    if "process.roles" in config.originals:
        from config.kraft import check_single_node

        try:
            check_single_node(config.originals)
        except RefusedKeyError as error:
            errors.append(detached(error))
    for name in sorted(config.originals, key=lambda name: name != "process.roles"):
        try:
            check_promise(name, config)
        except RefusedKeyError as error:
            if not (errors and error.reason == NO_KRAFT):  # report a quorum of several nodes only once
                errors.append(detached(error))
        except ConfigError:
            continue  # An invalid value of a listener's key; its user reports it.
    return errors


def check_promise(name: str, config: BrokerConfig) -> None:
    """Raise RefusedKeyError if the value of `name` in `config` requires security or durability that is not
    implemented.
    """
    text = config.originals.get(name)
    for pattern, refusal, shown in _PATTERNS:
        if pattern.match(name):
            raise RefusedKeyError(name, text if shown else "[hidden]", refusal)
    declared = declared_key(name)
    if declared is None:
        return
    _check_listener(name, config)
    if not declared.refusal:
        return
    value = config.values[name] if name in BROKER_KEYS else declared.parse(text)
    if value not in (declared.default, "", ()):
        raise RefusedKeyError(name, "[hidden]" if declared.is_sensitive else text, declared.refusal)


def _check_listener(name: str, config: BrokerConfig) -> None:
    """Refuse a security key of a listener that does not exist or does not use it: the key would protect nothing, and
    probably another listener was meant.
    """
    found = LISTENER_KEY.match(name)
    if found is None:
        return
    protocols = {each.listener_name.lower(): each.security_protocol for each in config.listeners}
    if found[2].startswith("ssl."):
        kind, names = "TLS", [each for each, protocol in protocols.items() if protocol.endswith("SSL")]
    elif _SASL_KEY.match(found[2]):
        kind, names = "SASL", [each for each, protocol in protocols.items() if protocol.startswith("SASL")]
    else:
        return
    if found[1] not in names:
        allowed = ", ".join(f"listener.name.{each}.{found[2]}" for each in names) or f"no listener has {kind}"
        raise RefusedKeyError(name, "[hidden]", f"it is of no listener with {kind}; allowed: {allowed}")
