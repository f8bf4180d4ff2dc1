"""Keys that Kafka's users write into server.properties and that are not read from there."""

from __future__ import annotations

from config.dynamic_keys import DYNAMIC_BROKER_KEYS

ELSEWHERE_KEYS = {
    **dict.fromkeys(DYNAMIC_BROKER_KEYS, "set it with kafka-configs --entity-type brokers; Kafka ignores it in a file"),
    **dict.fromkeys(
        ("quota.producer.default", "quota.consumer.default"),
        "Kafka 3 sets client quotas with kafka-configs --entity-type clients",
    ),
    **dict.fromkeys(("host.name", "port"), "Kafka 3 has removed it; set listeners"),
    **dict.fromkeys(("advertised.host.name", "advertised.port"), "Kafka 3 has removed it; set advertised.listeners"),
}
"""Each of them with the reason and what to do instead."""
