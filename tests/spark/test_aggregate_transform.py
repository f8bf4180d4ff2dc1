"""The aggregation's transform on static frames: windows, sessions, aggregates, late rows, and refused options."""

from __future__ import annotations

import argparse
import datetime as dt
import json
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from spark_jobs.aggregation.windows import Windows, delay_ms, duration_ms, read_aggregates
from spark_jobs.common.cli import RunConfig
from spark_jobs.common.sink import ParquetSink
from spark_jobs.common.source import SourceConfig
from spark_jobs.jobs.aggregate import AggregateConfig, rejects, transform
from tests.spark.equal_frames import assert_frames_equal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

CONNECTOR_COLUMNS = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"
NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
NOON_MS = int(NOON.timestamp() * 1000)
MINUTE = 60_000


def config(windows: Windows, agg: str = "count", **fields: Any) -> AggregateConfig:
    from pyspark.sql.types import StructType

    return AggregateConfig(
        source=SourceConfig(bootstrap_servers="unused:9092", topics="t"),
        run=RunConfig(checkpoint="unused", trigger={"availableNow": True}, group_id="", metrics_port=None),
        schema=StructType.fromDDL("g STRING, x INT, at BIGINT"),
        windows=windows,
        aggregates=read_aggregates(agg),
        sink=ParquetSink(path="unused"),
        **fields,
    )


def records(spark: SparkSession, *rows: tuple[float, Any]) -> DataFrame:
    """Records from pairs of minutes after noon and values."""
    values = [
        (None, value if isinstance(value, bytes) else json.dumps(value).encode(), "t", 0, offset, at(minute))
        for offset, (minute, value) in enumerate(rows)
    ]
    return spark.createDataFrame(values, CONNECTOR_COLUMNS)


def at(minute: float) -> dt.datetime:
    return NOON + dt.timedelta(minutes=minute)


def test_tumbling_windows_by_group(spark: SparkSession) -> None:
    frame = records(
        spark, (0, {"g": "a", "x": 1}), (4, {"g": "a", "x": 3}), (5, {"g": "a"}), (1, {"g": "b"}), (1, b"?")
    )
    tumbling = config(
        Windows(width_ms=5 * MINUTE), "count,count:x,sum:x,avg:x,min:x,max:x,p50:x,distinct:x", group_by=("g",)
    )
    columns = (
        "window_start TIMESTAMP, window_end TIMESTAMP, g STRING, count BIGINT NOT NULL, count_x BIGINT NOT NULL, "
        "sum_x BIGINT, avg_x DOUBLE, min_x INT, max_x INT, p50_x INT, distinct_x BIGINT NOT NULL"
    )
    expected = spark.createDataFrame(
        [
            (at(0), at(5), "a", 2, 2, 4, 2.0, 1, 3, 1, 2),
            (at(5), at(10), "a", 1, 0, None, None, None, None, None, 0),
            (at(0), at(5), "b", 1, 0, None, None, None, None, None, 0),
        ],
        columns,
    )
    assert_frames_equal(transform(frame, tumbling), expected)


def test_sliding_windows_and_sessions(spark: SparkSession) -> None:
    frame = records(spark, (0, {"g": "a"}), (3, {"g": "a"}), (20, {"g": "a"}))
    columns = "window_start TIMESTAMP, window_end TIMESTAMP, count BIGINT NOT NULL"
    sliding = config(Windows(width_ms=10 * MINUTE, slide_ms=5 * MINUTE))
    assert_frames_equal(
        transform(frame, sliding),
        spark.createDataFrame(
            [(at(-5), at(5), 2), (at(0), at(10), 2), (at(15), at(25), 1), (at(20), at(30), 1)], columns
        ),
    )
    sessions = config(Windows(gap_ms=5 * MINUTE))
    expected = spark.createDataFrame([(at(0), at(8), 2), (at(20), at(25), 1)], columns)
    assert_frames_equal(transform(frame, sessions), expected)


