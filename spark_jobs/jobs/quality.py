"""`quality`: split the records of topics into good and bad ones by rules.

    bin/spark-job quality --bootstrap-servers 127.0.0.1:9092 --topics flights --schema flights.ddl --rules rules.yaml \
        --out-topic flights-good --dlq-topic flights-bad --checkpoint /checkpoints/quality --trigger available-now

A record is bad if its value does not parse by the schema, or breaks a rule of severity `error`. Records pass unchanged;
bad ones get the error and their source position, in headers of a topic or columns of a table.

Guarantee: each record is either good or bad, even if the broker or the job dies at any moment. Tables hold it exactly
once. Topics hold it at least once, with the same `query`, `batch`, `partition` and `row` headers on each copy.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from collections import Counter
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from spark_jobs.common import values
from spark_jobs.common.cli import RunConfig, add_create_topics_option
from spark_jobs.common.results import prepare_sink
from spark_jobs.common.rules import Rule, check_rules, read_rules
from spark_jobs.common.runner import Job, Query, run
from spark_jobs.common.schema import read_schema
from spark_jobs.common.sink import Attempts, KafkaSink, TableSink, query_id
from spark_jobs.common.source import SourceConfig, read_stream
from spark_jobs.schemas.value_format import PLAIN_JSON, TEXT, ValueFormat, add_value_options, value_format
from spark_jobs.tables.formats import PARQUET, add_format_option, check_format, table_sink
from spark_jobs.tables.schema_change import EVOLVE, accepted, add_schema_change_option

UNPARSED = "failed_to_parse"
BROKEN = "broken_rules"
WARNED = "warned_rules"
ERROR = "error"
RECORD_COLUMNS = ("kafka_key", "kafka_value", "kafka_partition", "kafka_offset", "kafka_timestamp", "kafka_headers")
SOURCE_HEADERS = {"source.topic": "topic", "source.partition": "kafka_partition", "source.offset": "kafka_offset"}
PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")


@dataclasses.dataclass(frozen=True, kw_only=True)
class QualityConfig:
    """One division: its source, run settings, rules and both sinks.

    With `schema` None, rules see the columns `kafka_key`, `kafka_value` and the like. `fail_above` is a share of 0 to
    1.
    """

    source: SourceConfig
    run: RunConfig
    rules: tuple[Rule, ...]
    good: KafkaSink | TableSink
    bad: KafkaSink | TableSink
    schema: StructType | None = None
    values: ValueFormat = PLAIN_JSON
    fail_above: float | None = None
    schema_change: str = EVOLVE

    def __post_init__(self) -> None:
        fields = set(self.schema.fieldNames()) if self.schema is not None else set()
        taken = sorted(fields & {*RECORD_COLUMNS, "topic", UNPARSED, BROKEN, WARNED, ERROR, values.CORRUPT})
        if taken:
            raise ValueError(f"--schema: the job has columns of its own with these names: {', '.join(taken)}")
        if self.good == self.bad:
            raise ValueError("good and bad records must go to different places")


def _parsed(df: DataFrame, config: QualityConfig) -> DataFrame:
    """The columns that rules see, and whether the value failed to parse."""
    fields, unparsed = [], sql.lit(False)
    if config.schema is not None:
        df = config.values.with_text(df).withColumn("parsed", values.parse(sql.col(TEXT), config.schema))
        unparsed = values.failed(sql.col(TEXT), sql.col("parsed"), config.schema)
        fields = [sql.col(f"parsed.`{name}`").alias(name) for name in config.schema.fieldNames()]
    own = [sql.col(name.removeprefix("kafka_")).alias(name) for name in RECORD_COLUMNS]
    return df.select(*fields, *own, sql.col("topic"), unparsed.alias(UNPARSED))


def transform(df: DataFrame, config: QualityConfig) -> DataFrame:
    """The connector's rows with the schema's fields, whether they parsed, and the names of the rules that they break.

    Pure: the same rows always give the same result. A value that does not parse breaks no rule: none is evaluated.
    """

    def names(severity: str) -> list[Column]:
        return [
            sql.when(~sql.col(UNPARSED) & rule.broken(), sql.lit(rule.name))
            for rule in config.rules
            if rule.severity == severity
        ]

    def listed(severity: str) -> Column:
        return sql.array_compact(sql.array(*names(severity), sql.lit(None).cast("string")))

    return _parsed(df, config).withColumns({BROKEN: listed("error"), WARNED: listed("warning")})


def is_bad() -> Column:
    """Whether a row of `transform` is bad; never null."""
    return sql.col(UNPARSED) | (sql.size(BROKEN) > 0)


def good_rows(rows: DataFrame) -> DataFrame:
    """The good rows of `transform`, with the table's columns."""
    return rows.where(~is_bad()).drop(UNPARSED, BROKEN)


