"""`replay`: write a range of topics, or of a lake's table, to a topic again.

    python -m spark_jobs.jobs.replay --bootstrap-servers 127.0.0.1:9092 --topics orders --out-topic orders-again \
        --from @2026-03-01 --to @2026-03-02 --rate 5000 --checkpoint /replays/march-1

The start fixes both ends of the range and saves them in `--checkpoint`: restarted with the same checkpoint, a replay
continues after its last finished step. A step is the allowance of one second (`--rate`), or 1,000,000 offsets.

Guarantee: each record of the range at least once, in order within its partition. A repeated step writes its records
again with the same (query, batch, partition, row) headers; `spark_jobs.common.sink` explains how readers drop the
copies. `--dry-run` reads the same records and counts them: compaction and transaction markers leave offsets without a
record, so a range has fewer records than offsets. Each record gets a header `replay.source` with its topic, partition,
offset and timestamp. Spark's Kafka sink cannot write the old timestamp, so the record gets a new one.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from spark_jobs.checkpoints.binding import in_use
from spark_jobs.checkpoints.checkpoint import Offsets
from spark_jobs.common.cli import add_create_topics_option, add_session_options, positive, starting_position
from spark_jobs.common.dedupe import later_copies
from spark_jobs.common.errors import patiently
from spark_jobs.common.files import TableDirectory
from spark_jobs.common.kafka_admin import KafkaAdmin
from spark_jobs.common.provenance import REPLAY_SOURCE, source_text, with_header
from spark_jobs.common.runner import bad_options, guarded, parser_of, session_of, stop_signals
from spark_jobs.common.schema import SessionNeededError, read_schema
from spark_jobs.common.sink import KafkaSink
from spark_jobs.common.source import SourceConfig, read_client_properties, source_options
from spark_jobs.copies.lake_records import LakePositions, read_lake, within
from spark_jobs.copies.ranges import At, Positions, Ranges, ranges_of, read_ranges
from spark_jobs.copies.target import add_target_options

NAME = "replay"
STEP_OFFSETS = 1_000_000
PLAN = "replay.json"
DONE = "done-"
ROW_PARTITION, ROW = PLACE = ("source_partition", "source_offset")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """One replay, of the topics of `source` or of the lake's table `lake` (whose schema may be given).

    `start` and `end` are earliest, latest, @TIMESTAMP or JSON of offsets; `end` is exclusive. `rate` is in records a
    second, unlimited if None. `key_filter` is a Java regular expression to find anywhere in the key's text. `dedupe`
    leaves out duplicates that retried batches wrote. `checkpoint` may be None only for a dry run.
    """

    source: SourceConfig
    sink: KafkaSink
    checkpoint: str | None
    start: str = "earliest"
    end: str = "latest"
    lake: str | None = None
    schema: StructType | None = None
    rate: int | None = None
    key_filter: str | None = None
    preserve_partition: bool = False
    dedupe: bool = False
    create_topics: bool = False

    def step_offsets(self) -> int:
        """The largest number of offsets in a step."""
        return min(self.rate or STEP_OFFSETS, STEP_OFFSETS)


def transform(df: DataFrame, config: ReplayConfig) -> DataFrame:
    """The connector's rows that `key_filter` accepts, as rows of the Kafka sink."""
    kept = df if config.key_filter is None else df.where(sql.col("key").cast("string").rlike(config.key_filter))
    partition = ["partition"] if config.preserve_partition else []
    return kept.select(
        *partition,
        sql.concat_ws("-", "topic", "partition").alias(ROW_PARTITION),
        sql.col("offset").alias(ROW),
        "key",
        "value",
        with_header(sql.col("headers"), REPLAY_SOURCE, source_text(None)).alias("headers"),
    )


