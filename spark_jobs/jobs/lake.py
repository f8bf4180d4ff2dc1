"""`lake`: write topics to a partitioned table exactly once, and keep records that do not parse apart.

    python -m spark_jobs.jobs.lake --bootstrap-servers 127.0.0.1:9092 --topics flights --schema flights.ddl \
        --output /lake/flights --checkpoint /lake/checkpoints/flights --trigger available-now

Guarantee: each record is in exactly one of the table and the dead letters, exactly once, for every reader of Parquet
(readers need not know any Spark log), Delta or Iceberg, even if the broker or the job dies at any moment and restarts.

How: Spark writes a batch's offsets to the checkpoint before it runs the batch, so a repeated batch has the same
records. Each batch owns its directories, `.../batch_id=N/`, in the table and in the dead letters. It writes them by
replacing them, so a repeated batch replaces the output of an interrupted attempt. The dead letters of a batch are
written before the batch is committed.
One output belongs to one checkpoint. A marker in both keeps a new checkpoint, whose batches begin at 0 again, from
replacing the batches of an old one. It also keeps `--partition-by` from changing before a batch is repeated.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from spark_jobs.checkpoints.binding import bind
from spark_jobs.common import values
from spark_jobs.common.cli import RunConfig, names_in
from spark_jobs.common.records import DERIVED_PARTITIONS, REASON, RECORD_COLUMNS, record_columns
from spark_jobs.common.runner import Job, Query, run
from spark_jobs.common.schema import read_schema
from spark_jobs.common.sink import BATCH, Attempts, ParquetSink, TableSink
from spark_jobs.common.source import SourceConfig, read_stream
from spark_jobs.jobs import lake_compact
from spark_jobs.lakes.compaction import check_not_rewound
from spark_jobs.lakes.layout import MARKER, dead_letters_of
from spark_jobs.schemas.value_format import PLAIN_JSON, TEXT, ValueFormat, add_value_options, value_format
from spark_jobs.tables.formats import PARQUET, add_format_option, table_sink
from spark_jobs.tables.schema_change import EVOLVE, accepted, add_schema_change_option

FAILED = "failed_to_parse"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LakeConfig:
    """One lake: its source, its run, its output and its layout.

    With `schema` None, values are stored unchanged (binary). Otherwise values, in the format `values`, are objects of
    that schema, and fields that it declares NOT NULL are required. `partition_by`: `topic`, `date` (the record's
    timestamp, UTC) or fields.
    """

    source: SourceConfig
    run: RunConfig
    output: str
    dead_letters: str
    schema: StructType | None = None
    values: ValueFormat = PLAIN_JSON
    partition_by: tuple[str, ...] = DERIVED_PARTITIONS
    table_format: str = PARQUET
    schema_change: str = EVOLVE

    def __post_init__(self) -> None:
        fields = set(self.schema.fieldNames()) if self.schema is not None else {"value"}
        taken = sorted(fields & {*RECORD_COLUMNS, *DERIVED_PARTITIONS, BATCH, REASON, FAILED, values.CORRUPT})
        if taken:
            raise ValueError(f"--schema: the table has columns of its own with these names: {', '.join(taken)}")
        unknown = [name for name in self.partition_by if name not in fields | set(DERIVED_PARTITIONS)]
        if unknown or not self.partition_by:
            raise ValueError(f"--partition-by {','.join(unknown)}: must be topic, date or fields of the schema")
        if set(self.partition_by) >= fields and self.schema is not None:
            raise ValueError("--partition-by: at least one field of the schema has to stay a column")

    @property
    def table(self) -> TableSink:
        """The table of the records that parsed."""
        return table_sink(self.table_format, self.output, self.partition_by)

    @property
    def letters(self) -> ParquetSink:
        """The dead letters: the records that did not parse."""
        return ParquetSink(path=self.dead_letters, partition_by=DERIVED_PARTITIONS)


def transform(df: DataFrame, config: LakeConfig) -> DataFrame:
    """The connector's rows as table rows, plus the original value and whether it failed to parse.

    Pure: the same rows always give the same result, so that a batch can be repeated.
    """
    if config.schema is None:
        parsed, failed = sql.struct(sql.col("value")), sql.lit(False)
    else:
        df = config.values.with_text(df)
        parsed = values.parse(sql.col(TEXT), config.schema)
        failed = values.failed(sql.col(TEXT), sql.col("parsed"), config.schema)
    fields = ["value"] if config.schema is None else config.schema.fieldNames()
    raw = [sql.col("value")] if config.schema is not None else []
    return df.withColumn("parsed", parsed).select(
        *(sql.col(f"parsed.`{name}`").alias(name) for name in fields),
        *record_columns(),
        *(column.alias("raw_value") for column in raw),
        failed.alias(FAILED),
    )


def table_rows(rows: DataFrame) -> DataFrame:
    """The rows of `transform` that parsed, with the table's columns."""
    return rows.where(~sql.col(FAILED)).drop("raw_value", FAILED)


