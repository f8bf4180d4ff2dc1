"""End to end: flights with the weather of their hour, and with their planes; the same rows as with pandas."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pandas as pd

from tests.spark.conftest import nycflights
from tests.spark.job_runs import Results, make_topics, produce_values
from tests.spark.warm_jobs import WarmJobs

pytestmark = [pytest.mark.spark, pytest.mark.timeout(420)]

DAYS = 6
FLIGHT = "row INT NOT NULL, time_hour TIMESTAMP NOT NULL, origin STRING, tailnum STRING"
WEATHER = "time_hour TIMESTAMP NOT NULL, origin STRING, temp DOUBLE"
PLANE_COLUMNS = "tailnum STRING, year STRING, type STRING, manufacturer STRING, model STRING, engines STRING"
PLANES = f"{PLANE_COLUMNS}, seats STRING, speed STRING, engine STRING"


def of_the_first_days(rows: list[dict[str, str]], *fields: str) -> list[dict[str, Any]]:
    chosen = [row for row in rows if int(row["month"]) == 1 and int(row["day"]) <= DAYS]
    return [{"row": number} | {name: row[name] for name in fields} for number, row in enumerate(chosen)]


def encoded(rows: list[dict[str, Any]]) -> list[bytes]:
    return [json.dumps(row).encode() for row in rows]


def test_flights_with_their_weather_and_their_planes(
    bootstrap: str, jobs: WarmJobs, flights: list[dict[str, str]], weather: list[dict[str, str]], tmp_path: Path
) -> None:
    some_flights = of_the_first_days(flights, "time_hour", "origin", "tailnum")
    some_weather = of_the_first_days(weather, "time_hour", "origin", "temp")
    some_weather.sort(key=lambda hour: hour["time_hour"])  # the file lists one airport after the other
    for hour in some_weather:
        hour["temp"] = float(hour["temp"])
    hours = pd.DataFrame(some_weather).drop(columns="row").drop_duplicates(["origin", "time_hour"])
    assert len(hours) == len(some_weather), "an hour has one weather"
    both = pd.DataFrame(some_flights).merge(hours, on=["origin", "time_hour"])
    planes = pd.read_csv(nycflights("planes.csv"), dtype=str)
    flown = pd.DataFrame(some_flights).merge(planes, on="tailnum")
    for name, ddl in (("flights", FLIGHT), ("weather", WEATHER), ("planes", PLANES)):
        (tmp_path / f"{name}.ddl").write_text(ddl)
    left, right, out, models = make_topics(bootstrap, "flights", "weather", "with-weather", "with-planes", partitions=1)
    common = ["--bootstrap-servers", bootstrap, "--left", left, "--left-schema", str(tmp_path / "flights.ddl")]
    times = ["--left-timestamp-field", "time_hour", "--right-timestamp-field", "time_hour"]
    stream = [
        "join", *common, *times, "--right", right, "--right-schema", str(tmp_path / "weather.ddl"),
        "--on", "origin", "--within", "1s", "--left-watermark", "1d", "--right-watermark", "1d",
        "--out-topic", out, "--checkpoint", str(tmp_path / "weather"), "--max-offsets-per-trigger", "2000",
    ]  # fmt: skip
    found, known = Results(bootstrap, out), Results(bootstrap, models)
    try:
        half = len(some_flights) // 2
        until = some_flights[half]["time_hour"]
        early = [row for row in some_weather if row["time_hour"] < until]
        produce_values(bootstrap, right, encoded(early))
        produce_values(bootstrap, left, [*encoded(some_flights[:half]), b"not json"])
        code, said = jobs.run(*stream)
        assert code == 0, said
        assert re.search(r"join: [\d,]+ records, 1 that do not parse, 0 late;", said), said
        produce_values(bootstrap, right, encoded(some_weather[len(early) :]))
        produce_values(bootstrap, left, encoded(some_flights[half:]))
        code, said = jobs.run(*stream)
        assert code == 0, said
        assert ", 0 late;" in said, said
        held = [int(told.replace(",", "")) for told in re.findall(r"lag .*, ([\d,]+) rows of state", said)]
        assert held[-1] < len(some_flights) / 2, "what can match nothing any more leaves the state"
        rows = found.await_rows(len(both), by=lambda row: row["row"])
        assert {row["row"]: row["temp"] for row in rows} == {
            row.row: pytest.approx(row.temp) for row in both.itertuples()
        }
        static = ["join", *common, "--static", str(nycflights("planes.csv")), "--on", "tailnum"]
        static += ["--right-schema", str(tmp_path / "planes.ddl")]
        code, said = jobs.run(*static, "--out-topic", models, "--checkpoint", str(tmp_path / "planes"))
        assert code == 0, said
        rows = known.await_rows(len(flown), by=lambda row: row["row"])
        assert {row["row"]: row["model"] for row in rows} == {row.row: row.model for row in flown.itertuples()}
    finally:
        found.close()
        known.close()
