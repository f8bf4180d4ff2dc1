"""`join`: join two topics by key and time, or a topic with a static table.

    python -m spark_jobs.jobs.join --bootstrap-servers 127.0.0.1:9092 --left flights --left-schema flights.ddl \
        --right weather --right-schema weather.ddl --on origin --within 30m --out-topic flights-weather \
        --checkpoint /lake/checkpoints/flights-weather

Guarantee: with `--right`, each pair of records in time whose times differ by at most `--within` is written once; with
`--type left` also each left record that no right record can match any more. State is bounded: a record leaves it when
the watermark shows that nothing more can match it. Late records, and those that do not parse, are counted; with
`--dead-letters`, those that do not parse are kept.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from spark_jobs.aggregation.windows import delay_ms, duration_ms, spark_interval
from spark_jobs.common.cli import RunConfig, names_in
from spark_jobs.common.events import FAILED, PARSED, TIME, check_timestamp_field, events, observed, rejected
from spark_jobs.common.results import RejectsOf, ResultWriter, add_result_options, counted, result_sink, sink_for
from spark_jobs.common.runner import Job, Query, run
from spark_jobs.common.schema import read_schema
from spark_jobs.common.sink import KafkaSink, ParquetSink, TableSink
from spark_jobs.common.source import SourceConfig, read_stream
from spark_jobs.schemas.value_format import PLAIN_JSON, ValueFormat, add_value_options, value_format
from spark_jobs.tables.schema_change import EVOLVE

LEFT_TIME, RIGHT_TIME = "left_time", "right_time"
RIGHT_PREFIX = "right_"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Side:
    """One topic of the join. If `timestamp_field` is None, it uses the records' timestamps."""

    name: str
    source: SourceConfig
    schema: StructType
    values: ValueFormat = PLAIN_JSON
    timestamp_field: str | None = None
    watermark_ms: int = 600_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class JoinConfig:
    """One join: of `left` and `right` within `within_ms`, or of `left` and the table at `static`.

    Raises ValueError for fields that the schemas lack.
    """

    run: RunConfig
    left: Side
    on: tuple[str, ...]
    sink: KafkaSink | TableSink
    right: Side | None = None
    within_ms: int | None = None
    static: str | None = None
    static_schema: StructType | None = None
    kind: str = "inner"
    dead_letters: ParquetSink | None = None
    schema_change: str = EVOLVE

    def __post_init__(self) -> None:
        sides = [self.left] if self.right is None else [self.left, self.right]
        if self.right is not None and self.within_ms is None:
            raise ValueError("--right: needs --within, or every record would be kept for ever")
        if self.right is not None and self.right.source.topics == self.left.source.topics:
            raise ValueError(f"--right {self.right.source.topics}: must be another topic than --left")
        if not self.on:
            raise ValueError("--on: at least one field is needed")
        for side in sides:
            missing = [name for name in self.on if name not in side.schema.fieldNames()]
            if missing:
                raise ValueError(f"--on {','.join(missing)}: the schema of --{side.name} has no such field")
            check_timestamp_field(side.schema, side.timestamp_field, f"--{side.name}-timestamp-field")


def side_rows(df: DataFrame, side: Side, time: str) -> DataFrame:
    """The connector's rows as the fields of the side's schema and its time, with its watermark."""
    rows = observed(events(df, side.schema, side.timestamp_field, side.values), side.name)
    fields = [sql.col(PARSED).getField(name).alias(name) for name in side.schema.fieldNames()]
    parsed = rows.where(~sql.col(FAILED)).select(*fields, sql.col(TIME).alias(time))
    return parsed.withWatermark(time, spark_interval(side.watermark_ms))


def transform(left: DataFrame, right: DataFrame, config: JoinConfig) -> DataFrame:
    """Join the connector's rows of the left with those of the right, or with the static table. Pure.

    Columns: the left's fields, `left_time`, the right's other fields (with the prefix `right_` where the left has one
    of that name) and, of a topic, `right_time`.
    """
    ours = side_rows(left, config.left, LEFT_TIME)
    theirs = right if config.right is None else side_rows(right, config.right, RIGHT_TIME)
    missing = [name for name in config.on if name not in theirs.columns]
    if missing:
        raise ValueError(f"--on {','.join(missing)}: --static {config.static} has no such column")
    named = [*(name for name in theirs.columns if name not in config.on)]
    renamed = {name: f"{RIGHT_PREFIX}{name}" if name in ours.columns else name for name in named}
    if len({*ours.columns, *renamed.values()}) < len(ours.columns) + len(renamed):
        raise ValueError(f"two columns of the results have one name: {', '.join([*ours.columns, *renamed.values()])}")
    keys = {name: f"_on_{name}" for name in config.on}
    theirs = theirs.withColumnsRenamed(renamed | keys)
    matches: Column = sql.lit(True)
    for name, key in keys.items():
        matches &= sql.col(f"`{name}`") == sql.col(f"`{key}`")
    if config.right is None:
        joined = ours.join(sql.broadcast(theirs), matches, config.kind)
    else:
        within = sql.expr(f"INTERVAL '{(config.within_ms or 0) / 1000:f}' SECOND")
        near = sql.col(RIGHT_TIME).between(sql.col(LEFT_TIME) - within, sql.col(LEFT_TIME) + within)
        joined = ours.join(theirs, matches & near, config.kind)
    return joined.drop(*keys.values())


