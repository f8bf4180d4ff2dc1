"""End to end: a replay writes the records that its dry run counted, whatever the gaps in the offsets; rate, restart,
lake.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from confluent_kafka import Producer

from spark_jobs.common.cli import RunConfig
from spark_jobs.common.kafka_admin import KafkaAdmin
from spark_jobs.common.provenance import REPLAY_SOURCE
from spark_jobs.common.sink import KafkaSink
from spark_jobs.common.source import SourceConfig
from spark_jobs.jobs import lake, replay
from tests.kit.broker_process import ROOT
from tests.spark.copies.mirrors import consume, create_topic, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def config_of(bootstrap: str, topics: str, out: str, directory: Path, **changes: Any) -> replay.ReplayConfig:
    return replay.ReplayConfig(
        source=SourceConfig(bootstrap_servers=bootstrap, topics=topics),
        sink=KafkaSink(bootstrap_servers=bootstrap, topic=out),
        checkpoint=str(directory / "replay"),
        **changes,
    )


def run(spark: SparkSession, config: replay.ReplayConfig) -> str:
    return replay.replay(spark, config, threading.Event())


def dry_run(spark: SparkSession, config: replay.ReplayConfig) -> tuple[dict[str, int], int]:
    """Records by partition, and offsets, from the dry run."""
    with KafkaAdmin(spark, config.source.bootstrap_servers, {}) as admin:
        log = replay.Log(spark, config, admin)
        ranges = replay.plan(log, config)
        if config.dedupe:
            log.leave_out_copies(ranges)
        return replay.counts(log, ranges), ranges.size()


def transactions(bootstrap: str, topic: str) -> None:
    """Two committed transactions and one aborted one: 20 visible records, 10 invisible ones, and 3 markers."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"of-{topic}"})
    producer.init_transactions(60)
    for number, commit in enumerate([True, False, True]):
        producer.begin_transaction()
        for n in range(10):
            producer.produce(topic, b"%d" % n, b"user-%d" % n, partition=0, headers=[("t", str(number).encode())])
        if commit:
            producer.commit_transaction(60)
        else:
            producer.flush(60)
            producer.abort_transaction(60)


def compacted(bootstrap: str) -> str:
    """A topic whose log has gaps: the cleaner removed most of 200 records under 5 keys."""
    settings = {"cleanup.policy": "compact", "segment.bytes": "2000", "min.cleanable.dirty.ratio": "0.01"}
    topic = create_topic(bootstrap, "compacted", 2, {**settings, "max.compaction.lag.ms": "100"})
    for n in range(40):
        produce(bootstrap, topic, [(n % 2, b"user-%d" % (n % 5), b"x" * 200) for _ in range(5)])
    deadline = time.monotonic() + 90
    while len(consume(bootstrap, topic)) > 120:
        assert time.monotonic() < deadline, "the log was not cleaned"
    return topic


