"""spark_jobs/README.md is correct: the tour's commands print the shown output, and its example of a test passes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from spark_jobs.common.session import ivy_dir
from tests.docs.transcript import broker_of, code_blocks, dialogue
from tests.kit.broker_process import ROOT
from tests.kit.spark.environment import spark_environment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

README = (ROOT / "spark_jobs" / "README.md").read_text(encoding="utf-8")
TOUR = ROOT / "spark_jobs" / "tour"
PATIENCE_S = 300


def chapter(title: str) -> str:
    """The text below a heading of the README, up to the next one of the same level."""
    found = re.search(rf"(?ms)^## {re.escape(title)}\n(.*?)(?=^## |\Z)", README)
    assert found is not None, title
    return found[1]


def steady(text: str) -> list[str]:
    """The lines, without the times and rates that differ between runs."""
    return [re.sub(r"in [\d.]+ s \([\d,.]+ records/s\)", "in T", line) for line in text.splitlines()]


def test_the_tour_is_as_printed(tmp_path: Path) -> None:
    tour = chapter("From nothing to a dashboard table in five commands")
    (start,) = code_blocks(tour, "sh")
    (transcript,) = code_blocks(tour, "console")
    steps = dialogue(transcript)
    assert len(steps) == 4
    with broker_of(start.strip(), tmp_path, **spark_environment()) as terminal:
        for command, expected in steps:
            here = command.replace("/tmp/tour", str(tmp_path)).replace(".venv-spark/bin/python", sys.executable)
            printed = steady(terminal.run(here, PATIENCE_S))
            # A job prints more than that: Spark logs its start.
            shown = [line for line in printed if line in steady(expected)]
            assert shown == steady(expected), "\n".join(printed)
            assert "spark-job" in command or shown == printed, command
    assert (tmp_path / "hourly.svg").read_text() == (TOUR / "hourly.svg").read_text()


def test_the_flights_of_the_tour_are_those_of_one_day(flights: list[dict[str, str]]) -> None:
    names = ("time_hour", "origin", "dest", "carrier")
    expected = [
        {name: flight[name] for name in names}
        | ({"dep_delay": int(flight["dep_delay"])} if flight["dep_delay"] else {})
        for flight in flights
        if (flight["month"], flight["day"]) == ("3", "8")
    ]
    assert [json.loads(line) for line in (TOUR / "flights.jsonl").read_text().splitlines()] == expected


@pytest.mark.parametrize("title", ["How to test your own job", "How to test your schema and options"])
def test_the_example_of_a_test_passes(tmp_path: Path, title: str) -> None:
    (example,) = code_blocks(chapter(title), "python")
    assert len(example.splitlines()) <= 40
    (tmp_path / "test_my_job.py").write_text(example)
    # A user has the installed package instead of the path. The connector comes from the local cache.
    settings = tmp_path / "conf"
    settings.mkdir()
    (settings / "spark-defaults.conf").write_text(f"spark.jars.ivy {ivy_dir()}\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_job.py"],
        cwd=tmp_path, check=False, capture_output=True, text=True, timeout=PATIENCE_S,
        env={
            **os.environ, **spark_environment(),
            "PYTHONPATH": str(ROOT), "ODRADEK_PYTHON": sys.executable, "SPARK_CONF_DIR": str(settings),
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
