"""Keys of a broker that only its dynamic configuration has (Kafka classes `DynamicConfig.Broker`, `QuotaConfigs`).

In server.properties they mean nothing, to Kafka neither. A broker's own value goes before that of all brokers.
"""

from __future__ import annotations

from typing import Final

from config.definitions import ConfigKey, Range, table
from config.vocabulary import LONG, LONG_MAX

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
"""Every one of them. To DescribeConfigs they are read-only, although only AlterConfigs can set them, as in Kafka."""
