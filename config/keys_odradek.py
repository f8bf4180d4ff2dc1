"""The keys that are ours and not Kafka's."""

from __future__ import annotations

from .definitions import ConfigKey, Matching, OneOf
from .vocabulary import STRING

KEYS = (
    ConfigKey(
        "metrics.listener",
        STRING,
        None,
        "host:port where metrics are served as Prometheus text over HTTP; not set, there is no such listener.",
        Matching(r"\[?[0-9a-zA-Z\-%._:]*\]?:[0-9]{1,5}", "must be host:port, such as 127.0.0.1:9308"),
    ),
    ConfigKey(
        "log.validate.records",
        STRING,
        "header",
        "How far a batch is checked before it is appended: `header` (sizes, counts, CRC) or `deep` (every record too).",
        OneOf(("header", "deep")),
    ),
)
