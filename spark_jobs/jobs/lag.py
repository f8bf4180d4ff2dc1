"""`lag`: watch how far consumer groups are behind, in records and time, and when they will catch up.

    python -m spark_jobs.jobs.lag --bootstrap-servers 127.0.0.1:9092 --group billing,search --trigger 10s \
        --alert-time-lag 5m --checkpoint /lag/checkpoint --output /lag/table

The query's source yields one row a batch; for each batch the job takes one sample and writes only that. Offsets, log
ends and lags are those of kafka-consumer-groups at that moment.

Guarantee: a table has each sample once. A repeated batch, after the job died in it, takes a new sample: a table has
only the second one, a topic both, with the same `query` and `batch` headers. Trends restart with each start.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import threading
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from spark_jobs.aggregation.windows import duration_ms
from spark_jobs.common.cli import RunConfig, add_create_topics_option, names_in, positive
from spark_jobs.common.kafka_admin import KafkaAdmin
from spark_jobs.common.results import prepare_sink, result_sink, write_rows
from spark_jobs.common.runner import Job, Query, run
from spark_jobs.common.sink import KafkaSink, TableSink
from spark_jobs.common.source import SourceConfig
from spark_jobs.groups.measures import Limits, measures
from spark_jobs.groups.report import Alerts, GroupMetrics, sample_lines
from spark_jobs.groups.sampling import SAMPLE_SCHEMA, Groups, Sample, take_sample
from spark_jobs.tables.formats import add_format_option, check_format

NAME = "lag"
KEY = ("group", "topic", "partition")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LagConfig:
    """One watch over groups of the cluster `source`. `count` None runs until stopped; `window_ms` is for trends."""

    source: SourceConfig
    run: RunConfig
    groups: Groups
    limits: Limits
    sink: KafkaSink | TableSink | None = None
    count: int | None = None
    window_ms: int = 300_000
    fail_on_alert: bool = False


def transform(df: DataFrame, config: LagConfig) -> DataFrame:
    """Samples (`SAMPLE_SCHEMA`) with their measures, as `spark_jobs.groups.measures` says. Pure."""
    return measures(df, config.window_ms, config.limits)


class LagWriter:
    """Writes each batch for the query; keeps the samples of the window."""

    def __init__(self, config: LagConfig) -> None:
        self.config = config
        self.alerts = Alerts(NAME, config.limits)
        self.metrics = GroupMetrics()
        self.samples = 0
        self.ended = threading.Event()
        self._window: list[Sample] = []
        self._last = -1, 0

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Take a sample, write its measures, and report them; do nothing once the job is stopping."""
        if self.ended.is_set():
            self._last = batch_id, 0
            return
        spark, config = batch.sparkSession, self.config
        sampled = take_sample(spark, config.source, config.groups)
        begin = sampled.at.timestamp() - config.window_ms / 1000
        self._window = [row for row in self._window if row[3].timestamp() >= begin] + sampled.rows
        measured = transform(spark.createDataFrame(self._window, SAMPLE_SCHEMA), config)
        now = measured.where(sql.col("sampled_at") == sql.lit(sampled.at))
        rows = sorted(now.collect(), key=lambda row: (row.group, row.topic, row.partition))
        if config.sink is not None:
            written = spark.createDataFrame(rows, now.schema).coalesce(1)
            write_rows(config.sink, written, KEY, config.run.checkpoint, batch_id)
        for line in sample_lines(sampled.at, sampled.groups, rows):
            print(line, flush=True)
        self.alerts.see(rows)
        self.metrics.rows = rows
        self.samples += 1
        self._last = batch_id, len(rows)
        if self.samples == config.count:
            self.ended.set()

    def exit_code(self) -> int:
        """1 after an alert if --fail-on-alert is set, else 0."""
        return 1 if self.config.fail_on_alert and self.alerts.raised else 0

    def records_of(self, batch_id: int) -> int | None:
        """Number of partitions in the sample of the last batch, or None for another batch."""
        last, records = self._last
        return records if last == batch_id else None

    def summary(self) -> str:
        """One line: the samples and the alerts."""
        return f"{self.samples:,} samples, {self.alerts.raised:,} alerts"


