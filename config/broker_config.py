"""BrokerConfig: what one broker starts with, from server.properties and --override (Kafka class `KafkaConfig`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar, cast, overload

from . import (
    keys_cluster,
    keys_coordination,
    keys_coordinators,
    keys_log,
    keys_network,
    keys_odradek,
    keys_security,
)
from .definitions import ConfigError, ConfigKey, ConfigRuleError, Value, table
from .listeners import (
    EndPoint,
    check_advertised,
    parse_ip_overrides,
    parse_listeners,
    parse_protocol_map,
    split_csv,
)
from .properties import load_properties
from .topic_config import BROKER_SYNONYMS, check_compaction_lags
from .vocabulary import NO_AUTHORIZER, NO_SASL, NO_TLS

BROKER_KEYS = table(
    (
        *keys_network.KEYS,
        *keys_log.KEYS,
        *keys_cluster.KEYS,
        *keys_coordinators.KEYS,
        *keys_security.KEYS,
        *keys_coordination.KEYS,
        *keys_odradek.KEYS,
    )
)
"""Every key of a broker."""

LISTENER_KEY = re.compile(r"listener\.name\.([^.]*)\.(.+)\Z")
_LISTENER_MECHANISM_KEYS = (
    "sasl.login.callback.handler.class",
    "sasl.server.callback.handler.class",
    "connections.max.reauth.ms",
    "sasl.login.class",
    "sasl.jaas.config",
)
_REFUSED_PATTERNS = (
    # Keys without a declaration of their own that would change who may do what.
    (re.compile(r"(super\.users|allow\.everyone\.if\.no\.acl\.found)\Z"), NO_AUTHORIZER),
    (re.compile(r"listener\.name\.[^.]*\.ssl\..*"), NO_TLS),
    (re.compile(r"listener\.name\.[^.]*\.(.*\.)?(sasl\..*|connections\.max\.reauth\.ms)"), NO_SASL),
)

T = TypeVar("T")


def base_name(listener_key: str) -> str:
    """A listener's key without its mechanism: `plain.sasl.jaas.config` -> `sasl.jaas.config`."""
    return next((key for key in _LISTENER_MECHANISM_KEYS if listener_key.endswith(key)), listener_key)


def declared_key(name: str) -> ConfigKey | None:
    """The declaration of a broker key, also of one with a listener's prefix; None when there is none."""
    declared = BROKER_KEYS.get(name)
    if declared is None and (match := LISTENER_KEY.match(name)):
        declared = BROKER_KEYS.get(base_name(match[2]))
    return declared


