"""BrokerConfig: what one broker starts with, from server.properties and --override (Kafka class `KafkaConfig`)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Generic, TypeVar, cast, overload

from config.broker_keys import BROKER_KEYS, LISTENER_KEY, base_name, declared_key
from config.config_providers import is_provider_key, refuse_reference
from config.definitions import ConfigError, ConfigErrors, ConfigRuleError, Value
from config.elsewhere_keys import ELSEWHERE_KEYS
from config.listeners import (
    EndPoint,
    check_advertised,
    inter_broker_listener,
    parse_ip_overrides,
    parse_listeners,
    parse_protocol_map,
    split_csv,
)
from config.properties import load_properties
from config.refusals import refusals
from config.rules import rules
from config.security.authorization import AUTHORIZER_KEYS
from config.security.token_settings import settings_of_tokens
from config.topic_config import BROKER_SYNONYMS, check_compaction_lags
from protocol.errors import detached

if TYPE_CHECKING:
    from pathlib import Path

    from config.kraft import SingleNode
    from config.security.channel_config import ChannelConfig
    from config.security.sasl_config import SaslConfig
    from config.security.ssl_config import ClientSsl, SslConfig
    from config.zookeeper.connect import ZookeeperAddress

T = TypeVar("T")
_LISTENER_LIMITS: Final = ("max.connections", "max.connection.creation.rate")
"""The limits that a single listener may have too."""


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
    zookeeper_connect: Setting[str | None] = Setting()
    zookeeper_session_timeout_ms: Setting[int] = Setting()
    zookeeper_max_in_flight_requests: Setting[int] = Setting()
    replica_lag_time_max_ms: Setting[int] = Setting()
    replica_socket_timeout_ms: Setting[int] = Setting()
    quota_window_num: Setting[int] = Setting()
    quota_window_size_seconds: Setting[int] = Setting()
    controller_quota_window_num: Setting[int] = Setting()
    controller_quota_window_size_seconds: Setting[int] = Setting()
    replication_quota_window_num: Setting[int] = Setting()
    replication_quota_window_size_seconds: Setting[int] = Setting()
    replica_selector_class: Setting[str | None] = Setting()
    replica_fetch_max_bytes: Setting[int] = Setting()
    replica_fetch_wait_max_ms: Setting[int] = Setting()
    replica_fetch_min_bytes: Setting[int] = Setting()
    replica_fetch_response_max_bytes: Setting[int] = Setting()
    replica_fetch_backoff_ms: Setting[int] = Setting()
    num_replica_fetchers: Setting[int] = Setting()
    controlled_shutdown_enable: Setting[bool] = Setting()
    controlled_shutdown_max_retries: Setting[int] = Setting()
    controlled_shutdown_retry_backoff_ms: Setting[int] = Setting()
    controller_socket_timeout_ms: Setting[int] = Setting()
    auto_leader_rebalance_enable: Setting[bool] = Setting()
    eligible_leader_replicas_enable: Setting[bool] = Setting()
    leader_imbalance_per_broker_percentage: Setting[int] = Setting()
    leader_imbalance_check_interval_seconds: Setting[int] = Setting()
    socket_request_max_bytes: Setting[int] = Setting()
    socket_listen_backlog_size: Setting[int] = Setting()
    max_connections: Setting[int] = Setting()
    max_connections_per_ip: Setting[int] = Setting()
    max_connection_creation_rate: Setting[int] = Setting()
    connections_max_idle_ms: Setting[int] = Setting()
    connection_failed_authentication_delay_ms: Setting[int] = Setting()
    queued_max_request_bytes: Setting[int] = Setting()
    num_io_threads: Setting[int] = Setting()
    fetch_max_bytes: Setting[int] = Setting()
    max_incremental_fetch_session_cache_slots: Setting[int] = Setting()
    request_timeout_ms: Setting[int] = Setting()
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
    offsets_commit_timeout_ms: Setting[int] = Setting()
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
    transaction_state_log_load_buffer_size: Setting[int] = Setting()
    transaction_max_timeout_ms: Setting[int] = Setting()
    transaction_abort_timed_out_transaction_cleanup_interval_ms: Setting[int] = Setting()
    transaction_remove_expired_transaction_cleanup_interval_ms: Setting[int] = Setting()
    transaction_partition_verification_enable: Setting[bool] = Setting()
    transactional_id_expiration_ms: Setting[int] = Setting()
    producer_id_expiration_ms: Setting[int] = Setting()
    producer_id_expiration_check_interval_ms: Setting[int] = Setting()
    metrics_listener: Setting[str | None] = Setting()

    def __init__(self, properties: Mapping[str, str]) -> None:
        errors = self._read(properties)
        if errors:
            raise detached(errors[0])

    def _read(self, properties: Mapping[str, str]) -> list[ConfigError]:
        """Set every attribute and return what is wrong; a key with a bad value has its default."""
        errors: list[ConfigError] = []
        originals = dict(properties)
        # Kafka fills in the other name when one of the two is set (`KafkaConfig.populateSynonyms`).
        for name, other in (("broker.id", "node.id"), ("node.id", "broker.id")):
            if name in originals:
                originals.setdefault(other, originals[name])
        self.single_node: SingleNode | None = None
        """The unused part of a configuration for KRaft that is about this node alone."""
        if "process.roles" in originals:
            from config.kraft import as_broker_alone

            self.single_node = as_broker_alone(originals)
        values = {name: declared.default for name, declared in BROKER_KEYS.items()}
        for name, text in originals.items():
            declared = BROKER_KEYS.get(name)
            if declared is None:
                continue
            try:
                values[name] = declared.parse(text)
            except ConfigError as error:
                errors.append(detached(error))
        self.originals: Mapping[str, str] = MappingProxyType(originals)
        self.values: Mapping[str, Value] = MappingProxyType(values)
        for read in (self._read_listeners, self._read_security, self._read_zookeeper):
            try:
                read()
            except ConfigError as error:
                errors.append(detached(error))
        try:
            for name, holds, message in rules(self):
                if not holds:
                    errors.append(ConfigRuleError(name, self.originals.get(name), message))
        except ConfigError as error:
            errors.append(detached(error))
        return errors

    @classmethod
    def load(cls, path: Path | str, overrides: Mapping[str, str] | None = None) -> BrokerConfig:
        """The configuration in a .properties file below `overrides`. Raises what `of` raises, and OSError."""
        with open(path, "rb") as file:
            return cls.of({**load_properties(file.read()), **(overrides or {})})

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> BrokerConfig:
        """The configuration with these keys. Raises ConfigError for everything that is wrong, also for keys about
        security or durability that are not implemented.
        """
        config, errors = cls.examine(properties)
        if errors:
            raise errors[0] if len(errors) == 1 else ConfigErrors(errors)
        return config

    @classmethod
    def examine(cls, properties: Mapping[str, str]) -> tuple[BrokerConfig, list[ConfigError]]:
        """The configuration and everything that is wrong with it; usable only when nothing is."""
        config = cls.__new__(cls)
        errors = config._read(properties)
        refused = refusals(config)
        if not errors:
            try:
                check_compaction_lags(config.topic_defaults())
            except ConfigError as error:
                errors.append(detached(error))
        return config, refused + errors

    def unknown(self) -> list[str]:
        """Set keys that nobody declares; worth a warning, as in Kafka."""
        return [
            name
            for name in self.originals
            if declared_key(name) is None and name not in ELSEWHERE_KEYS and not is_provider_key(name)
        ]

    def without_effect(self) -> list[str]:
        """Set keys that Kafka knows and nobody acts on here; most that are for a single listener are among them."""
        acted_on = EFFECTIVE_KEYS | AUTHORIZER_KEYS.keys()
        known = [name for name in self.originals if name in ELSEWHERE_KEYS or declared_key(name) is not None]
        return [
            name
            for name in known
            if name in ELSEWHERE_KEYS
            or (name not in acted_on and not self._is_security_key(name) and not self._limits_a_listener(name))
        ]

    def remarks(self) -> dict[str, str]:
        """The differences from the text of keys that are in force, by key."""
        remarks = {}
        for name in self.originals:
            if name.endswith("ssl.enabled.protocols") and name not in self.without_effect():
                from config.security.ssl_config import OBSOLETE_PROTOCOLS

                left_out = [each for each in split_csv(self.originals[name]) if each in OBSOLETE_PROTOCOLS]
                if left_out:
                    remarks[name] = f"{', '.join(left_out)} is obsolete and not offered; the other versions are"
        return remarks

    def _limits_a_listener(self, name: str) -> bool:
        of_listener = LISTENER_KEY.match(name)
        names = {each.listener_name.lower() for each in self.listeners}
        return of_listener is not None and of_listener[1] in names and of_listener[2] in _LISTENER_LIMITS

    def _is_security_key(self, name: str) -> bool:
        """Whether it says something about security that is in use, such as a listener with TLS or SASL."""
        of_listener = LISTENER_KEY.match(name)
        key = base_name(name if of_listener is None else of_listener[2])
        if key.startswith("password.encoder."):
            return "password.encoder.secret" in self.originals
        if key.startswith("delegation.token."):
            return settings_of_tokens(self.values) is not None
        is_sasl = key.startswith(("sasl.", "org.apache.kafka.sasl.")) or key == "connections.max.reauth.ms"
        return bool(self.sasl) if is_sasl else key.startswith("ssl.") and bool(self.ssl)

    def with_dynamic(self, properties: Mapping[str, str]) -> BrokerConfig:
        """This configuration with dynamic overrides (KIP-226) on top. Raises ConfigError, also for a secret that refers
        to a value elsewhere: dynamic ones are taken as they are, so that nobody reads this machine's files by them.
        """
        for name, text in properties.items():
            if "${" in text:
                refuse_reference(name, text)
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
        units = ("log.retention.ms", 1), ("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000)
        return max(self._first_ms(*units), -1)

    @property
    def log_flush_interval_time_ms(self) -> int:
        """Time after which a partition is forced to disk."""
        return self._first_ms(("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1))

    @property
    def max_connections_per_ip_overrides(self) -> dict[str, int]:
        """Limits of connections for single addresses."""
        name = "max.connections.per.ip.overrides"
        return parse_ip_overrides(name, str(self.values[name]))

    @property
    def zookeeper_connection_timeout_ms(self) -> int:
        """How long the first connection to ZooKeeper may take: the session timeout unless it is set."""
        timeout_ms = self.values["zookeeper.connection.timeout.ms"]
        return timeout_ms if isinstance(timeout_ms, int) else self.zookeeper_session_timeout_ms

    def topic_defaults(self) -> dict[str, Value]:
        """Values for a topic without overrides: {topic key: value} (Kafka's `KafkaConfig.extractLogConfigMap`)."""
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
        self.listeners: tuple[EndPoint, ...] = ()
        self.max_connections_per_listener: dict[str, int] = {}
        """Limits on connections of single listeners, by their names."""
        self.max_connection_creation_rate_per_listener: dict[str, int] = {}
        """New connections per second of single listeners, by their names."""
        self.inter_broker_listener_name = ""
        text = str(self.values["listeners"])
        protocols = parse_protocol_map(str(self.values["listener.security.protocol.map"]))
        self.listeners = parse_listeners("listeners", text, protocols)
        if not self.listeners:
            raise ConfigError("listeners", text, "There must be at least one listener, such as PLAINTEXT://:9092")
        self.max_connections_per_listener, self.max_connection_creation_rate_per_listener = map(
            self._by_listener, _LISTENER_LIMITS
        )
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
        protocol_key = "security.inter.broker.protocol"
        self.inter_broker_listener_name = inter_broker_listener(
            cast("str | None", self.values["inter.broker.listener.name"]),
            str(self.values[protocol_key]) if protocol_key in self.originals else None,
            self.advertised_listeners,
        )

    def _by_listener(self, limit: str) -> dict[str, int]:
        keys = {each.listener_name: f"listener.name.{each.listener_name.lower()}.{limit}" for each in self.listeners}
        return {
            name: cast("int", BROKER_KEYS[limit]._replace(name=key).parse(self.originals[key]))
            for name, key in keys.items()
            if key in self.originals
        }

    def _read_security(self) -> None:
        self.ssl: dict[str, SslConfig] = {}
        """TLS of each listener that has it."""
        self.sasl: dict[str, SaslConfig] = {}
        """SASL of each listener that has it."""
        self.inter_broker_channel: ChannelConfig | None = None
        """How brokers reach one another; None for plain text."""
        if "password.encoder.secret" in self.originals:
            from config.security.password_encoder import PasswordEncoder

            PasswordEncoder.of(self.values)
        if any(each.security_protocol != "PLAINTEXT" for each in self.listeners):
            from config.security.secured_listeners import security_of

            self.ssl, self.sasl, self.inter_broker_channel = security_of(self, BROKER_KEYS)

    def _read_zookeeper(self) -> None:
        self.zookeeper_address: ZookeeperAddress | None = None
        self.zookeeper_tls: ClientSsl | None = None
        if self.zookeeper_connect:
            from config.zookeeper.connect import parse_zookeeper_connect

            self.zookeeper_address = parse_zookeeper_connect(self.zookeeper_connect)
        if self.values["zookeeper.ssl.client.enable"]:
            from config.zookeeper.tls import parse_zookeeper_tls

            self.zookeeper_tls = parse_zookeeper_tls(self.values)


_TOPIC_KEYS_WITHOUT_EFFECT = frozenset({
    "preallocate", "local.retention.ms", "local.retention.bytes", "message.format.version",
    "message.downconversion.enable",
})  # fmt: skip
"""Kept and shown, and nobody acts on them."""

EFFECTIVE_KEYS = frozenset(
    {member.name for member in vars(BrokerConfig).values() if isinstance(member, Setting)}
    | {name for name in BROKER_KEYS if name.startswith("zookeeper.") and "migration" not in name}
    | {name for key, names in BROKER_SYNONYMS.items() if key not in _TOPIC_KEYS_WITHOUT_EFFECT for name in names}
    | {
        "node.id",
        "listeners",
        "advertised.listeners",
        "listener.security.protocol.map",
        "inter.broker.listener.name",
        "security.inter.broker.protocol",
        "inter.broker.protocol.version",
        "log.dir",
        "log.dirs",
        "authorizer.class.name",
        "max.connections.per.ip.overrides",
    }
)
"""The keys this broker acts on."""
