"""All keys of a broker: Kafka's, those only allowed in dynamic configurations (Kafka classes `DynamicConfig.Broker`,
`QuotaConfigs`), and Odradek's.

As in Kafka, a dynamic-only key has no effect in server.properties. A value for one broker overrides that for all
brokers.
"""

from __future__ import annotations

import re
from typing import Final

from config.definitions import (
    DOUBLE,
    INT,
    INT_MAX,
    LIST,
    LONG,
    LONG_MAX,
    STRING,
    ConfigKey,
    ConfigKeys,
    ConfigType,
    Effect,
    Matching,
    OneOf,
    Range,
    Setting,
    table,
)
from config.keys_cluster import ClusterKeys, CoordinationKeys
from config.keys_coordinators import CoordinatorKeys
from config.keys_log import LogKeys
from config.keys_network import NetworkKeys
from config.keys_security import SaslKeys, SecurityKeys
from protocol.scram_mechanisms import MECHANISMS
from security.authorization import AUTHORIZER_KEYS

ALLOWED_URLS: Final = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
"""A system property of Kafka 3.9.1 (CVE-2025-27817), which can be set in KAFKA_OPTS and in the configuration."""


class OdradekKeys(ConfigKeys):
    """The keys that only Odradek has."""

    metrics_listener: Setting[str | None] = Setting(
        STRING,
        None,
        "host:port that serves metrics as Prometheus text over HTTP; none if not set.",
        Matching(r"\[?[0-9a-zA-Z\-%._:]*\]?:[0-9]{1,5}", "must be host:port, such as 127.0.0.1:9308"),
    )
    log_dir_reserve_bytes = Setting(
        LONG,
        -1,
        "Bytes clients must leave on the disk of each log directory; -1: 64 MiB, or a tenth of a disk below 640 MiB.",
        Range(-1),
    )
    log_scrub_interval_ms = Setting(
        LONG,
        24 * 3600 * 1000,
        "Milliseconds between the beginnings of two passes that read and check all sealed segments; -1: no passes.",
        Range(-1),
    )
    log_scrub_max_bytes_per_second = Setting(
        LONG, 8 << 20, "How many bytes a second those passes read at most.", Range(1)
    )
    log_validate_records = Setting(
        STRING,
        "header",
        "How far a batch is checked before it is appended: `header` (sizes, counts, CRC) or `deep` (every record too).",
        OneOf(("header", "deep")),
    )
    allowed_urls: Setting[tuple[str, ...]] = Setting(
        LIST,
        (),
        "https: URLs that the broker may ask for the keys of issuers of tokens and for tokens; also in KAFKA_OPTS.",
        effect=Effect.SASL,
        name=ALLOWED_URLS,
    )


class BrokerKeys(
    NetworkKeys, LogKeys, ClusterKeys, CoordinatorKeys, SecurityKeys, SaslKeys, CoordinationKeys, OdradekKeys
):
    """Every key of a broker, as attributes."""


BROKER_KEYS = table(
    key for subject in BrokerKeys.__bases__ if issubclass(subject, ConfigKeys) for key in subject.declared()
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


def base_name(listener_key: str) -> str:
    """A listener's key without its mechanism: `plain.sasl.jaas.config` -> `sasl.jaas.config`."""
    return next((key for key in _LISTENER_MECHANISM_KEYS if listener_key.endswith(key)), listener_key)


def declared_key(name: str) -> ConfigKey | None:
    """The declaration of a broker key, with or without a listener's prefix, or None."""
    declared = BROKER_KEYS.get(name) or AUTHORIZER_KEYS.get(name)
    if declared is None and (match := LISTENER_KEY.match(name)):
        declared = BROKER_KEYS.get(base_name(match[2]))
    return declared


def is_password(name: str) -> bool:
    """Whether a key, with or without a listener's prefix, holds a password."""
    declared = declared_key(name)
    return declared is not None and declared.type is ConfigType.PASSWORD


LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
ALTER_LOG_DIRS_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
UNLIMITED_RATE: Final = LONG_MAX

DYNAMIC_BROKER_KEYS = table(
    (
        ConfigKey(
            LEADER_RATE,
            LONG,
            UNLIMITED_RATE,
            "Most bytes per second that a leader sends to throttled followers.",
            Range(0),
        ),
        ConfigKey(
            FOLLOWER_RATE,
            LONG,
            UNLIMITED_RATE,
            "Most bytes per second that throttled followers of this broker fetch.",
            Range(0),
        ),
        ConfigKey(
            ALTER_LOG_DIRS_RATE,
            LONG,
            UNLIMITED_RATE,
            "Most bytes per second that moves between the log directories of this broker copy, all together.",
            Range(0),
        ),
    )
)
"""All dynamic-only keys of brokers. DescribeConfigs reports them as read-only, although only AlterConfigs can set them,
as in Kafka.
"""


PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

CLIENT_QUOTA_KEYS = table(
    (
        ConfigKey(PRODUCER_BYTE_RATE, LONG, LONG_MAX, "Most bytes per second of produce requests."),
        ConfigKey(CONSUMER_BYTE_RATE, LONG, LONG_MAX, "Most bytes per second of fetch responses."),
        ConfigKey(REQUEST_PERCENTAGE, DOUBLE, float(INT_MAX), "Most of the broker's time, in percent of one thread."),
        ConfigKey(CONTROLLER_MUTATION_RATE, DOUBLE, float(INT_MAX), "Most partitions created and deleted per second."),
    )
)
"""The quotas of users, client ids and both."""

IP_QUOTA_KEYS = table(
    (ConfigKey(CONNECTION_CREATION_RATE, INT, INT_MAX, "Most connections per second of an address.", Range(0)),)
)
"""The quotas of IP addresses."""

SCRAM_KEYS: Final = tuple(MECHANISMS.values())
"""The SCRAM credentials in a user's configuration. AlterClientQuotas can remove them but not set them."""