class Setting(Generic[T]):
    """A typed attribute of BrokerConfig; the attribute's name is the key's with underscores for dots."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name.replace("_", ".")
        if self.name not in BROKER_KEYS:
            raise AttributeError(f"{self.name} is not declared")

    @overload
    def __get__(self, instance: None, owner: type) -> Setting[T]: ...
    @overload
    def __get__(self, instance: BrokerConfig, owner: type) -> T: ...
    def __get__(self, instance: BrokerConfig | None, owner: type) -> Setting[T] | T:
        return self if instance is None else cast("T", instance.values[self.name])


class BrokerConfig:
    """The parsed configuration of one broker; immutable.

    `originals` is the text that was set, `values` every declared key's parsed value. Attributes exist for the keys
    that have an effect here (`without_effect` tells which of the set ones have none). Times are in the unit of the
    name, sizes in bytes. Raises ConfigError (key, value, what is allowed) from the constructor and `load`.
    """

    broker_id: Setting[int] = Setting()
    broker_id_generation_enable: Setting[bool] = Setting()
    reserved_broker_max_id: Setting[int] = Setting()
    broker_rack: Setting[str | None] = Setting()
    socket_request_max_bytes: Setting[int] = Setting()
    socket_listen_backlog_size: Setting[int] = Setting()
    max_connections: Setting[int] = Setting()
    max_connections_per_ip: Setting[int] = Setting()
    connections_max_idle_ms: Setting[int] = Setting()
    queued_max_request_bytes: Setting[int] = Setting()
    num_io_threads: Setting[int] = Setting()
    fetch_max_bytes: Setting[int] = Setting()
    max_incremental_fetch_session_cache_slots: Setting[int] = Setting()
    num_partitions: Setting[int] = Setting()
    num_recovery_threads_per_data_dir: Setting[int] = Setting()
    default_replication_factor: Setting[int] = Setting()
    auto_create_topics_enable: Setting[bool] = Setting()
    delete_topic_enable: Setting[bool] = Setting()
    min_insync_replicas: Setting[int] = Setting()
    replica_high_watermark_checkpoint_interval_ms: Setting[int] = Setting()
    log_flush_scheduler_interval_ms: Setting[int] = Setting()
    log_flush_offset_checkpoint_interval_ms: Setting[int] = Setting()
    log_flush_start_offset_checkpoint_interval_ms: Setting[int] = Setting()
    log_retention_check_interval_ms: Setting[int] = Setting()
    log_initial_task_delay_ms: Setting[int] = Setting()
    log_cleaner_enable: Setting[bool] = Setting()
    log_cleaner_threads: Setting[int] = Setting()
    log_cleaner_backoff_ms: Setting[int] = Setting()
    log_cleaner_dedupe_buffer_size: Setting[int] = Setting()
    log_cleaner_io_buffer_size: Setting[int] = Setting()
    log_cleaner_io_buffer_load_factor: Setting[float] = Setting()
    log_cleaner_io_max_bytes_per_second: Setting[float] = Setting()
    log_dir_reserve_bytes: Setting[int] = Setting()
    log_scrub_interval_ms: Setting[int] = Setting()
    log_scrub_max_bytes_per_second: Setting[int] = Setting()
    log_validate_records: Setting[str] = Setting()
    group_min_session_timeout_ms: Setting[int] = Setting()
    group_max_session_timeout_ms: Setting[int] = Setting()
    group_initial_rebalance_delay_ms: Setting[int] = Setting()
    group_max_size: Setting[int] = Setting()
    offset_metadata_max_bytes: Setting[int] = Setting()
    offsets_load_buffer_size: Setting[int] = Setting()
    offsets_retention_minutes: Setting[int] = Setting()
    offsets_retention_check_interval_ms: Setting[int] = Setting()
    offsets_topic_num_partitions: Setting[int] = Setting()
    offsets_topic_replication_factor: Setting[int] = Setting()
    offsets_topic_segment_bytes: Setting[int] = Setting()
    offsets_topic_compression_codec: Setting[int] = Setting()
    transaction_state_log_num_partitions: Setting[int] = Setting()
    transaction_state_log_replication_factor: Setting[int] = Setting()
    transaction_state_log_segment_bytes: Setting[int] = Setting()
    transaction_state_log_min_isr: Setting[int] = Setting()
    producer_id_expiration_ms: Setting[int] = Setting()
    producer_id_expiration_check_interval_ms: Setting[int] = Setting()
    metrics_listener: Setting[str | None] = Setting()

    def __init__(self, properties: Mapping[str, str]) -> None:
        originals = dict(properties)
        # Kafka fills in the other name when one of the two is set (`KafkaConfig.populateSynonyms`).
        for name, other in (("broker.id", "node.id"), ("node.id", "broker.id")):
            if name in originals:
                originals.setdefault(other, originals[name])
        values = {name: declared.default for name, declared in BROKER_KEYS.items()}
        for name, text in originals.items():
            declared = BROKER_KEYS.get(name)
            if declared is not None:
                values[name] = declared.parse(text)
        self.originals: Mapping[str, str] = MappingProxyType(originals)
        self.values: Mapping[str, Value] = MappingProxyType(values)
        self._read_listeners()
        self._check_rules()

    @classmethod
    def load(cls, path: Path | str, overrides: Mapping[str, str] | None = None) -> BrokerConfig:
        """Read a .properties file, let `overrides` win, and refuse what this broker cannot promise.

        Raises ConfigError, also for a key about security or durability that is not implemented, and OSError when the
        file cannot be read.
        """
        config = cls({**load_properties(Path(path).read_bytes()), **(overrides or {})})
        config.check_promises()
        check_compaction_lags(config.topic_defaults())
        return config

    def check_promises(self) -> None:
        """Raise ConfigError when a set key asks for security or durability that this broker does not have."""
        for name in self.originals:
            check_promise(name, self)
        for endpoint in self.listeners:
            if endpoint.security_protocol != "PLAINTEXT":
                text = self.originals.get("listeners", str(endpoint))
                raise ConfigError(
                    "listeners",
                    text,
                    f"listener {endpoint.listener_name} speaks {endpoint.security_protocol}, "
                    "which is not implemented yet, only PLAINTEXT is",
                )

    def unknown(self) -> list[str]:
        """Set keys that nobody declares; worth a warning, as in Kafka."""
        return [name for name in self.originals if declared_key(name) is None]

    def without_effect(self) -> list[str]:
        """Set keys that Kafka knows and nobody acts on here; all that are for a single listener are among them."""
        return [name for name in self.originals if declared_key(name) is not None and name not in EFFECTIVE_KEYS]

    def with_dynamic(self, properties: Mapping[str, str]) -> BrokerConfig:
        """This configuration with dynamic overrides (KIP-226) on top. Raises ConfigError."""
        return BrokerConfig({**self.originals, **properties})

    # Values that come from several keys

    @property
    def log_dirs(self) -> tuple[str, ...]:
        """Data directories, at least one: log.dirs, or log.dir when that is not set."""
        text = self.values["log.dirs"] if self.values["log.dirs"] is not None else self.values["log.dir"]
        return split_csv(str(text))

    @property
    def log_roll_time_ms(self) -> int:
        """Age at which a segment is closed."""
        return self._first_ms(("log.roll.ms", 1), ("log.roll.hours", 3_600_000))

    @property
    def log_roll_jitter_time_ms(self) -> int:
        """Largest random part taken from the roll time."""
        return self._first_ms(("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", 3_600_000))

    @property
    def log_retention_time_ms(self) -> int:
        """How long records are kept; -1 for ever."""
        time_ms = self._first_ms(
            ("log.retention.ms", 1), ("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000)
        )
        return max(time_ms, -1)

    @property
    def log_flush_interval_time_ms(self) -> int:
        """Time after which a partition is forced to disk."""
        return self._first_ms(("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1))

    @property
    def max_connections_per_ip_overrides(self) -> dict[str, int]:
        """Limits of connections for single addresses."""
        return parse_ip_overrides(
            "max.connections.per.ip.overrides", str(self.values["max.connections.per.ip.overrides"])
        )

    def topic_defaults(self) -> dict[str, Value]:
        """What a topic without overrides gets: {topic key: value} (Kafka's `KafkaConfig.extractLogConfigMap`)."""
        defaults = {topic_key: self.values[names[0]] for topic_key, names in BROKER_SYNONYMS.items()}
        defaults["segment.ms"] = self.log_roll_time_ms
        defaults["segment.jitter.ms"] = self.log_roll_jitter_time_ms
        defaults["retention.ms"] = self.log_retention_time_ms
        defaults["flush.ms"] = self.log_flush_interval_time_ms
        for limit in ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms"):
            # The old single limit counts where the newer one was left alone (KIP-937).
            if defaults[limit] == BROKER_KEYS[f"log.{limit}"].default:
                defaults[limit] = defaults["message.timestamp.difference.max.ms"]
        return defaults

    def _first_ms(self, *names_and_units: tuple[str, int]) -> int:
        for name, unit_ms in names_and_units:
            value = self.values[name]
            if isinstance(value, int):
                return value * unit_ms
        raise ConfigError(names_and_units[0][0], None, "Value must be non-null")

    def _read_listeners(self) -> None:
        text = str(self.values["listeners"])
        protocols = parse_protocol_map(str(self.values["listener.security.protocol.map"]))
        self.listeners: tuple[EndPoint, ...] = parse_listeners("listeners", text, protocols)
        if not self.listeners:
            raise ConfigError("listeners", text, "There must be at least one listener, such as PLAINTEXT://:9092")
        advertised = self.values["advertised.listeners"]
        if advertised is None:
            self.advertised_listeners: tuple[EndPoint, ...] = self.listeners
            if any(endpoint.host == "0.0.0.0" for endpoint in self.listeners):  # noqa: S104
                raise ConfigRuleError(
                    "advertised.listeners",
                    None,
                    "advertised.listeners cannot use the nonroutable meta-address 0.0.0.0. Use a routable IP address.",
                )
        else:
            self.advertised_listeners = parse_listeners(
                "advertised.listeners", str(advertised), protocols, distinct_ports=False
            )
            if not self.advertised_listeners:
                raise ConfigError("advertised.listeners", advertised, "There must be at least one advertised listener")
            check_advertised(self.advertised_listeners, self.listeners, str(advertised))
        self.inter_broker_listener_name: str = self._inter_broker_listener()

    def _inter_broker_listener(self) -> str:
        """The listener of brokers among themselves: the one named, else the one named like the security protocol."""
        named = self.values["inter.broker.listener.name"]
        if named is not None and "security.inter.broker.protocol" in self.originals:
            raise ConfigRuleError(
                "inter.broker.listener.name",
                named,
                "Only one of inter.broker.listener.name and security.inter.broker.protocol should be set.",
            )
        name = str(named if named is not None else self.values["security.inter.broker.protocol"]).upper()
        offered = [endpoint.listener_name for endpoint in self.advertised_listeners]
        if name not in offered:
            raise ConfigRuleError(
                "inter.broker.listener.name",
                named,
                "inter.broker.listener.name must be a listener name defined in advertised.listeners. The valid "
                f"options based on currently configured listeners are {','.join(offered)}",
            )
        return name

    def _check_rules(self) -> None:
        for name, holds, message in _rules(self):
            if not holds:
                raise ConfigRuleError(name, self.originals.get(name), message)


def check_promise(name: str, config: BrokerConfig) -> None:
    """Raise ConfigError when `name` is set in `config` to something about security or durability we do not have."""
    for pattern, refusal in _REFUSED_PATTERNS:
        if pattern.match(name):
            raise ConfigError(name, "[hidden]", refusal)
    declared = declared_key(name)
    if declared is None or not declared.refusal:
        return
    value = config.values[name] if name in BROKER_KEYS else declared.parse(config.originals.get(name))
    if value not in (declared.default, "", ()):
        text = "[hidden]" if declared.is_sensitive else config.originals.get(name)
        raise ConfigError(name, text, declared.refusal)


def _rules(config: BrokerConfig) -> Iterator[tuple[str, bool, str]]:
    """Rules about several keys (Kafka's `KafkaConfig.validateValues`), as (key, whether it holds, what is allowed)."""
    values: Mapping[str, Any] = config.values
    if config.broker_id_generation_enable:
        allowed = "broker.id must be greater than or equal to -1 and not greater than reserved.broker.max.id"
        yield "broker.id", -1 <= config.broker_id <= config.reserved_broker_max_id, allowed
    else:
        yield "broker.id", config.broker_id >= 0, "broker.id must be greater than or equal to 0"
    yield "node.id", values["node.id"] == config.broker_id, "You must set `node.id` to the same value as `broker.id`."
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
    yield "log.cleaner.dedupe.buffer.size", values["log.cleaner.dedupe.buffer.size"] // threads > 1024 * 1024, buffer
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
    yield "offsets.commit.required.acks", -1 <= required <= config.offsets_topic_replication_factor, acks
    queued = "queued.max.request.bytes must be larger or equal to socket.request.max.bytes"
    queued_bytes = config.queued_max_request_bytes
    yield "queued.max.request.bytes", queued_bytes <= 0 or queued_bytes >= config.socket_request_max_bytes, queued
    no_connection = (
        "max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides property is set."
    )
    overrides = config.max_connections_per_ip_overrides
    yield "max.connections.per.ip", config.max_connections_per_ip > 0 or bool(overrides), no_connection
    delay = values["connection.failed.authentication.delay.ms"]
    idle = config.connections_max_idle_ms
    idle_rule = (
        f"connection.failed.authentication.delay.ms={delay} should always be less than connections.max.idle.ms={idle} "
        "to prevent failed authentication responses from timing out"
    )
    yield "connections.max.idle.ms", idle < 0 or delay < idle, idle_rule
    metrics = config.metrics_listener
    port = "metrics.listener must have a port between 0 and 65535"
    yield "metrics.listener", metrics is None or int(metrics.rpartition(":")[2]) <= 65535, port
    sessions = "group.max.session.timeout.ms must be greater than or equal to group.min.session.timeout.ms"
    shortest, longest = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
    yield "group.max.session.timeout.ms", shortest <= longest, sessions


_TOPIC_KEYS_WITHOUT_EFFECT = frozenset(
    {
        "preallocate",
        "local.retention.ms",
        "local.retention.bytes",
        "message.format.version",
        "message.downconversion.enable",
        "unclean.leader.election.enable",
    }
)
"""Kept and shown, and nobody acts on them."""

EFFECTIVE_KEYS = frozenset(
    {member.name for member in vars(BrokerConfig).values() if isinstance(member, Setting)}
    | {name for key, names in BROKER_SYNONYMS.items() if key not in _TOPIC_KEYS_WITHOUT_EFFECT for name in names}
    | {
        "node.id",
        "listeners",
        "advertised.listeners",
        "listener.security.protocol.map",
        "inter.broker.listener.name",
        "log.dir",
        "log.dirs",
        "max.connections.per.ip.overrides",
    }
)
"""The keys this broker acts on."""
