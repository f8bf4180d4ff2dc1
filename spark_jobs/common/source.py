"""The Kafka source (topics, starting position, batch limits), and Java's files of client properties."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.checkpoints.checkpoint import Offsets
from spark_jobs.common.kafka_admin import KafkaAdmin

_ENTRY = re.compile(r"((?:\\.|[^\\=: \t\f])+)[ \t\f]*[=:][ \t\f]*(.*)")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_properties(path: str) -> dict[str, str]:
    """The entries of a file in UTF-8. A backslash escapes the next character; at the end of a line it continues the
    line. Raises OSError, and ValueError naming a line that is not an entry.
    """
    properties = {}
    for number, line in _logical_lines(Path(path).read_text(encoding="utf-8")):
        found = _ENTRY.fullmatch(line)
        if found is None:
            raise ValueError(f"{path}:{number}: not 'key=value': {line}")
        properties[_plain(found[1])] = _plain(found[2])
    return properties


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Logical lines with the number of their first line, stripped, without comments and blank lines."""
    first, logical = 0, ""
    for number, natural in enumerate(text.splitlines(), start=1):
        line = natural.strip()
        if not logical and (not line or line[0] in "#!"):
            continue
        first = first or number
        if (len(line) - len(line.rstrip("\\"))) % 2:
            logical += line[:-1]
            continue
        yield first, logical + line
        first, logical = 0, ""
    if logical:
        yield first, logical


def _plain(written: str) -> str:
    return _ESCAPE.sub(lambda found: _letter(found[1]), written)


def _letter(escaped: str) -> str:
    return chr(int(escaped[1:], 16)) if len(escaped) > 1 else _LETTERS.get(escaped, escaped)


FETCH_OPTIONS = {
    "kafka.max.poll.records": "10000",
    "kafka.fetch.max.bytes": "104857600",
    "kafka.max.partition.fetch.bytes": "10485760",
    "fetchOffset.numRetries": "20",
}
"""Large polls: the executor asks for both ends of the partition at each poll, 500 records at a time by default.

Also a longer retry, 20 s instead of 3: an Apache broker that has just started denies its topics until the controller
has sent it their metadata, and Spark's source would end the query.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """Topics to read. Exactly one of `topics` (comma separated) and `pattern` (a Java regular expression) is given.

    `starting` applies to a new checkpoint only: `earliest`, `latest`, `@TIMESTAMP` (milliseconds or ISO 8601, UTC
    unless it has an offset), or Spark's JSON of offsets. `client_properties` are Kafka's own, without a prefix.
    `max_bytes_per_trigger` is approximate, as `bytes_an_offset` estimates.
    """

    bootstrap_servers: str
    topics: str | None = None
    pattern: str | None = None
    starting: str = "earliest"
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_partitions: int | None = None
    isolation_level: str = "read_committed"
    fail_on_data_loss: bool = True
    client_properties: dict[str, str] = dataclasses.field(default_factory=dict)

    def topic_names(self) -> list[str]:
        """The names in `topics`."""
        return [name.strip() for name in (self.topics or "").split(",") if name.strip()]


def read_client_properties(path: str) -> dict[str, str]:
    """The entries of a client properties file; raises as `read_properties` does.

    Inlines the PEM files that it names (`ssl.truststore.type=PEM`, `ssl.keystore.type=PEM`): executors cannot read
    them.
    """
    return _with_pem_texts(read_properties(path))


def _with_pem_texts(properties: dict[str, str]) -> dict[str, str]:
    """Client properties with the contents of the PEM files instead of their names. Raises OSError."""
    held = dict(properties)
    if properties.get("ssl.truststore.type") == "PEM" and "ssl.truststore.location" in properties:
        held["ssl.truststore.certificates"] = Path(held.pop("ssl.truststore.location")).read_text(encoding="utf-8")
    if properties.get("ssl.keystore.type") == "PEM" and "ssl.keystore.location" in properties:
        text = Path(held.pop("ssl.keystore.location")).read_text(encoding="utf-8")
        for name, kind in (
            ("ssl.keystore.key", "[A-Z ]*PRIVATE KEY"),
            ("ssl.keystore.certificate.chain", "CERTIFICATE"),
        ):
            held[name] = "\n".join(re.findall(rf"-----BEGIN {kind}-----.+?-----END {kind}-----", text, re.DOTALL))
    return held


def starting_options(starting: str) -> dict[str, str]:
    """Spark's source options for a `starting` value; raises ValueError for any but the four forms."""
    if starting.startswith("@"):
        # A time after the last record starts at the end, as a consumer's seek does, instead of failing the query.
        return {
            "startingTimestamp": str(timestamp_ms(starting[1:])),
            "startingOffsetsByTimestampStrategy": "latest",
        }
    starting_offsets(starting)
    return {"startingOffsets": starting}


def starting_offsets(starting: str) -> Offsets | None:
    """The offsets of a `starting` value in JSON, or None for the other forms; raises ValueError if it is neither."""
    if starting in {"earliest", "latest"} or starting.startswith("@"):
        return None
    try:
        given: Offsets = json.loads(starting)
        if all(isinstance(offset, int) for numbers in given.values() for offset in numbers.values()):
            return given
    except (json.JSONDecodeError, AttributeError):
        pass
    raise ValueError(
        f"--starting {starting}: must be earliest, latest, @TIMESTAMP or JSON of offsets like "
        '{"topic":{"0":23,"1":-2}} (-2: the first, -1: the end)'
    )