def plan(spark: SparkSession, config: LagConfig) -> DataFrame:
    """The rows that batches write."""
    return transform(spark.createDataFrame([], SAMPLE_SCHEMA), config)


def build_query(spark: SparkSession, config: LagConfig) -> Query:
    """The query that samples. Raises ValueError for groups that do not exist, or an unusable sink."""
    with KafkaAdmin(spark, config.source.bootstrap_servers, config.source.client_properties) as admin:
        config.groups.check(admin, config.source.bootstrap_servers)
    if config.sink is not None:
        prepare_sink(spark, config.sink, config.run.checkpoint)
    writer = LagWriter(config)
    # One row a batch, and a single batch for --trigger available-now.
    ticks = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).option("numPartitions", 1).load()
    return Query(
        ticks.writeStream.foreachBatch(writer),
        writer.summary,
        writer.records_of,
        ended=writer.ended,
        exit_code=writer.exit_code,
        collector=writer.metrics,
    )


def limit(text: str) -> float:
    """A number above 0; raises ArgumentTypeError."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}': must be a number above 0")
    return number


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the groups, the samples, the alerts and the results."""
    parser.set_defaults(trigger="10s")
    groups = parser.add_argument_group("groups")
    which = groups.add_mutually_exclusive_group(required=True)
    which.add_argument("--group", action="append", metavar="G1,G2,...", help="may be given more than once")
    which.add_argument("--group-pattern", metavar="REGEX", help="groups whose whole name matches, also later ones")
    groups.add_argument("--count", type=positive, metavar="N", help="end after N samples, one for each --trigger")
    groups.add_argument(
        "--trend-window", type=duration_ms, default=300_000, metavar="TIME", help="samples of a trend (default: 5m)"
    )
    alerts = parser.add_argument_group("alerts of a group, each a line on stderr when it begins and when it is over")
    alerts.add_argument("--alert-lag", type=positive, metavar="N", help="the lag is above N records")
    alerts.add_argument("--alert-time-lag", type=duration_ms, metavar="TIME", help="the oldest unread record is older")
    alerts.add_argument(
        "--alert-catch-up", type=duration_ms, metavar="TIME", help="it needs longer to catch up, or never does"
    )
    alerts.add_argument("--alert-skew", type=limit, metavar="X", help="the largest lag is above X times the mean")
    alerts.add_argument("--fail-on-alert", action="store_true", help="end with exit code 1 when there was an alert")
    where = parser.add_argument_group("results")
    add_create_topics_option(where)
    results = where.add_mutually_exclusive_group()
    results.add_argument("--out-topic", metavar="TOPIC", help="write the samples there too, as JSON")
    results.add_argument("--output", metavar="DIR", help="write the samples there too, as a table")
    add_format_option(parser)


def configure(arguments: argparse.Namespace, source: SourceConfig, running: RunConfig) -> LagConfig:
    """The watch that the options describe; raises ValueError with one line about a mistake."""
    check_format(arguments)
    wanted = arguments.output is not None or arguments.out_topic is not None
    return LagConfig(
        source=source,
        run=running,
        groups=Groups(names=names_in(",".join(arguments.group or ())), pattern=arguments.group_pattern),
        limits=Limits(
            lag=arguments.alert_lag,
            time_lag_ms=arguments.alert_time_lag,
            catch_up_ms=arguments.alert_catch_up,
            skew=arguments.alert_skew,
        ),
        sink=result_sink(arguments, source) if wanted else None,
        count=arguments.count,
        window_ms=arguments.trend_window,
        fail_on_alert=arguments.fail_on_alert,
    )


JOB = Job(
    name=NAME,
    description="Watch how far consumer groups are behind.",
    add_options=add_options,
    configure=configure,
    plan=plan,
    build_query=build_query,
    reads_topics=False,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job, as `spark_jobs.common.runner.run` says; 1 after an alert with --fail-on-alert."""
    return run(JOB, argv)


if __name__ == "__main__":
    sys.exit(main())
