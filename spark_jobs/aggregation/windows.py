"""Time windows (options, columns, when a record is too late), aggregates by name (`--agg count,sum:x,p95:y`), and
deduplication within the watermark.
"""

from __future__ import annotations

import argparse
import dataclasses
import operator
import re
from collections.abc import Callable, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import ArrayType, DataType, MapType, NumericType, StructType

_DURATION = re.compile(r"(\d+)\s*(ms|s|m|h|d)")
_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration_ms(text: str) -> int:
    """Milliseconds of `500ms`, `30s`, `5m`, `1h` or `1d`; raises ArgumentTypeError."""
    found = _DURATION.fullmatch(text)
    if found is None or int(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"'{text}': must be a time like 500ms, 30s, 5m, 1h, 1d")
    return int(found[1]) * _MS[found[2]]


def delay_ms(text: str) -> int:
    """Milliseconds as of `duration_ms`, or 0 for `0`; raises ArgumentTypeError."""
    return 0 if text == "0" else duration_ms(text)


def spark_interval(milliseconds: int) -> str:
    """The time as Spark's interval text."""
    return f"{milliseconds} milliseconds"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Windows:
    """Windows of `width_ms` that begin every `slide_ms`, in UTC from 1970; or sessions that a gap of `gap_ms` ends.

    Raises ValueError unless exactly one of `width_ms` and `gap_ms` is given, or when windows leave times out.
    """

    width_ms: int | None = None
    slide_ms: int | None = None
    gap_ms: int | None = None

    def __post_init__(self) -> None:
        if (self.width_ms is None) == (self.gap_ms is None):
            raise ValueError("one of --window and --session-gap is needed")
        if self.slide_ms is not None and (self.width_ms is None or self.slide_ms > self.width_ms):
            raise ValueError("--slide: must go with a --window that is not shorter, or records fall between windows")

    def column(self, time: Column) -> Column:
        """The window, or windows, that contain `time`, for `groupBy`."""
        if self.width_ms is None:
            return sql.session_window(time, spark_interval(self.gap_ms or 0))
        slide = self.slide_ms or self.width_ms
        return sql.window(time, spark_interval(self.width_ms), spark_interval(slide))

    def first_end_ms(self, time: Column) -> Column:
        """End of the first window containing `time`, in milliseconds; a watermark beyond it makes the record late."""
        at = sql.unix_micros(time)
        if self.width_ms is None:
            return sql.floor((at + (self.gap_ms or 0) * 1000) / 1000)
        slide = self.slide_ms or self.width_ms
        started = sql.floor((at - self.width_ms * 1000) / (slide * 1000)) + 1
        return started * slide + self.width_ms


DISTINCT_ERROR = 0.02
"""Relative standard deviation of `distinct`."""

_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?)")
_OF_ANY: dict[str, Callable[[Column], Column]] = {
    "count": sql.count,
    "min": sql.min,
    "max": sql.max,
    "distinct": lambda column: sql.approx_count_distinct(column, DISTINCT_ERROR),
}
_OF_NUMBERS: dict[str, Callable[[Column], Column]] = {"sum": sql.sum, "avg": sql.avg}


@dataclasses.dataclass(frozen=True)
class Aggregate:
    """One aggregate: `function` of `field`, or the record count without a field."""

    function: str
    field: str | None

    @property
    def name(self) -> str:
        """Its column: `count`, `sum_x`, `p99_9_y`."""
        function = self.function.replace(".", "_")
        return function if self.field is None else f"{function}_{self.field}"

    def column(self) -> Column:
        """Its column, for `GroupedData.agg`; nulls do not count."""
        if self.field is None:
            return sql.count(sql.lit(1)).alias(self.name)
        value = sql.col(f"`{self.field}`")
        percentile = _PERCENTILE.fullmatch(self.function)
        if percentile is not None:
            return sql.percentile_approx(value, float(percentile[1]) / 100).alias(self.name)
        return (_OF_ANY | _OF_NUMBERS)[self.function](value).alias(self.name)

    def check(self, schema: StructType) -> None:
        """Raise ValueError if `schema` lacks the field, or if the function needs a number and the field is not one."""
        if self.field is None:
            return
        if self.field not in schema.fieldNames():
            raise ValueError(f"--agg {self.function}:{self.field}: the schema has no field {self.field}")
        if self.function not in _OF_ANY and not isinstance(schema[self.field].dataType, NumericType):
            raise ValueError(f"--agg {self.function}:{self.field}: {self.field} is not a number")


def read_aggregates(text: str) -> tuple[Aggregate, ...]:
    """Parse a comma-separated list of aggregates; raises ValueError for unknown or repeated names.

    `count` counts records, `count:x` those with an x; `sum`, `avg`, `min` and `max` are exact; `p95:x` (any percentile)
    is within 0.01 % of the rank, `distinct:x` within a few percent, which bounds their state.
    """
    found = [_read(part.strip()) for part in text.split(",") if part.strip()]
    names = [aggregate.name for aggregate in found]
    if not found or len(set(names)) < len(names):
        raise ValueError(f"--agg {text}: must name aggregates, each once")
    return tuple(found)


def _read(text: str) -> Aggregate:
    function, colon, field = text.partition(":")
    known = function in _OF_ANY or function in _OF_NUMBERS or _PERCENTILE.fullmatch(function) is not None
    if not known or (not field and (colon or function != "count")):
        names = ", ".join([*_OF_ANY, *_OF_NUMBERS, "p95 (any percentile below 100)"])
        raise ValueError(f"--agg {text}: must be count, or FUNCTION:FIELD with one of {names}")
    return Aggregate(function, field or None)


NAMELESS = "_nameless"
"""Name of the column that `nameless` computes."""


def check_identity(schema: StructType, fields: Sequence[str], option: str) -> None:
    """Raise ValueError unless `schema` has each of `fields` and Spark can compare its values."""
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
    """The record's position when any of the identifying `fields` is null; otherwise null.

    Expects the connector's columns. Such a record duplicates no other, as with NULL in a UNIQUE index of SQL.
    """
    position = sql.concat_ws("/", "topic", "partition", "offset")
    return sql.when(reduce(operator.or_, [field.isNull() for field in fields]), position)


def drop_copies(rows: DataFrame, fields: Sequence[str]) -> DataFrame:
    """`rows` without duplicates: rows that are equal in `fields` and `NAMELESS`.

    A stream needs a watermark, and keeps the fields as state until the watermark has passed. It drops duplicates whose
    times differ by less than the watermark delay, and every row that is not after the watermark.
    """
    identity = [*fields, NAMELESS]
    once = rows.dropDuplicatesWithinWatermark(identity) if rows.isStreaming else rows.dropDuplicates(identity)
    return once.drop(NAMELESS)


def late(time: Column, watermark_ms: Column) -> Column:
    """Whether a stream's `drop_copies` drops a row as late, whatever its windows."""
    return sql.unix_micros(time) <= watermark_ms * 1000
