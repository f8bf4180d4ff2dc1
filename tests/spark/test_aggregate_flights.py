"""End to end: a month of flights from a topic to hourly figures, equal to those of pandas, across kills."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import numpy as np
import pandas as pd
import pyarrow.dataset as ds  # type: ignore[import-untyped]

from tests.kit.due import turn
from tests.spark.brokers import Broker
from tests.spark.job_runs import JobRun, Results, make_topics, produce_values
from tests.spark.warm_jobs import WarmJobs

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

SCHEMA = "time_hour TIMESTAMP NOT NULL, origin STRING, carrier STRING, dep_delay DOUBLE, distance INT"
AGGREGATES = "count,count:dep_delay,sum:distance,avg:dep_delay,min:dep_delay,max:dep_delay,p95:dep_delay"
DAYS = 6
BAD = (b"not json", b'{"origin": "EWR"}', None, b'{"time_hour": "2013-01-02T10:00:00Z", "distance": "far"}')
LATE = [
    b'{"time_hour": "2013-01-02T10:00:00Z", "origin": "EWR", "distance": 1}',
    b'{"time_hour": "2013-01-02T10:00:00Z", "origin": "EWR", "distance": 2}',
    b'{"time_hour": "2013-01-03T10:00:00Z", "origin": "JFK", "distance": 3}',
]


def flight_values(flights: list[dict[str, str]]) -> list[dict[str, Any]]:
    chosen = [flight for flight in flights if int(flight["month"]) == 1 and int(flight["day"]) <= DAYS]
    return [
        {"time_hour": flight["time_hour"], "origin": flight["origin"], "carrier": flight["carrier"]}
        | {"distance": int(flight["distance"])}
        | ({"dep_delay": float(flight["dep_delay"])} if flight["dep_delay"] else {})
        for flight in chosen
    ]


def asked_with_pandas(values: list[dict[str, Any]]) -> dict[tuple[pd.Timestamp, str], dict[str, Any]]:
    frame = pd.DataFrame(values)
    frame["hour"] = pd.to_datetime(frame["time_hour"], utc=True)
    answers = {}
    for (hour, origin), group in frame.groupby(["hour", "origin"]):
        delays = group["dep_delay"].dropna()
        answers[hour, origin] = {
            "count": len(group),
            "count_dep_delay": len(delays),
            "sum_distance": int(group["distance"].sum()),
            "avg_dep_delay": pytest.approx(delays.mean()) if len(delays) else None,
            "min_dep_delay": delays.min() if len(delays) else None,
            "max_dep_delay": delays.max() if len(delays) else None,
            "p95_dep_delay": np.quantile(delays, 0.95, method="inverted_cdf") if len(delays) else None,
        }
    return answers


@turn(1, of=5)
def test_hourly_figures_are_those_of_pandas_through_kills(
    broker: Broker, bootstrap: str, jobs: WarmJobs, flights: list[dict[str, str]], tmp_path: Path
) -> None:
    values = flight_values(flights)
    encoded = [json.dumps(value).encode() for value in values]
    expected = asked_with_pandas(values)
    (tmp_path / "flights.ddl").write_text(SCHEMA)
    topic, out = make_topics(bootstrap, "flights", "hourly")
    job = JobRun(
        "aggregate", tmp_path, "--bootstrap-servers", bootstrap, "--topics", topic, "--out-topic", out,
        "--schema", str(tmp_path / "flights.ddl"), "--timestamp-field", "time_hour", "--window", "1h",
        "--group-by", "origin", "--agg", AGGREGATES, "--watermark", "10d", "--trigger", "200ms",
        "--checkpoint", str(tmp_path / "checkpoint"), "--dead-letters", str(tmp_path / "dead"),
    )  # fmt: skip
    results = Results(bootstrap, out)
    try:
        produce_values(bootstrap, topic, encoded[: len(encoded) // 2])
        job.start("--max-offsets-per-trigger", "1200")
        job.await_text("batch 1:")
        broker.kill()
        broker.start()
        produce_values(bootstrap, topic, encoded[len(encoded) // 2 :])
        job.await_text("batch 2:")
        job.kill()

        job.go_on(jobs)
        produce_values(bootstrap, topic, [b'{"time_hour": "2014-01-01T00:00:00Z", "origin": "END"}'])
        job.go_on(jobs)
        rows = results.await_rows(len(expected))
        produce_values(bootstrap, topic, [*LATE, *BAD])
        said = job.go_on(jobs)
    finally:
        job.kill()
        results.close()
    assert f" {len(BAD)} that do not parse, {len(LATE)} late; " in said
    keys = ("window_start", "window_end", "origin")
    found = {
        (pd.Timestamp(row["window_start"]), row["origin"]): {name: row[name] for name in row if name not in keys}
        for row in rows
    }
    assert found == expected
    letters = dead_letters(tmp_path / "dead")
    assert {bytes(value) for value in letters.value.dropna()} == {*LATE, *BAD} - {None}
    assert sorted(letters.dead_letter_reason.str.startswith("late: ")) == [False] * len(BAD) + [True] * len(LATE)


def dead_letters(path: Path) -> pd.DataFrame:
    table: pd.DataFrame = ds.dataset(path, partitioning="hive", exclude_invalid_files=True).to_table().to_pandas()
    return table
