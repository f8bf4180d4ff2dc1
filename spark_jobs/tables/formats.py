"""Formats of the tables that jobs write: plain Parquet, Delta Lake, Apache Iceberg.

A Delta or Iceberg table has the batch number as a column, and a batch replaces the rows with its number in one commit:
a repeated batch leaves each row once, whatever its first attempt wrote. Transaction marks of the formats (such as
Delta's `txnVersion`) would not do: they skip a repeated batch even if its rows differ because a registry has learned a
schema.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from spark_jobs.common.files import TableDirectory
from spark_jobs.common.session import SCALA_VERSION, SessionParts
from spark_jobs.common.sink import BATCH, ParquetSink, TableSink

PARQUET, DELTA, ICEBERG = "parquet", "delta", "iceberg"

_DELTA_OF_SPARK = {"4.0": "4.0.0"}
_ICEBERG_OF_SPARK = {"4.0": "1.10.0"}
_CATALOG = "odradek"
"""The catalog of a job's single Iceberg table; its warehouse is the parent of the table's directory."""


def add_format_option(parser: argparse._ArgumentGroup | argparse.ArgumentParser) -> None:
    """Add the option for the format of the table at --output."""
    parser.add_argument(
        "--format",
        choices=[PARQUET, DELTA, ICEBERG],
        default=PARQUET,
        help="of the table; dead letters are Parquet always (default: parquet)",
    )


def check_format(arguments: argparse.Namespace) -> None:
    """Raise ValueError for a format without a table."""
    if arguments.format != PARQUET and arguments.output is None:
        raise ValueError(f"--format {arguments.format}: needs --output")


def session_parts(name: str | None) -> SessionParts:
    """Jars and settings that a format needs; raises ValueError if none are known for this Spark."""
    version = ".".join(pyspark.__version__.split(".")[:2])
    if name == DELTA:
        return SessionParts(
            _packages(name, f"io.delta:delta-spark_{SCALA_VERSION}", _DELTA_OF_SPARK.get(version)),
            {
                "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
                "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            },
        )
    if name == ICEBERG:
        artifact = f"org.apache.iceberg:iceberg-spark-runtime-{version}_{SCALA_VERSION}"
        extensions = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        return SessionParts(
            _packages(name, artifact, _ICEBERG_OF_SPARK.get(version)), {"spark.sql.extensions": extensions}
        )
    return SessionParts()


def _packages(name: str, artifact: str, version: str | None) -> tuple[str, ...]:
    if version is None:
        raise ValueError(f"--format {name}: no release for Spark {pyspark.__version__} is known")
    return (f"{artifact}:{version}",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeltaSink(TableSink):
    """A Delta Lake table."""

    format = DELTA

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Write the rows of one batch in one commit, replacing those of an earlier attempt at it."""
        (
            _numbered(rows, batch_id)
            .write.format("delta")
            .mode("overwrite")
            .option("replaceWhere", f"{BATCH} = {batch_id}")
            .option("mergeSchema", "true")
            .partitionBy(*self.partition_by)
            .save(self.path)
        )

    def compact(self, spark: SparkSession, *, target_bytes: int, min_files: int) -> tuple[int, int]:
        """Merge small files; returns how many were merged, and into how many. Delta has no `min_files`."""
        del min_files
        spark.conf.set("spark.databricks.delta.optimize.maxFileSize", target_bytes)
        metrics = spark.sql(f"OPTIMIZE delta.`{self.path}`").collect()[0]["metrics"]
        return int(metrics["numFilesRemoved"]), int(metrics["numFilesAdded"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class IcebergSink(TableSink):
    """An Apache Iceberg table in a Hadoop catalog; its directory is `path`."""

    format = ICEBERG

    def _table(self, spark: SparkSession) -> str:
        """The table's name, in a catalog that it adds to the session."""
        warehouse, _, name = TableDirectory(spark, self.path).uri().rstrip("/").rpartition("/")
        spark.conf.set(f"spark.sql.catalog.{_CATALOG}", "org.apache.iceberg.spark.SparkCatalog")
        spark.conf.set(f"spark.sql.catalog.{_CATALOG}.type", "hadoop")
        spark.conf.set(f"spark.sql.catalog.{_CATALOG}.warehouse", warehouse)
        return f"{_CATALOG}.`{name}`"

    @contextmanager
    def attempted_before(self, spark: SparkSession, batch_id: int) -> Iterator[None]:
        """As for every table. `write` cannot replace rows in files that compaction merged from several batches."""
        table, of_batch = self._table(spark), f"{BATCH} = {batch_id}"
        if spark.catalog.tableExists(table) and not spark.table(table).where(of_batch).isEmpty():
            spark.sql(f"DELETE FROM {table} WHERE {of_batch}")  # noqa: S608 - a name in backticks and a number
        yield

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Write the rows of one batch in one commit, replacing those of an earlier attempt at it."""
        table = self._table(rows.sparkSession)
        writer = _numbered(rows, batch_id).writeTo(table)
        if rows.sparkSession.catalog.tableExists(table):
            writer.option("mergeSchema", "true").overwrite(sql.col(BATCH) == batch_id)
            return
        writer = writer.using("iceberg").tableProperty("write.spark.accept-any-schema", "true")
        if self.partition_by:
            writer = writer.partitionedBy(*(sql.col(f"`{name}`") for name in self.partition_by))
        writer.create()

    def compact(self, spark: SparkSession, *, target_bytes: int, min_files: int) -> tuple[int, int]:
        """Merge small files if a partition has `min_files` of them; returns how many were merged, and into how many."""
        catalog, _, name = self._table(spark).partition(".")
        options = f"map('target-file-size-bytes', '{target_bytes}', 'min-input-files', '{min_files}')"
        call = f"CALL {catalog}.system.rewrite_data_files(table => '{name}', options => {options})"
        done = spark.sql(call).collect()[0]
        return int(done["rewritten_data_files_count"]), int(done["added_data_files_count"])


def _numbered(rows: DataFrame, batch_id: int) -> DataFrame:
    """`rows` with the batch number as first column: both formats keep statistics of the first columns only."""
    return rows.select(sql.lit(batch_id).alias(BATCH), *(sql.col(f"`{name}`") for name in rows.columns))


def table_sink(name: str, path: str, partition_by: tuple[str, ...] = ()) -> TableSink:
    """The table at `path` in the format `name`."""
    kinds: dict[str, type[TableSink]] = {PARQUET: ParquetSink, DELTA: DeltaSink, ICEBERG: IcebergSink}
    return kinds[name](path=path, partition_by=partition_by)