def test_a_replay_writes_what_its_dry_run_counted_with_gaps_in_the_offsets(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    plain, with_gaps = create_topic(bootstrap, "plain", 2), compacted(bootstrap)
    produce(bootstrap, plain, [(1, b"user-9", b"after"), (1, None, None)])
    source = {name: consume(bootstrap, name) for name in (plain, with_gaps)}

    out = f"{plain}-again"
    options = {"preserve_partition": True, "create_topics": True}
    config = config_of(bootstrap, f"{plain},{with_gaps}", out, tmp_path, **options)
    counted, offsets = dry_run(spark, config)
    nowhere = dataclasses.replace(config, sink=dataclasses.replace(config.sink, topic=None))
    said = replay.replay(spark, nowhere, threading.Event(), dry_run=True)
    assert said == f"{sum(counted.values()):,} records in {offsets:,} offsets would be written"
    assert counted[f"{plain}-1"] == 2
    assert sum(counted.values()) == sum(map(len, source.values())) < offsets - 20
    assert run(spark, config) == f"{sum(counted.values()):,} records written"

    written = consume(bootstrap, out)
    assert len(written) == sum(counted.values())
    origins = [json.loads(record.header(REPLAY_SOURCE) or b"") for record in written]
    found = {name: [] for name in source}  # type: dict[str, list[tuple[Any, ...]]]
    for record, origin in zip(written, origins, strict=True):
        assert record.partition == origin["partition"]
        found[origin["topic"]].append((origin["partition"], origin["offset"], record.key, record.value))
    assert found == {name: [record[:4] for record in records] for name, records in source.items()}

    chosen = dataclasses.replace(config, key_filter="-[12]$", checkpoint=str(tmp_path / "chosen"))
    counted, _ = dry_run(spark, chosen)
    assert run(spark, chosen) == f"{sum(counted.values()):,} records written"
    assert sum(counted.values()) == sum(
        record.key in {b"user-1", b"user-2"} for records in source.values() for record in records
    )


def test_markers_and_aborted_transactions_are_not_counted(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    topic, out = create_topic(bootstrap, "transactions"), create_topic(bootstrap, "committed")
    transactions(bootstrap, topic)
    config = config_of(bootstrap, topic, out, tmp_path)
    assert dry_run(spark, config) == ({f"{topic}-0": 20}, 33)
    assert run(spark, config) == "20 records written"
    assert {record.header("t") for record in consume(bootstrap, out)} == {b"0", b"2"}

    uncommitted = dataclasses.replace(
        config,
        checkpoint=str(tmp_path / "uncommitted"),
        source=dataclasses.replace(config.source, isolation_level="read_uncommitted"),
    )
    assert dry_run(spark, uncommitted) == ({f"{topic}-0": 30}, 33)
    assert run(spark, uncommitted) == "30 records written"


def test_a_replay_keeps_its_range_and_its_rate_and_goes_on_where_it_stopped(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    topic, out = create_topic(bootstrap, "steps", 2), create_topic(bootstrap, "steps-out")
    produce(bootstrap, topic, [(n % 2, b"%d" % n, b"old") for n in range(40)])
    middle = int(time.time() * 1000) + 1
    while time.time() * 1000 <= middle:
        time.sleep(0.001)
    produce(bootstrap, topic, [(n % 2, b"%d" % n, b"new") for n in range(40)])

    config = config_of(bootstrap, topic, out, tmp_path, start=f"@{middle}", rate=15)
    stopping = threading.Event()
    with KafkaAdmin(spark, bootstrap, {}) as admin:
        begun = replay.Replay(spark, config, replay.Log(spark, config, admin))
        assert not begun.run(stopping, lambda _: stopping.set())
    assert begun.steps == 3
    assert 0 < len(consume(bootstrap, out)) == begun.written < 40
    # Records written later are outside the range, which was fixed when the replay began.
    produce(bootstrap, topic, [(0, b"later", b"later")])
    began = time.monotonic()
    assert run(spark, config) == f"{40 - begun.written} records written"
    assert time.monotonic() - began >= 0.8
    written = consume(bootstrap, out)
    assert sorted(int(record.key or b"") for record in written) == list(range(40))
    assert {record.value for record in written} == {b"new"}
    assert run(spark, config) == "0 records written"
    with pytest.raises(ValueError, match="belongs to another replay"):
        run(spark, dataclasses.replace(config, key_filter="x"))

    # The step without a completion mark is repeated, and a reader can tell.
    (done,) = (tmp_path / "replay").glob("done-*")
    done.rename(done.with_name(f"done-{begun.steps - 2:012}"))
    assert run(spark, config) != "0 records written"
    assert len(consume(bootstrap, out)) > 40
    again = config_of(bootstrap, out, create_topic(bootstrap, "once"), tmp_path / "once", dedupe=True)
    assert sum(dry_run(spark, again)[0].values()) == 40
    assert run(spark, again) == "40 records written"


def test_a_lake_is_replayed_to_a_topic(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    topic, out = create_topic(bootstrap, "007", 2), create_topic(bootstrap, "from-lake", 2)
    produce(bootstrap, topic, [(n % 2, b"k%d" % n, bytes([n, 255])) for n in range(20)], [("h", b"\xfe")])
    run_config = RunConfig(checkpoint=str(tmp_path / "lake-cp"), trigger={}, group_id="", metrics_port=None)
    source = SourceConfig(bootstrap_servers=bootstrap, topics=topic)
    output = str(tmp_path / "lake")
    table = lake.LakeConfig(source=source, run=run_config, output=output, dead_letters=f"{output}-dead")
    query = lake.build_query(spark, table).writer.option("checkpointLocation", run_config.checkpoint)
    assert query.trigger(availableNow=True).start().awaitTermination(120)

    bounds = {"start": json.dumps({topic: {"0": 3, "1": -2}}), "end": json.dumps({topic: {"0": -1, "1": 4}})}
    config = config_of(bootstrap, topic, out, tmp_path, lake=output, preserve_partition=True, **bounds)
    assert dry_run(spark, config) == ({f"{topic}-0": 7, f"{topic}-1": 4}, 11)
    assert run(spark, config) == "11 records written"
    wanted = [record for record in consume(bootstrap, topic) if record.partition or record.offset >= 3]
    wanted = [record for record in wanted if not record.partition or record.offset < 4]
    written = consume(bootstrap, out)
    assert [(r.partition, r.key, r.value) for r in written] == [(r.partition, r.key, r.value) for r in wanted]
    assert all(record.headers[0] == ("h", b"\xfe") for record in written)


def test_what_cannot_be_replayed_is_refused(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    topic, out = create_topic(bootstrap, "three", 3), create_topic(bootstrap, "one")
    produce(bootstrap, topic, [(2, None, b"x")])
    with pytest.raises(ValueError, match="the replay would copy it onto itself"):
        run(spark, config_of(bootstrap, topic, topic, tmp_path / "itself"))
    with pytest.raises(ValueError, match=f"{out} has 1 partitions, the records have 3"):
        run(spark, config_of(bootstrap, topic, out, tmp_path / "fewer", preserve_partition=True))
    with pytest.raises(ValueError, match=f"{topic}-2: offset 5 is not there, the partition has 0 to 1"):
        run(spark, config_of(bootstrap, topic, out, tmp_path / "future", start=json.dumps({topic: {"2": 5}})))
    with pytest.raises(ValueError, match="topic no-such-topic does not exist"):
        run(spark, config_of(bootstrap, "no-such-topic", out, tmp_path / "none"))


def test_a_replay_without_a_checkpoint_is_a_usage_error() -> None:
    said = subprocess.run(
        [
            sys.executable,
            "-m",
            "spark_jobs.jobs.replay",
            "--bootstrap-servers",
            "b:1",
            "--topics",
            "t",
            "--out-topic",
            "o",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 2
    assert "--checkpoint is needed without --dry-run" in said.stderr
