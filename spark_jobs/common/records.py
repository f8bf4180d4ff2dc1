"""Columns in which tables keep the record that a row, or a dead letter, came from."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as sql

RECORD_COLUMNS = ("kafka_key", "kafka_partition", "kafka_offset", "kafka_timestamp", "kafka_headers")
DERIVED_PARTITIONS = ("topic", "date")
"""Columns that every record has and that a table can be partitioned by; `date` is that of the timestamp, in UTC."""

REASON = "dead_letter_reason"


def record_columns() -> list[Column]:
    """The connector's columns, save the value, under the names of `RECORD_COLUMNS` and `DERIVED_PARTITIONS`."""
    renamed = (sql.col(name.removeprefix("kafka_")).alias(name) for name in RECORD_COLUMNS)
    return [*renamed, sql.col("topic"), sql.to_date("timestamp").alias("date")]