def bad_rows(rows: DataFrame, config: QualityConfig) -> DataFrame:
    """The bad rows of `transform`: the record as received, its source, and the error."""
    bad = rows.where(is_bad())
    broken = sql.concat(sql.lit("breaks "), sql.concat_ws("; ", BROKEN))
    if config.schema is not None:
        # Two filters, so that Python only sees values that did not parse.
        why = config.values.reason(sql.col("kafka_value"), config.schema)
        unparsed = bad.where(UNPARSED).withColumn(ERROR, why)
        bad = unparsed.unionByName(bad.where(~sql.col(UNPARSED)).withColumn(ERROR, broken))
    else:
        bad = bad.withColumn(ERROR, broken)
    return bad.select(*RECORD_COLUMNS, "topic", BROKEN, ERROR)


def good_records(rows: DataFrame) -> DataFrame:
    """Rows of `good_rows` as records for a topic, unchanged."""
    return rows.select(*(sql.col(f"kafka_{name}").alias(name) for name in ("key", "value", "headers")))


def bad_records(rows: DataFrame) -> DataFrame:
    """Rows of `bad_rows` as records for a topic: unchanged, plus headers with the error and the source."""
    told = {"error": ERROR, **SOURCE_HEADERS}
    added = sql.array(
        *(
            sql.struct(sql.lit(header).alias("key"), sql.col(column).cast("string").cast("binary").alias("value"))
            for header, column in told.items()
        )
    )
    own = sql.coalesce(sql.col("kafka_headers"), sql.array())
    key, value = sql.col("kafka_key").alias("key"), sql.col("kafka_value").alias("value")
    return rows.select(key, value, sql.concat(own, added).alias("headers"))


