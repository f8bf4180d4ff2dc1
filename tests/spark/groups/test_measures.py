"""Measures of consumer groups on static samples: lag, trend, skew, catching up, alerts, and unusual cases."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from spark_jobs.common.cli import RunConfig
from spark_jobs.common.source import SourceConfig
from spark_jobs.groups.measures import Limits
from spark_jobs.groups.report import sample_lines, shown_time
from spark_jobs.groups.sampling import SAMPLE_SCHEMA, Groups, Sample
from spark_jobs.jobs.lag import LagConfig, transform
from tests.spark.equal_frames import assert_frames_equal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
MEASURED = (
    f"{SAMPLE_SCHEMA}, lag BIGINT, time_lag_ms BIGINT, trend DOUBLE, note STRING, group_lag BIGINT, "
    "group_time_lag_ms BIGINT, group_trend DOUBLE, group_skew DOUBLE, group_catch_up_s DOUBLE, "
    "alerts ARRAY<STRING> NOT NULL"
)


def config(limits: Limits = Limits(), window_ms: int = 60_000) -> LagConfig:  # noqa: B008 - is frozen
    return LagConfig(
        source=SourceConfig(bootstrap_servers="unused:9092"),
        run=RunConfig(checkpoint="unused", trigger={"availableNow": True}, group_id="", metrics_port=None),
        groups=Groups(names=("g",)),
        limits=limits,
        window_ms=window_ms,
    )


def sample(
    second: int,
    partition: int,
    committed: int | None,
    end: int | None,
    *,
    group: str = "g",
    start: int | None = 0,
    unread_s: float | None = None,
) -> Sample:
    """A sample `second` seconds after noon; `unread_s` is when its oldest unread record was written."""
    unread = None if unread_s is None else NOON + dt.timedelta(seconds=unread_s)
    return (group, "t", partition, NOON + dt.timedelta(seconds=second), committed, start, end, unread)


def test_trend_skew_and_catch_up_over_samples(spark: SparkSession) -> None:
    limits = Limits(lag=80, time_lag_ms=9_000, catch_up_ms=5_000, skew=1.6)
    samples = [
        # Grows by 4 and 0 records a second, then shrinks by 5 and 1.
        sample(0, 0, 100, 100),
        sample(0, 1, 40, 60, unread_s=-1),
        sample(10, 0, 100, 140, unread_s=1),
        sample(10, 1, 60, 80, unread_s=9),
        sample(20, 0, 150, 140 + 20, unread_s=17),
        sample(20, 1, 70, 80, unread_s=9),
    ]
    measured = [
        (0, None, None, 20, 1000, None, 2.0, None, ["skew"]),
        (20, 1000, None, 20, 1000, None, 2.0, None, ["skew"]),
        (40, 9000, 4.0, 60, 9000, 4.0, 40 / 30, None, ["catch-up"]),
        (20, 1000, 0.0, 60, 9000, 4.0, 40 / 30, None, ["catch-up"]),
        (10, 3000, -3.0, 20, 11_000, -4.0, 1.0, 5.0, ["time-lag"]),
        (10, 11_000, -1.0, 20, 11_000, -4.0, 1.0, 5.0, ["time-lag"]),
    ]
    expected = [
        (*given, lag, 0 if time_lag is None else time_lag, trend, None, *of_group)
        for given, (lag, time_lag, trend, *of_group) in zip(samples, measured, strict=True)
    ]
    # The window holds a sample and the one before it.
    frame = transform(spark.createDataFrame(samples, SAMPLE_SCHEMA), config(limits, window_ms=10_000))
    assert_frames_equal(frame, spark.createDataFrame(expected, MEASURED))
    longer = transform(spark.createDataFrame(samples, SAMPLE_SCHEMA), config(Limits(lag=59), window_ms=20_000))
    last = longer.where("second(sampled_at) = 20").orderBy("partition").collect()
    assert [row.trend for row in last] == [0.5, -0.5]
    assert {(row.group_trend, row.group_catch_up_s) for row in last} == {(0.0, None)}
    assert {tuple(row.alerts) for row in longer.where("second(sampled_at) = 10").collect()} == {("lag",)}


def test_what_is_not_known_is_in_no_sum(spark: SparkSession) -> None:
    samples = [
        sample(0, 0, 4, 10, unread_s=-3),
        sample(0, 1, None, 10),
        sample(0, 2, 7, None, start=None),
        sample(0, 3, 15, 10),
        sample(0, 4, 2, 10, start=5, unread_s=5),
        sample(0, 5, 9, 10),
        sample(0, 0, None, 10, group="no commit"),
    ]
    rows = transform(spark.createDataFrame(samples, SAMPLE_SCHEMA), config(Limits(lag=1))).orderBy("group", "partition")
    found = [(row.lag, row.time_lag_ms, row.note) for row in rows.collect()]
    assert found == [
        (6, 3000, None),
        (None, None, "nothing committed"),
        (None, None, "gone or without a leader"),
        (-5, 0, "beyond the log end"),
        (8, 0, "3 before the log start"),
        (1, None, "no record to read"),
        (None, None, "nothing committed"),
    ]
    groups = {(row.group, row.group_lag, row.group_time_lag_ms, row.group_skew) for row in rows.collect()}
    assert groups == {("g", 15, 3000, 8 / 3.75), ("no commit", None, None, None)}
    assert {row.group for row in rows.collect() if row.alerts} == {"g"}
    lines = list(sample_lines(NOON, ["g", "gone", "no commit"], rows.collect()))
    assert lines[0] == "2026-03-01 12:00:00 UTC"
    assert lines[1] == "group g: lag 15, 3.0 s behind, no trend yet, skew 2.13"
    assert lines[4].split() == ["t", "1", "-", "10", "-", "-", "-", "nothing", "committed"]
    assert lines[5].split() == ["t", "2", "7", "-", "-", "-", "-", "gone", "or", "without", "a", "leader"]
    assert lines[9] == "group gone: has committed nothing, and no member has a partition"
    assert lines[10] == "group no commit: lag -: no partition has both a commit and a log end"


def test_times_for_people() -> None:
    shown = [shown_time(seconds * 1000) for seconds in (0, 12.34, 60, 320, 11_520, 180_000)]
    assert shown == ["0.0 s", "12.3 s", "1m 0s", "5m 20s", "3h 12m", "2d 2h"]


def test_impossible_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="--group: names no group"):
        Groups()
    with pytest.raises(ValueError, match=r"--group-pattern \(: "):
        Groups(pattern="(")