def test_rejects_say_why(spark: SparkSession) -> None:
    ms = [{"at": NOON_MS + minute * MINUTE} for minute in (0, 4, 5)]
    frame = records(spark, *((0, value) for value in ms), (0, {"x": 1}), (0, {"x": "one"}))
    tumbling = config(Windows(width_ms=5 * MINUTE), timestamp_field="at")
    found = {row.offset: row.dead_letter_reason for row in rejects(frame, tumbling, NOON_MS + 5 * MINUTE).collect()}
    assert found == {
        0: "late: the watermark had passed",
        1: "late: the watermark had passed",
        3: "field at: expected a time, found null",
        4: 'field x: expected INT, found string "one"',
    }
    assert sum(row["count"] for row in transform(frame, tumbling).collect()) == 3


def test_times_before_watermarks_begin_are_refused(spark: SparkSession) -> None:
    frame = records(spark, *((0, {"at": at}) for at in (-1, 0, NOON_MS)))
    tumbling = config(Windows(width_ms=5 * MINUTE), timestamp_field="at")
    (letter,) = rejects(frame, tumbling, 0).collect()
    assert (letter.offset, letter.dead_letter_reason) == (0, "field at: 1969-12-31 23:59:59.999 is before 1970")
    assert sum(row["count"] for row in transform(frame, tumbling).collect()) == 2


def test_copies_count_once_and_records_without_a_name_each(spark: SparkSession) -> None:
    values = [{"g": "a", "x": 1}, {"g": "a", "x": 1}, {"g": "a"}, {"g": "a"}, {"x": 9}, {}, {}]
    frame = records(spark, *((0, value) for value in values))
    once = config(Windows(width_ms=MINUTE), "count,sum:x", drop_duplicates=("g", "x"))
    (row,) = transform(frame, once).collect()
    assert (row["count"], row["sum_x"]) == (6, 10)
    late = {row.offset: row.dead_letter_reason for row in rejects(frame, once, NOON_MS).collect()}
    assert set(late.values()) == {"late: the watermark had passed"}
    assert len(late) == len(values)
    assert rejects(frame, once, NOON_MS - 1).count() == 0


@pytest.mark.parametrize(
    ("windows", "minute", "end"),
    [
        (Windows(width_ms=10 * MINUTE), 3, 10),
        (Windows(width_ms=10 * MINUTE), 0, 10),
        (Windows(width_ms=10 * MINUTE, slide_ms=5 * MINUTE), 0, 5),
        (Windows(width_ms=10 * MINUTE, slide_ms=5 * MINUTE), 7, 10),
        (Windows(gap_ms=4 * MINUTE), 3, 7),
    ],
)
def test_the_end_of_the_first_window(spark: SparkSession, windows: Windows, minute: int, end: int) -> None:
    from pyspark.sql import functions as sql

    (row,) = records(spark, (minute, {})).select(windows.first_end_ms(sql.col("timestamp")).alias("end")).collect()
    assert row.end == NOON_MS + end * MINUTE


@pytest.mark.parametrize("text", ["", "sum", "median:x", "count:", "p100:x", "count,count"])
def test_bad_aggregates_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--agg"):
        read_aggregates(text)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"group_by": ("h",)}, "--group-by h: the schema has no such field"),
        ({"agg": "sum:y"}, "the schema has no field y"),
        ({"agg": "sum:g"}, "g is not a number"),
        ({"drop_duplicates": ("y",)}, "--drop-duplicates y: the schema has no such field"),
        ({"timestamp_field": "g"}, "--timestamp-field g: must be a TIMESTAMP"),
        ({"windows": Windows(gap_ms=1), "mode": "update"}, "--mode update"),
    ],
)
def test_impossible_aggregations_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**{"windows": Windows(width_ms=1), **fields})


@pytest.mark.parametrize(
    "fields", [{}, {"width_ms": 1, "gap_ms": 1}, {"width_ms": 1, "slide_ms": 2}, {"gap_ms": 1, "slide_ms": 1}]
)
def test_impossible_windows_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="--"):
        Windows(**fields)


def test_durations() -> None:
    assert [duration_ms(text) for text in ("500ms", "30s", "5 m", "1h", "2d")] == [
        500,
        30_000,
        300_000,
        3_600_000,
        172_800_000,
    ]
    assert delay_ms("0") == 0
    for text in ("", "5", "0s", "-1s", "1w"):
        with pytest.raises(argparse.ArgumentTypeError, match="must be a time"):
            duration_ms(text)
