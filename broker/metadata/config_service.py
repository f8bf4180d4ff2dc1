"""The current configuration: static file, cluster-wide dynamic defaults, this broker's dynamic values, topic overrides.

Replaces Kafka's `DynamicBrokerConfig` (KIP-226). Everything is derived from the static configuration and the
MetadataImage, so it cannot get out of sync; listeners added with `on_change` learn of changes.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from broker.metadata.metadata_cache import MetadataCache
from broker.metadata.reconfiguration import check_local_retention, check_worker_counts
from broker.metadata.topic_configs import log_config_of
from cluster.metadata_image import MetadataImage
from config.broker_config import BrokerConfig
from config.broker_keys import BROKER_KEYS, DYNAMIC_BROKER_KEYS, LISTENER_KEY, base_name, is_password
from config.broker_keys import declared_key as static_key
from config.definitions import ConfigError, ConfigKey, ConfigRuleError, ConfigType, UpdateMode, value_to_text
from config.rules import check_promise
from config.topic_config import (
    BROKER_SYNONYMS,
    TOPIC_KEYS,
    check_topic_config,
    parse_topic_config,
    validate_topic_config,
)
from protocol.config_resources import ConfigResourceType, ConfigSource
from protocol.errors import ApiError, ErrorCode
from protocol.value import Value
from storage.log_config import LogConfig

logger = logging.getLogger("kafka.server.DynamicBrokerConfig")

CLUSTER_DEFAULT = ""
"""Name of the resource with the defaults of all brokers."""

_SYNONYM_GROUPS = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
)
_GROUP_OF = {name: group for group in _SYNONYM_GROUPS for name in group if name != "log.flush.scheduler.interval.ms"}
_SECURITY_KEYS = re.compile(r"ssl\.(keystore|truststore|key)\.(?!.*algorithm)")
NOT_YET_DYNAMIC = re.compile(
    r"(listener\.name\.(?P<listener>[^.]*)\..*?)?"
    r"((ssl\.(?!(key|trust)store\.|key\.password\Z)|sasl\.).*|connections\.max\.reauth\.ms)\Z"
)
"""Kafka accepts new values of these for listeners that are opened later. This broker rejects them, unless the same
change opens or closes the listener.
"""


MOST_REMEMBERED: Final = 1000
"""Maximum size of the caches by sets of overrides; clusters have few distinct sets."""

Overrides = tuple[tuple[str, str], ...]
T = TypeVar("T")


class Synonym(NamedTuple):
    """A key and its value, which apply if all earlier synonyms are unset. `value` is None if it is secret."""

    name: str
    value: str | None
    source: ConfigSource


class DescribedConfig(Value):
    """One value as DescribeConfigs shows it; `config_type` is 0 for an undeclared key."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool
    synonyms: tuple[Synonym, ...]
    config_type: int
    documentation: str | None


