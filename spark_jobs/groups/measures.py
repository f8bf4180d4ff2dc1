"""Measures of consumer groups over samples of them: lag, its trend, its skew, the time to catch up, and alerts."""

from __future__ import annotations

import dataclasses

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

US = 1_000_000
"""Microseconds in a second."""

LAG, TIME_LAG, CATCH_UP, SKEW = "lag", "time-lag", "catch-up", "skew"
"""Alert names, as in the options --alert-NAME."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a group; exceeding one raises an alert. A limit of None is off."""

    lag: int | None = None
    time_lag_ms: int | None = None
    catch_up_ms: int | None = None
    skew: float | None = None


def measures(samples: DataFrame, window_ms: int, limits: Limits) -> DataFrame:
    """Each of `samples` (`sampling.SAMPLE_SCHEMA`) with the measures of its partition and its group. Pure.

    Per partition: `lag` in offsets, as kafka-consumer-groups shows it, negative if the commit is beyond the end;
    `time_lag_ms`, the age of the oldest unread record; `trend`, the growth of the lag in records a second since the
    first sample of the last `window_ms`; `note`, anything unusual. Per group: the sums `group_lag` and `group_trend`;
    the largest lag in time, `group_time_lag_ms`; `group_skew`, the largest lag relative to the mean;
    `group_catch_up_s`, null if the group never catches up or its trend is not known yet; `alerts`, the names of the
    exceeded `limits`. Unknown values are null and excluded from sums; sums use 0 for a negative lag.
    """
    at = sql.unix_micros("sampled_at")
    partition = Window.partitionBy("group", "topic", "partition").orderBy(at).rangeBetween(-window_ms * 1000, 0)
    group = Window.partitionBy("group", "sampled_at")
    behind = sql.col("_behind")
    first_at = sql.min(sql.when(behind.isNotNull(), at)).over(partition)
    grown = behind - sql.first(behind, ignorenulls=True).over(partition)
    lag, trend = sql.col("group_lag"), sql.col("group_trend")
    return (
        samples.withColumn("lag", sql.col("log_end") - sql.col("committed"))
        .withColumn("_behind", _at_least_0(sql.col("lag")))
        .withColumn("time_lag_ms", _time_lag_ms())
        .withColumn("trend", sql.try_divide(grown * US, at - first_at))
        .withColumn("note", _note())
        .withColumn("group_lag", sql.sum(behind).over(group))
        .withColumn("group_time_lag_ms", sql.max("time_lag_ms").over(group))
        .withColumn("group_trend", sql.sum("trend").over(group))
        .withColumn("group_skew", sql.try_divide(sql.max(behind).over(group), sql.avg(behind).over(group)))
        .withColumn("group_catch_up_s", sql.when(lag == 0, 0.0).when(trend < 0, lag / -trend))
        .withColumn("alerts", _alerts(limits))
        .drop("_behind")
    )


def _at_least_0(number: Column) -> Column:
    """`number`, but 0 if negative; null stays null."""
    return sql.when(number < 0, sql.lit(0)).otherwise(number)


def _time_lag_ms() -> Column:
    age = sql.unix_millis("sampled_at") - sql.unix_millis("oldest_unread")
    # The producer's clock may be ahead of the job's.
    return sql.when(sql.col("lag") <= 0, sql.lit(0).cast("bigint")).otherwise(_at_least_0(age))


def _note() -> Column:
    committed, start, end = sql.col("committed"), sql.col("log_start"), sql.col("log_end")
    return (
        sql.when(end.isNull(), "gone or without a leader")
        .when(committed.isNull(), "nothing committed")
        .when(committed > end, "beyond the log end")
        .when(committed < start, sql.concat((start - committed).cast("string"), sql.lit(" before the log start")))
        .when((committed < end) & sql.col("oldest_unread").isNull(), "no record to read")
    )


def never_catches_up() -> Column:
    """Whether a group's lag does not shrink, in the rows of `measures`; null before the trend is known."""
    return (sql.col("group_lag") > 0) & (sql.col("group_trend") >= 0)


def _alerts(limits: Limits) -> Column:
    exceeded: dict[str, Column] = {}
    if limits.lag is not None:
        exceeded[LAG] = sql.col("group_lag") > limits.lag
    if limits.time_lag_ms is not None:
        exceeded[TIME_LAG] = sql.col("group_time_lag_ms") > limits.time_lag_ms
    if limits.catch_up_ms is not None:
        exceeded[CATCH_UP] = never_catches_up() | (sql.col("group_catch_up_s") * 1000 > limits.catch_up_ms)
    if limits.skew is not None:
        exceeded[SKEW] = sql.col("group_skew") > limits.skew
    names = [sql.when(holds, sql.lit(name)) for name, holds in exceeded.items()]
    return sql.array_compact(sql.array(*names, sql.lit(None).cast("string")))
