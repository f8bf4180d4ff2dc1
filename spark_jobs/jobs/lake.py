"""`lake`: write topics to a partitioned Parquet table, exactly once; set aside what does not parse.

    python -m spark_jobs.jobs.lake --bootstrap-servers 127.0.0.1:9092 --topics flights --schema flights.ddl \
        --output /lake/flights --checkpoint /lake/checkpoints/flights --trigger available-now

Guarantee: each record is in exactly one of the table and the dead letters, and there once, for every reader of Parquet
(no reader has to know a log of Spark's), also when broker or job die at any moment and are started again.

How: Spark writes a batch's offsets to the checkpoint before it runs the batch, so a batch that is run again has the
same records. Each batch owns its directories, `.../batch_id=N/`, and writes them by replacing them: run again, it
replaces what an attempt that died had left. The dead letters of a batch are written the same way before the batch is
committed.
One output belongs to one checkpoint: a marker in both keeps a new checkpoint, whose batches begin at 0 again, from
replacing the batches of an old one, and `--partition-by` from changing under a batch that is run again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import sys
import uuid
from collections.abc import Sequence
from types import FrameType
from typing import Any

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StringType, StructField, StructType

from spark_jobs.common.cli import add_common_options, source_config
from spark_jobs.common.files import TableDirectory
from spark_jobs.common.progress import ProgressReporter
from spark_jobs.common.schema import read_schema
from spark_jobs.common.session import build_session
from spark_jobs.common.source import SourceConfig, read_stream

MARKER = "_odradek_lake.json"
"""In the output and in the checkpoint, the same text: which output belongs to which checkpoint. Hidden from readers."""

STAGING_PREFIX = ".spark-staging-"
"""Where Spark prepares replaced partitions; an attempt that died leaves its own behind."""

CORRUPT = "_corrupt_record"
REASON = "dead_letter_reason"
BATCH = "batch_id"
RECORD_COLUMNS = ("kafka_key", "kafka_partition", "kafka_offset", "kafka_timestamp", "kafka_headers")
DERIVED_PARTITIONS = ("topic", "date")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LakeConfig:
    """One lake: its source, its output and its layout.

    `schema` None keeps values as they are (binary); otherwise values are JSON objects of that schema, and a field that
    the schema declares NOT NULL must be there. `partition_by`: `topic`, `date` (the record's timestamp, UTC) or fields.
    """

    source: SourceConfig
    output: str
    dead_letters: str
    checkpoint: str
    schema: StructType | None = None
    partition_by: tuple[str, ...] = DERIVED_PARTITIONS

    def __post_init__(self) -> None:
        fields = set(self.schema.fieldNames()) if self.schema is not None else {"value"}
        taken = sorted(fields & {*RECORD_COLUMNS, *DERIVED_PARTITIONS, BATCH, REASON, CORRUPT})
        if taken:
            raise ValueError(f"--schema: the table has columns of its own with these names: {', '.join(taken)}")
        unknown = [name for name in self.partition_by if name not in fields | set(DERIVED_PARTITIONS)]
        if unknown or not self.partition_by:
            raise ValueError(f"--partition-by {','.join(unknown)}: must be topic, date or fields of the schema")
        if set(self.partition_by) >= fields and self.schema is not None:
            raise ValueError("--partition-by: at least one field of the schema has to stay a column")


def value_columns(schema: StructType | None) -> tuple[Column, Column]:
    """The struct that values parse to, and why they do not parse (null for those that do)."""
    if schema is None:
        return sql.struct(sql.col("value")), sql.lit(None).cast("string")
    with_corrupt = StructType([*schema.fields, StructField(CORRUPT, StringType())])
    parsed = sql.from_json(
        sql.col("value").cast("string"), with_corrupt, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    )
    missing = [
        sql.when(sql.col(f"parsed.`{field.name}`").isNull(), sql.lit(f"field {field.name} is missing or null"))
        for field in schema.fields
        if not field.nullable
    ]
    reason = sql.coalesce(
        sql.when(sql.col("value").isNull(), sql.lit("value is null")),
        sql.when(sql.col("parsed").isNull(), sql.lit("not a JSON object")),
        sql.when(sql.col(f"parsed.{CORRUPT}").isNotNull(), sql.lit("not JSON of the schema")),
        *missing,
    )
    return parsed, reason


def transform(df: DataFrame, config: LakeConfig) -> DataFrame:
    """The connector's rows as rows of the table, plus `value` as it was and `dead_letter_reason` (null: parsed).

    Pure: the same rows give the same result at any time, which is what lets a batch be run again.
    """
    parsed, reason = value_columns(config.schema)
    fields = ["value"] if config.schema is None else config.schema.fieldNames()
    raw = [sql.col("value")] if config.schema is not None else []
    return df.withColumn("parsed", parsed).select(
        *(sql.col(f"parsed.`{name}`").alias(name) for name in fields),
        sql.col("key").alias("kafka_key"),
        sql.col("partition").alias("kafka_partition"),
        sql.col("offset").alias("kafka_offset"),
        sql.col("timestamp").alias("kafka_timestamp"),
        sql.col("headers").alias("kafka_headers"),
        sql.col("topic"),
        sql.to_date("timestamp").alias("date"),
        *(column.alias("raw_value") for column in raw),
        reason.alias(REASON),
    )


def table_rows(rows: DataFrame) -> DataFrame:
    """Those of `transform`'s rows that parsed, with the table's columns."""
    return rows.where(sql.col(REASON).isNull()).drop("raw_value", REASON)


def dead_letter_rows(rows: DataFrame) -> DataFrame:
    """Those of `transform`'s rows that did not parse: the record as it came, and the reason."""
    return rows.where(sql.col(REASON).isNotNull()).select(
        *RECORD_COLUMNS, sql.col("raw_value").alias("value"), REASON, *DERIVED_PARTITIONS
    )


def replace_batch(rows: DataFrame, batch_id: int, partition_by: Sequence[str], path: str) -> None:
    """Write `rows` as the directories of this batch, replacing what an earlier attempt at it left there."""
    (
        rows.withColumn(BATCH, sql.lit(batch_id))
        .write.mode("overwrite")
        .option("partitionOverwriteMode", "dynamic")
        .partitionBy(*partition_by, BATCH)
        .parquet(path)
    )


class LakeWriter:
    """Writer that the query calls for each batch; counts the records it has written."""

    def __init__(self, config: LakeConfig) -> None:
        self.config = config
        self.written = 0
        self.dead = 0
        self.batches = 0

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write one batch to the table and, when any record of it does not parse, to the dead letters."""
        rows = transform(batch, self.config)
        counts = Observation(f"lake-{batch_id}")
        # Counted while the table is written: only a batch with dead letters is read a second time, for them.
        observed = rows.observe(counts, sql.count(sql.lit(1)).alias("all"), sql.count(sql.col(REASON)).alias("dead"))
        replace_batch(table_rows(observed), batch_id, self.config.partition_by, self.config.output)
        total, dead = int(counts.get["all"]), int(counts.get["dead"])
        if dead:
            letters = dead_letter_rows(rows)
            replace_batch(letters, batch_id, DERIVED_PARTITIONS, self.config.dead_letters)
        self.written += total - dead
        self.dead += dead
        self.batches += total > 0


def bind_output(spark: SparkSession, config: LakeConfig) -> None:
    """Tie output and checkpoint together, or check that they are; clear what died attempts left half written.

    Raises ValueError when the output belongs to another checkpoint, or was laid out by another `--partition-by`.
    """
    output = TableDirectory(spark, config.output)
    checkpoint = TableDirectory(spark, config.checkpoint)
    there, ours = output.read_text(MARKER), checkpoint.read_text(MARKER)
    if there is not None and there != ours:
        raise ValueError(
            f"--output {config.output} belongs to another checkpoint than {config.checkpoint}: their batches would "
            "replace each other; use that checkpoint, or another output"
        )
    layout = list(config.partition_by)
    if ours is None:
        ours = json.dumps({"lake": str(uuid.uuid4()), "partition_by": layout})
        checkpoint.write_text(MARKER, ours)
    if json.loads(ours)["partition_by"] != layout:
        laid_out = ",".join(json.loads(ours)["partition_by"])
        raise ValueError(f"--partition-by: {config.output} is partitioned by {laid_out}")
    if there is None:
        output.write_text(MARKER, ours)
    for directory in (output, TableDirectory(spark, config.dead_letters)):
        directory.remove_children(STAGING_PREFIX)


def start(spark: SparkSession, config: LakeConfig, trigger: dict[str, Any]) -> tuple[StreamingQuery, LakeWriter]:
    """Start the query; the writer's counts grow as batches are written. Raises ValueError as `bind_output` does."""
    bind_output(spark, config)
    writer = LakeWriter(config)
    query = (
        read_stream(spark, config.source)
        .writeStream.queryName("lake")
        .foreachBatch(writer)
        .option("checkpointLocation", config.checkpoint)
        .trigger(**trigger)
        .start()
    )
    return query, writer


def build_parser() -> argparse.ArgumentParser:
    """The job's options."""
    parser = argparse.ArgumentParser(
        prog=os.environ.get("ODRADEK_COMMAND", "lake"),
        description="Stream topics into partitioned Parquet, exactly once.",
    )
    add_common_options(parser)
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
    return parser


def lake_config(arguments: argparse.Namespace) -> LakeConfig:
    """The lake that the options describe; raises OSError or ValueError with one line about a bad one."""
    return LakeConfig(
        source=source_config(arguments),
        output=arguments.output,
        dead_letters=arguments.dead_letters or f"{arguments.output.rstrip('/')}-dead-letters",
        checkpoint=arguments.checkpoint,
        schema=read_schema(arguments.schema) if arguments.schema else None,
        partition_by=tuple(name.strip() for name in arguments.partition_by.split(",") if name.strip()),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job until its trigger is done or SIGINT or SIGTERM; 0 when every batch begun was finished."""
    arguments = build_parser().parse_args(argv)
    spark = build_session("odradek-lake", master=arguments.master, kafka_jars=arguments.kafka_jars)
    try:
        config = lake_config(arguments)
        query, writer = start(spark, config, arguments.trigger)
    except (OSError, ValueError) as failure:
        print(f"lake: {failure}", file=sys.stderr)
        return 1
    stopping = False

    def stop(_signal: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    reporter = ProgressReporter(query)
    while not stopping and not query.awaitTermination(1):
        reporter.report()
    query.stop()
    reporter.report()
    print(f"lake: {writer.written:,} records and {writer.dead:,} dead letters in {writer.batches:,} batches")
    return 0


if __name__ == "__main__":
    sys.exit(main())
