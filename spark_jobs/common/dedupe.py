"""The reader's side of the sink's headers: drops rows that a retried batch wrote a second time."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

from spark_jobs.common.provenance import last_value
from spark_jobs.common.sink import ROW_HEADERS

_IDENTITY = "_row_identity"


def row_identity(headers: Column) -> Column:
    """Identity of one row of one batch: query, batch, partition and row; null for other records.

    If a record passed through several sinks, the headers of the last one apply.
    """
    values = [last_value(headers, name) for name in ROW_HEADERS]
    known = values[0].isNotNull()
    for value in values[1:]:
        known = known & value.isNotNull()
    return sql.when(known, sql.concat_ws("/", *values))


def _number_of_copy() -> Column:
    """Numbers the copies of a row in topic order, starting at 1."""
    return sql.row_number().over(Window.partitionBy(_IDENTITY).orderBy("topic", "partition", "offset"))


def dedupe(records: DataFrame, within: str | None = None) -> DataFrame:
    """`records` (the connector's columns, headers included) without the second and later copies of a row.

    Records without the sink's headers all stay. A bounded frame keeps the first copy in its topic. A stream needs
    `within`, the longest time between two copies of a row (`10 minutes`, longer than a restart takes). It keeps the
    rows of that time as state, does not drop a copy that comes later, and drops a record as late if its timestamp is
    older than the newest by more than that. Raises ValueError for a stream without `within`.
    """
    if records.isStreaming and within is None:
        raise ValueError("a stream is deduplicated within a time: say how long")
    own = sql.concat_ws("/", "topic", "partition", "offset")
    marked = records.withColumn(_IDENTITY, sql.coalesce(row_identity(sql.col("headers")), own))
    if within is not None:
        return marked.withWatermark("timestamp", within).dropDuplicatesWithinWatermark([_IDENTITY]).drop(_IDENTITY)
    return marked.withColumn("_copy", _number_of_copy()).where("_copy = 1").drop(_IDENTITY, "_copy")


def later_copies(records: DataFrame) -> DataFrame:
    """Topic, partition and offset of each record of a bounded frame that `dedupe` drops."""
    known = records.withColumn(_IDENTITY, row_identity(sql.col("headers"))).where(sql.col(_IDENTITY).isNotNull())
    return known.withColumn("_copy", _number_of_copy()).where("_copy > 1").select("topic", "partition", "offset")