class Log:
    """The records to replay, by offsets, from a cluster or a lake."""

    def __init__(self, spark: SparkSession, config: ReplayConfig, admin: KafkaAdmin) -> None:
        self._spark = spark
        self._config = config
        self._records = None if config.lake is None else read_lake(spark, config.lake, config.schema)
        self.positions: Positions = (
            _ClusterPositions(admin, config.source) if self._records is None else LakePositions(self._records)
        )

        self._copies: DataFrame | None = None

    def read(self, ranges: Ranges) -> DataFrame | None:
        """The rows to write from `ranges`, or None if the ranges are empty."""
        records = self._read(ranges)
        if records is not None and self._copies is not None:
            records = records.join(sql.broadcast(self._copies), ["topic", "partition", "offset"], "left_anti")
        return None if records is None else transform(records, self._config)

    def leave_out_copies(self, whole: Ranges) -> None:
        """Exclude from every `read` the records that duplicate an earlier one in `whole`."""
        records = self._read(whole)
        self._copies = None if records is None else later_copies(records).persist()

    def _read(self, ranges: Ranges) -> DataFrame | None:
        if self._records is not None:
            return within(self._records, ranges)
        options = source_options(self._config.source)
        cluster = {name: value for name, value in options.items() if not name.startswith("subscribe")}
        return read_ranges(self._spark, cluster, ranges)


class _ClusterPositions:
    def __init__(self, admin: KafkaAdmin, source: SourceConfig) -> None:
        self._admin = admin
        self._level = source.isolation_level
        self._topics = admin.topics(names=source.topic_names(), pattern=source.pattern)

    def offsets(self, at: At) -> Offsets:
        return self._admin.offsets(self._topics, at, self._level)


def plan(log: Log, config: ReplayConfig) -> Ranges:
    """The offsets of the replay; raises ValueError for a position that does not exist."""
    return ranges_of(config.start, config.end, log.positions)


def counts(log: Log, ranges: Ranges) -> dict[str, int]:
    """How many records of `ranges` a replay would write, by `topic-partition`."""
    rows = log.read(ranges)
    if rows is None:
        return {}
    return {row[ROW_PARTITION]: row["count"] for row in rows.groupBy(ROW_PARTITION).count().collect()}


class Replay:
    """A replay and its progress, kept in the checkpoint."""

    def __init__(self, spark: SparkSession, config: ReplayConfig, log: Log) -> None:
        if config.checkpoint is None:
            raise ValueError("--checkpoint is needed to write")
        self.config = config
        self._log = log
        self._directory = TableDirectory(spark, config.checkpoint)
        self.written = 0
        self.ranges, self._query, self._step_offsets = self._planned()
        self.steps = self.ranges.steps(self._step_offsets)
        self.next_step = 1 + max(
            (int(name.removeprefix(DONE)) for name in self._directory.names() if name.startswith(DONE)), default=-1
        )

    def _planned(self) -> tuple[Ranges, str, int]:
        """Ranges, query id and offsets a step, from an earlier start if any: the steps must not shift."""
        text = self._directory.read_text(PLAN)
        if text is None:
            query, step_offsets = str(uuid.uuid4()), self.config.step_offsets()
            text = "\n".join([query, str(step_offsets), self._asked(), plan(self._log, self.config).to_json()])
            self._directory.write_text(PLAN, text)
        query, size, asked, ranges = text.split("\n", 3)
        if asked != self._asked():
            raise ValueError(f"--checkpoint {self.config.checkpoint} belongs to another replay: {asked}")
        return Ranges.from_json(ranges), query, int(size)

    def _asked(self) -> str:
        """Settings that must be unchanged to continue a replay."""
        config = self.config
        origin = config.lake or config.source.topics or config.source.pattern
        return f"{origin} to {config.sink.topic} from {config.start} to {config.end}, keys {config.key_filter!r}"

    def run(self, stopping: threading.Event, report: Callable[[str], None]) -> bool:
        """Write the remaining steps, no faster than the rate; False if `stopping` was set before the last one."""
        began = time.monotonic()
        while self.next_step < self.steps:
            if stopping.is_set():
                return False
            number = self.next_step
            written = patiently(functools.partial(self._write, number))
            self.written += written
            self._mark(number)
            report(f"step {number + 1} of {self.steps}: {written:,} records")
            if self.config.rate is not None and self.next_step < self.steps:
                stopping.wait(max(0.0, began + self.written / self.config.rate - time.monotonic()))
        return True

    def _write(self, number: int) -> int:
        rows = self._log.read(self.ranges.step(number, self.steps))
        if rows is None:
            return 0
        # The sink does not report how many it wrote (nor does an Observation see its rows): read once, use twice.
        rows = rows.persist()
        try:
            written = rows.count()
            if written:
                self.config.sink.write(rows, self._query, number, place=PLACE)
        finally:
            rows.unpersist()
        return written

    def _mark(self, number: int) -> None:
        self._directory.write_text(f"{DONE}{number:012}", "")
        self._directory.remove_children(f"{DONE}{number - 1:012}")
        self.next_step = number + 1


