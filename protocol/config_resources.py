"""Configuration on the wire: the numbers of resource types, sources of values and operations."""

from __future__ import annotations

from enum import IntEnum


class ConfigResourceType(IntEnum):
    """The type of a resource that has a configuration (Kafka's `ConfigResource.Type`)."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16


class ConfigSource(IntEnum):
    """The source of a value in DescribeConfigs v1+ (KIP-226; Kafka's `ConfigEntry.ConfigSource`)."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6


class AlterConfigOp(IntEnum):
    """The operation of IncrementalAlterConfigs on a key (KIP-339; Kafka's `AlterConfigOp.OpType`)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3
