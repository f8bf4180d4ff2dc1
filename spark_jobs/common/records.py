"""Columns in which tables keep the record that a row, or a dead letter, came from."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as sql

RECORD_COLUMNS = ("kafka_key", "kafka_partition", "kafka_offset", "kafka_timestamp", "kafka_headers")
DERIVED_PARTITIONS = ("topic", "date")
"""Columns that every record has and that a table can be partitioned by; `date` is that of the timestamp, in UTC."""

REASON = "dead_letter_reason"


def parameter(value: int) -> Column:
    """A number that is another one in each batch, as a BIGINT that is no literal to Spark.

    A literal stands in the code that Spark generates: with it, the code of each batch is compiled anew, and begins as
    slowly as the first one's. An array is handed to the code. The index, which is 0, keeps Spark from taking the
    number out of it while it plans.
    """
    return sql.array(sql.lit(value).cast("bigint"))[sql.spark_partition_id().bitwiseAND(0)]


def record_columns() -> list[Column]:
    """The connector's columns, save the value, under the names of `RECORD_COLUMNS` and `DERIVED_PARTITIONS`."""
    renamed = (sql.col(name.removeprefix("kafka_")).alias(name) for name in RECORD_COLUMNS)
    return [*renamed, sql.col("topic"), sql.to_date("timestamp").alias("date")]
