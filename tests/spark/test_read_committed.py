"""Spark reads complete transactions: the lake has each committed record once, and no others."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyarrow.dataset as ds  # type: ignore[import-untyped]

from tests.chaos.transfers import Transfers
from tests.compat.steady_load import PARTITIONS
from tests.kit.due import turn
from tests.kit.waiting import eventually
from tests.spark.brokers import Broker
from tests.spark.job_runs import JobRun, make_topics
from tests.spark.warm_jobs import WarmJobs

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(420)]

MORE = 30


@turn(0, of=5)
def test_the_lake_has_committed_transactions_and_no_others(
    broker: Broker, bootstrap: str, jobs: WarmJobs, tmp_path: Path
) -> None:
    """Broker and job die meanwhile."""
    (topic,) = make_topics(bootstrap, "transfers")
    table = tmp_path / "table"
    job = JobRun(
        "lake", tmp_path, "--bootstrap-servers", bootstrap, "--topics", topic, "--output", str(table),
        "--checkpoint", str(tmp_path / "checkpoint"), "--trigger", "200ms",
    )  # fmt: skip
    transfers = Transfers(bootstrap, topic, topic)
    transfers.start()
    try:
        job.start()
        job.await_text("batch 1:")
        for _ in range(2):
            broker.kill()
            broker.start()
            goes_on(transfers)
            job.await_records(MORE)
        job.kill()
        goes_on(transfers)
        transfers.stop()
        job.go_on(jobs)
    finally:
        job.kill()
    assert transfers.verdict().is_good
    found = Counter(rows_of(table))
    for partition in range(PARTITIONS):
        for number in transfers.committed_in(partition):
            assert found.pop((partition, number)) == 1
    assert not found, "aborted transactions are in the table, or records twice"


def goes_on(transfers: Transfers) -> None:
    goal = len(transfers.acknowledged) + MORE
    eventually(
        "transactions", lambda: len(transfers.acknowledged), lambda count: count >= goal or not transfers.is_alive()
    )
    assert transfers.failure is None, transfers.failure


def rows_of(table: Path) -> list[tuple[int, int]]:
    """Partition and number of each record."""
    rows = ds.dataset(table, partitioning="hive", exclude_invalid_files=True).to_table()
    return [(row["kafka_partition"], int(row["value"])) for row in rows.to_pylist()]


def missing(table: Path, transfers: Transfers) -> set[tuple[int, int]]:
    """Committed records that are still missing."""
    committed = {(partition, number) for partition in range(PARTITIONS) for number in transfers.acknowledged}
    return committed - set(rows_of(table))
