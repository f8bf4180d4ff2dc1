"""The keys that are ours and not Kafka's."""

from __future__ import annotations

from typing import Final

from config.definitions import ConfigKey, Matching, OneOf, Range
from config.vocabulary import LIST, LONG, STRING

ALLOWED_URLS: Final = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
"""A system property of Kafka 3.9.1 (CVE-2025-27817), which is read from KAFKA_OPTS and from the configuration."""

KEYS = (
    ConfigKey(
        "metrics.listener",
        STRING,
        None,
        "host:port where metrics are served as Prometheus text over HTTP; not set, there is no such listener.",
        Matching(r"\[?[0-9a-zA-Z\-%._:]*\]?:[0-9]{1,5}", "must be host:port, such as 127.0.0.1:9308"),
    ),
    ConfigKey(
        "log.dir.reserve.bytes",
        LONG,
        -1,
        "Bytes clients must leave on the disk of each log directory; -1: 64 MiB, or a tenth of a disk below 640 MiB.",
        Range(-1),
    ),
    ConfigKey(
        "log.scrub.interval.ms",
        LONG,
        24 * 3600 * 1000,
        "Milliseconds between the beginnings of two passes that read and check all sealed segments; -1: no passes.",
        Range(-1),
    ),
    ConfigKey(
        "log.scrub.max.bytes.per.second",
        LONG,
        8 << 20,
        "How many bytes a second those passes read at most.",
        Range(1),
    ),
    ConfigKey(
        "log.validate.records",
        STRING,
        "header",
        "How far a batch is checked before it is appended: `header` (sizes, counts, CRC) or `deep` (every record too).",
        OneOf(("header", "deep")),
    ),
    ConfigKey(
        ALLOWED_URLS,
        LIST,
        (),
        "https: URLs that the broker may ask for the keys of issuers of tokens and for tokens; also in KAFKA_OPTS.",
    ),
)