class ConfigService:
    """See the module. `static` is the configuration at the start; `metadata` has the dynamic values."""

    def __init__(self, static: BrokerConfig, metadata: MetadataCache) -> None:
        self.broker_id = static.broker_id
        self._static = static
        self._metadata = metadata
        self._default_texts = {
            name: text
            for name, declared in BROKER_KEYS.items()
            if (text := value_to_text(declared.default)) is not None
        }
        self._listeners: list[Callable[[BrokerConfig], None]] = []
        self.check_listeners: Callable[[BrokerConfig, BrokerConfig], Awaitable[None]] = _has_no_listeners
        """Raises ConfigError or ApiError if listeners or TLS stores cannot change to the second configuration."""
        self._overrides: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})
        self._current = static
        self._kept: Mapping[str, str] = {}
        self._plain: Mapping[str, str] = {}
        """This broker's dynamic configuration: `_kept` has encoded passwords, `_plain` plain-text ones."""
        self._log_configs: dict[Overrides, LogConfig] = {}
        self._described_topics: dict[Overrides, Sequence[DescribedConfig]] = {}
        self._described_broker: Sequence[DescribedConfig] | None = None

    # -- current values ------------------------------------------------------------------------------------------------

    @property
    def current(self) -> BrokerConfig:
        """The broker's current configuration."""
        return self.in_force(self._metadata.image)

    def in_force(self, image: MetadataImage) -> BrokerConfig:
        """The broker's configuration according to `image`. Returns the same object until something changes."""
        overrides = self._dynamic(image)
        if overrides != self._overrides:
            self._overrides = overrides
            self._current = self._apply({**overrides[0], **overrides[1]})
            self._log_configs.clear()
            self._described_topics.clear()
            self._described_broker = None
        return self._current

    def dynamic_limit(self, name: str) -> int:
        """The current value of a key that exists only as dynamic configuration (`DYNAMIC_BROKER_KEYS`)."""
        declared = DYNAMIC_BROKER_KEYS[name]
        defaults, own = self._dynamic(self._metadata.image)
        text = own.get(name, defaults.get(name))
        try:
            value = declared.default if text is None else declared.parse(text)
        except ConfigError:  # written to the tree without `validate_broker`
            value = declared.default
        assert isinstance(value, int)
        return value

    def log_config(self, topic: str) -> LogConfig:
        """The configuration of a topic's logs."""
        image = self._metadata.image
        current = self.in_force(image)
        overrides = _key_of(image.config(ConfigResourceType.TOPIC, topic))
        known = self._log_configs.get(overrides)
        if known is None:
            known = log_config_of(current, image, topic)
            _remember(self._log_configs, overrides, known)
        return known

    def on_change(self, listener: Callable[[BrokerConfig], None]) -> None:
        """Call `listener` with the new configuration after each dynamic change of the broker's configuration."""
        self._listeners.append(listener)

    def image_changed(self, old: MetadataImage, new: MetadataImage) -> None:
        """Apply a new metadata image."""
        if new.configs is old.configs or self._dynamic(old) == self._dynamic(new):
            return
        config = self.in_force(new)
        for listener in self._listeners:
            listener(config)

    def _dynamic(self, image: MetadataImage) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """The cluster-wide defaults, and this broker's values."""
        own = image.config(ConfigResourceType.BROKER, str(self.broker_id))
        return image.config(ConfigResourceType.BROKER, CLUSTER_DEFAULT), self._decoded(own) if own else own

    def _decoded(self, own: Mapping[str, str]) -> Mapping[str, str]:
        if own != self._kept:
            self._kept = self._plain = own
            if any(is_password(name) for name in own):
                self._plain = decoded(own, self._static)
        return self._plain

    def dynamic_of(self, name: str) -> Mapping[str, str]:
        """The dynamic configuration of this broker or, for CLUSTER_DEFAULT, of all; passwords are in plain text."""
        return self._dynamic(self._metadata.image)[0 if name == CLUSTER_DEFAULT else 1]

    def as_kept(self, properties: Mapping[str, str]) -> Mapping[str, str]:
        """Encode the passwords of a dynamic configuration for the coordination tree. Raises ApiError."""
        if not any(is_password(name) for name in properties):
            return properties

        return encoded(properties, self._static)

    def _apply(self, properties: Mapping[str, str]) -> BrokerConfig:
        """Apply `properties` to the static configuration. Skips and logs invalid keys, as Kafka does."""
        try:
            return self._static.with_dynamic(properties)
        except ConfigError as error:
            logger.error("The dynamic configuration is invalid; only its valid keys are used: %s", error)
        usable: dict[str, str] = {}
        config = self._static
        for name, text in properties.items():
            try:
                config = self._static.with_dynamic({**usable, name: text})
            except ConfigError as error:
                logger.error("Dynamic configuration %s is ignored: %s", name, error)
            else:
                usable[name] = text
        return config

    # -- describing ----------------------------------------------------------------------------------------------------

    def describe_topic(self, overrides: Mapping[str, str]) -> Sequence[DescribedConfig]:
        """Describe all keys of a topic with these overrides. Topics with equal overrides share the returned object."""
        current, key = self.current, _key_of(overrides)
        known = self._described_topics.get(key)
        if known is None:
            known = self._describe_topic(overrides, current)
            _remember(self._described_topics, key, known)
        return known

    def _describe_topic(self, overrides: Mapping[str, str], current: BrokerConfig) -> list[DescribedConfig]:
        values = parse_topic_config(overrides, current.topic_defaults())
        described = []
        for name, declared in TOPIC_KEYS.items():
            value = value_to_text(values[name])
            names = BROKER_SYNONYMS.get(name)
            synonyms = self._synonyms(names[0]) if names else ()
            if name in overrides:
                synonyms = (Synonym(name, value, ConfigSource.DYNAMIC_TOPIC_CONFIG), *synonyms)
            described.append(_described(name, value, synonyms, declared, read_only=False))
        return described

    def describe_broker(self) -> Sequence[DescribedConfig]:
        """Describe all declared or otherwise set keys of this broker. Returns the same object until they change."""
        config = self.current
        if self._described_broker is None:
            self._described_broker = self._describe_broker(config)
        return self._described_broker

    def _describe_broker(self, config: BrokerConfig) -> list[DescribedConfig]:
        names = [name for name, declared in BROKER_KEYS.items() if not declared.internal or name in config.originals]
        names.extend(name for name in config.originals if name not in BROKER_KEYS)
        return [self._describe_broker_key(name, config) for name in names]

    def describe_cluster_default(self) -> list[DescribedConfig]:
        """Describe the cluster-wide dynamic defaults only."""
        described = []
        for name, text in self._dynamic(self._metadata.image)[0].items():
            declared = declared_key(name)
            synonyms = tuple(
                each for each in self._synonyms(name) if each.source is ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
            )
            value = None if declared is None or declared.is_sensitive else text
            described.append(_described(name, value, synonyms, declared, read_only=_is_read_only(name)))
        return described

    def _describe_broker_key(self, name: str, config: BrokerConfig) -> DescribedConfig:
        declared = declared_key(name)
        value = None
        if declared is not None and not declared.is_sensitive:
            value = value_to_text(config.values[name]) if name in config.values else config.originals.get(name)
        return _described(name, value, self._synonyms(name), declared, read_only=_is_read_only(name))

    def _synonyms(self, name: str) -> tuple[Synonym, ...]:
        """List the values set for `name`, in order of precedence.

        As in Kafka, entries before the first one of `name` itself are dropped (meant for listener overrides), so
        log.retention.ms lacks synonyms while only log.retention.hours is set.
        """
        declared = declared_key(name)
        secret = declared is None or declared.is_sensitive
        defaults, own = self._dynamic(self._metadata.image)
        layers: tuple[tuple[Mapping[str, str], ConfigSource], ...] = (
            (own, ConfigSource.DYNAMIC_BROKER_CONFIG),
            (defaults, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
            (self._static.originals, ConfigSource.STATIC_BROKER_CONFIG),
            (self._default_texts, ConfigSource.DEFAULT_CONFIG),
        )
        found = [
            Synonym(each, None if secret else texts[each], source)
            for texts, source in layers
            for each in _names_of(name)
            if each in texts
        ]
        while found and found[0].name != name:
            found.pop(0)
        return tuple(found)

    # -- validation ----------------------------------------------------------------------------------------------------

    def validate_topic(self, overrides: Mapping[str, str | None]) -> None:
        """Raise ApiError(INVALID_CONFIG) if a new topic cannot have these overrides on this broker."""
        validate_topic_config(overrides, self.current.topic_defaults())

    def validate_topic_change(self, topic: str, overrides: Mapping[str, str]) -> None:
        """Like `validate_topic`, with Kafka's error message for an existing topic."""
        try:
            check_topic_config(overrides, self.current.topic_defaults())
        except ConfigError as error:
            text = f"Invalid config value for resource ConfigResource(type=TOPIC, name='{topic}'): {error}"
            raise ApiError(ErrorCode.INVALID_CONFIG, text) from error

    async def validate_broker(self, properties: Mapping[str, str], *, per_broker: bool) -> None:
        """Validate a broker's complete dynamic configuration, like Kafka's `DynamicBrokerConfig.validate`.

        `per_broker` selects this broker's values rather than the cluster-wide defaults. Raises
        ApiError(INVALID_REQUEST), Kafka's error code for this (KAFKA-13609), with the key and its allowed values.
        """
        _refuse("Cannot update these configs dynamically", [name for name in properties if _is_never_dynamic(name)])
        bare = [name for name in properties if _SECURITY_KEYS.match(name)]
        if bare:
            text = "These security configs can be dynamically updated only per-listener using the listener prefix"
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{text}: HashSet({', '.join(bare)})")
        try:
            for name, text in properties.items():
                declared = declared_key(name)
                if declared is not None:
                    declared.parse(text)
            if not per_broker:
                text = "Cannot update these configs at default cluster level, broker id must be specified"
                _refuse(text, [name for name in properties if _is_per_broker(name)])
            proposed = self._proposed(properties, per_broker=per_broker)
            _refuse("Cannot update these configs dynamically", list(self._not_yet_dynamic(properties, proposed)))
            for name in properties:
                check_promise(name, proposed)
            await self.check_listeners(self.current, proposed)
        except ConfigRuleError as error:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"requirement failed: {error}") from error
        except ConfigError as error:
            raise ApiError(ErrorCode.INVALID_REQUEST, str(error)) from error
        check_local_retention(properties, self.current, proposed)
        check_worker_counts(self.current, proposed)

    def _not_yet_dynamic(self, properties: Mapping[str, str], proposed: BrokerConfig) -> Iterator[str]:
        before = self._dynamic(self._metadata.image)[1]
        now, then = ({each.listener_name for each in config.listeners} for config in (self.current, proposed))
        for name in {**properties, **before}:
            match = NOT_YET_DYNAMIC.match(name)
            if match is None:
                continue
            listener = match["listener"]
            if listener is None:
                is_refused = name in properties
            else:
                is_refused = listener.upper() in now & then and properties.get(name) != before.get(name)
            if is_refused:
                yield name

    def _proposed(self, properties: Mapping[str, str], *, per_broker: bool) -> BrokerConfig:
        defaults, own = self._dynamic(self._metadata.image)
        layers = (defaults, properties) if per_broker else (properties, own)
        return self._static.with_dynamic({**layers[0], **layers[1]})


