"""Keys of the quotas of users, clients and addresses (Kafka class `QuotaConfigs`). AlterClientQuotas sets them."""

from __future__ import annotations

from typing import Final

from config.definitions import ConfigKey, Range, table
from config.vocabulary import DOUBLE, INT, INT_MAX, LONG, LONG_MAX
from protocol.scram_mechanisms import MECHANISMS

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
"""Those of users, client ids and both."""

IP_QUOTA_KEYS = table(
    (ConfigKey(CONNECTION_CREATION_RATE, INT, INT_MAX, "Most connections per second of an address.", Range(0)),)
)
"""Those of IP addresses."""

SCRAM_KEYS: Final = tuple(MECHANISMS.values())
"""Credentials, which a user's configuration has besides. AlterClientQuotas can take them away but not set them."""
