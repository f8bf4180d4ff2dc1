"""End to end: real records through a standard producer, a broker and the lake; the table equals the source.

All 336,776 in a run by hand, and a different part of them each day where time is short.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.dataset  # type: ignore[import-untyped]
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.kit.broker_process import ROOT
from tests.kit.due import due, turn
from tests.kit.spark.environment import spark_environment
from tests.spark.brokers import Broker, on_apache_kafka_too
from tests.spark.warm_jobs import WarmJobs

pytestmark = [pytest.mark.spark, pytest.mark.timeout(420)]

INTEGERS = ("year", "month", "day", "sched_dep_time", "sched_arr_time", "flight", "distance", "hour", "minute")
DOUBLES = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")
TEXTS = ("carrier", "tailnum", "origin", "dest", "time_hour")
COLUMNS = ("row", *INTEGERS, *DOUBLES, *TEXTS)
_TYPES = [(INTEGERS, "INT"), (DOUBLES, "DOUBLE"), (TEXTS, "STRING")]
FIELDS = ", ".join(["row INT NOT NULL", *(f"{name} {kind}" for names, kind in _TYPES for name in names)])
BAD_VALUES = (b"not json", b'{"row": "x"}', b"", None)


def typed(row_number: int, flight: dict[str, str]) -> dict[str, object]:
    """A flight with the types of its columns, and its position in the source; NA values are omitted."""
    values: dict[str, object] = {"row": row_number}
    values |= {name: int(flight[name]) for name in INTEGERS if flight[name]}
    values |= {name: float(flight[name]) for name in DOUBLES if flight[name]}
    return values | {name: flight[name] for name in TEXTS if flight[name]}


@pytest.fixture(scope="module")
def source_rows(flights: list[dict[str, str]]) -> list[dict[str, object]]:
    return [typed(number, flight) for number, flight in due(enumerate(flights))]


def table_of(rows: list[dict[str, object]]) -> pa.Table:
    columns = {name: [row.get(name) for row in rows] for name in COLUMNS}
    types = {name: pa.int32() for name in ("row", *INTEGERS)} | {name: pa.float64() for name in DOUBLES}
    return pa.table({name: pa.array(values, types.get(name, pa.string())) for name, values in columns.items()})


@pytest.fixture(scope="module")
def source_table(source_rows: list[dict[str, object]]) -> pa.Table:
    return table_of(source_rows)


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = f"flights-{uuid.uuid4()}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([NewTopic(name, num_partitions=3)]).values():
        created.result(30)
    return name


class LakeJob:
    """The job as a user runs it, in a separate process group so that its JVM dies with it."""

    def __init__(self, bootstrap: str, topic: str, directory: Path) -> None:
        self.directory = directory
        self.said = directory / "lake.log"
        schema = directory / "flights.ddl"
        schema.write_text(FIELDS)
        self._options = [
            "--bootstrap-servers", bootstrap, "--topics", topic, "--schema", str(schema), "--partition-by", "origin",
            "--output", str(directory / "table"), "--checkpoint", str(directory / "checkpoint"),
        ]  # fmt: skip

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        with self.said.open("ab") as said:
            return subprocess.Popen(
                [sys.executable, "-m", "spark_jobs.jobs.lake", "--master", "local[2]", *self._options, *options],
                cwd=self.directory,
                env={**os.environ, **spark_environment(), "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def run(self, jobs: WarmJobs, *options: str) -> str:
        """Run until everything up to the current end has been read; returns the job's output, its last line first."""
        code, said = jobs.run("lake", *self._options, *options)
        assert code == 0, said[-5000:]
        return said

    def table(self, name: str = "table") -> pa.Table:
        return read_table(self.directory / name)


def read_table(path: Path) -> pa.Table:
    """A table as any Parquet reader sees it, every column with its type."""
    return pyarrow.dataset.dataset(path, partitioning="hive", exclude_invalid_files=True).to_table()


def kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)


