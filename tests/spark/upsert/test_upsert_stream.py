"""End to end: keyed changes through the broker and the job, killed while it writes a batch; the table equals a dict."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from confluent_kafka import Producer

from spark_jobs.upserts.snapshots import read_table
from tests.spark.upsert.upsert_process import UpsertJob, a_topic
from tests.spark.warm_jobs import WarmJobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(420)]

KEYS = 300


def produce_changes(bootstrap: str, topic: str, count: int, state: dict[int, int]) -> None:
    """Send inserts, updates and tombstones at random; `state` is the result."""
    chance = random.Random(11)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for n in range(count):
        key = chance.randrange(KEYS)
        if chance.random() < 0.3:
            state.pop(key, None)
            producer.produce(topic, None, key=b"%d" % key)
        else:
            state[key] = n
            producer.produce(topic, json.dumps({"id": key, "n": n}).encode(), key=b"%d" % key)
    producer.produce(topic, b"garbage", key=b"1")
    assert producer.flush(60) == 0


def test_a_job_killed_while_it_writes_leaves_the_table_whole(
    bootstrap: str, jobs: WarmJobs, tmp_path: Path, spark: SparkSession
) -> None:
    topic, state, count = a_topic(bootstrap, partitions=3), {}, 6_000
    produce_changes(bootstrap, topic, count, state)
    job = UpsertJob(bootstrap, topic, tmp_path / "job", "id INT NOT NULL, n INT", "--keys", "id")
    running = job.start("--trigger", "100ms", "--max-offsets-per-trigger", "1500")
    job.kill_in_the_middle_of_a_batch(running, after_batches=1)

    partial = read_table(spark, job.table)  # the interrupted batch is invisible
    assert partial.count() == partial.select("id").distinct().count() > 0

    summary = job.run(jobs)
    assert summary.endswith(f"1 dead letters in 2 batches; the table has {len(state):,} rows")
    assert {row.id: row.n for row in read_table(spark, job.table).collect()} == state
    (letter,) = spark.read.parquet(f"{job.table}-dead-letters").collect()
    assert letter.value == b"garbage"
    assert len(list((tmp_path / "job" / "table" / "_snapshots").glob("0*"))) == job.commits()
