"""`aggregate`: count and measure records in windows of time, by group, and write each window once it is final.

    python -m spark_jobs.jobs.aggregate --bootstrap-servers 127.0.0.1:9092 --topics flights --schema flights.ddl \
        --window 1h --group-by origin --agg count,avg:dep_delay,p95:dep_delay --out-topic hourly \
        --checkpoint /lake/checkpoints/hourly

Guarantee: with `--mode append` each window and group is written once, when the watermark has passed the window's end,
and includes every record that was in time. Late records, and those that do not parse, are counted and, with
`--dead-letters`, kept. With `--drop-duplicates` one copy of a record is used and the others are counted as duplicates;
a record that is not after the watermark is then late, whatever its window. A Parquet table has each result once; a
topic has it once for readers that drop rows by the headers of `spark_jobs.common.sink`.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from spark_jobs.aggregation.windows import (
    NAMELESS,
    Aggregate,
    Windows,
    check_identity,
    delay_ms,
    drop_copies,
    duration_ms,
    late,
    nameless,
    read_aggregates,
    spark_interval,
)
from spark_jobs.common.cli import RunConfig, names_in
from spark_jobs.common.events import FAILED, PARSED, TIME, check_timestamp_field, events, observed, rejected
from spark_jobs.common.records import parameter
from spark_jobs.common.results import ResultWriter, add_result_options, counted, result_sink, sink_for
from spark_jobs.common.runner import Job, Query, run
from spark_jobs.common.schema import read_schema
from spark_jobs.common.sink import KafkaSink, ParquetSink, TableSink
from spark_jobs.common.source import SourceConfig, read_stream
from spark_jobs.schemas.value_format import PLAIN_JSON, ValueFormat, add_value_options, value_format
from spark_jobs.tables.schema_change import EVOLVE

WINDOW_COLUMNS = ("window_start", "window_end")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AggregateConfig:
    """One aggregation. If `timestamp_field` is None, it uses the records' timestamps.

    `drop_duplicates` are the fields that identify a record; if empty, every record counts.

    Raises ValueError for fields that the schema lacks, and for aggregates that Spark cannot update.
    """

    source: SourceConfig
    run: RunConfig
    schema: StructType
    windows: Windows
    aggregates: tuple[Aggregate, ...]
    sink: KafkaSink | TableSink
    values: ValueFormat = PLAIN_JSON
    group_by: tuple[str, ...] = ()
    timestamp_field: str | None = None
    watermark_ms: int = 600_000
    mode: str = "append"
    drop_duplicates: tuple[str, ...] = ()
    dead_letters: ParquetSink | None = None
    schema_change: str = EVOLVE

    def __post_init__(self) -> None:
        for aggregate in self.aggregates:
            aggregate.check(self.schema)
        unknown = [name for name in self.group_by if name not in self.schema.fieldNames()]
        if unknown:
            raise ValueError(f"--group-by {','.join(unknown)}: the schema has no such field")
        names = [*WINDOW_COLUMNS, *self.group_by, *(aggregate.name for aggregate in self.aggregates)]
        if len(set(names)) < len(names):
            raise ValueError(f"two columns of the results have one name: {', '.join(names)}")
        check_timestamp_field(self.schema, self.timestamp_field, "--timestamp-field")
        check_identity(self.schema, self.drop_duplicates, "--drop-duplicates")
        if self.mode == "update" and self.windows.gap_ms is not None:
            raise ValueError("--mode update: sessions are given once they are final, by --mode append")


def transform(df: DataFrame, config: AggregateConfig) -> DataFrame:
    """The connector's rows as results: `window_start`, `window_end`, the groups, the aggregates. Pure."""
    rows = observed(events(df, config.schema, config.timestamp_field, config.values), "source")
    measured = [of.field for of in config.aggregates if of.field is not None]
    needed = {name: sql.col(PARSED).getField(name) for name in (*config.group_by, *measured, *config.drop_duplicates)}
    fields = [field.alias(name) for name, field in needed.items()]
    if config.drop_duplicates:
        fields.append(nameless([needed[name] for name in config.drop_duplicates]).alias(NAMELESS))
    watermark = spark_interval(config.watermark_ms)
    values = rows.where(~sql.col(FAILED)).select(TIME, *fields).withWatermark(TIME, watermark)
    if config.drop_duplicates:
        values = drop_copies(values, config.drop_duplicates)
    window = config.windows.column(sql.col(TIME)).alias("window")
    groups = [sql.col(f"`{name}`") for name in config.group_by]
    totals = [aggregate.column() for aggregate in config.aggregates]
    return (
        values.groupBy(window, *groups)
        .agg(*totals)
        .select(
            sql.col("window.start").alias("window_start"),
            sql.col("window.end").alias("window_end"),
            *groups,
            *(sql.col(f"`{aggregate.name}`") for aggregate in config.aggregates),
        )
    )


