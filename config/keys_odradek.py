"""The keys that are ours and not Kafka's."""

from __future__ import annotations

from typing import Final

from config.definitions import ConfigKeys, Effect, Matching, OneOf, Range, Setting
from config.vocabulary import LIST, LONG, STRING

ALLOWED_URLS: Final = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
"""A system property of Kafka 3.9.1 (CVE-2025-27817), which is read from KAFKA_OPTS and from the configuration."""


class OdradekKeys(ConfigKeys):
    """The keys that are ours and not Kafka's."""

    metrics_listener: Setting[str | None] = Setting(
        STRING,
        None,
        "host:port where metrics are served as Prometheus text over HTTP; not set, there is no such listener.",
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