def read_static(spark: SparkSession, config: JoinConfig) -> DataFrame:
    """The static table: Parquet, or CSV with a header line if the path ends in `.csv`."""
    path = config.static or ""
    if not path.endswith(".csv"):
        return spark.read.parquet(path)
    reader = spark.read.option("header", True)
    if config.static_schema is not None:
        return reader.schema(config.static_schema).option("enforceSchema", False).csv(path)
    return reader.option("inferSchema", True).csv(path)


def plan(spark: SparkSession, config: JoinConfig) -> DataFrame:
    """The rows that batches write."""
    right = read_static(spark, config) if config.right is None else read_stream(spark, config.right.source)
    return transform(read_stream(spark, config.left.source), right, config)


def rejects_of(side: Side) -> RejectsOf:
    """Selects the records of a side that do not parse."""

    def rejects(df: DataFrame, _watermark_ms: int) -> DataFrame:
        rows = events(df, side.schema, side.timestamp_field, side.values)
        return rejected(rows, side.schema, side.timestamp_field, sql.lit(False), side.values)

    return rejects


def build_query(spark: SparkSession, config: JoinConfig) -> Query:
    """The query that writes the joined rows. Raises ValueError if their target is missing."""
    sides = [config.left] if config.right is None else [config.left, config.right]
    rows = plan(spark, config)
    writer = ResultWriter(
        spark,
        config.run.checkpoint,
        sink_for(spark, rows, config.sink, config.run.checkpoint, config.schema_change),
        config.on,
        [side.source for side in sides],
        [rejects_of(side) for side in sides],
        config.dead_letters,
        drops_rows=True,
    )
    stream = counted(rows).writeStream.outputMode("append").foreachBatch(writer)
    return Query(stream, writer.summary, watch=writer.watch)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the values, which share one format, and of the two sides."""
    add_value_options(parser)
    options = parser.add_argument_group("join")
    options.add_argument("--left", required=True, metavar="TOPIC")
    which = options.add_mutually_exclusive_group(required=True)
    which.add_argument("--right", metavar="TOPIC")
    which.add_argument("--static", metavar="PATH", help="Parquet, or CSV (*.csv) with a header; small, for memory")
    options.add_argument(
        "--left-schema", required=True, metavar="FILE", help="fields of the values: DDL or Spark's JSON"
    )
    options.add_argument("--right-schema", metavar="FILE", help="of the right topic, or of a static CSV")
    options.add_argument("--on", required=True, metavar="A,B,...", help="fields that are equal on both sides")
    options.add_argument("--within", type=duration_ms, metavar="TIME", help="how far apart the times may be: 30s, 1h")
    options.add_argument("--type", choices=["inner", "left"], default="inner", help="left: also those without a match")
    for side in ("left", "right"):
        options.add_argument(
            f"--{side}-timestamp-field", metavar="X", help="TIMESTAMP or milliseconds (default: the record's timestamp)"
        )
        options.add_argument(
            f"--{side}-watermark", type=delay_ms, default=600_000, metavar="TIME", help="how late it may be (10m)"
        )
    add_result_options(parser)


def topics(arguments: argparse.Namespace) -> str:
    """The topics to read, comma separated."""
    return arguments.left if arguments.right is None else f"{arguments.left},{arguments.right}"


def _side(name: str, topic: str, arguments: argparse.Namespace, source: SourceConfig) -> Side:
    options = vars(arguments)
    return Side(
        name=name,
        source=dataclasses.replace(source, topics=topic),
        schema=read_schema(options[f"{name}_schema"]),
        values=value_format(arguments),
        timestamp_field=options[f"{name}_timestamp_field"],
        watermark_ms=options[f"{name}_watermark"],
    )


def configure(arguments: argparse.Namespace, source: SourceConfig, running: RunConfig) -> JoinConfig:
    """The join that the options describe; raises OSError or ValueError with one line about a bad one."""
    if arguments.right is not None and arguments.right_schema is None:
        raise ValueError("--right: needs --right-schema")
    streams = arguments.right is not None
    return JoinConfig(
        run=running,
        left=_side("left", arguments.left, arguments, source),
        right=_side("right", arguments.right, arguments, source) if streams else None,
        on=names_in(arguments.on),
        within_ms=arguments.within,
        static=arguments.static,
        static_schema=read_schema(arguments.right_schema) if arguments.right_schema and not streams else None,
        kind=arguments.type,
        sink=result_sink(arguments, source),
        schema_change=arguments.schema_change,
        dead_letters=ParquetSink(path=arguments.dead_letters) if arguments.dead_letters else None,
    )


JOB = Job(
    name="join",
    description="Join two topics within an interval, or a topic with a table.",
    add_options=add_options,
    configure=configure,
    plan=plan,
    build_query=build_query,
    topics=topics,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job, as `spark_jobs.common.runner.run` says."""
    return run(JOB, argv)


if __name__ == "__main__":
    sys.exit(main())