def produce(bootstrap: str, topic: str, rows: list[dict[str, object]], most_of_a_batch: int = 10_000) -> int:
    """Send every row with an idempotent producer, across restarts of the broker; returns how many arrived."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
            "batch.num.messages": most_of_a_batch,
            "message.timeout.ms": 120_000,
            "reconnect.backoff.max.ms": 500,
        }
    )
    acknowledged = 0

    def delivered(error: object, _message: object) -> None:
        nonlocal acknowledged
        acknowledged += error is None

    for row in rows:
        while True:
            try:
                producer.produce(topic, json.dumps(row).encode(), on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(120) == 0
    return acknowledged


def assert_table_equals_source(job: LakeJob, source: pa.Table) -> None:
    table = job.table()
    assert table.num_rows == source.num_rows
    ours = table.select(list(COLUMNS)).cast(source.schema).sort_by("row")
    assert ours.equals(source)


@on_apache_kafka_too(1)
def test_the_table_equals_the_source(
    bootstrap: str,
    jobs: WarmJobs,
    topic: str,
    tmp_path: Path,
    source_rows: list[dict[str, object]],
    source_table: pa.Table,
) -> None:
    assert produce(bootstrap, topic, source_rows) == len(source_rows)
    bad = Producer({"bootstrap.servers": bootstrap})
    for value in BAD_VALUES:
        bad.produce(topic, value, key=b"bad")
    bad.flush(30)

    job = LakeJob(bootstrap, topic, tmp_path)
    first = len(source_rows) // 5 * 3
    said = job.run(jobs, "--max-offsets-per-trigger", str(first))
    summary = f"lake: {len(source_rows):,} records and {len(BAD_VALUES)} dead letters in 2 batches"
    assert said.splitlines()[0] == summary
    assert_table_equals_source(job, source_table)
    letters = job.table("table-dead-letters")
    assert sorted(letters["value"].to_pylist(), key=str) == sorted(BAD_VALUES, key=str)
    assert letters["kafka_key"].to_pylist() == [b"bad"] * len(BAD_VALUES)
    (lag,) = re.findall(r"batch 0: .* records/s\), lag ([\d,]+) ", said)
    assert len(source_rows) - first <= int(lag.replace(",", "")) <= len(source_rows) - first + 10, "shares round down"
    assert "lag 0" in said


@turn(2, of=5)
def test_the_table_equals_the_source_after_broker_and_job_were_killed(
    broker: Broker,
    bootstrap: str,
    jobs: WarmJobs,
    topic: str,
    tmp_path: Path,
    source_rows: list[dict[str, object]],
    source_table: pa.Table,
) -> None:
    acknowledged = []
    half = len(source_rows) // 2
    assert produce(bootstrap, topic, source_rows[:half]) == half
    second_half = threading.Thread(target=lambda: acknowledged.append(produce(bootstrap, topic, source_rows[half:])))

    job = LakeJob(bootstrap, topic, tmp_path)
    running = job.start("--trigger", "500ms", "--max-offsets-per-trigger", str(len(source_rows) // 12))
    await_line(job, "batch 1:", running)
    second_half.start()
    time.sleep(0.3)
    broker.kill()
    broker.start()
    await_line(job, "batch 3:", running)
    # It dies in the middle of writing a batch: its staging directory has rows that are not in the table yet.
    await_staging(tmp_path / "table", running)
    kill_group(running)
    second_half.join(150)
    assert acknowledged == [len(source_rows) - half]

    job.run(jobs)
    assert_table_equals_source(job, source_table)
    assert not (tmp_path / ".table-staging").exists()


def await_line(job: LakeJob, text: str, process: subprocess.Popen[bytes], timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while text not in job.said.read_text(errors="replace"):
        assert time.monotonic() < deadline, job.said.read_text(errors="replace")[-5000:]
        assert process.poll() is None, job.said.read_text(errors="replace")[-5000:]
        time.sleep(0.1)


def await_staging(table: Path, process: subprocess.Popen[bytes], timeout_s: float = 120) -> None:
    """Wait until a file of another batch is being written."""
    staging = table.parent / f".{table.name}-staging"
    before = parquet_files(staging)
    deadline = time.monotonic() + timeout_s
    while not parquet_files(staging) - before:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.005)


def parquet_files(directory: Path) -> set[str]:
    """Names of the files below; the directory may disappear meanwhile, which `rglob` would not tolerate."""
    return {name for _, _, names in os.walk(directory) for name in names if name.endswith(".parquet")}