def check_starting_offsets(starting: str, topics: dict[str, int]) -> None:
    """Raise ValueError if `starting` is JSON and does not name exactly the partitions of `topics`. Spark's source
    reports that too, but after retrying for 20 s.
    """
    offsets = starting_offsets(starting)
    if offsets is None:
        return
    given = {(topic, number) for topic, numbers in offsets.items() for number in numbers}
    there = {(topic, str(number)) for topic, count in topics.items() for number in range(count)}
    for wrong, what in ((there - given, "has no offset for"), (given - there, "the query does not read")):
        if wrong:
            named = ", ".join(f"{topic}-{number}" for topic, number in sorted(wrong))
            raise ValueError(f"--starting {starting}: {what} {named}")


def timestamp_ms(text: str) -> int:
    """Milliseconds since 1970 of a number or an ISO 8601 time (UTC unless it names an offset); raises ValueError."""
    if text.isdigit():
        return int(text)
    moment = dt.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return int(moment.timestamp() * 1000)


def source_options(config: SourceConfig) -> dict[str, str]:
    """All options of the Kafka source for `config`; the user's client properties override `FETCH_OPTIONS`."""
    options = dict(FETCH_OPTIONS)
    options |= {f"kafka.{key}": value for key, value in config.client_properties.items()}
    options |= starting_options(config.starting)
    options |= {
        "kafka.bootstrap.servers": config.bootstrap_servers,
        "kafka.isolation.level": config.isolation_level,
        "failOnDataLoss": str(config.fail_on_data_loss).lower(),
        "includeHeaders": "true",
    }
    if config.topics is not None:
        options["subscribe"] = config.topics
    if config.pattern is not None:
        options["subscribePattern"] = config.pattern
    if config.max_offsets_per_trigger is not None:
        options["maxOffsetsPerTrigger"] = str(config.max_offsets_per_trigger)
    if config.min_partitions is not None:
        options["minPartitions"] = str(config.min_partitions)
    return options


@functools.cache
def bytes_an_offset(
    spark: SparkSession,
    bootstrap_servers: str,
    properties: tuple[tuple[str, str], ...],
    names: tuple[str, ...],
    pattern: str | None,
) -> float | None:
    """Mean bytes per offset of the topics `names`, or of those that match `pattern`, or None if they are empty.

    Spark's source limits batches by offsets only. The bytes are those of the brokers' logs as stored (so compressed, if
    records are), measured once a session: batches with records larger than the mean exceed the limit accordingly.
    Raises Py4JJavaError if a broker does not report the sizes of its logs.
    """
    with KafkaAdmin(spark, bootstrap_servers, dict(properties)) as admin:
        topics = admin.topics(names=names, pattern=pattern)
        firsts, ends = admin.offsets(topics, "earliest"), admin.offsets(topics, "latest", "read_uncommitted")
        offsets = sum(ends[topic][number] - first for topic in firsts for number, first in firsts[topic].items())
        stored_bytes = admin.stored_bytes(topics)
    shown = ",".join(names) or str(pattern)
    if not offsets or not stored_bytes:
        print(f"{shown}: no records to estimate --max-bytes-per-trigger from; it limits nothing", file=sys.stderr)
        return None
    print(f"{shown}: {stored_bytes / offsets:,.0f} bytes an offset, in {offsets:,} offsets", file=sys.stderr)
    return stored_bytes / offsets


def offsets_in(max_bytes: int, mean_bytes: float | None, max_offsets: int | None) -> int | None:
    """Offsets that hold at most `max_bytes` on average, at least 1, and at most `max_offsets`. Pure."""
    if mean_bytes is None:
        return max_offsets
    fit = max(1, int(max_bytes / mean_bytes))
    return fit if max_offsets is None else min(fit, max_offsets)


def read_stream(spark: SparkSession, config: SourceConfig) -> DataFrame:
    """The records as an unbounded frame with the connector's columns, headers included."""
    if config.max_bytes_per_trigger is not None:
        properties = tuple(sorted(config.client_properties.items()))
        topics = tuple(config.topic_names())
        mean_bytes = bytes_an_offset(spark, config.bootstrap_servers, properties, topics, config.pattern)
        offsets = offsets_in(config.max_bytes_per_trigger, mean_bytes, config.max_offsets_per_trigger)
        config = dataclasses.replace(config, max_offsets_per_trigger=offsets)
    return spark.readStream.format("kafka").options(**source_options(config)).load()


def read_range(spark: SparkSession, config: SourceConfig, start: Offsets, end: Offsets) -> DataFrame:
    """The records from `start` to `end`, which must name the same partitions, with the columns of `read_stream`."""
    options = source_options(config)
    for streaming in ("subscribePattern", "startingTimestamp", "startingOffsetsByTimestampStrategy"):
        options.pop(streaming, None)
    options |= {
        "subscribe": ",".join(sorted(end)),
        "startingOffsets": json.dumps(start),
        "endingOffsets": json.dumps(end),
    }
    return spark.read.format("kafka").options(**options).load()
