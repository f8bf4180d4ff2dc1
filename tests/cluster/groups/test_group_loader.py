"""Loading a partition of __consumer_offsets: its final state, and the memory that this takes."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.groups.group_table import DurableGroups
from cluster.groups.loader import GroupLoader
from cluster.groups.records import CommittedOffset, CoordinatorRecord, GroupRecord, OffsetRecord
from protocol.messages.group_records import GroupMetadataValue, OffsetCommitKey
from protocol.records.batch import Record, build_batch
from protocol.records.control_records import ControlRecordType, EndTxnMarker, build_end_txn_marker
from protocol.topic_partition import TopicPartition
from protocol.wire.schema import encode_versioned

TP = TopicPartition("t", 0)
COMMIT, ABORT = ControlRecordType.COMMIT, ControlRecordType.ABORT


def offset_record(offset: int | None, group: str = "g", at: TopicPartition = TP, metadata: str = "") -> OffsetRecord:
    return OffsetRecord(group, at, None if offset is None else CommittedOffset(offset, -1, metadata, 0))


class Log:
    """A log that a test writes, and a loader that gets every batch of it."""

    def __init__(self) -> None:
        self.loader = GroupLoader()
        self.end_offset = 0

    def write(self, *records: CoordinatorRecord, producer_id: int = -1) -> None:
        self.write_raw(*(record.encode() for record in records), producer_id=producer_id)

    def write_raw(self, *records: tuple[bytes | None, bytes | None], producer_id: int = -1) -> None:
        batch = build_batch(
            [Record(0, 0, key, value) for key, value in records],
            base_offset=self.end_offset,
            producer_id=producer_id,
            is_transactional=producer_id >= 0,
        )
        self.end_offset += len(records)
        assert self.loader.take(memoryview(batch)) == self.end_offset

    def end_transaction(self, kind: ControlRecordType, producer_id: int) -> None:
        marker = build_end_txn_marker(
            EndTxnMarker(kind, 0), timestamp=0, producer_id=producer_id, producer_epoch=0, base_offset=self.end_offset
        )
        self.end_offset += 1
        assert self.loader.take(memoryview(marker)) == self.end_offset

    def offset(self) -> int | None:
        group = self.loader.finish().get("g")
        return None if group is None or TP not in group.offsets else group.offsets[TP].offset


@pytest.fixture
def log() -> Log:
    return Log()


def test_the_last_record_of_a_key_counts(log: Log) -> None:
    first, second = (
        GroupMetadataValue(protocol_type="p", generation=each, protocol=None, leader=None, members=[])
        for each in (1, 2)
    )
    log.write(offset_record(1), GroupRecord("g", first), offset_record(3, metadata="m"))
    log.write(offset_record(2), GroupRecord("h", first), GroupRecord("g", second))
    log.write(GroupRecord("h", None), offset_record(5, at=TopicPartition("t", 1)))
    log.write(offset_record(None, at=TopicPartition("t", 1)), offset_record(4, "k"))
    groups = log.loader.finish()
    assert groups.groups.keys() == {"g", "k"}
    group = groups.groups["g"]
    assert group.metadata == second
    assert group.offsets == {TP: CommittedOffset(2, -1, "", 0)}
    assert group.offsets[TP].log_offset == 3
    assert log.loader.finish() == DurableGroups()


def test_both_versions_of_a_key_name_one_offset(log: Log) -> None:
    old = encode_versioned(OffsetCommitKey(group="g", topic="t", partition=0), 0)
    new, value = offset_record(1).encode()
    _, later = offset_record(2).encode()
    log.write_raw((new, value), (old, later))
    assert log.offset() == 2
    log.write_raw((old, value), (new, None))
    assert log.offset() is None


def test_a_batch_that_is_cut_off_is_left_for_the_next_chunk() -> None:
    batches = [build_batch([Record(0, 0, *offset_record(each).encode())], base_offset=each) for each in range(3)]
    loader = GroupLoader()
    assert loader.take(memoryview(b"".join(batches)[:-1])) == 2
    assert loader.take(memoryview(batches[2][:-1])) is None
    assert loader.take(memoryview(batches[2])) == 3


def test_what_groups_share_is_kept_once(log: Log) -> None:
    for group in ("g", "h"):
        log.write(offset_record(1, group, metadata="as every time"))
        log.write(offset_record(1, group, TopicPartition("t", 1)))
    groups = log.loader.finish().groups
    (g0, g1), (h0, h1) = groups["g"].offsets, groups["h"].offsets
    assert g0 is h0
    assert g1 is h1
    assert g0.topic is g1.topic
    assert groups["g"].offsets[TP].metadata is groups["h"].offsets[TP].metadata


@given(st.binary(max_size=30) | st.binary(max_size=20).map(b"\0\1\0".__add__), st.none() | st.binary(max_size=40))
def test_garbage_never_stops_a_load(key: bytes, value: bytes | None) -> None:
    log = Log()
    log.write_raw((key, value), offset_record(1).encode(), (key, value), (None, b"\0\1"))
    log.write_raw((key, b"\0\1" + (value or b"")), producer_id=3)
    assert log.offset() == 1


def test_a_value_that_nobody_understands_leaves_the_one_before(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    log.write(offset_record(7))
    log.write_raw((offset_record(7).encode()[0], b"\0\x7fof a later Kafka"))
    assert log.offset() == 7
    assert "at offset 1" in caplog.text


# -- transactions ------------------------------------------------------------------------------------------------------


def test_offsets_in_a_transaction_count_when_it_is_committed(log: Log) -> None:
    log.write(offset_record(1))
    log.write(offset_record(2), producer_id=7)
    log.write(offset_record(3), producer_id=8)
    log.end_transaction(ABORT, 8)
    log.end_transaction(COMMIT, 7)
    assert log.offset() == 2


def test_offsets_of_an_open_transaction_are_pending(log: Log) -> None:
    log.write(offset_record(1))
    log.write(offset_record(2), offset_record(3, at=TopicPartition("t", 1)), producer_id=7)
    log.write(offset_record(None, at=TopicPartition("t", 1)), producer_id=7)
    group = log.loader.finish().groups["g"]
    assert group.offsets[TP].offset == 1
    assert group.pending == {7: {TP: CommittedOffset(2, -1, "", 0)}}


def test_a_plain_commit_after_the_transactional_one_stays(log: Log) -> None:
    log.write(offset_record(2), producer_id=7)
    log.write(offset_record(5))
    log.end_transaction(COMMIT, 7)
    assert log.offset() == 5


def test_a_group_of_an_aborted_transaction_alone_is_gone(log: Log) -> None:
    log.write(offset_record(2), producer_id=7)
    log.end_transaction(ABORT, 7)
    log.end_transaction(COMMIT, 9)
    assert log.loader.finish().groups == {}


# -- memory ------------------------------------------------------------------------------------------------------------


def test_superseded_values_take_no_memory() -> None:
    """8 MB of commits of ten partitions."""
    chunks = [
        build_batch(
            [
                Record(0, 0, *offset_record(number, at=TopicPartition("t", each), metadata="m" * 4000).encode())
                for each in range(10)
            ]
        )
        for number in range(200)
    ]
    loader = GroupLoader()
    tracemalloc.start()
    try:
        for chunk in chunks:
            loader.take(memoryview(chunk))
        groups = loader.finish()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(groups.groups["g"].offsets) == 10
    assert peak < 500_000
