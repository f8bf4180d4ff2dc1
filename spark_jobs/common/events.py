"""Records as events: values with a schema and an event time."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import IntegralType, StructType, TimestampType

from spark_jobs.common import values
from spark_jobs.schemas.value_format import PLAIN_JSON, TEXT, ValueFormat

PARSED = "_parsed"
TIME = "_time"
FAILED = "_failed"
REASON = "dead_letter_reason"

LATE = "late: "
"""Start of the reason for a record that came after the watermark."""


def check_timestamp_field(schema: StructType, field: str | None, option: str) -> None:
    """Raise ValueError unless `field` is None, or a TIMESTAMP or integer field of `schema`."""
    if field is None:
        return
    if field not in schema.fieldNames():
        raise ValueError(f"{option} {field}: the schema has no such field")
    is_time = isinstance(schema[field].dataType, TimestampType | IntegralType)
    if not is_time:
        raise ValueError(f"{option} {field}: must be a TIMESTAMP, or a whole number of milliseconds since 1970")


def _time(schema: StructType, field: str | None) -> Column:
    if field is None:
        return sql.col("timestamp")
    value = sql.col(PARSED).getField(field)
    return value if isinstance(schema[field].dataType, TimestampType) else sql.timestamp_millis(value)


def events(
    df: DataFrame, schema: StructType, timestamp_field: str | None, value_format: ValueFormat = PLAIN_JSON
) -> DataFrame:
    """The connector's rows with `PARSED` (a struct of the schema), `TIME`, and `FAILED` (true if not a valid event).

    The time is `timestamp_field`, or the record's timestamp if that is None.
    """
    rows = value_format.with_text(df).withColumn(PARSED, values.parse(sql.col(TEXT), schema))
    rows = rows.withColumn(TIME, _time(schema, timestamp_field))
    no_event = sql.col(TIME).isNull() | _is_before_watermarks()
    return rows.withColumn(FAILED, values.failed(sql.col(TEXT), sql.col(PARSED), schema) | no_event)


def _is_before_watermarks() -> Column:
    """Whether a time is before 1970, where Spark's watermarks begin: every such window is final at once."""
    return sql.unix_micros(TIME) < 0


def observed(rows: DataFrame, name: str) -> DataFrame:
    """`rows` of `events`, observed as `name` with the counts of all rows and of invalid ones."""
    return rows.observe(name, sql.count(sql.lit(1)).alias("records"), sql.count_if(sql.col(FAILED)).alias("failed"))


def rejected(
    rows: DataFrame,
    schema: StructType,
    timestamp_field: str | None,
    is_late: Column,
    value_format: ValueFormat = PLAIN_JSON,
) -> DataFrame:
    """The rows of `events` that are invalid or match `is_late`, as received, with the reason in `REASON`."""
    field = "the record's timestamp" if timestamp_field is None else f"field {timestamp_field}"
    too_early = sql.concat(sql.lit(f"{field}: "), sql.col(TIME).cast("string"), sql.lit(" is before 1970"))
    no_time = sql.coalesce(too_early, sql.lit(f"{field}: expected a time, found null"))
    misfit = values.failed(sql.col(TEXT), sql.col(PARSED), schema)
    out = rows.where(sql.col(FAILED) | is_late).select(
        *(name for name in rows.columns if name not in {TEXT, PARSED, TIME, FAILED}),
        sql.col(FAILED),
        misfit.alias("_misfit"),
        no_time.alias("_no_time"),
    )
    misfits = sql.when(sql.col("_misfit"), value_format.reason(sql.col("value"), schema))
    why = misfits.when(sql.col(FAILED), sql.col("_no_time")).otherwise(f"{LATE}the watermark had passed")
    return out.withColumn(REASON, why).drop(FAILED, "_misfit", "_no_time")