async def _has_no_listeners(current: BrokerConfig, proposed: BrokerConfig) -> None:
    """Placeholder until the broker has started."""


def _key_of(overrides: Mapping[str, str]) -> Overrides:
    return tuple(sorted(overrides.items())) if overrides else ()


def _remember(known: dict[Overrides, T], overrides: Overrides, value: T) -> None:
    if len(known) >= MOST_REMEMBERED:
        known.clear()
    known[overrides] = value


def declared_key(name: str) -> ConfigKey | None:
    """The declaration of a broker key, including dynamic-only keys and keys with a listener prefix, or None if
    undeclared.
    """
    return static_key(name) or DYNAMIC_BROKER_KEYS.get(name)


def _names_of(name: str) -> tuple[str, ...]:
    """`name` and its fallback keys, in order of precedence."""
    if match := LISTENER_KEY.match(name):
        return name, base_name(match[2])
    return _GROUP_OF.get(name, (name,))


def _is_read_only(name: str) -> bool:
    declared = BROKER_KEYS.get(name)
    return declared is None or declared.update_mode is UpdateMode.READ_ONLY


def _is_never_dynamic(name: str) -> bool:
    return name in BROKER_KEYS and _is_read_only(name)


def _is_per_broker(name: str) -> bool:
    declared = declared_key(name)
    if declared is None or name in DYNAMIC_BROKER_KEYS:
        return False
    return declared.update_mode is UpdateMode.PER_BROKER or name not in BROKER_KEYS


