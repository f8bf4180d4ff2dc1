"""Results of a stateful query: their sink, the records read for them, and the records left out of them."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from spark_jobs.checkpoints.checkpoint import Checkpoint
from spark_jobs.common.cli import add_create_topics_option
from spark_jobs.common.errors import REPORTED, one_line, patiently
from spark_jobs.common.events import LATE, REASON
from spark_jobs.common.progress import DUPLICATES
from spark_jobs.common.sink import Attempts, KafkaSink, ParquetSink, TableSink, json_records, query_id
from spark_jobs.common.source import SourceConfig, read_range
from spark_jobs.tables.formats import add_format_option, check_format, table_sink
from spark_jobs.tables.schema_change import accepted, add_schema_change_option

RESULTS = "results"

RejectsOf = Callable[[DataFrame, int], DataFrame]
"""Selects a batch's records that are in no result, from the connector's rows and the watermark in milliseconds."""


def add_result_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the target of the results."""
    results = parser.add_argument_group("results")
    where = results.add_mutually_exclusive_group(required=True)
    where.add_argument("--out-topic", metavar="TOPIC", help="JSON, with headers that tell a row that is written again")
    where.add_argument("--output", metavar="DIR", help="a table, exactly once; in Parquet each batch in batch_id=N")
    add_create_topics_option(results)
    add_format_option(results)
    add_schema_change_option(results)
    results.add_argument(
        "--dead-letters",
        metavar="DIR",
        help="keep, as Parquet, the records that do not parse or come too late (reads the records a second time)",
    )


def result_sink(arguments: argparse.Namespace, source: SourceConfig) -> KafkaSink | TableSink:
    """The sink that the options name, with topics on the source cluster. Raises ValueError."""
    check_format(arguments)
    if arguments.output is not None:
        return table_sink(arguments.format, arguments.output)
    return KafkaSink(
        bootstrap_servers=source.bootstrap_servers,
        topic=arguments.out_topic,
        client_properties=source.client_properties,
        created_for=source if arguments.create_topics else None,
    )


def prepare_sink(
    spark: SparkSession, sink: KafkaSink | TableSink, checkpoint: str, *, has_results: bool = True
) -> None:
    """Raise ValueError if the topic does not exist, or as `TableSink.bind` does."""
    if isinstance(sink, KafkaSink):
        sink.check(spark)
    else:
        sink.bind(spark, checkpoint, has_results=has_results)


def sink_for(
    spark: SparkSession, rows: DataFrame, sink: KafkaSink | TableSink, checkpoint: str, schema_change: str
) -> KafkaSink | TableSink:
    """The sink for `rows`, possibly a new table. Raises ValueError as `accepted` does."""
    return accepted(spark, sink, checkpoint, rows.schema, schema_change) if isinstance(sink, TableSink) else sink


def write_rows(
    sink: KafkaSink | TableSink, rows: DataFrame, key: Sequence[str], checkpoint: str, batch_id: int
) -> None:
    """Write one batch: to a topic as JSON keyed by the columns `key`, to a table unchanged."""
    if isinstance(sink, KafkaSink):
        sink.write(json_records(rows, key), query_id(rows.sparkSession, checkpoint), batch_id)
    else:
        sink.write(rows, batch_id)


def counted(results: DataFrame) -> DataFrame:
    """Results of a streaming query, counted as they pass, for `ResultWriter.watch`.

    An `Observation` of the batch would not work: Spark's Kafka sink runs a separate query, which no observation sees.
    """
    return results.observe(RESULTS, sql.count(sql.lit(1)).alias("rows"))


@dataclasses.dataclass
class Counts:
    """Totals of one run of a query; `duplicates` is None unless the query drops duplicates."""

    records: int = 0
    unparsed: int = 0
    late: int = 0
    duplicates: int | None = None
    rows: int = 0
    batches: int = 0

    def __str__(self) -> str:
        duplicates = f", {self.duplicates:,} duplicates" if self.duplicates is not None else ""
        return (
            f"{self.records:,} records, {self.unparsed:,} that do not parse, {self.late:,} late{duplicates}; "
            f"{self.rows:,} rows in {self.batches:,} batches"
        )


