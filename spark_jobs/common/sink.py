"""Sinks that tolerate a repeated batch: topics, whose records identify their row, and tables.

A batch that the job or the broker interrupted is run and written again. A table replaces the rows of the first attempt.
A topic cannot: its readers see both copies, and the headers `query`, `batch`, `partition` and `row`, equal in both,
show them that it is the same row.
"""

from __future__ import annotations

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import ClassVar

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql

from spark_jobs.checkpoints.binding import bind
from spark_jobs.common.files import TableDirectory, beside
from spark_jobs.common.kafka_admin import KafkaAdmin
from spark_jobs.common.records import parameter
from spark_jobs.common.source import SourceConfig

ROW_HEADERS = ("query", "batch", "partition", "row")
"""Names of the headers in order, the last four of a record. Their values are text in UTF-8."""

BATCH = "batch_id"
STAGING = "staging"
"""A directory next to a Parquet table that a batch is first written to; an interrupted attempt leaves files there."""
OLD_STAGING_PREFIX = ".spark-staging-"
"""The directory inside the table that earlier versions used for that."""

_ROW_BITS = 33
"""Bits of the row number in `monotonically_increasing_id`; the bits above are the partition."""


def query_id(spark: SparkSession, checkpoint: str) -> str:
    """The id of the query that owns `checkpoint`, stable across runs; raises ValueError before its first start."""
    text = TableDirectory(spark, checkpoint).read_text("metadata")
    if text is None:
        raise ValueError(f"--checkpoint {checkpoint}: no query was started there")
    return str(json.loads(text)["id"])


def with_row_headers(records: DataFrame, query: str, batch_id: int, place: tuple[str, str] | None = None) -> DataFrame:
    """`records` (key, value, optionally headers, topic, partition) with `ROW_HEADERS` after their own headers.

    First sorts each Spark partition by its columns, so that the same rows in the same partitions get the same headers,
    in whatever order they came. `place` names two columns that already identify the row by partition and number (the
    position of a source record, say): they become the headers, and the order stays. Pure.
    """
    if place is not None:
        added = _row_headers(query, batch_id, sql.col(place[0]), sql.col(place[1]))
        return _with_headers(records, added).drop(*place)
    orderable = [name for name in ("topic", "partition", "key", "value", "headers") if name in records.columns]
    numbered = records.sortWithinPartitions(*orderable).withColumn("place", sql.monotonically_increasing_id())
    row = sql.col("place").bitwiseAND(sql.lit((1 << _ROW_BITS) - 1))
    return _with_headers(numbered, _row_headers(query, batch_id, sql.shiftright("place", _ROW_BITS), row)).drop("place")


def _row_headers(query: str, batch_id: int, partition: Column, row: Column) -> Column:
    values = (sql.lit(query), sql.lit(str(batch_id)), partition, row)
    return sql.array(*(_header(name, value) for name, value in zip(ROW_HEADERS, values, strict=True)))


def _with_headers(records: DataFrame, added: Column) -> DataFrame:
    own = sql.coalesce(sql.col("headers"), sql.array()) if "headers" in records.columns else None
    return records.withColumn("headers", added if own is None else sql.concat(own, added))


def _header(name: str, value: Column) -> Column:
    return sql.struct(sql.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))


