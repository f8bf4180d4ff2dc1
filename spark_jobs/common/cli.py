"""The options that every job has, and their value parsers."""

from __future__ import annotations

import argparse
import dataclasses
import re
from typing import Any

from spark_jobs.common.source import SourceConfig, read_client_properties, starting_options

AVAILABLE_NOW = "available-now"
INTERVAL = re.compile(r"(\d+)\s*(ms|s|m|h)")
UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}
_SIZE = re.compile(r"(\d+)\s*(KB|MB|GB|)", re.IGNORECASE)
_SIZES = {"": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """How a query runs, independent of its job.

    `trigger` holds the arguments of `DataStreamWriter.trigger`; `group_id` is the consumer group that shows the query's
    progress, or empty; `metrics_port` is None without metrics.
    """

    checkpoint: str
    trigger: dict[str, Any]
    group_id: str
    metrics_port: int | None


def trigger_options(text: str) -> dict[str, Any]:
    """Arguments of `DataStreamWriter.trigger` for `available-now`, `30s` and the like; raises ArgumentTypeError."""
    if text == AVAILABLE_NOW:
        return {"availableNow": True}
    interval = INTERVAL.fullmatch(text)
    if interval is None:
        raise argparse.ArgumentTypeError(f"'{text}': must be {AVAILABLE_NOW} or an interval like 500ms, 30s, 5m, 1h")
    return {"processingTime": f"{interval[1]} {UNITS[interval[2]]}"}


def starting_position(text: str) -> str:
    """Return `text` if it names a starting position; raises ArgumentTypeError otherwise."""
    try:
        starting_options(text)
    except ValueError as failure:
        raise argparse.ArgumentTypeError(str(failure)) from None
    return text


def positive(text: str) -> int:
    """A whole number of at least 1; raises ArgumentTypeError."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}': must be a whole number of at least 1")
    return int(text)


def size_in_bytes(text: str) -> int:
    """Bytes of `128MB` and the like; raises ArgumentTypeError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or int(match[1]) < 1:
        raise argparse.ArgumentTypeError(f"'{text}': must be a size like 512KB, 128MB, 1GB or a number of bytes")
    return int(match[1]) * _SIZES[match[2].upper()]


def port_number(text: str) -> int:
    """A TCP port, 0 for any free one; raises ArgumentTypeError."""
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"'{text}': must be a port from 0 to 65535")
    return int(text)


def add_common_options(
    parser: argparse.ArgumentParser, *, reads_topics: bool = True, names_topics: bool = True
) -> None:
    """Add the source, trigger and checkpoint options.

    `reads_topics` says whether the job's query reads topics, `names_topics` whether --topics or --pattern name them.
    """
    source = parser.add_argument_group("source")
    source.add_argument("--bootstrap-servers", required=True, metavar="HOST:PORT,...")
    source.add_argument("--command-config", metavar="FILE", help="Kafka client properties")
    if reads_topics:
        _add_topic_options(source, names_topics=names_topics)
    _add_running_options(parser, reads_topics=reads_topics)


def _add_topic_options(source: argparse._ArgumentGroup, *, names_topics: bool) -> None:
    if names_topics:
        which = source.add_mutually_exclusive_group(required=True)
        which.add_argument("--topics", metavar="T1,T2,...")
        which.add_argument(
            "--pattern", metavar="REGEX", help="topics whose whole name matches (a Java regular expression)"
        )
    source.add_argument(
        "--starting",
        type=starting_position,
        default="earliest",
        metavar="POSITION",
        help="where a new checkpoint begins: earliest, latest, @TIMESTAMP or JSON of offsets (default: earliest)",
    )
    source.add_argument(
        "--max-offsets-per-trigger", type=positive, default=1_000_000, metavar="N", help="records a batch"
    )
    source.add_argument(
        "--max-bytes-per-trigger",
        type=size_in_bytes,
        metavar="SIZE",
        help="bytes a batch of each source: 64MB; turned into offsets by an estimate at the start of the job, the mean "
        "size of the topics' records as the brokers store them",
    )
    source.add_argument(
        "--min-partitions", type=positive, metavar="N", help="split topic partitions into this many tasks"
    )
    source.add_argument("--isolation-level", choices=["read_committed", "read_uncommitted"], default="read_committed")
    source.add_argument(
        "--fail-on-data-loss",
        choices=["true", "false"],
        default="true",
        help="whether to stop when records were deleted before they could be read (default: true)",
    )