def _refuse(text: str, names: list[str]) -> None:
    if names:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{text}: Set({', '.join(names)})")


def _described(
    name: str, value: str | None, synonyms: tuple[Synonym, ...], declared: ConfigKey | None, *, read_only: bool
) -> DescribedConfig:
    return DescribedConfig(
        name,
        value,
        synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        read_only,
        declared is None or declared.type is ConfigType.PASSWORD,
        synonyms,
        0 if declared is None else int(declared.type),
        None if declared is None else declared.doc,
    )


def decoded(properties: Mapping[str, str], config: BrokerConfig) -> dict[str, str]:
    """`properties` with plain-text passwords. Passwords that cannot be decoded are logged and dropped."""
    from security.password_encoder import PasswordEncoder  # most brokers need neither it nor its hashes

    encoder = PasswordEncoder.of(config.values)
    result: dict[str, str] = {}
    for name, text in properties.items():
        if not is_password(name):
            result[name] = text
        elif encoder is None:
            logger.error("Dynamic password config %s is ignored: password.encoder.secret is not set", name)
        else:
            try:
                result[name] = encoder.decode(text)
            except ValueError as error:
                logger.error("Dynamic password config %s could not be decoded, ignoring: %s", name, error)
    return result


def encoded(properties: Mapping[str, str], config: BrokerConfig) -> dict[str, str]:
    """`properties` with encoded passwords. Raises ApiError(INVALID_REQUEST) if password.encoder.secret is not set."""
    from security.password_encoder import PasswordEncoder  # most brokers need neither it nor its hashes

    encoder = PasswordEncoder.of(config.values)
    if encoder is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Password encoder secret not configured")
    return {name: encoder.encode(text) if is_password(name) else text for name, text in properties.items()}
