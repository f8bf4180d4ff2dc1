"""Table columns that identify the source record of a row or dead letter."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as sql

RECORD_COLUMNS = ("kafka_key", "kafka_partition", "kafka_offset", "kafka_timestamp", "kafka_headers")
DERIVED_PARTITIONS = ("topic", "date")
"""Columns derived from every record, to partition tables by; `date` is that of the timestamp, in UTC."""

REASON = "dead_letter_reason"


def parameter(value: int) -> Column:
    """A number that differs from batch to batch, as a BIGINT that Spark does not treat as a literal.

    Spark embeds literals in the code that it generates, so it would compile that code again for each batch, which would
    then run as slowly as the first one. It passes an array to the code as an argument. The index, which is 0, keeps
    Spark from reading the number out of the array while it plans.
    """
    return sql.array(sql.lit(value).cast("bigint"))[sql.spark_partition_id().bitwiseAND(0)]


def record_columns() -> list[Column]:
    """The connector's columns, except the value, under the names of `RECORD_COLUMNS` and `DERIVED_PARTITIONS`."""
    renamed = (sql.col(name.removeprefix("kafka_")).alias(name) for name in RECORD_COLUMNS)
    return [*renamed, sql.col("topic"), sql.to_date("timestamp").alias("date")]
