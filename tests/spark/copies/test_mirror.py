"""End to end, on two clusters: mirrors in one and both directions, kills, moved groups, and deduplication."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]
from pyspark.sql import functions as sql

from spark_jobs.common.cli import RunConfig
from spark_jobs.common.dedupe import dedupe
from spark_jobs.common.kafka_admin import KafkaAdmin
from spark_jobs.common.provenance import MIRROR_SOURCE
from spark_jobs.common.sink import KafkaSink
from spark_jobs.common.source import SourceConfig
from spark_jobs.copies.offset_map import map_entries, translate
from spark_jobs.jobs import mirror
from spark_jobs.jobs.move_group import translated
from tests.kit.broker_process import ROOT
from tests.kit.due import turn
from tests.kit.spark.environment import spark_environment
from tests.spark.brokers import Broker, Brokers, on_apache_kafka_too
from tests.spark.copies.mirrors import consume, create_topic, ends, produce
from tests.spark.test_lake_flights import kill_group

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

A_KILLED_BATCH = 50_000


@pytest.fixture
def a(bootstrap: str) -> str:
    return bootstrap


@pytest.fixture
def second(brokers: Brokers, broker_kind: str) -> Broker:
    return brokers.running(broker_kind, "second")


@pytest.fixture
def b(second: Broker) -> str:
    return second.address


def config_of(source: str, target: str, topics: str, checkpoint: Path, **changes: Any) -> mirror.MirrorConfig:
    return mirror.MirrorConfig(
        source=SourceConfig(bootstrap_servers=source, topics=topics),
        run=RunConfig(checkpoint=str(checkpoint), trigger={"availableNow": True}, group_id="", metrics_port=None),
        target=KafkaSink(bootstrap_servers=target),
        **{"create_topics": True, **changes},
    )


@contextmanager
def started(spark: SparkSession, config: mirror.MirrorConfig, **trigger: Any) -> Iterator[StreamingQuery]:
    writer = mirror.build_query(spark, config).writer.option("checkpointLocation", config.run.checkpoint)
    query = writer.trigger(**trigger).start()
    try:
        yield query
    finally:
        query.stop()


def copy_all(spark: SparkSession, config: mirror.MirrorConfig) -> None:
    with started(spark, config, availableNow=True) as query:
        assert query.awaitTermination(120)


def records_of(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "includeHeaders": "true"}
    return spark.read.format("kafka").options(**options).load()


@on_apache_kafka_too(2)
def test_topics_are_made_alike_and_records_keep_all_but_their_timestamp(
    spark: SparkSession, a: str, b: str, tmp_path: Path
) -> None:
    topic = create_topic(a, "orders", 3, {"retention.ms": "987654321", "segment.ms": "123456789"})
    sent: list[tuple[int, bytes | None, bytes | None]] = [
        (n % 3, b"key-%d" % n if n % 5 else None, b"value-%d" % n if n % 7 else None) for n in range(60)
    ]
    produce(a, topic, sent, [("one", b"1"), ("none", None), ("one", b"\xff")])
    config = config_of(a, b, topic, tmp_path / "checkpoint", rename="{source}.{topic}", source_name="eu")
    copy_all(spark, config)

    copied, source = consume(b, f"eu.{topic}"), consume(a, topic)
    assert [record[:4] for record in copied] == [record[:4] for record in source]
    assert all(record.headers[:3] == [("one", b"1"), ("none", None), ("one", b"\xff")] for record in copied)
    with KafkaAdmin(spark, a, {}) as admin:
        cluster_id = admin.cluster_id()
    for copy, original in zip(copied, source, strict=True):
        origin = json.loads(copy.header(MIRROR_SOURCE) or b"")
        assert origin.pop("timestamp") > 1_700_000_000_000
        place = {"topic": topic, "partition": original.partition, "offset": original.offset}
        assert origin == {"cluster": cluster_id, **place}
        assert copy.header("row") == str(original.offset).encode()
    resource = ConfigResource(ResourceType.TOPIC, f"eu.{topic}")
    admin_client = AdminClient({"bootstrap.servers": b})
    settings = next(iter(admin_client.describe_configs([resource]).values())).result(30)
    assert settings["retention.ms"].value == "987654321"
    assert settings["segment.ms"].value == "123456789"

    # After a restart it continues where it was, and sees added partitions.
    with KafkaAdmin(spark, a, {}) as admin:
        admin.add_partitions(topic, 4)
    produce(a, topic, [(3, b"new", b"new"), (0, b"more", b"more")])
    copy_all(spark, config)
    assert [record[:4] for record in consume(b, f"eu.{topic}")] == [record[:4] for record in consume(a, topic)]


def test_mirrors_in_both_directions_come_to_an_end(spark: SparkSession, a: str, b: str, tmp_path: Path) -> None:
    shared = create_topic(a, "shared", 2)
    names = f"{shared},map-{shared}"
    for bootstrap in (a, b):
        produce(bootstrap, shared, [(0, b"at", bootstrap.encode())] * 3)
    with KafkaAdmin(spark, a, {}) as admin, KafkaAdmin(spark, b, {}) as other:
        for one in (admin, other):
            one.create_topic(f"map-{shared}", 1, {})
            one.create_topic(shared, 2, {})
    # The worst case: the same names on both sides, and the offset maps are mirrored too.
    forth = config_of(a, b, names, tmp_path / "forth", offset_topic=f"map-{shared}")
    back = config_of(b, a, names, tmp_path / "back", offset_topic=f"map-{shared}")
    trigger = {"processingTime": "100 milliseconds"}
    with started(spark, forth, **trigger) as first, started(spark, back, **trigger) as second:
        for _ in range(3):
            first.processAllAvailable()
            second.processAllAvailable()
        there = {name: ends(at, name) for at in (a, b) for name in names.split(",")}
        # Neither copies the other's output, so nothing more can follow.
        first.processAllAvailable()
        second.processAllAvailable()
        assert {name: ends(at, name) for at in (a, b) for name in names.split(",")} == there
    expected = sorted([a.encode()] * 3 + [b.encode()] * 3)
    for bootstrap in (a, b):
        assert sorted(record.value or b"" for record in consume(bootstrap, shared)) == expected
        assert len(consume(bootstrap, f"map-{shared}")) == 1


def test_a_missing_or_smaller_topic_is_refused(spark: SparkSession, a: str, b: str, tmp_path: Path) -> None:
    topic = create_topic(a, "small", 3)
    config = config_of(a, b, topic, tmp_path / "checkpoint", create_topics=False)
    with pytest.raises(ValueError, match=f"topic {topic} does not exist at the target"):
        mirror.build_query(spark, config)
    with KafkaAdmin(spark, b, {}) as admin:
        admin.create_topic(topic, 1, {})
    with pytest.raises(ValueError, match=f"topic {topic} has 1 partitions, its source {topic} has 3"):
        mirror.build_query(spark, config)
    with pytest.raises(ValueError, match="are the same cluster: --rename"):
        mirror.build_query(spark, config_of(a, a, topic, tmp_path / "checkpoint"))


def test_a_target_broker_that_is_killed_loses_nothing(
    spark: SparkSession, second: Broker, a: str, b: str, tmp_path: Path
) -> None:
    topic = create_topic(a, "killed", 2)
    produce(a, topic, [(n % 2, None, b"%d" % n) for n in range(60_000)])
    config = config_of(a, b, topic, tmp_path / "checkpoint")
    with started(spark, config, availableNow=True) as query:
        await_copies(b, topic, 1)
        second.kill()
        second.start()
        assert query.awaitTermination(150)
    assert {record.value for record in consume(b, topic)} == {b"%d" % n for n in range(60_000)}


def await_copies(bootstrap: str, topic: str, count: int, process: subprocess.Popen[bytes] | None = None) -> None:
    deadline = time.monotonic() + 120
    with_topic = AdminClient({"bootstrap.servers": bootstrap})
    while topic not in with_topic.list_topics(timeout=30).topics or ends(bootstrap, topic) < count:
        assert time.monotonic() < deadline
        assert process is None or process.poll() is None
        time.sleep(0.01)


@turn(3, of=5)
def test_a_reader_drops_what_a_killed_mirror_wrote_twice_and_its_groups_move(
    spark: SparkSession, a: str, b: str, tmp_path: Path
) -> None:
    topic = create_topic(a, "twice", 2)
    produce(a, topic, [(n % 2, b"%d" % n, b"x" * 100) for n in range(A_KILLED_BATCH)])
    said = tmp_path / "mirror.log"
    command = [
        sys.executable, "-m", "spark_jobs.jobs.mirror", "--master", "local[2]", "--bootstrap-servers", a,
        "--target-bootstrap-servers", b, "--topics", topic, "--create-topics", "--offset-topic", f"map-{topic}",
        "--checkpoint", str(tmp_path / "checkpoint"),
    ]  # fmt: skip
    with said.open("wb") as output:
        environment = {**os.environ, **spark_environment(), "PYTHONPATH": str(ROOT)}
        job = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        await_copies(b, topic, 1, job)
    finally:
        kill_group(job)
    assert 0 < ends(b, topic) < A_KILLED_BATCH
    copy_all(spark, config_of(a, b, topic, tmp_path / "checkpoint", offset_topic=f"map-{topic}"))

    copies = records_of(spark, b, topic)
    assert copies.count() > A_KILLED_BATCH
    counted = dedupe(copies).agg(sql.count(sql.lit(1)).alias("rows"), sql.count_distinct("key").alias("keys")).first()
    assert counted is not None
    assert (counted["rows"], counted["keys"]) == (A_KILLED_BATCH, A_KILLED_BATCH)

    half = A_KILLED_BATCH // 2
    with KafkaAdmin(spark, a, {}) as admin:
        source_cluster = admin.cluster_id()
        admin.commit("mover", {topic: {"0": half - 10, "1": half}})
        stood = admin.committed("mover")
    moved = translated(spark, KafkaSink(bootstrap_servers=b), f"map-{topic}", stood, source_cluster)
    starts = {int(number): at for number, at in moved[topic].items()}
    assert [record.key for record in consume(b, topic, starts)] == [b"%d" % (2 * n) for n in range(half - 10, half)]
    entries = map_entries(records_of(spark, b, f"map-{topic}"))
    assert translate(spark, entries, {topic: {"0": 0}}, source_cluster)[topic]["0"] >= 0
