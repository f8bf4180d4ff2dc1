"""Reports a sample of consumer groups: as text, as alerts, and to Prometheus."""

from __future__ import annotations

import datetime as dt
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from pyspark.sql import Row

from spark_jobs.groups.measures import CATCH_UP, LAG, TIME_LAG, Limits

MISSING = "-"
HEADER = ("TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "TIME-LAG", "TREND/S", "NOTE")


def shown_time(milliseconds: float) -> str:
    """`0.4 s`, `12.3 s`, `5m 20s`, `3h 12m` or `2d 3h`."""
    seconds = milliseconds / 1000
    for (unit, size), (smaller, below) in pairwise((("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))):
        if seconds >= size:
            return f"{int(seconds // size)}{unit} {int(seconds % size // below)}{smaller}"
    return f"{seconds:.1f} s"


def shown_catch_up(row: Row) -> str:
    """When the group of a row of `measures` will have caught up."""
    if row.group_lag == 0:
        return "caught up"
    if row.group_trend is None:
        return "no trend yet"
    change = f"{'grows' if row.group_trend > 0 else 'shrinks'} by {abs(row.group_trend):,.1f} records/s"
    if row.group_catch_up_s is None:
        return f"{change if row.group_trend else 'does not change'}, never catches up"
    return f"{change}, caught up in {shown_time(row.group_catch_up_s * 1000)}"


def group_line(row: Row) -> str:
    """One line about the group of a row of `measures`."""
    if row.group_lag is None:
        return f"group {row.group}: lag {MISSING}: no partition has both a commit and a log end"
    time_lag = MISSING if row.group_time_lag_ms is None else f"{shown_time(row.group_time_lag_ms)} behind"
    skew = MISSING if row.group_skew is None else f"{row.group_skew:.2f}"
    return f"group {row.group}: lag {row.group_lag:,}, {time_lag}, {shown_catch_up(row)}, skew {skew}"


def partition_table(rows: Sequence[Row]) -> Iterator[str]:
    """Lines of a table of one group's partitions, with the columns of kafka-consumer-groups first."""
    cells = [HEADER, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADER))]
    for line in cells:
        yield "  " + " ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()


def _cells(row: Row) -> tuple[str, ...]:
    time_lag = None if row.time_lag_ms is None else shown_time(row.time_lag_ms)
    trend = None if row.trend is None else f"{row.trend:+.1f}"
    values = (row.committed, row.log_end, row.lag, time_lag, trend)
    shown = (MISSING if value is None else str(value) for value in values)
    return (row.topic, str(row.partition), *shown, row.note or "")


def sample_lines(at: dt.datetime, groups: Iterable[str], rows: Sequence[Row]) -> Iterator[str]:
    """The text of one sample: a line for each group, and a table of its partitions."""
    yield f"{at:%Y-%m-%d %H:%M:%S} UTC"
    known = {group: list(found) for group, found in groupby(rows, lambda row: str(row.group))}
    for group in groups:
        if group not in known:
            yield f"group {group}: has committed nothing, and no member has a partition"
            continue
        yield group_line(known[group][0])
        yield from partition_table(known[group])


class Alerts:
    """Alerts of all groups: prints one line when an alert begins, and one when it ends."""

    def __init__(self, name: str, limits: Limits) -> None:
        self._name = name
        self._limits = limits
        self._holding: set[tuple[str, str]] = set()
        self.raised = 0
        """How many alerts have begun."""

    def see(self, rows: Iterable[Row]) -> None:
        """Update the alerts from the rows of one sample."""
        by_group = {str(row.group): row for row in rows}
        holding = {(group, alert) for group, row in by_group.items() for alert in row.alerts}
        for group, alert in sorted(holding - self._holding):
            print(f"{self._name}: ALERT {self._text(alert, by_group[group])}", file=sys.stderr, flush=True)
        for group, alert in sorted(self._holding - holding):
            print(f"{self._name}: over: group {group}, --alert-{alert}", file=sys.stderr, flush=True)
        self.raised += len(holding - self._holding)
        self._holding = holding

    def _text(self, alert: str, row: Row) -> str:
        limits = self._limits
        if alert == LAG:
            return f"group {row.group}: lag {row.group_lag:,} is above --alert-lag {limits.lag:,}"
        if alert == TIME_LAG:
            limit = shown_time(limits.time_lag_ms or 0)
            return f"group {row.group}: {shown_time(row.group_time_lag_ms)} behind, above --alert-time-lag {limit}"
        if alert == CATCH_UP:
            limit = shown_time(limits.catch_up_ms or 0)
            return f"group {row.group}: lag {row.group_lag:,} {shown_catch_up(row)}, --alert-catch-up {limit}"
        return f"group {row.group}: skew {row.group_skew:.2f} is above --alert-skew {limits.skew:g}"


class GroupMetrics(Collector):
    """The last sample as Prometheus metrics; unknown values are left out."""

    def __init__(self) -> None:
        self.rows: Sequence[Row] = ()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The gauges, for prometheus_client."""
        rows = self.rows
        of_partition = ("group", "topic", "partition")

        def gauge(name: str, text: str, labels: Sequence[str]) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"consumer_group_{name}", text, labels=labels)

        lag = gauge("lag_records", "Log end minus committed offset.", of_partition)
        time_lag = gauge("time_lag_seconds", "Age of the oldest record that is not read.", of_partition)
        for row in rows:
            labels = [row.group, row.topic, str(row.partition)]
            for family, value in ((lag, row.lag), (time_lag, _seconds(row.time_lag_ms))):
                if value is not None:
                    family.add_metric(labels, value)
        trend = gauge("trend_records_per_second", "How fast the lag grows.", ["group"])
        skew = gauge("skew", "The largest lag of a partition against the mean.", ["group"])
        catch_up = gauge("catch_up_seconds", "Time until the lag is 0; +Inf when it does not shrink.", ["group"])
        alert = gauge("alert", "1 for each alert that holds.", ["group", "alert"])
        for row in {row.group: row for row in rows}.values():
            never = math.inf if row.group_lag and row.group_trend is not None else None
            remaining = never if row.group_catch_up_s is None else row.group_catch_up_s
            for family, value in ((trend, row.group_trend), (skew, row.group_skew), (catch_up, remaining)):
                if value is not None:
                    family.add_metric([row.group], value)
            for name in row.alerts:
                alert.add_metric([row.group, name], 1)
        yield from (lag, time_lag, trend, skew, catch_up, alert)


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
