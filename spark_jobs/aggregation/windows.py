"""Windows of time: their options, their columns, and from when on a record is too late for them."""

from __future__ import annotations

import argparse
import dataclasses
import re

from pyspark.sql import Column
from pyspark.sql import functions as sql

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
        """The window, or each window, that `time` is in, for `groupBy`."""
        if self.width_ms is None:
            return sql.session_window(time, spark_interval(self.gap_ms or 0))
        slide = self.slide_ms or self.width_ms
        return sql.window(time, spark_interval(self.width_ms), spark_interval(slide))

    def first_end_ms(self, time: Column) -> Column:
        """The end of the first window that `time` is in, in milliseconds: a watermark past it makes a record late."""
        at = sql.unix_micros(time)
        if self.width_ms is None:
            return sql.floor((at + (self.gap_ms or 0) * 1000) / 1000)
        slide = self.slide_ms or self.width_ms
        started = sql.floor((at - self.width_ms * 1000) / (slide * 1000)) + 1
        return started * slide + self.width_ms