def dead_letter_rows(rows: DataFrame, schema: StructType, values: ValueFormat = PLAIN_JSON) -> DataFrame:
    """The rows of `transform` that did not parse: the record as received, and the reason."""
    raw = sql.col("raw_value")
    return rows.where(FAILED).select(
        *RECORD_COLUMNS, raw.alias("value"), values.reason(raw, schema).alias(REASON), *DERIVED_PARTITIONS
    )


class LakeWriter:
    """Writes each batch for the query; counts the records written.

    A batch with dead letters is read twice, which doubles Spark's own count of its records.
    """

    def __init__(self, config: LakeConfig) -> None:
        self.config = config
        self.written = 0
        self.dead = 0
        self.batches = 0
        self._attempts = Attempts()
        self._last = -1, 0

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write one batch to the table and, if any record of it does not parse, to the dead letters."""
        tables = (self.config.table, self.config.letters)
        with (
            self.config.values.decided(transform(batch, self.config)) as rows,
            self._attempts.replaced(batch.sparkSession, batch_id, *tables),
        ):
            self._write(rows, batch_id)

    def _write(self, rows: DataFrame, batch_id: int) -> None:
        counts = Observation(f"lake-{batch_id}")
        # Count while writing the table: only a batch with dead letters is read a second time, for them.
        observed = rows.observe(counts, sql.count(sql.lit(1)).alias("all"), sql.count_if(FAILED).alias("dead"))
        self.config.table.write(table_rows(observed), batch_id)
        total, dead = map(int, counts.get.values())
        if dead and self.config.schema is not None:
            self.config.letters.write(dead_letter_rows(rows, self.config.schema, self.config.values), batch_id)
        self.written += total - dead
        self.dead += dead
        self.batches += total > 0
        self._last = batch_id, total

    def records_of(self, batch_id: int) -> int | None:
        """Record count of the last batch, or None for another batch."""
        last, records = self._last
        return records if last == batch_id else None

    def summary(self) -> str:
        """One line: the records, the dead letters and the batches."""
        return f"{self.written:,} records and {self.dead:,} dead letters in {self.batches:,} batches"


def bind_output(spark: SparkSession, config: LakeConfig) -> None:
    """Tie output and checkpoint together, or check that they are; remove what interrupted attempts left behind.

    Raises ValueError if the output belongs to another checkpoint, was written with another `--partition-by` or
    `--format`, or was compacted beyond the checkpoint.
    """
    settings = {"partition_by": config.partition_by, "format": config.table_format}
    bind(spark, config.output, config.run.checkpoint, marker=MARKER, settings=settings)
    for table in (config.table, config.letters):
        check_not_rewound(spark, table.path, config.run.checkpoint)
        table.clear(spark)


def plan(spark: SparkSession, config: LakeConfig) -> DataFrame:
    """The rows that batches divide into table and dead letters."""
    return transform(read_stream(spark, config.source), config)


def build_query(spark: SparkSession, config: LakeConfig) -> Query:
    """The query that fills the lake. Raises ValueError as `bind_output` and `accepted` do."""
    columns = table_rows(plan(spark, config)).schema
    table = accepted(spark, config.table, config.run.checkpoint, columns, config.schema_change)
    config = dataclasses.replace(config, output=table.path)
    bind_output(spark, config)
    writer = LakeWriter(config)
    stream = read_stream(spark, config.source).writeStream.foreachBatch(writer)
    return Query(stream, writer.summary, writer.records_of)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the table and of the values."""
    add_value_options(parser)
    table = parser.add_argument_group("table")
    table.add_argument("--output", required=True, metavar="DIR")
    table.add_argument("--schema", metavar="FILE", help="DDL or Spark's JSON; without it values stay binary")
    table.add_argument(
        "--partition-by",
        default=",".join(DERIVED_PARTITIONS),
        metavar="A,B,...",
        help="topic, date (of the record's timestamp, UTC) or fields of the schema (default: topic,date)",
    )
    table.add_argument(
        "--dead-letters", metavar="DIR", help="where records go that do not parse (default: OUTPUT-dead-letters)"
    )
    add_format_option(table)
    add_schema_change_option(table)


def configure(arguments: argparse.Namespace, source: SourceConfig, running: RunConfig) -> LakeConfig:
    """The lake that the options describe; raises OSError or ValueError with one line about a bad one."""
    return LakeConfig(
        source=source,
        run=running,
        output=arguments.output,
        dead_letters=dead_letters_of(arguments.output, arguments.dead_letters),
        schema=read_schema(arguments.schema) if arguments.schema else None,
        values=value_format(arguments),
        partition_by=names_in(arguments.partition_by),
        table_format=arguments.format,
        schema_change=arguments.schema_change,
    )


JOB = Job(
    name="lake",
    description="Stream topics into a partitioned table, exactly once.",
    add_options=add_options,
    configure=configure,
    plan=plan,
    build_query=build_query,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job, as `spark_jobs.common.runner.run` does; `compact` before the options runs another command."""
    given = sys.argv[1:] if argv is None else list(argv)
    return lake_compact.main(given[1:]) if given[:1] == ["compact"] else run(JOB, given)


if __name__ == "__main__":
    sys.exit(main())
