"""Jobs that read from a cluster of three brokers do not notice that their partitions' leader dies during a batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pandas as pd
import pyarrow as pa
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.kit.broker_cluster import BrokerCluster
from tests.kit.broker_process import free_port
from tests.kit.due import turn
from tests.kit.scraping import scrape
from tests.kit.waiting import eventually
from tests.spark.job_runs import PATIENCE_S, JobRun
from tests.spark.test_aggregate_flights import AGGREGATES, SCHEMA, asked_with_pandas
from tests.spark.test_lake_flights import COLUMNS, FIELDS, produce, read_table, table_of, typed

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(900)]

TOPIC = "flights"
PARTITIONS = 3
BATCHES = 3
KILLED_BATCH = 1
SLOW_READER = {"fetch.min.bytes": "100000000", "fetch.max.wait.ms": "100", "max.partition.fetch.bytes": "32768"}
"""A broker delays each answer by 100 ms, since 32 kB are less than fetch.min.bytes: reading a batch takes seconds."""
SMALL_BATCH = 40
"""Records that a producer sends together, some 13 kB: a fetch returns whole batches."""


@pytest.fixture(scope="module")
def january(flights: list[dict[str, str]]) -> list[dict[str, object]]:
    return [typed(number, flight) for number, flight in enumerate(flights) if flight["month"] == "1"]


@pytest.fixture(scope="module")
def metrics_ports() -> dict[int, int]:
    return {number: free_port() for number in (1, 2, 3)}


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, january: list[dict[str, object]], metrics_ports: dict[int, int]
) -> Iterator[BrokerCluster]:
    """A cluster with the flights of January in a topic that one broker leads, with all replicas in sync."""
    own = {number: {"metrics.listener": f"127.0.0.1:{port}"} for number, port in metrics_ports.items()}
    directory = tmp_path_factory.mktemp("cluster")
    with BrokerCluster(directory, settings={"min.insync.replicas": "2"}, own_settings=own) as running:
        admin = AdminClient({"bootstrap.servers": running.address})
        topic = NewTopic(TOPIC, PARTITIONS, replica_assignment=[[1, 2, 3]] * PARTITIONS)
        admin.create_topics([topic])[TOPIC].result(30)
        assert produce(running.address, TOPIC, january, SMALL_BATCH) == len(january)
        yield running


class SlowJob(JobRun):
    """A job that reads the topic in `BATCHES` batches, for some seconds each."""

    def __init__(self, name: str, cluster: BrokerCluster, directory: Path, records: int, *options: str) -> None:
        self.checkpoint = directory / "checkpoint"
        properties = directory / "client.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in SLOW_READER.items()))
        super().__init__(
            name, directory, "--bootstrap-servers", cluster.address, "--topics", TOPIC,
            "--command-config", str(properties), "--checkpoint", str(self.checkpoint),
            # Spark rounds each partition's share down: otherwise some records might need a fourth batch.
            "--max-offsets-per-trigger", str(-(-records // BATCHES) + PARTITIONS), *options,
        )  # fmt: skip

    def is_in_batch(self, batch: int) -> bool:
        """Whether the batch has begun and is not done."""
        begun, done = (self.checkpoint / log / str(batch) for log in ("offsets", "commits"))
        # In this order: a batch that is not done now had begun before.
        return begun.exists() and not done.exists()


def run_through_the_death_of_the_leader(job: SlowJob, cluster: BrokerCluster, ports: dict[int, int]) -> str:
    """Run the job, and kill the leader when it has sent part of the batch; returns the job's last line."""
    cluster.await_whole()
    cluster.await_full_isr(TOPIC)
    leader = cluster.leader(TOPIC, 0)
    assert {cluster.leader(TOPIC, number) for number in range(PARTITIONS)} == {leader}
    log = sum(map(len, (cluster.logs_of(TOPIC, number)[leader] for number in range(PARTITIONS))))
    sent_before = sent(ports[leader])

    def part_of_the_batch() -> float:
        """The part of the batch that the leader has sent, while the batch is being processed."""
        job.assert_running()
        return (
            (sent(ports[leader]) - sent_before) * BATCHES / log - KILLED_BATCH if job.is_in_batch(KILLED_BATCH) else 0
        )

    job.start("--trigger", "available-now")
    try:
        part = eventually(
            "the batch is being read", part_of_the_batch, lambda part: part > 0.2, patience_s=PATIENCE_S, pause_s=0.01
        )
        cluster.brokers[leader].kill()
        assert job.is_in_batch(KILLED_BATCH)
        assert part < 0.95
        said = job.end()
    finally:
        job.kill()
    assert sorted(path.name for path in (job.checkpoint / "commits").glob("[0-9]*"))[:BATCHES] == ["0", "1", "2"]
    assert cluster.leader(TOPIC, 0) != leader
    return said


def sent(metrics_port: int) -> float:
    """The bytes of the topic that a broker has sent."""
    return scrape(metrics_port).get(("kafka_server_brokertopicmetrics_bytesout_total", (("topic", TOPIC),)), 0.0)


@turn(0, of=2)
def test_the_lake_has_every_record_once(
    cluster: BrokerCluster, metrics_ports: dict[int, int], january: list[dict[str, object]], tmp_path: Path
) -> None:
    (tmp_path / "flights.ddl").write_text(FIELDS)
    table = tmp_path / "table"
    options = ("--schema", str(tmp_path / "flights.ddl"), "--partition-by", "origin", "--output", str(table))
    job = SlowJob("lake", cluster, tmp_path, len(january), *options)
    said = run_through_the_death_of_the_leader(job, cluster, metrics_ports)
    assert said == f"lake: {len(january):,} records and 0 dead letters in {BATCHES} batches"
    source: pa.Table = table_of(january)
    found = read_table(table)
    assert found.num_rows == source.num_rows
    assert found.select(list(COLUMNS)).cast(source.schema).sort_by("row").equals(source)


@turn(1, of=2)
def test_the_aggregates_are_those_of_pandas(
    cluster: BrokerCluster, metrics_ports: dict[int, int], january: list[dict[str, Any]], tmp_path: Path
) -> None:
    (tmp_path / "flights.ddl").write_text(SCHEMA)
    job = SlowJob(
        "aggregate", cluster, tmp_path, len(january), "--schema", str(tmp_path / "flights.ddl"),
        "--timestamp-field", "time_hour", "--window", "1h", "--group-by", "origin", "--agg", AGGREGATES,
        "--watermark", "40d", "--mode", "update", "--output", str(tmp_path / "table"),
    )  # fmt: skip
    said = run_through_the_death_of_the_leader(job, cluster, metrics_ports)
    assert f"aggregate: {len(january):,} records, 0 that do not parse, 0 late; " in said
    rows: pd.DataFrame = read_table(tmp_path / "table").to_pandas()
    last = rows.sort_values("batch_id").drop_duplicates(["window_start", "origin"], keep="last")
    figures = last.drop(columns=["window_end", "batch_id"]).astype(object)
    found = {
        (row.pop("window_start"), row.pop("origin")): {name: None if pd.isna(row[name]) else row[name] for name in row}
        for row in figures.to_dict("records")
    }
    assert found == asked_with_pandas(january)