def _add_running_options(parser: argparse.ArgumentParser, *, reads_topics: bool) -> None:
    running = parser.add_argument_group("running")
    running.add_argument("--checkpoint", required=True, metavar="DIR", help="one per job and output, never shared")
    running.add_argument(
        "--trigger",
        type=trigger_options,
        default=AVAILABLE_NOW,
        metavar="WHEN",
        help="available-now: read what is there and end; 30s: run on, a batch every 30 s (default: %(default)s)",
    )
    if reads_topics:
        running.add_argument(
            "--group-id",
            metavar="GROUP",
            help="consumer group that shows the progress to every lag tool; '' for none "
            "(default: spark-JOB-CHECKPOINT)",
        )
    running.add_argument("--metrics-port", type=port_number, metavar="PORT", help="serve Prometheus metrics there")
    running.add_argument(
        "--explain", action="store_true", help="show the plan and the offsets that would be read, and read nothing"
    )


def add_create_topics_option(group: argparse._ArgumentGroup | argparse._MutuallyExclusiveGroup) -> None:
    """Add the option that creates missing target topics."""
    group.add_argument(
        "--create-topics",
        action="store_true",
        help="create topics to write that are missing, with as many partitions as the largest topic that is read",
    )


def add_session_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the Spark session."""
    spark = parser.add_argument_group("spark")
    spark.add_argument("--master", help="Spark master when not started by spark-submit (default: local[*])")
    spark.add_argument("--kafka-jars", metavar="DIR", help="the connector's jars, instead of asking Maven Central")
    spark.add_argument(
        "--log-level",
        choices=["OFF", "ERROR", "WARN", "INFO", "DEBUG"],
        default="OFF",
        help="of Spark's own log; the job says in one line what stops it (default: OFF)",
    )


def run_config(arguments: argparse.Namespace, job: str) -> RunConfig:
    """The RunConfig of `job` from the common options."""
    checkpoint = str(arguments.checkpoint)
    default_group = f"spark-{job}-{checkpoint.rstrip('/').rpartition('/')[2]}"
    group_id = vars(arguments).get("group_id", "")
    return RunConfig(
        checkpoint=checkpoint,
        trigger=arguments.trigger,
        group_id=default_group if group_id is None else group_id,
        metrics_port=arguments.metrics_port,
    )


def cluster_config(arguments: argparse.Namespace) -> SourceConfig:
    """The cluster that the common options name, without topics; raises as `source_config` does."""
    properties = read_client_properties(arguments.command_config) if arguments.command_config else {}
    return SourceConfig(bootstrap_servers=arguments.bootstrap_servers, client_properties=properties)


def source_config(arguments: argparse.Namespace) -> SourceConfig:
    """The source that the common options name; raises OSError or ValueError for a bad --command-config file."""
    return dataclasses.replace(
        cluster_config(arguments),
        topics=arguments.topics,
        pattern=arguments.pattern,
        starting=arguments.starting,
        max_offsets_per_trigger=arguments.max_offsets_per_trigger,
        max_bytes_per_trigger=arguments.max_bytes_per_trigger,
        min_partitions=arguments.min_partitions,
        isolation_level=arguments.isolation_level,
        fail_on_data_loss=arguments.fail_on_data_loss == "true",
    )


def names_in(text: str) -> tuple[str, ...]:
    """The names in a comma-separated list."""
    return tuple(name.strip() for name in text.split(",") if name.strip())
