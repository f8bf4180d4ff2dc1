"""Aggregates by name: what `--agg count,sum:x,p95:y` means."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as sql
from pyspark.sql.types import NumericType, StructType

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
    """One aggregate: `function` of `field`, or with no field the count of records."""

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
        """Raise ValueError when `schema` has no such field, or one that is not a number where one is needed."""
        if self.field is None:
            return
        if self.field not in schema.fieldNames():
            raise ValueError(f"--agg {self.function}:{self.field}: the schema has no field {self.field}")
        if self.function not in _OF_ANY and not isinstance(schema[self.field].dataType, NumericType):
            raise ValueError(f"--agg {self.function}:{self.field}: {self.field} is not a number")


def read_aggregates(text: str) -> tuple[Aggregate, ...]:
    """The aggregates that `text` names, comma separated; raises ValueError for one that is unknown or named twice.

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