class ResultWriter:
    """Writes each batch for the query, and counts the records that are in no result.

    Spark may count late rows only after grouping. If it then drops any, the batch's records are read again to count the
    late ones individually.
    """

    def __init__(
        self,
        spark: SparkSession,
        checkpoint: str,
        sink: KafkaSink | TableSink,
        key: Sequence[str],
        sources: Sequence[SourceConfig],
        rejects_of: Sequence[RejectsOf],
        dead_letters: ParquetSink | None,
        *,
        drops_rows: bool = False,
    ) -> None:
        """`rejects_of` has one entry for each of `sources`. `drops_rows` says that Spark drops late records before it
        groups them. Raises ValueError if the sink does not exist.
        """
        self.counts = Counts()
        self._spark = spark
        self._checkpoint = Checkpoint(spark, checkpoint)
        self._sink = sink
        self._key = list(key)
        self._sources = list(zip(sources, rejects_of, strict=True))
        self._dead_letters = dead_letters
        self._drops_rows = drops_rows
        self._attempts = Attempts()
        prepare_sink(spark, sink, checkpoint)
        if dead_letters is not None:
            dead_letters.bind(spark, checkpoint, has_results=False)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write the results of one batch, and the records that are in none."""
        with self._attempts.replaced(self._spark, batch_id, self._sink, self._dead_letters):
            self._write(batch, batch_id)

    def _write(self, batch: DataFrame, batch_id: int) -> None:
        write_rows(self._sink, batch, self._key, self._checkpoint.path, batch_id)
        if self._dead_letters is not None:
            patiently(functools.partial(self._write_rejects, self._dead_letters, batch_id))

    def _write_rejects(self, dead_letters: ParquetSink, batch_id: int) -> None:
        rejects = self._rejects(batch_id)
        if rejects is not None:
            dead_letters.write(rejects, batch_id)

    def watch(self, progress: dict[str, Any]) -> int:
        """Add one finished batch to the counts, from its progress; returns the number of late records."""
        metrics = [seen for seen in progress["observedMetrics"].values() if "failed" in seen]
        self.counts.records += sum(seen["records"] for seen in metrics)
        self.counts.unparsed += sum(seen["failed"] for seen in metrics)
        written = progress["observedMetrics"].get(RESULTS, {}).get("rows", 0)
        self.counts.rows += written
        self.counts.batches += written > 0
        for operator in progress["stateOperators"]:
            if DUPLICATES in operator["customMetrics"]:
                self.counts.duplicates = (self.counts.duplicates or 0) + operator["customMetrics"][DUPLICATES]
        dropped = sum(operator["numRowsDroppedByWatermark"] for operator in progress["stateOperators"])
        late = dropped if self._drops_rows or not dropped else self._late(progress["batchId"], dropped)
        self.counts.late += late
        return late

    def _late(self, batch_id: int, dropped: int) -> int:
        def late_rejects() -> int:
            rejects = self._rejects(batch_id)
            return rejects.where(sql.col(REASON).startswith(LATE)).count() if rejects is not None else 0

        try:
            return max(patiently(late_rejects), 1)
        except REPORTED as failure:
            print(f"late records are counted by group: {one_line(failure)}", file=sys.stderr)
            return dropped

    def _rejects(self, batch_id: int) -> DataFrame | None:
        """Records of the batch that are in no result, or None if the batch read no records."""
        # Spark drops rows by the watermark of the previous batch; this batch's watermark only makes results final.
        watermark = self._checkpoint.watermark_ms(batch_id - 1)
        found: DataFrame | None = None
        for number, (source, rejects_of) in enumerate(self._sources):
            span = self._checkpoint.range_of(batch_id, number)
            if span is None:
                continue
            rejects = rejects_of(read_range(self._spark, source, *span), watermark)
            found = rejects if found is None else found.unionByName(rejects)
        return found

    def summary(self) -> str:
        """One line: the records read, and their outcome."""
        return str(self.counts)
