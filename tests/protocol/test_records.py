"""The view of a batch, and in-place changes."""

from __future__ import annotations

import pytest

from protocol.errors import ApiError, ErrorCode
from protocol.records.batch import (
    Record,
    RecordBatch,
    RecordBatchBuilder,
    TimestampType,
    build_batch,
    find_timestamp,
    increment_sequence,
    offset_of_max_timestamp,
    read_batches,
    recompress,
)
from protocol.records.compression import CompressionType
from tests.protocol.record_values import model_batch, normal, patch

ROWS = [
    Record(0, 1000, b"k1", b"v1", [("h", b"1"), ("none", None)]),
    Record(0, 1500, None, b""),
    Record(0, 1200, b"", None, [("ż", b"")]),
]


def view(batch: bytes) -> RecordBatch:
    return RecordBatch(memoryview(bytearray(batch)))


def test_header_fields() -> None:
    batch = view(
        build_batch(
            ROWS,
            base_offset=70,
            producer_id=2**40,
            producer_epoch=9,
            base_sequence=2**31 - 2,
            is_transactional=True,
            partition_leader_epoch=4,
        )
    )
    assert (batch.base_offset, batch.last_offset, batch.next_offset, batch.count) == (70, 72, 73, 3)
    assert (batch.base_timestamp, batch.max_timestamp) == (1000, 1500)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (2**40, 9, 2**31 - 2)
    assert batch.last_sequence == 0
    assert (batch.magic, batch.partition_leader_epoch, batch.size_in_bytes) == (2, 4, len(batch.buffer))
    assert batch.is_transactional
    assert not batch.is_control
    assert batch.has_producer_id
    assert batch.compression is CompressionType.NONE
    assert batch.timestamp_type is TimestampType.CREATE_TIME
    assert batch.delete_horizon_ms is None
    assert "offsets=70..72" in repr(batch)
    batch.ensure_valid()
    assert batch.is_valid


def test_bytes_are_those_of_the_model() -> None:
    assert build_batch(ROWS, base_offset=5) == model_batch(ROWS, 5)


@pytest.mark.parametrize("codec", CompressionType)
def test_records_come_back(codec: CompressionType) -> None:
    batch = view(build_batch(ROWS, compression=codec, base_offset=40))
    assert batch.compression is codec
    read = list(batch.records())
    assert [record.offset for record in read] == [40, 41, 42]
    assert [normal(record) for record in read] == [normal(record) for record in ROWS]


def test_sequences_wrap_to_zero() -> None:
    assert increment_sequence(2**31 - 1, 1) == 0
    assert increment_sequence(2**31 - 3, 5) == 2
    assert view(build_batch(ROWS)).last_sequence == -1


def test_delete_horizon_is_the_base_timestamp() -> None:
    batch = view(build_batch(ROWS, delete_horizon_ms=777))
    assert batch.delete_horizon_ms == 777
    assert [record.timestamp for record in batch.records()] == [1000, 1500, 1200]


def test_offsets_and_epoch_are_assigned_outside_the_crc() -> None:
    batch = view(build_batch(ROWS))
    crc = batch.crc
    batch.assign_offsets(1_000_000, 12)
    batch.ensure_valid()
    assert (batch.base_offset, batch.partition_leader_epoch, batch.crc) == (1_000_000, 12, crc)
    assert [record.offset for record in batch.records()] == [1_000_000, 1_000_001, 1_000_002]


def test_log_append_time_is_the_time_of_every_record() -> None:
    batch = view(build_batch(ROWS))
    batch.assign_offsets(0, 0, 9_999)
    batch.ensure_valid()
    assert batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert (batch.base_timestamp, batch.max_timestamp) == (1000, 9_999)
    assert {record.timestamp for record in batch.records()} == {9_999}
    assert batch.buffer == build_batch(ROWS, log_append_time_ms=9_999, partition_leader_epoch=0)


def test_a_producers_log_append_time_is_cleared() -> None:
    batch = view(build_batch(ROWS, log_append_time_ms=1500))
    batch.assign_offsets(7, 0)
    batch.ensure_valid()
    assert batch.buffer == build_batch(ROWS, base_offset=7, partition_leader_epoch=0)


def test_a_wrong_max_timestamp_is_replaced_by_the_one_found() -> None:
    batch = view(patch(build_batch(ROWS), max_timestamp=2**62))
    batch.assign_offsets(0, 0, max_timestamp=1500)
    assert batch.buffer == build_batch(ROWS, partition_leader_epoch=0)


