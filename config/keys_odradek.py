"""The keys that are ours and not Kafka's."""

from __future__ import annotations

from config.definitions import ConfigKey, Matching, OneOf, Range
from config.vocabulary import LONG, STRING

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
)