def rejects(df: DataFrame, config: AggregateConfig, watermark_ms: int) -> DataFrame:
    """The connector's rows that are missing from one or all of their windows, with the reason. Pure."""
    rows, watermark = events(df, config.schema, config.timestamp_field, config.values), parameter(watermark_ms)
    if config.drop_duplicates:
        is_late = late(sql.col(TIME), watermark)
    else:
        is_late = config.windows.first_end_ms(sql.col(TIME)) <= watermark
    return rejected(rows, config.schema, config.timestamp_field, is_late, config.values)


def plan(spark: SparkSession, config: AggregateConfig) -> DataFrame:
    """The rows that batches write."""
    return transform(read_stream(spark, config.source), config)


def build_query(spark: SparkSession, config: AggregateConfig) -> Query:
    """The query that writes the results. Raises ValueError if their target is missing."""
    rows = plan(spark, config)
    writer = ResultWriter(
        spark,
        config.run.checkpoint,
        sink_for(spark, rows, config.sink, config.run.checkpoint, config.schema_change),
        [*WINDOW_COLUMNS, *config.group_by],
        [config.source],
        [lambda df, watermark_ms: rejects(df, config, watermark_ms)],
        config.dead_letters,
        drops_rows=bool(config.drop_duplicates),
    )
    stream = counted(rows).writeStream.outputMode(config.mode).foreachBatch(writer)
    return Query(stream, writer.summary, watch=writer.watch)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the values, windows, groups and aggregates."""
    add_value_options(parser)
    options = parser.add_argument_group("aggregation")
    options.add_argument("--schema", required=True, metavar="FILE", help="fields of the values: DDL or Spark's JSON")
    windows = options.add_mutually_exclusive_group(required=True)
    windows.add_argument("--window", type=duration_ms, metavar="TIME", help="windows of this width: 30s, 5m, 1h, 1d")
    windows.add_argument(
        "--session-gap", type=duration_ms, metavar="TIME", help="sessions, that end when nothing comes for this long"
    )
    options.add_argument("--slide", type=duration_ms, metavar="TIME", help="how often a window begins (default: width)")
    options.add_argument("--group-by", default="", metavar="A,B,...", help="fields of the schema")
    options.add_argument(
        "--agg",
        default="count",
        metavar="F,F:X,...",
        help="count, or sum, avg, min, max, count, distinct (approximate) or p95 (any percentile) of a field",
    )
    options.add_argument(
        "--timestamp-field",
        metavar="X",
        help="TIMESTAMP, or milliseconds since 1970, of the schema (default: the record's timestamp)",
    )
    options.add_argument(
        "--watermark",
        type=delay_ms,
        default=600_000,
        metavar="TIME",
        help="how long after the newest time a record may come and still count (default: 10m)",
    )
    options.add_argument(
        "--drop-duplicates",
        default="",
        metavar="A,B,...",
        help="fields that identify a record: of copies within the --watermark one counts, the others are dropped",
    )
    options.add_argument(
        "--mode",
        choices=["append", "update"],
        default="append",
        help="append: each window once, when it is final; update: whenever it changes (default: append)",
    )
    add_result_options(parser)


def configure(arguments: argparse.Namespace, source: SourceConfig, running: RunConfig) -> AggregateConfig:
    """The aggregation that the options describe; raises OSError or ValueError with one line about a bad one."""
    return AggregateConfig(
        source=source,
        run=running,
        schema=read_schema(arguments.schema),
        windows=Windows(width_ms=arguments.window, slide_ms=arguments.slide, gap_ms=arguments.session_gap),
        aggregates=read_aggregates(arguments.agg),
        values=value_format(arguments),
        sink=result_sink(arguments, source),
        schema_change=arguments.schema_change,
        group_by=names_in(arguments.group_by),
        timestamp_field=arguments.timestamp_field,
        watermark_ms=arguments.watermark,
        mode=arguments.mode,
        drop_duplicates=names_in(arguments.drop_duplicates),
        dead_letters=ParquetSink(path=arguments.dead_letters) if arguments.dead_letters else None,
    )


JOB = Job(
    name="aggregate",
    description="Aggregate records in windows of time.",
    add_options=add_options,
    configure=configure,
    plan=plan,
    build_query=build_query,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job, as `spark_jobs.common.runner.run` says."""
    return run(JOB, argv)


if __name__ == "__main__":
    sys.exit(main())
