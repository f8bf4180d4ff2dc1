"""We read Apache Kafka's __consumer_offsets, and write the same bytes; see recorded_log."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pytest

from cluster.groups.records import decode_record
from protocol.records.batch import Record, read_batches
from tests.broker.groups.group_fixture import GroupFixture
from tests.broker.groups.local_place import Local, MemoryLog
from tests.broker.groups.recorded_log import NAME, RECORDED, ask
from tests.parity.transcript import differences

KAFKA = json.loads(RECORDED.read_text())
PARTITIONS = [base64.b64decode(each) for each in KAFKA["partitions"]]


@pytest.fixture
def place() -> Iterator[Local]:
    log = MemoryLog()
    for partition, batches in enumerate(PARTITIONS):
        log.partitions[partition] = [bytes(batch.buffer) for batch in read_batches(memoryview(batches))]
        log.next_offsets[partition] = 1000
    local = Local(log=log)
    local.sleep(1)
    yield local
    local.close()


def test_a_log_that_kafka_wrote_gives_the_answers_that_kafka_gave(place: Local) -> None:
    fixture = GroupFixture(place, NAME)
    ask(fixture, KAFKA["ids"])
    different = [
        f"{label} {path}: Kafka {theirs}, ours {mine}"
        for (label, kafka), (_, ours) in zip(KAFKA["answers"], fixture.transcript, strict=True)
        for path, theirs, mine in differences(kafka, json.loads(json.dumps(ours)))
    ]
    assert not different, "\n".join(different)


def records() -> list[Record]:
    """The group records in the recorded log."""
    return [
        record
        for batches in PARTITIONS
        for batch in read_batches(memoryview(batches))
        if not batch.is_control
        for record in batch.records()
    ]


def test_kafkas_records_are_written_in_the_same_bytes() -> None:
    assert len(records()) == 20
    for record in records():
        decoded = decode_record(record.key, record.value)
        assert decoded is not None
        assert decoded.encode() == (record.key, record.value)
