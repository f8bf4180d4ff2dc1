"""BrokerConfig: the configuration of one broker, from server.properties and --override (Kafka class `KafkaConfig`)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, cast

from config.broker_keys import BROKER_KEYS, DYNAMIC_BROKER_KEYS, LISTENER_KEY, BrokerKeys, declared_key
from config.definitions import ConfigError, ConfigErrors, ConfigRuleError, Effect, Value
from config.listeners import (
    EndPoint,
    check_advertised,
    inter_broker_listener,
    parse_ip_overrides,
    parse_listeners,
    parse_protocol_map,
    split_csv,
)
from config.properties import is_provider_key, load_properties, refuse_reference
from config.rules import refusals, rules
from config.topic_config import BROKER_SYNONYMS, check_compaction_lags
from protocol.errors import detached
from security.authorization import settings_of_tokens

if TYPE_CHECKING:
    from pathlib import Path

    from config.kraft import SingleNode
    from config.zookeeper_connection import ZookeeperAddress
    from security.channel_config import ChannelConfig
    from security.sasl_config import SaslConfig
    from security.tls import ClientSsl, SslConfig


ELSEWHERE_KEYS = {
    **dict.fromkeys(DYNAMIC_BROKER_KEYS, "set it with kafka-configs --entity-type brokers; Kafka ignores it in a file"),
    **dict.fromkeys(
        ("quota.producer.default", "quota.consumer.default"),
        "Kafka 3 sets client quotas with kafka-configs --entity-type clients",
    ),
    **dict.fromkeys(("host.name", "port"), "Kafka 3 has removed it; set listeners"),
    **dict.fromkeys(("advertised.host.name", "advertised.port"), "Kafka 3 has removed it; set advertised.listeners"),
}
"""Kafka keys that have no effect here, with the reason and what to do instead."""


_LISTENER_LIMITS: Final = ("max.connections", "max.connection.creation.rate")
"""Limits that can also be set for a single listener."""


class BrokerConfig(BrokerKeys):
    """The parsed configuration of one broker; immutable.

    `originals` holds the configured text, `values` the parsed value of every declared key. Each key is an attribute,
    even without effect (`without_effect` lists those that are set). Times are in the unit of the name, sizes in bytes.
    The constructor and `load` raise ConfigError (key, value, allowed values).
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        errors = self._read(properties)
        if errors:
            raise detached(errors[0])

    def _read(self, properties: Mapping[str, str]) -> list[ConfigError]:
        """Set every attribute and return the errors; a key with an invalid value gets its default."""
        errors: list[ConfigError] = []
        originals = dict(properties)
        # As in Kafka, one of the two names sets the other (`KafkaConfig.populateSynonyms`).
        for name, other in (("broker.id", "node.id"), ("node.id", "broker.id")):
            if name in originals:
                originals.setdefault(other, originals[name])
        self.single_node: SingleNode | None = None
        """The unused part of a single-node KRaft configuration."""
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
        """The configuration in a .properties file, with `overrides` on top. Raises as `of`, and OSError."""
        with open(path, "rb") as file:
            return cls.of({**load_properties(file.read()), **(overrides or {})})

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> BrokerConfig:
        """The configuration with these keys. Raises ConfigError for all errors, including keys that require
        unimplemented security or durability.
        """
        config, errors = cls.examine(properties)
        if errors:
            raise errors[0] if len(errors) == 1 else ConfigErrors(errors)
        return config

    @classmethod
    def examine(cls, properties: Mapping[str, str]) -> tuple[BrokerConfig, list[ConfigError]]:
        """The configuration and its errors; it is only usable without errors."""
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
        """Undeclared keys that are set; they deserve a warning, as in Kafka."""
        return [
            name
            for name in self.originals
            if declared_key(name) is None and name not in ELSEWHERE_KEYS and not is_provider_key(name)
        ]

    def without_effect(self) -> list[str]:
        """Kafka's keys that are set but have no effect here, including most keys of single listeners."""
        known = [name for name in self.originals if name in ELSEWHERE_KEYS or declared_key(name) is not None]
        return [name for name in known if name in ELSEWHERE_KEYS or not self._has_effect(name)]

    def remarks(self) -> dict[str, str]:
        """Remarks, by key, on effective values that differ from the configured text."""
        remarks = {}
        for name in self.originals:
            if name.endswith("ssl.enabled.protocols") and name not in self.without_effect():
                from security.tls import OBSOLETE_PROTOCOLS

                left_out = [each for each in split_csv(self.originals[name]) if each in OBSOLETE_PROTOCOLS]
                if left_out:
                    remarks[name] = f"{', '.join(left_out)} is obsolete and not offered; the other versions are"
        return remarks

    def _limits_a_listener(self, name: str) -> bool:
        of_listener = LISTENER_KEY.match(name)
        names = {each.listener_name.lower() for each in self.listeners}
        return of_listener is not None and of_listener[1] in names and of_listener[2] in _LISTENER_LIMITS

    def _has_effect(self, name: str) -> bool:
        """Whether a declared key, possibly of a single listener, has an effect on this broker."""
        declared = declared_key(name)
        if declared is None:
            return False
        match declared.effect:
            case Effect.ALWAYS:
                return declared.refusal is None and (LISTENER_KEY.match(name) is None or self._limits_a_listener(name))
            case Effect.TLS:
                return bool(self.ssl)
            case Effect.SASL:
                return bool(self.sasl)
            case Effect.TOKENS:
                return settings_of_tokens(self.values) is not None
            case Effect.ENCODER:
                return "password.encoder.secret" in self.originals
            case Effect.NEVER:
                return False

    def with_dynamic(self, properties: Mapping[str, str]) -> BrokerConfig:
        """This configuration with dynamic overrides (KIP-226) on top. Raises ConfigError, also for a secret that is a
        reference: dynamic values are not resolved, so that clients cannot read the broker's files through them.
        """
        for name, text in properties.items():
            if "${" in text:
                refuse_reference(name, text)
        return BrokerConfig({**self.originals, **properties})

    # Values computed from several keys

    @property
    def log_dirs(self) -> tuple[str, ...]:
        """Data directories, at least one: log.dirs, or log.dir if that is not set."""
        text = self.values["log.dirs"] if self.values["log.dirs"] is not None else self.values["log.dir"]
        return split_csv(str(text))

    @property
    def log_roll_time_ms(self) -> int:
        """Maximum age of an active segment."""
        return self._first_ms(("log.roll.ms", 1), ("log.roll.hours", 3_600_000))

    @property
    def log_roll_jitter_time_ms(self) -> int:
        """Largest random reduction of the roll time."""
        return self._first_ms(("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", 3_600_000))

    @property
    def log_retention_time_ms(self) -> int:
        """Retention time of records; -1 for unlimited."""
        units = ("log.retention.ms", 1), ("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000)
        return max(self._first_ms(*units), -1)

    @property
    def log_flush_interval_time_ms(self) -> int:
        """Time until a partition is flushed to disk."""
        return self._first_ms(("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1))

    @property
    def max_connections_per_ip_overrides(self) -> dict[str, int]:
        """Connection limits for single addresses."""
        name = "max.connections.per.ip.overrides"
        return parse_ip_overrides(name, str(self.values[name]))

    @property
    def zookeeper_connection_timeout_ms(self) -> int:
        """Timeout of the first connection to ZooKeeper: by default the session timeout."""
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
            # The old single limit applies if the newer one is not set (KIP-937).
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
        """Connection limits by listener name."""
        self.max_connection_creation_rate_per_listener: dict[str, int] = {}
        """Limits of new connections per second by listener name."""
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
        """TLS settings by listener name."""
        self.sasl: dict[str, SaslConfig] = {}
        """SASL settings by listener name."""
        self.inter_broker_channel: ChannelConfig | None = None
        """TLS and SASL between brokers, or None for plain text."""
        if "password.encoder.secret" in self.originals:
            from security.password_encoder import PasswordEncoder

            PasswordEncoder.of(self.values)
        if any(each.security_protocol != "PLAINTEXT" for each in self.listeners):
            from security.channel_config import security_of

            self.ssl, self.sasl, self.inter_broker_channel = security_of(self, BROKER_KEYS)

    def _read_zookeeper(self) -> None:
        self.zookeeper_address: ZookeeperAddress | None = None
        self.zookeeper_tls: ClientSsl | None = None
        if self.zookeeper_connect:
            from config.zookeeper_connection import parse_zookeeper_connect

            self.zookeeper_address = parse_zookeeper_connect(self.zookeeper_connect)
        if self.values["zookeeper.ssl.client.enable"]:
            from config.zookeeper_connection import parse_zookeeper_tls

            self.zookeeper_tls = parse_zookeeper_tls(self.values)