def check_sink(config: ReplayConfig, ranges: Ranges, sink_admin: KafkaAdmin, *, dry_run: bool = False) -> None:
    """Raise ValueError if the target topic does not exist, is also read, or has too few partitions to keep them.

    Creates it if requested, but not in a dry run.
    """
    topic = str(config.sink.topic)
    same_cluster = config.lake is None and config.sink.bootstrap_servers == config.source.bootstrap_servers
    if same_cluster and topic in ranges.start:
        raise ValueError(f"--out-topic {topic}: is a topic that is read, the replay would copy it onto itself")
    needed = 1 + max((number for _, number, _, _ in ranges.rows()), default=-1)
    if config.create_topics and not sink_admin.existing_topics([topic]):
        if dry_run:
            return
        sink_admin.create_topic(topic, max(needed, 1), {})
    there = sink_admin.topics(names=[topic])[topic]
    if config.preserve_partition and there < needed:
        raise ValueError(f"--preserve-partition: {topic} has {there} partitions, the records have {needed}")


def print_plan(ranges: Ranges, counted: dict[str, int]) -> None:
    """Print a line for each partition, and the total."""
    print(f"{'TOPIC':<40} {'PARTITION':>9} {'FROM':>15} {'TO':>15} {'OFFSETS':>15} {'RECORDS':>15}")
    for topic, number, start, end in ranges.rows():
        records = counted.get(f"{topic}-{number}", 0)
        print(f"{topic:<40} {number:>9} {start:>15,} {end:>15,} {end - start:>15,} {records:>15,}")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a replay."""
    source = parser.add_argument_group("source")
    source.add_argument("--bootstrap-servers", required=True, metavar="HOST:PORT,...")
    source.add_argument("--command-config", metavar="FILE", help="Kafka client properties")
    which = source.add_mutually_exclusive_group(required=True)
    which.add_argument("--topics", metavar="T1,T2,...")
    which.add_argument("--pattern", metavar="REGEX", help="topics whose whole name matches (a Java regular expression)")
    which.add_argument("--lake", metavar="DIR", help="a table that the job lake wrote, instead of topics")
    source.add_argument("--schema", metavar="FILE", help="schema of the lake, as it was given to the job lake")
    for name, default, what in (
        ("--from", "earliest", "begin"),
        ("--to", "latest", "end (the first that is not replayed)"),
    ):
        source.add_argument(
            name,
            type=starting_position,
            default=default,
            metavar="POSITION",
            help=f"{what}: earliest, latest, @TIMESTAMP or JSON of offsets (default: {default})",
        )
    source.add_argument("--key-filter", metavar="REGEX", help="only records in whose key this is found")
    source.add_argument(
        "--dedupe", action="store_true", help="leave out what a Spark sink wrote again when a batch was retried"
    )
    source.add_argument("--isolation-level", choices=["read_committed", "read_uncommitted"], default="read_committed")
    target = parser.add_argument_group("target")
    target.add_argument("--out-topic", metavar="TOPIC", help="needed without --dry-run")
    add_create_topics_option(target)
    add_target_options(target, required=False)
    target.add_argument("--preserve-partition", action="store_true", help="write each record to the partition it had")
    target.add_argument("--rate", type=positive, metavar="N", help="records a second, in bursts of one second")
    target.add_argument(
        "--checkpoint", metavar="DIR", help="what was planned and what is done; needed without --dry-run"
    )
    target.add_argument("--dry-run", action="store_true", help="print offsets and records by partition, write nothing")


def configure(arguments: argparse.Namespace) -> ReplayConfig:
    """The replay that the options describe; raises OSError or ValueError with one line about a bad one."""
    properties = read_client_properties(arguments.command_config) if arguments.command_config else {}
    target = read_client_properties(arguments.target_config) if arguments.target_config else None
    elsewhere = arguments.target_bootstrap_servers is not None
    return ReplayConfig(
        source=SourceConfig(
            bootstrap_servers=arguments.bootstrap_servers,
            topics=arguments.topics,
            pattern=arguments.pattern,
            isolation_level=arguments.isolation_level,
            client_properties=properties,
        ),
        sink=KafkaSink(
            bootstrap_servers=arguments.target_bootstrap_servers if elsewhere else arguments.bootstrap_servers,
            topic=arguments.out_topic,
            client_properties=target if target is not None else {} if elsewhere else properties,
        ),
        checkpoint=arguments.checkpoint,
        start=getattr(arguments, "from"),
        end=arguments.to,
        lake=arguments.lake,
        schema=read_schema(arguments.schema) if arguments.schema else None,
        rate=arguments.rate,
        key_filter=arguments.key_filter,
        preserve_partition=arguments.preserve_partition,
        dedupe=arguments.dedupe,
        create_topics=arguments.create_topics,
    )


def replay(spark: SparkSession, config: ReplayConfig, stopping: threading.Event, *, dry_run: bool = False) -> str:
    """Run `config`, or only count; returns the last line of output. Raises ValueError for an impossible replay."""
    with (
        KafkaAdmin(spark, config.source.bootstrap_servers, config.source.client_properties) as admin,
        KafkaAdmin(spark, config.sink.bootstrap_servers, config.sink.client_properties) as sink_admin,
    ):
        log = Log(spark, config, admin)
        if dry_run:
            ranges = plan(log, config)
            if config.sink.topic is not None:
                check_sink(config, ranges, sink_admin, dry_run=True)
            if config.dedupe:
                log.leave_out_copies(ranges)
            counted = counts(log, ranges)
            print_plan(ranges, counted)
            return f"{sum(counted.values()):,} records in {ranges.size():,} offsets would be written"
        with in_use(spark, str(config.checkpoint)):
            work = Replay(spark, config, log)
            check_sink(config, work.ranges, sink_admin)
            if config.dedupe:
                log.leave_out_copies(work.ranges)
            whole = work.run(stopping, lambda line: print(f"{NAME}: {line}", file=sys.stderr, flush=True))
        return f"{work.written:,} records written" + ("" if whole else ", stopped before the end")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; 0 when it is done or stopped, 1 after one line about a failure, 2 for bad options."""
    parser = parser_of(NAME, "Write a range of topics, or of a lake's table, to a topic again.")
    add_options(parser)
    add_session_options(parser)
    arguments = parser.parse_args(argv)
    for option, given in (("--checkpoint", arguments.checkpoint), ("--out-topic", arguments.out_topic)):
        if given is None and not arguments.dry_run:
            parser.error(f"{option} is needed without --dry-run")

    try:
        config: ReplayConfig | None = configure(arguments)
    except SessionNeededError:
        config = None
    except (OSError, ValueError) as failure:
        return bad_options(NAME, failure)

    def body() -> int:
        with session_of(NAME, arguments) as spark:
            told = replay(spark, config or configure(arguments), stop_signals(), dry_run=arguments.dry_run)
            print(f"{NAME}: {told}")
        return 0

    return guarded(NAME, body)


if __name__ == "__main__":
    sys.exit(main())