def json_records(rows: DataFrame, key: Sequence[str]) -> DataFrame:
    """Rows as records: `key` is a JSON object of the columns `key`, `value` one of all columns, nulls included."""
    options = {"ignoreNullFields": "false"}
    return rows.select(
        sql.to_json(sql.struct(*(sql.col(f"`{name}`") for name in key)), options).alias("key"),
        sql.to_json(sql.struct(*(sql.col(f"`{name}`") for name in rows.columns)), options).alias("value"),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class KafkaSink:
    """A topic, or if `topic` is None, the topics that the column `topic` names.

    Delivery is at least once; a retried batch repeats records with the same `ROW_HEADERS`. With `created_for`, a
    missing topic is created with as many partitions as the largest topic of that source; otherwise it is not created.
    """

    bootstrap_servers: str
    topic: str | None = None
    client_properties: dict[str, str] = dataclasses.field(default_factory=dict)
    created_for: SourceConfig | None = None

    def options(self) -> dict[str, str]:
        """All options of Spark's Kafka sink."""
        options = {f"kafka.{key}": value for key, value in self.client_properties.items()}
        options["kafka.bootstrap.servers"] = self.bootstrap_servers
        if self.topic is not None:
            options["topic"] = self.topic
        return options

    def check(self, spark: SparkSession) -> None:
        """Raise ValueError if the topic is missing and may not be created: a batch would fail only after retries."""
        with self.admin(spark) as admin:
            if self.topic is not None and self.created_for is not None and not admin.existing_topics([self.topic]):
                admin.create_topic(self.topic, self._partitions(spark, self.created_for), {})
            admin.topics(names=[self.topic] if self.topic is not None else [])

    @staticmethod
    def _partitions(spark: SparkSession, source: SourceConfig) -> int:
        with KafkaAdmin(spark, source.bootstrap_servers, source.client_properties) as admin:
            counts = admin.topics(names=source.topic_names(), pattern=source.pattern)
        return max(counts.values(), default=1)

    def admin(self, spark: SparkSession) -> KafkaAdmin:
        """An admin client of the sink's cluster; the caller closes it."""
        return KafkaAdmin(spark, self.bootstrap_servers, self.client_properties)

    def write(self, records: DataFrame, query: str, batch_id: int, place: tuple[str, str] | None = None) -> None:
        """Write the records of one batch, with their headers (`place` as in `with_row_headers`).

        Returns when all are acknowledged.
        """
        with_row_headers(records, query, batch_id, place).write.format("kafka").options(**self.options()).save()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableSink(ABC):
    """A table that replaces the earlier rows of a repeated batch.

    `spark_jobs.tables.formats` defines the formats other than plain Parquet.
    """

    path: str
    partition_by: tuple[str, ...] = ()
    format: ClassVar[str]

    def bind(self, spark: SparkSession, checkpoint: str, *, has_results: bool = True) -> None:
        """Tie the table to `checkpoint`, or check that it is; remove what interrupted attempts left behind.

        `has_results` is False for dead letters: they are Parquet next to results in any format, and may be added later.
        Raises ValueError if the table belongs to another checkpoint (whose batches have the same numbers), has another
        format, or lacks results of committed batches.
        """
        settings = {"format": self.format} if has_results else {}
        bind(spark, self.path, checkpoint, settings=settings, from_first_batch=has_results)
        self.clear(spark)

    def clear(self, spark: SparkSession) -> None:  # noqa: B027 - most formats leave nothing that a reader could find
        """Remove what interrupted attempts left behind."""

    @abstractmethod
    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Write the rows of one batch, replacing those of an earlier attempt at it. See also `Attempts`."""

    @contextmanager
    def attempted_before(self, spark: SparkSession, batch_id: int) -> Iterator[None]:  # noqa: ARG002
        """Context for writing a batch, if it has rows, that may have been attempted before.

        On exit, it has removed the rows of earlier attempts that `write` did not replace.
        """
        yield


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParquetSink(TableSink):
    """A Parquet table: each batch owns its directories, `.../batch_id=N/`, and replaces them when repeated."""

    format = "parquet"

    def clear(self, spark: SparkSession) -> None:
        """Remove what interrupted attempts left behind."""
        TableDirectory(spark, self.path).remove_children(OLD_STAGING_PREFIX)
        TableDirectory(spark, beside(self.path, STAGING)).remove_all()

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Write the rows of one batch, replacing those of an earlier attempt at it in the same partitions.

        Rows are staged outside the table, then renamed into it partition by partition. `attempted_before` handles the
        other partitions.
        """
        staged = beside(self.path, STAGING)
        columns = (*self.partition_by, BATCH)
        rows.withColumn(BATCH, parameter(batch_id)).write.mode("overwrite").partitionBy(*columns).parquet(staged)
        table, written = TableDirectory(rows.sparkSession, self.path), TableDirectory(rows.sparkSession, staged)
        for place in written.partitions(len(columns)):
            table.replace(place, written)
        written.remove_all()

    @contextmanager
    def attempted_before(self, spark: SparkSession, batch_id: int) -> Iterator[None]:
        """As for every table."""
        table = TableDirectory(spark, self.path)
        places = [
            f"{partition}/{BATCH}={batch_id}".lstrip("/") for partition in table.partitions(len(self.partition_by))
        ]
        left = {place: TableDirectory(spark, f"{self.path}/{place}").names() for place in places}
        yield
        for place, names in left.items():
            # The file still exists, so `write` did not replace the directory: a replaced one has files with new names.
            if names and table.has(f"{place}/{names[0]}"):
                table.remove(place)


class Attempts:
    """Attempts at the batches of one run of a query: each attempt removes all output of an earlier one.

    A repeated batch has the same records, but others may parse now, because a registry has learned a schema. Their rows
    then go to other partitions, or to the other one of two tables.
    """

    def __init__(self) -> None:
        self._begun = False

    @contextmanager
    def replaced(self, spark: SparkSession, batch_id: int, *sinks: KafkaSink | TableSink | None) -> Iterator[None]:
        """Context for writing the batch to the tables among `sinks`, if it has rows for them."""
        with ExitStack() as tables:
            # Only the first batch of a run may have been attempted before.
            for sink in sinks:
                if isinstance(sink, TableSink) and not self._begun:
                    tables.enter_context(sink.attempted_before(spark, batch_id))
            self._begun = True
            yield
