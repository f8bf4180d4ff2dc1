"""Sinks that a batch can be written to again: a topic, whose records say which row they are, or a table.

A batch that is run again, because the job or the broker died in it, is written again. A table replaces what the first
attempt had left. A topic cannot: its readers see both, and the headers `query`, `batch`, `partition` and `row`, equal
in both, tell them that it is the same row.
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
"""Names of the headers, in their order: the last four of a record. Their values are text in UTF-8."""

BATCH = "batch_id"
STAGING = "staging"
"""A directory beside a Parquet table, in which a batch is written; an attempt that died leaves its own behind."""
OLD_STAGING_PREFIX = ".spark-staging-"
"""Where Spark did so for earlier versions, in the table."""

_ROW_BITS = 33
"""Bits of a row's number in `monotonically_increasing_id`; the partition is above them."""


def query_id(spark: SparkSession, checkpoint: str) -> str:
    """The id of the query that owns `checkpoint`, the same in every run; raises ValueError before its first start."""
    text = TableDirectory(spark, checkpoint).read_text("metadata")
    if text is None:
        raise ValueError(f"--checkpoint {checkpoint}: no query was started there")
    return str(json.loads(text)["id"])


def with_row_headers(records: DataFrame, query: str, batch_id: int, place: tuple[str, str] | None = None) -> DataFrame:
    """`records` (key, value, and where wanted headers, topic, partition) with `ROW_HEADERS` behind their own headers.

    The rows of each Spark partition are put in the order of their columns first, so that the same rows in the same
    partitions get the same headers, whatever order they came in. `place` names two columns that tell a row's partition
    and number already (where a source record stood, say): they become the headers, and the order stays. Pure.
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
    """Rows as records: `key` a JSON object of the columns `key`, `value` one of all columns, nulls included."""
    options = {"ignoreNullFields": "false"}
    return rows.select(
        sql.to_json(sql.struct(*(sql.col(f"`{name}`") for name in key)), options).alias("key"),
        sql.to_json(sql.struct(*(sql.col(f"`{name}`") for name in rows.columns)), options).alias("value"),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class KafkaSink:
    """A topic, or with `topic` None the topics that the column `topic` names.

    Records arrive at least once; a retried batch repeats records with the `ROW_HEADERS` that they had. `created_for`:
    a topic that is missing is created, with as many partitions as the largest topic of this source; None: it is not.
    """

    bootstrap_servers: str
    topic: str | None = None
    client_properties: dict[str, str] = dataclasses.field(default_factory=dict)
    created_for: SourceConfig | None = None

    def options(self) -> dict[str, str]:
        """Every option of Spark's Kafka sink."""
        options = {f"kafka.{key}": value for key, value in self.client_properties.items()}
        options["kafka.bootstrap.servers"] = self.bootstrap_servers
        if self.topic is not None:
            options["topic"] = self.topic
        return options

    def check(self, spark: SparkSession) -> None:
        """Raise ValueError when the topic does not exist and is not to be created: a batch would fail after retries."""
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
        """An admin client of the sink's cluster; close it."""
        return KafkaAdmin(spark, self.bootstrap_servers, self.client_properties)

    def write(self, records: DataFrame, query: str, batch_id: int, place: tuple[str, str] | None = None) -> None:
        """Write the records of one batch, with their headers (`place` as in `with_row_headers`).

        Returns when all are acknowledged.
        """
        with_row_headers(records, query, batch_id, place).write.format("kafka").options(**self.options()).save()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableSink(ABC):
    """A table in which a batch that is written again replaces the rows that it had.

    `spark_jobs.tables.formats` has those that are not plain Parquet.
    """

    path: str
    partition_by: tuple[str, ...] = ()
    format: ClassVar[str]

    def bind(self, spark: SparkSession, checkpoint: str, *, has_results: bool = True) -> None:
        """Tie the table to `checkpoint`, or check that it is; clear what attempts that died left half written.

        `has_results` is False for dead letters: they are Parquet beside results in any format, and may be asked for
        later. Raises ValueError when the table belongs to another checkpoint, whose batches have the same numbers, was
        begun in another format, or lacks results of batches that are done.
        """
        settings = {"format": self.format} if has_results else {}
        bind(spark, self.path, checkpoint, settings=settings, from_first_batch=has_results)
        self.clear(spark)

    def clear(self, spark: SparkSession) -> None:  # noqa: B027 - most formats leave nothing that a reader could find
        """Remove what attempts that died left half written."""

    @abstractmethod
    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Write the rows of one batch, in place of those that an earlier attempt at it left. See also `Attempts`."""

    @contextmanager
    def attempted_before(self, spark: SparkSession, batch_id: int) -> Iterator[None]:  # noqa: ARG002
        """Within it a batch is written, or had no rows to write, of which an earlier attempt may have left rows.

        Afterwards none of those is left.
        """
        yield


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParquetSink(TableSink):
    """A table in which each batch owns its directories, `.../batch_id=N/`, and replaces them when it is run again."""

    format = "parquet"

    def clear(self, spark: SparkSession) -> None:
        """Remove what attempts that died left half written."""
        TableDirectory(spark, self.path).remove_children(OLD_STAGING_PREFIX)
        TableDirectory(spark, beside(self.path, STAGING)).remove_all()

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Write the rows of one batch, in place of those that an earlier attempt at it left in the same partitions.

        They are written out of sight and then renamed, partition by partition. See `attempted_before` for the other
        partitions.
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
        """As of every table."""
        table = TableDirectory(spark, self.path)
        places = [
            f"{partition}/{BATCH}={batch_id}".lstrip("/") for partition in table.partitions(len(self.partition_by))
        ]
        left = {place: TableDirectory(spark, f"{self.path}/{place}").names() for place in places}
        yield
        for place, names in left.items():
            # Files have new names in a directory that was replaced.
            if names and table.has(f"{place}/{names[0]}"):
                table.remove(place)


class Attempts:
    """Attempts at the batches of one run of a query: nothing that an earlier one wrote outlives the next.

    A batch that is run again has the same records, and may find that other ones of them parse: a registry knows a
    schema now. Its rows are then in other partitions, or in the other one of two tables.
    """

    def __init__(self) -> None:
        self._begun = False

    @contextmanager
    def replaced(self, spark: SparkSession, batch_id: int, *sinks: KafkaSink | TableSink | None) -> Iterator[None]:
        """Within it the batch is written to the tables among `sinks`, as far as it has rows for them."""
        with ExitStack() as tables:
            # Only the first batch of a run can be one that was begun before.
            for sink in sinks:
                if isinstance(sink, TableSink) and not self._begun:
                    tables.enter_context(sink.attempted_before(spark, batch_id))
            self._begun = True
            yield
