"""Copies of a record, told by the fields that identify it: all but one of those within the watermark are dropped."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

NAMELESS = "_nameless"
"""Column of `nameless`, beside the fields."""


def check_identity(schema: StructType, fields: Sequence[str], option: str) -> None:
    """Raise ValueError unless each of `fields` is one of `schema`, and Spark can compare its values."""
    for field in fields:
        if field not in schema.fieldNames():
            raise ValueError(f"{option} {field}: the schema has no such field")
        if _holds_a_map(schema[field].dataType):
            raise ValueError(f"{option} {field}: a MAP identifies no record; name fields of other types")


def _holds_a_map(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _holds_a_map(kind.elementType)
    return isinstance(kind, MapType) or (
        isinstance(kind, StructType) and any(_holds_a_map(field.dataType) for field in kind.fields)
    )


def nameless(fields: Sequence[Column]) -> Column:
    """Where a record stood, when any of `fields` that identify it is null; else null.

    Of the connector's columns. Such a record is nobody's copy, as in a UNIQUE index of SQL.
    """
    position = sql.concat_ws("/", "topic", "partition", "offset")
    return sql.when(reduce(operator.or_, [field.isNull() for field in fields]), position)


def drop_copies(rows: DataFrame, fields: Sequence[str]) -> DataFrame:
    """`rows` without the copies of a record, which are equal in `fields` and `NAMELESS`.

    A stream, which must have a watermark, keeps the fields of the watermark's time as state. There, copies whose times
    are less than the watermark's delay apart are dropped, and rows that are not after the watermark, too.
    """
    identity = [*fields, NAMELESS]
    once = rows.dropDuplicatesWithinWatermark(identity) if rows.isStreaming else rows.dropDuplicates(identity)
    return once.drop(NAMELESS)


def late(time: Column, watermark_ms: Column) -> Column:
    """Whether `drop_copies` drops a row of a stream for its time, whatever windows it is in."""
    return sql.unix_micros(time) <= watermark_ms * 1000
