"""`--max-bytes-per-trigger`: batches of a real topic with large records of different sizes."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyarrow.dataset  # type: ignore[import-untyped]

from spark_jobs.common.source import offsets_in
from tests.spark.job_runs import make_topics, produce_values
from tests.spark.warm_jobs import WarmJobs

MB = 1 << 20


def test_a_limit_in_bytes_is_one_in_offsets() -> None:
    assert offsets_in(64 * MB, 1024.0, 1_000_000) == 64 * 1024
    assert offsets_in(64 * MB, 10.0, 1_000_000) == 1_000_000, "the smaller limit holds"
    assert offsets_in(10, 1024.0, None) == 1, "a record that is larger than the limit is read"
    assert offsets_in(64 * MB, None, 5) == 5, "no records, no estimate"


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_batches_of_large_records_stay_within_the_limit(bootstrap: str, jobs: WarmJobs, tmp_path: Path) -> None:
    """On average within the limit, and each within twice the limit, though record sizes differ by a factor of seven."""
    draw = random.Random(1)
    sizes = [draw.randrange(64 << 10, 448 << 10) for _ in range(60)]
    (topic,) = make_topics(bootstrap, "large", partitions=2)
    produce_values(bootstrap, topic, [draw.randbytes(size) for size in sizes])
    code, said = jobs.run(
        "lake", "--bootstrap-servers", bootstrap, "--topics", topic, "--output", str(tmp_path / "table"),
        "--checkpoint", str(tmp_path / "checkpoint"), "--max-bytes-per-trigger", "2MB",
    )  # fmt: skip
    assert code == 0, said
    rows = pyarrow.dataset.dataset(tmp_path / "table", partitioning="hive", exclude_invalid_files=True).to_table()
    bytes_of_batch: Counter[int] = Counter()
    for row in rows.select(["batch_id", "value"]).to_pylist():
        bytes_of_batch[row["batch_id"]] += len(row["value"])
    assert sum(bytes_of_batch.values()) == sum(sizes)
    assert max(bytes_of_batch.values()) <= 2 * 2 * MB
    assert 1 * MB < sum(sizes) / len(bytes_of_batch) <= 2 * MB, bytes_of_batch
    assert f"{topic}: " in said
    assert "bytes an offset, in 60 offsets" in said
