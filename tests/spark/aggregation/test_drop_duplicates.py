"""End to end: copies in one batch, across batches, and across a kill are counted once, and reported as copies."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyarrow.dataset as ds  # type: ignore[import-untyped]

from tests.kit.due import turn
from tests.spark.job_runs import JobRun, make_topics, produce_values
from tests.spark.warm_jobs import WarmJobs

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

HOUR_MS = 3_600_000
NOON_MS = 493_860 * HOUR_MS


def value(number: int | None, minute: float) -> bytes:
    return json.dumps({"id": number, "shop": "a", "at": NOON_MS + int(minute * 60_000)}).encode()


def figures(line: str) -> dict[str, int]:
    """The figures of a job's summary, by label."""
    return {what: int(count.replace(",", "")) for count, what in re.findall(r"([\d,]+) ([a-z][a-z ]*)", line)}


@turn(0, of=5)
def test_copies_count_once_through_a_kill_and_are_told(bootstrap: str, jobs: WarmJobs, tmp_path: Path) -> None:
    first = [value(number, 1) for number in range(200)]
    second = [value(number, 2) for number in range(200, 300)]
    nameless = [value(None, 3)] * 3
    (tmp_path / "orders.ddl").write_text("id BIGINT, shop STRING, at BIGINT NOT NULL")
    (topic,) = make_topics(bootstrap, "orders", partitions=2)
    job = JobRun(
        "aggregate", tmp_path, "--bootstrap-servers", bootstrap, "--topics", topic,
        "--schema", str(tmp_path / "orders.ddl"), "--timestamp-field", "at", "--window", "30m", "--agg", "count",
        "--drop-duplicates", "shop,id", "--watermark", "1h", "--output", str(tmp_path / "table"),
        "--dead-letters", str(tmp_path / "dead"), "--checkpoint", str(tmp_path / "checkpoint"),
        "--trigger", "200ms",
    )  # fmt: skip
    try:
        produce_values(bootstrap, topic, [*first, *first[:50], *nameless, b"not json"])
        job.start("--max-offsets-per-trigger", "200")
        job.await_records(254)
        job.kill()
        # Copies of records from the first run, and of its own; then the watermark advances to 13:00.
        produce_values(bootstrap, topic, [*second, *first[100:], *second[:10]])
        said = [job.go_on(jobs)]
        produce_values(bootstrap, topic, [value(999, 120)])
        said.append(job.go_on(jobs))
        produce_values(bootstrap, topic, [*first[:7], *[value(999, 120)] * 5, value(1000, 300)])
        said.append(job.go_on(jobs))
    finally:
        job.kill()
    after = Counter[str]()
    for text in said:
        after.update(figures(text.splitlines()[0]))
    assert (after["records"], after["duplicates"], after["that do not parse"], after["late"]) == (224, 115, 0, 7)
    told = [int(count) for count in re.findall(r"([\d,]+) duplicates dropped", "".join([job.text(), *said]))]
    assert sum(told) == 50 + 115
    counts = ds.dataset(tmp_path / "table", partitioning="hive", exclude_invalid_files=True).to_table().to_pylist()
    assert {(row["window_start"].hour, row["count"]) for row in counts} >= {(12, 300 + len(nameless))}
    letters = ds.dataset(tmp_path / "dead", partitioning="hive", exclude_invalid_files=True).to_table().to_pylist()
    late = [letter["value"] for letter in letters if letter["dead_letter_reason"].startswith("late: ")]
    assert sorted(late) == sorted(first[:7])
    assert len(letters) == len(late) + 1