class QualityWriter:
    """Writes each batch for the query; counts the records written."""

    def __init__(self, config: QualityConfig) -> None:
        self.config = config
        self.good = 0
        self.bad = 0
        self.broken: Counter[str] = Counter()
        self.batches = 0
        self._attempts = Attempts()
        self._last = -1, 0

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write one batch: the good records, then the bad ones, if any.

        Raises ValueError if too many are bad; the batch then stays uncommitted, and the next start repeats it.
        """
        rows = transform(batch, self.config).persist()
        try:
            with self._attempts.replaced(batch.sparkSession, batch_id, self.config.good, self.config.bad):
                self._write(rows, batch_id)
        finally:
            rows.unpersist()

    def _write(self, rows: DataFrame, batch_id: int) -> None:
        by_rule = [
            sql.count_if(sql.array_contains(BROKEN if rule.severity == "error" else WARNED, rule.name))
            for rule in self.config.rules
        ]
        # Count with a separate query: Spark never reports a write to a topic to an Observation.
        total, bad, *broken = rows.agg(sql.count(sql.lit(1)), sql.count_if(is_bad()), *by_rule).collect()[0]
        query = query_id(rows.sparkSession, self.config.run.checkpoint)
        good = good_rows(rows)
        if isinstance(self.config.good, KafkaSink):
            self.config.good.write(good_records(good), query, batch_id)
        else:
            self.config.good.write(good, batch_id)
        if bad:
            self._write_bad(bad_rows(rows, self.config), query, batch_id)
        self.good += total - bad
        self.bad += bad
        self.broken.update({rule.name: count for rule, count in zip(self.config.rules, broken, strict=True)})
        self.batches += total > 0
        self._last = batch_id, total
        if total and self.config.fail_above is not None and bad / total > self.config.fail_above:
            raise ValueError(
                f"batch {batch_id}: {bad:,} of {total:,} records are bad ({bad / total:.1%}), more than --fail-above "
                f"{self.config.fail_above:.1%}; the next start runs the batch again"
            )

    def _write_bad(self, rows: DataFrame, query: str, batch_id: int) -> None:
        if isinstance(self.config.bad, KafkaSink):
            self.config.bad.write(bad_records(rows), query, batch_id)
        else:
            self.config.bad.write(rows, batch_id)

    def records_of(self, batch_id: int) -> int | None:
        """Record count of the last batch, or None for another batch."""
        last, records = self._last
        return records if last == batch_id else None

    def summary(self) -> str:
        """One line: the good and the bad records, and how many break each rule."""
        broken = "".join(f"; {count:,} break {name}" for name, count in self.broken.most_common() if count)
        return f"{self.good:,} good and {self.bad:,} bad records in {self.batches:,} batches{broken}"


def prepare(spark: SparkSession, config: QualityConfig) -> None:
    """Check the rules, and make a failing expression (a division by zero) yield null, which breaks the rule.

    Raises ValueError for a rule that `check_rules` refuses.
    """
    spark.conf.set("spark.sql.ansi.enabled", "false")
    check_rules(_parsed(read_stream(spark, config.source), config), config.rules)


def plan(spark: SparkSession, config: QualityConfig) -> DataFrame:
    """The rows that batches divide into good and bad. Raises ValueError as `prepare` does."""
    prepare(spark, config)
    return transform(read_stream(spark, config.source), config)


def build_query(spark: SparkSession, config: QualityConfig) -> Query:
    """The query that divides. Raises ValueError as `prepare` does, or for an unusable sink."""
    prepare(spark, config)
    if isinstance(config.good, TableSink):
        rows = good_rows(transform(read_stream(spark, config.source), config))
        good = accepted(spark, config.good, config.run.checkpoint, rows.schema, config.schema_change)
        config = dataclasses.replace(config, good=good)
    prepare_sink(spark, config.good, config.run.checkpoint)
    prepare_sink(spark, config.bad, config.run.checkpoint, has_results=False)
    writer = QualityWriter(config)
    stream = read_stream(spark, config.source).writeStream.foreachBatch(writer)
    return Query(stream, writer.summary, writer.records_of)


def share(text: str) -> float:
    """A share of 0 to 1 from a percentage; raises ArgumentTypeError."""
    found = PERCENT.fullmatch(text)
    if found is None or float(found[1]) > 100:
        raise argparse.ArgumentTypeError(f"'{text}': must be a percentage, for example 5%")
    return float(found[1]) / 100


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the values, the rules and both sides."""
    add_value_options(parser)
    group = parser.add_argument_group("quality")
    group.add_argument("--rules", required=True, metavar="FILE", help="YAML: a list 'rules' of name, expect, severity")
    group.add_argument("--schema", metavar="FILE", help="DDL or Spark's JSON; without it rules see the record only")
    group.add_argument("--fail-above", type=share, metavar="N%", help="stop when a larger share of a batch is bad")
    good = group.add_mutually_exclusive_group(required=True)
    good.add_argument("--out-topic", metavar="TOPIC", help="where good records go")
    good.add_argument("--output", metavar="DIR", help="where good records go, as a table")
    bad = group.add_mutually_exclusive_group(required=True)
    bad.add_argument("--dlq-topic", metavar="TOPIC", help="where bad records go")
    bad.add_argument("--dead-letters", metavar="DIR", help="where bad records go, as a Parquet table")
    add_create_topics_option(group)
    add_format_option(group)
    add_schema_change_option(group)


def configure(arguments: argparse.Namespace, source: SourceConfig, running: RunConfig) -> QualityConfig:
    """The division that the options describe; raises OSError or ValueError with one line about a bad one."""

    check_format(arguments)

    def sink(topic: str | None, path: str | None, table_format: str) -> KafkaSink | TableSink:
        if topic is None:
            return table_sink(table_format, str(path), ("topic",))
        return KafkaSink(
            bootstrap_servers=source.bootstrap_servers,
            topic=topic,
            client_properties=source.client_properties,
            created_for=source if arguments.create_topics else None,
        )

    return QualityConfig(
        source=source,
        run=running,
        rules=read_rules(arguments.rules),
        good=sink(arguments.out_topic, arguments.output, arguments.format),
        bad=sink(arguments.dlq_topic, arguments.dead_letters, PARQUET),
        schema=read_schema(arguments.schema) if arguments.schema else None,
        values=value_format(arguments),
        fail_above=arguments.fail_above,
        schema_change=arguments.schema_change,
    )


JOB = Job(
    name="quality",
    description="Split records into good and bad ones by rules.",
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
