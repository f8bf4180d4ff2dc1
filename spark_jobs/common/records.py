"""Columns in which tables keep the record that a row, or a dead letter, came from."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as sql

RECORD_COLUMNS = ("kafka_key", "kafka_partition", "kafka_offset", "kafka_timestamp", "kafka_headers")
DERIVED_PARTITIONS = ("topic", "date")
"""Columns that every record has and that a table can be partitioned by; `date` is that of the timestamp, in UTC."""

REASON = "dead_letter_reason"


def parameter(value: int) -> Column:
    """A number that differs from batch to batch, as a BIGINT that Spark does not treat as a literal.

    Spark writes literals into the code that it generates: the code of each batch would be compiled anew, and would run
    as slowly as that of the first one. It passes an array to the code as an argument. The index, which is 0, keeps
    Spark from reading the number out of the array while it plans.
    """
    return sql.array(sql.lit(value).cast("bigint"))[sql.spark_partition_id().bitwiseAND(0)]


def record_columns() -> list[Column]:
    """The connector's columns, save the value, under the names of `RECORD_COLUMNS` and `DERIVED_PARTITIONS`."""
    renamed = (sql.col(name.removeprefix("kafka_")).alias(name) for name in RECORD_COLUMNS)
    return [*renamed, sql.col("topic"), sql.to_date("timestamp").alias("date")]
