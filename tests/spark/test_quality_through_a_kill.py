"""End to end: every record is good or bad, and exists once, even if the job is killed while it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyarrow.dataset as ds  # type: ignore[import-untyped]

from tests.spark.job_runs import JobRun, Results, make_topics, produce_values
from tests.spark.warm_jobs import WarmJobs

pytestmark = [pytest.mark.spark, pytest.mark.timeout(420)]

RECORDS = 3_000
RULES = """
rules:
  - {name: not tenth, expect: "n % 10 != 0"}
  - {name: early, expect: "n < 1000", severity: warning}
"""


def test_good_and_bad_are_the_input(bootstrap: str, jobs: WarmJobs, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    (tmp_path / "n.ddl").write_text("n INT NOT NULL")
    values = [b"not json" if n % 50 == 1 else json.dumps({"n": n}).encode() for n in range(RECORDS)]
    is_good = [n for n in range(RECORDS) if n % 50 != 1 and n % 10 != 0]
    source, out = make_topics(bootstrap, "numbers", "good")
    produce_values(bootstrap, source, values)
    options = [
        "--bootstrap-servers", bootstrap, "--topics", source, "--out-topic", out,
        "--schema", str(tmp_path / "n.ddl"), "--rules", str(tmp_path / "rules.yaml"),
        "--dead-letters", str(tmp_path / "bad"), "--checkpoint", str(tmp_path / "checkpoint"),
    ]  # fmt: skip
    job = JobRun("quality", tmp_path, *options)
    good = Results(bootstrap, out)
    try:
        job.start("--max-offsets-per-trigger", "300", "--trigger", "100ms")
        job.await_text("batch 1:")
        job.kill()
        code, said = jobs.run("quality", *options)
        assert code == 0, said
        rows = good.await_rows(len(is_good), by=lambda row: row["n"])
        assert sorted(row["n"] for row in rows) == is_good
        letters = ds.dataset(tmp_path / "bad", partitioning="hive", exclude_invalid_files=True).to_table().to_pylist()
        assert len({(letter["kafka_partition"], letter["kafka_offset"]) for letter in letters}) == len(letters)
        assert len(letters) + len(rows) == RECORDS
        assert sum("breaks not tenth" in letter["error"] for letter in letters) == RECORDS / 10
        produce_values(bootstrap, source, [b'{"n": 1}', b"bad"])
        code, said = jobs.run("quality", *options, "--fail-above", "1%")
        assert (code, "1 of 2 records are bad (50.0%), more than --fail-above 1.0%" in said) == (1, True), said
    finally:
        good.close()
        job.kill()
