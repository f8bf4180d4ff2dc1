"""End to end: groups that fall behind and catch up; once idle, the figures equal those of kafka-consumer-groups."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow.dataset as ds  # type: ignore[import-untyped]
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.kit.broker_process import ROOT
from tests.kit.due import turn
from tests.kit.scraping import scrape
from tests.kit.waiting import eventually
from tests.spark.job_runs import PATIENCE_S, JobRun, Results, make_topics
from tests.spark.warm_jobs import WarmJobs

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

MISSING = "-"
RECORDS = 10
PACE_S = 0.2
BEGIN_MS = int(time.time() * 1000) - 3_600_000
"""Old enough for an alert, and too new for retention."""


def produce_ten(bootstrap: str, topic: str, partitions: int) -> None:
    """Produce ten records to each partition, a second apart, the first at `BEGIN_MS`."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for partition in range(partitions):
        for number in range(RECORDS):
            producer.produce(topic, b"x", partition=partition, timestamp=BEGIN_MS + number * 1000)
    assert producer.flush(60) == 0


def member(bootstrap: str, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": -1,
            "log_level": 0,
        }
    )


def commit(bootstrap: str, group: str, *offsets: TopicPartition) -> None:
    """Commit like a consumer that assigns its partitions itself."""
    consumer = member(bootstrap, group)
    consumer.commit(offsets=list(offsets), asynchronous=False)
    consumer.close()