def test_what_a_batch_says_of_itself_is_what_its_bytes_say_after_the_assignment() -> None:
    for batch in (view(build_batch(ROWS)), view(build_batch(ROWS, log_append_time_ms=1500))):
        for assigned in ((5, 1, 77), (6, 2, None, 88), (7, 3)):
            batch.assign_offsets(*assigned)
            again = RecordBatch(batch.buffer)
            assert all(getattr(batch, name) == getattr(again, name) for name in RecordBatch.__slots__)


def test_read_batches_leaves_an_incomplete_one_out() -> None:
    whole = build_batch(ROWS)
    for cut in range(len(whole)):
        assert [batch.size_in_bytes for batch in read_batches(memoryview(whole + whole[:cut]))] == [len(whole)]


@pytest.mark.parametrize("broken", [{"magic": 1}, {"magic": 3}, {"length": 48}, {"length": -5}, {"length": -(2**31)}])
def test_read_batches_refuses_garbage(broken: dict[str, int]) -> None:
    whole = build_batch(ROWS)
    with pytest.raises(ApiError) as error:
        list(read_batches(memoryview(whole + patch(whole, **broken))))
    assert error.value.error_code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("size", [0, 1, 12, 17, 60])
def test_shorter_than_a_header(size: int) -> None:
    with pytest.raises(ApiError) as error:
        view(build_batch(ROWS)[:size])
    assert error.value.error_code is ErrorCode.CORRUPT_MESSAGE


def test_every_flipped_bit_below_the_crc_is_noticed() -> None:
    whole = build_batch(ROWS)
    for bit in range(16 * 8, len(whole) * 8):
        broken = bytearray(whole)
        broken[bit // 8] ^= 1 << bit % 8
        batch = view(bytes(broken))
        assert not batch.is_valid
        with pytest.raises(ApiError):
            batch.ensure_valid()


def test_ensure_valid_accepts_what_compaction_leaves() -> None:
    builder = RecordBatchBuilder(base_offset=100)
    builder.append(5, b"a", b"b", offset=103)
    builder.append(6, b"c", b"d", offset=109)
    assert len(builder) == 2
    compacted = view(patch(builder.build(), last_offset_delta=15))
    compacted.ensure_valid()
    assert [record.offset for record in compacted.records()] == [103, 109]
    assert compacted.last_offset == 115
    empty = view(patch(build_batch(ROWS)[:61], length=49, count=0))
    empty.ensure_valid()
    assert list(empty.records()) == []


def test_a_batch_needs_a_record() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        RecordBatchBuilder().build()
    with pytest.raises(ValueError, match="at least one record"):
        build_batch([])


@pytest.mark.parametrize("codec", CompressionType)
@pytest.mark.parametrize("target", CompressionType)
def test_recompress_changes_the_codec_alone(codec: CompressionType, target: CompressionType) -> None:
    options = {"producer_id": 5, "producer_epoch": 1, "base_sequence": 3, "base_offset": 9, "is_transactional": True}
    source = view(build_batch(ROWS, compression=codec, log_append_time_ms=88, **options))  # type: ignore[arg-type]
    result = RecordBatch(memoryview(recompress(source, target)))
    result.ensure_valid()
    assert result.compression is target
    assert list(result.records()) == list(source.records())
    for name in ("base_offset", "count", "max_timestamp", "producer_id", "producer_epoch", "base_sequence"):
        assert getattr(result, name) == getattr(source, name)
    assert result.attributes & ~7 == source.attributes & ~7


def test_find_timestamp() -> None:
    batch = view(build_batch(ROWS, base_offset=10))
    assert [(found.offset if (found := find_timestamp(batch, at)) else None) for at in (0, 1000, 1001, 1500, 1501)] == [
        10,
        10,
        11,
        11,
        None,
    ]
    after = find_timestamp(batch, 1100, from_offset=12)
    assert after is not None
    assert (after.offset, after.timestamp) == (12, 1200)
    assert find_timestamp(batch, 0, from_offset=13) is None


def test_offset_of_max_timestamp() -> None:
    assert offset_of_max_timestamp(view(build_batch(ROWS, base_offset=10))) == 11
    assert offset_of_max_timestamp(view(build_batch(ROWS, base_offset=10, log_append_time_ms=5))) == 10
    assert offset_of_max_timestamp(view(patch(build_batch(ROWS), max_timestamp=4))) is None
