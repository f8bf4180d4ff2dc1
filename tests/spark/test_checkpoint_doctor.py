"""The doctor's rules, and a real query that continues with the checkpoint it repaired."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyarrow.dataset  # type: ignore[import-untyped]
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from spark_jobs.checkpoints.doctor import Finding, TopicNow, examine, repaired, repaired_end
from tests.spark.brokers import on_apache_kafka_too
from tests.spark.warm_jobs import WarmJobs

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

UNLIMITED = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
WEEK = {"cleanup.policy": "delete", "retention.ms": "604800000", "retention.bytes": "-1"}


def now(first: int, end: int, topic_id: str | None = "new", **configs: str) -> dict[str, TopicNow]:
    return {"t": TopicNow(topic_id=topic_id, first={"0": first}, ends={"0": end}, configs=configs)}


@pytest.mark.parametrize(
    ("topics", "offset", "recorded", "expected"),
    [
        (now(0, 9), 9, "new", None),
        (now(5, 9), 5, None, None),
        ({}, 5, None, ("deleted", None, "the topic does not exist")),
        (now(7, 9), 5, "new", ("lost", 7, "or by DeleteRecords")),
        (now(0, 3), 5, None, ("future", 0, "begins at 0: the topic was made again, or lost records")),
        (now(0, 3), 5, "new", ("future", 3, "in the same topic: records were lost")),
        (now(1, 3), 5, None, ("future", 3, "records were lost")),
        (now(0, 9), 5, "old", ("deleted", 0, "made again (its id was old, and is new)")),
        (now(0, 3), 5, "old", ("future", 0, "made again")),
        (now(0, 9, None), 5, "old", None),
    ],
)
def test_each_kind_of_wrong_offset(
    topics: dict[str, TopicNow], offset: int, recorded: str | None, expected: tuple[str, int | None, str] | None
) -> None:
    found = list(examine({"t": {"0": offset}}, topics, {"t": recorded} if recorded else {}))
    if expected is None:
        assert found == []
        return
    kind, moved_to, cause = expected
    (finding,) = found
    assert (finding.kind, finding.moved_to) == (kind, moved_to)
    assert cause in finding.cause


@pytest.mark.parametrize(
    ("configs", "cause"),
    [
        (UNLIMITED, "by DeleteRecords (the topic has unlimited retention)"),
        (WEEK, "by retention (retention.ms=604800000) or by DeleteRecords"),
        ({"cleanup.policy": "compact"}, "by DeleteRecords (cleanup.policy=compact has no retention)"),
    ],
)
def test_what_took_records_away(configs: dict[str, str], cause: str) -> None:
    (finding,) = examine({"t": {"0": 5}}, now(7, 9, **configs), {})
    assert cause in finding.cause


def test_a_partition_that_is_gone_leaves_the_checkpoint() -> None:
    offsets = {"t": {"0": 5, "1": 5}, "u": {"0": 1}}
    findings = list(examine(offsets, now(0, 9), {}))
    assert [(finding.topic, finding.partition, finding.moved_to) for finding in findings] == [
        ("t", "1", None),
        ("u", "0", None),
    ]
    assert repaired(offsets, findings) == {"t": {"0": 5}}


@pytest.mark.parametrize(
    ("end", "start", "moved", "expected"),
    [
        (8, 5, None, 8),
        (12, 5, None, 9),  # the records after the log's end are gone
        (4, 7, "lost", 7),  # the batch is below the log's start: all of it is lost
        (8, 0, "future", 0),  # the batch was of another topic: the next one reads the new topic
    ],
)
def test_an_unfinished_batch_ends_within_the_log(end: int, start: int, moved: str | None, expected: int) -> None:
    findings = [Finding(kind=moved, topic="t", partition="0", offset=1, cause="", moved_to=start)] if moved else []  # type: ignore[arg-type]
    assert repaired_end({"t": {"0": end}, "gone": {"0": 1}}, {"t": {"0": start}}, now(0, 9), findings) == {
        "t": {"0": expected}
    }


def make(admin: AdminClient, *names: str) -> None:
    topics = [NewTopic(name, num_partitions=2, config={"retention.ms": "-1"}) for name in names]
    for created in admin.create_topics(topics).values():
        created.result(30)


def produce(bootstrap: str, topic: str, partition: int, *values: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for value in values:
        producer.produce(topic, json.dumps({"v": value}).encode(), partition=partition)
    assert producer.flush(60) == 0


@on_apache_kafka_too(0)
def test_a_query_runs_on_with_the_repaired_checkpoint(bootstrap: str, jobs: WarmJobs, tmp_path: Path) -> None:
    kept, gone, again = (f"{name}-{uuid.uuid4()}" for name in ("kept", "gone", "again"))
    admin = AdminClient({"bootstrap.servers": bootstrap})
    make(admin, kept, gone, again)
    for topic in (kept, gone, again):
        produce(bootstrap, topic, 0, "read 0", "read 1")
    (tmp_path / "schema.ddl").write_text("v STRING")
    source = ["--bootstrap-servers", bootstrap]
    lake = [
        *source, "--trigger", "available-now", "--schema", str(tmp_path / "schema.ddl"),
        "--output", str(tmp_path / "table"),
    ]  # fmt: skip
    first, second = str(tmp_path / "checkpoint"), str(tmp_path / "repaired")
    code, said = jobs.run("lake", *lake, "--topics", f"{kept},{gone},{again}", "--checkpoint", first)
    assert code == 0, said
    code, said = jobs.run("checkpoint_doctor", *source, "--checkpoint", first)
    assert (code, "0 of 6 partitions" in said) == (0, True), said

    produce(bootstrap, kept, 0, "taken away", "new 0")
    produce(bootstrap, kept, 1, "new 1")
    for deleted in admin.delete_records([TopicPartition(kept, 0, 3)]).values():
        deleted.result(30)
    for dropped in admin.delete_topics([gone, again], operation_timeout=30).values():
        dropped.result(30)
    make_when_gone(admin, again)
    produce(bootstrap, again, 0, "again 0", "again 1", "again 2")

    code, said = jobs.run("lake", *lake, "--topics", f"{kept},{again}", "--checkpoint", first)
    assert (code, f"topic {again} was made again since checkpoint" in said) == (1, True), said
    before = {path: path.read_bytes() for path in Path(first).rglob("*") if path.is_file()}
    code, said = jobs.run("checkpoint_doctor", *source, "--checkpoint", first)
    assert (code, "5 of 6 partitions" in said) == (1, True), said
    code, said = jobs.run("checkpoint_doctor", *source, "--checkpoint", first, "--write", second)
    assert code == 0, said
    assert f"lost {kept}-0: offset 2, moves to 3: the log begins at 3, 1 offsets later: by DeleteRecords" in said
    assert f"deleted {gone}-1: offset 0, leaves the checkpoint: the topic does not exist" in said
    assert f"deleted {again}-0: offset 2, moves to 0: the topic was made again (its id was" in said
    assert {path: path.read_bytes() for path in Path(first).rglob("*") if path.is_file()} == before
    code, said = jobs.run("checkpoint_doctor", *source, "--checkpoint", first, "--write", second)
    assert (code, "exists already" in said) == (1, True), said

    code, said = jobs.run("lake", *lake, "--topics", f"{kept},{again}", "--checkpoint", second)
    assert code == 0, said
    table = pyarrow.dataset.dataset(tmp_path / "table", partitioning="hive", exclude_invalid_files=True).to_table()
    values = sorted(table["v"].to_pylist())
    assert values == ["again 0", "again 1", "again 2", "new 0", "new 1", *["read 0"] * 3, *["read 1"] * 3]


def make_when_gone(admin: AdminClient, topic: str) -> None:
    """Create a topic that was just deleted: brokers finish the deletion asynchronously."""
    while True:
        try:
            make(admin, topic)
        except KafkaException as failure:
            # Odradek answers that it already exists, Apache Kafka that it is marked for deletion.
            if failure.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        else:
            return