def described(bootstrap: str, group: str) -> list[tuple[str, ...]]:
    """Rows of kafka-consumer-groups --describe: group, topic, partition, committed, log end, lag."""
    command = [sys.executable, "-m", "tools.consumer_groups", "--bootstrap-server", bootstrap, "--describe"]
    shown = subprocess.run(
        [*command, "--timeout", "60000", "--group", group], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    rows = [tuple(line.split()[:6]) for line in shown.splitlines() if line.startswith(group)]
    assert rows, shown
    return rows


def rows_of(directory: Path) -> list[dict[str, Any]]:
    table = ds.dataset(directory, partitioning="hive", exclude_invalid_files=True).to_table()
    return [dict(row) for row in table.to_pylist()]


def as_described(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    names = ("group", "topic", "partition", "committed", "log_end", "lag")
    return sorted(tuple(MISSING if row[name] is None else str(row[name]) for name in names) for row in rows)


@contextlib.contextmanager
def joined(bootstrap: str, group: str, topic: str) -> Iterator[Consumer]:
    """A member that has the partitions of `topic`."""
    consumer = member(bootstrap, group)
    consumer.subscribe([topic])
    eventually("the member has its partitions", lambda: (consumer.poll(0.1), consumer.assignment())[1], patience_s=120)
    yield consumer
    consumer.close()


@pytest.fixture
def odd_groups(bootstrap: str) -> Iterator[tuple[str, str, str]]:
    """Groups: with a member; with commits older and newer than the log; with a deleted topic."""
    read, gone, odd = make_topics(bootstrap, "read", "gone", "odd")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    produce_ten(bootstrap, read, 3)
    produce_ten(bootstrap, odd, 3)
    billing, search, stale = (f"{name}-{uuid.uuid4()}" for name in ("billing", "search", "stale"))
    commit(bootstrap, search, TopicPartition(odd, 0, 15), TopicPartition(odd, 1, 2), TopicPartition(odd, 2, 10))
    for deleted in admin.delete_records([TopicPartition(odd, 1, 5)]).values():
        deleted.result(30)
    with joined(bootstrap, billing, read) as consumer, joined(bootstrap, stale, gone):
        committed = [TopicPartition(read, 0, 4), TopicPartition(read, 1, RECORDS)]
        consumer.commit(offsets=committed, asynchronous=False)
        for removed in admin.delete_topics([gone]).values():
            removed.result(30)
        yield billing, search, stale


def test_figures_at_rest_are_those_of_consumer_groups(
    jobs: WarmJobs, bootstrap: str, odd_groups: tuple[str, str, str], tmp_path: Path
) -> None:
    billing, search, stale = odd_groups
    (out,) = make_topics(bootstrap, "lags")
    common = ["--bootstrap-servers", bootstrap, "--group", f"{billing},{search}", "--group", stale]
    code, said = jobs.run(
        "lag", *common, "--trigger", "available-now", "--checkpoint", str(tmp_path / "c"),
        "--output", str(tmp_path / "table"), "--alert-lag", "100",
    )  # fmt: skip
    assert code == 0, said
    rows = rows_of(tmp_path / "table")
    # The tool requests the end of a deleted topic until it times out.
    known = [row for row in rows if row["group"] != stale]
    assert as_described(known) == sorted([*described(bootstrap, billing), *described(bootstrap, search)])
    assert "lag: 1 samples, 0 alerts" in said
    assert f"batch 0: {len(rows)} records in" in said
    by_lag = {(row["group"], row["lag"]): row for row in rows if row["lag"] is not None}
    assert {row["note"]: row["group"] for row in rows if row["note"]} == {
        "nothing committed": billing, "gone or without a leader": stale,
        "beyond the log end": search, "3 before the log start": search,
    }  # fmt: skip
    for group, lag, first_unread in ((billing, 6, 4), (search, 8, 5)):
        row = by_lag[group, lag]
        sampled_ms = int(row["sampled_at"].timestamp() * 1000)
        assert row["time_lag_ms"] == row["group_time_lag_ms"] == sampled_ms - BEGIN_MS - first_unread * 1000
        assert row["group_lag"] == lag
    assert by_lag[billing, 0]["time_lag_ms"] == by_lag[search, -5]["time_lag_ms"] == 0
    assert by_lag[search, 8]["group_skew"] == 3.0

    alerts = ["--alert-lag", "7", "--alert-time-lag", "5m", "--alert-skew", "2.5", "--alert-catch-up", "1h"]
    code, said = jobs.run(
        "lag", *common, *alerts, "--fail-on-alert", "--trigger", "200ms", "--count", "2", "--out-topic", out,
        "--checkpoint", str(tmp_path / "d"),
    )  # fmt: skip
    assert code == 1, said
    assert f"ALERT group {search}: lag 8 is above --alert-lag 7\n" in said
    assert f"ALERT group {search}: skew 3.00 is above --alert-skew 2.5\n" in said
    assert f"ALERT group {search}: lag 8 does not change, never catches up, --alert-catch-up 1h 0m\n" in said
    assert len(re.findall("ALERT .* behind, above --alert-time-lag 5m 0s\n", said)) == 2
    # The second sample does not repeat alerts that persist.
    assert said.count("ALERT") == 6
    assert "lag: 2 samples, 6 alerts" in said
    results = Results(bootstrap, out)
    try:
        told = results.await_rows(2 * len(rows), by=lambda row: (row["sampled_at"], row["topic"], row["partition"]))
    finally:
        results.close()
    last = max(row["sampled_at"] for row in told)
    assert as_described([row for row in told if row["sampled_at"] == last]) == as_described(rows)


def test_what_cannot_be_watched_is_one_line(jobs: WarmJobs, bootstrap: str, tmp_path: Path) -> None:
    (tmp_path / "client.properties").write_text("default.api.timeout.ms=2000\nrequest.timeout.ms=1000\n")
    checkpoint = ["--checkpoint", str(tmp_path / "c"), "--command-config", str(tmp_path / "client.properties")]
    here = ["--bootstrap-servers", bootstrap, *checkpoint]
    nobody = ["--bootstrap-servers", "127.0.0.1:1", *checkpoint]
    for options, line in (
        ([*here, "--group", "nobody"], f"consumer group nobody does not exist at {bootstrap}"),
        ([*here, "--group-pattern", "nob.dy"], f"--group-pattern nob.dy: matches no consumer group of {bootstrap}"),
        ([*here, "--group", ","], "--group: names no group"),
        ([*nobody, "--group", "nobody"], "no broker answers at 127.0.0.1:1 (Connection refused); gave up after 2 s"),
    ):
        code, said = jobs.run("lag", *options, "--trigger", "available-now")
        assert code == (2 if line.startswith("--group:") else 1), said
        (told,) = [text for text in said.splitlines() if text.startswith("lag: ")]
        assert told.startswith(f"lag: {line}")
        assert "Exception" not in said
        assert "Traceback" not in said
    code, said = jobs.run("lag", *here, "--group", "a", "--explain")
    assert code == 0, said
    assert "== Physical Plan ==" in said
    assert "a new query" in said
    assert jobs.run("lag", *here, "--group", "a", "--alert-skew", "0")[0] == 2
    assert jobs.run("lag", *here, "--group", "a", "--topics", "t")[0] == 2


def drive(job: JobRun, said: str, step: Callable[[], object]) -> None:
    """Call `step`, at a pace that leaves time for others, until the job prints a new match of the pattern `said`."""
    begin = len(job.text())
    deadline = time.monotonic() + PATIENCE_S
    while not re.search(said, job.text()[begin:]):
        assert time.monotonic() < deadline, f"{said}: {job.text()[-3000:]}"
        step()
        time.sleep(PACE_S)


@turn(4, of=5)
def test_a_group_that_falls_behind_and_catches_up(bootstrap: str, tmp_path: Path) -> None:
    (topic,) = make_topics(bootstrap, "orders", partitions=2)
    group = f"slow-{uuid.uuid4()}"
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    consumer = member(bootstrap, group)
    consumer.subscribe([topic])

    def produce(count: int) -> None:
        for number in range(count):
            producer.produce(topic, b"x", partition=number % 2)
        assert producer.flush(60) == 0

    def read(count: int) -> None:
        if consumer.consume(count, timeout=0.2):
            consumer.commit(asynchronous=False)

    def fall_behind() -> None:
        produce(40)
        read(10)

    def all_committed() -> bool:
        fall_behind()
        committed = consumer.committed(consumer.assignment())
        return len(committed) == 2 and all(each.offset >= 0 for each in committed)

    eventually("the member reads both partitions", all_committed, patience_s=120)
    # So many that a trend shows the catching up before it is complete.
    produce(30_000)
    job = JobRun(
        "lag", tmp_path, "--bootstrap-servers", bootstrap, "--group-pattern", "slow-.*", "--trend-window", "1m",
        "--trigger", "500ms", "--checkpoint", str(tmp_path / "checkpoint"), "--output", str(tmp_path / "table"),
        "--metrics-port", "0", "--alert-catch-up", "1d", "--fail-on-alert",
    )  # fmt: skip
    job.start()
    try:
        drive(job, r"grows by [\d,.]+ records/s, never catches up", fall_behind)
        drive(job, r"shrinks by [\d,.]+ records/s, caught up in ", lambda: read(25))
        drive(job, r"lag 0, 0\.0 s behind, caught up", lambda: read(5000))
        (port,) = re.findall(r"metrics on port (\d+)", job.text())
        served = scrape(int(port))
        said = job.end(terminate=True, code=1)
    finally:
        job.kill()
        consumer.close()
    assert re.fullmatch(r"lag: \d+ samples, \d+ alerts", said)
    assert f"ALERT group {group}: lag " in job.text()
    assert f"over: group {group}, --alert-catch-up" in job.text()
    of_group = {name: value for (name, labels), value in served.items() if ("group", group) in labels}
    assert {name: of_group[f"consumer_group_{name}"] for name in ("lag_records", "time_lag_seconds")} == {
        "lag_records": 0, "time_lag_seconds": 0,
    }  # fmt: skip
    assert of_group["consumer_group_catch_up_seconds"] == 0
    assert served["spark_job_batches_total", (("job", "lag"),)] > 2
    rows = rows_of(tmp_path / "table")
    assert as_described([row for row in rows if row["sampled_at"] == max(each["sampled_at"] for each in rows)]) == (
        described(bootstrap, group)
    )
    check_trends(rows)


def check_trends(rows: list[dict[str, Any]]) -> None:
    """Each sample occurs once, and its trends equal those that plain Python computes from the samples before it."""
    places = {(row["sampled_at"], row["partition"]): row for row in rows}
    assert len(places) == len(rows) == 2 * len({row["batch_id"] for row in rows})
    for row in rows:
        assert row["lag"] == row["log_end"] - row["committed"]
        earlier = [
            each
            for each in rows
            if each["partition"] == row["partition"]
            and 0 < (row["sampled_at"] - each["sampled_at"]).total_seconds() <= 60
        ]
        if not earlier:
            assert row["trend"] is None
            continue
        first = min(earlier, key=lambda each: each["sampled_at"])
        seconds = (row["sampled_at"] - first["sampled_at"]).total_seconds()
        assert row["trend"] == pytest.approx((row["lag"] - first["lag"]) / seconds)
        total = sum(places[row["sampled_at"], partition]["trend"] for partition in (0, 1))
        assert row["group_trend"] == pytest.approx(total)
        if total < 0 and row["group_lag"]:
            assert row["group_catch_up_s"] == pytest.approx(row["group_lag"] / -total)
