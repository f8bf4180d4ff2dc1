"""Control records."""

from __future__ import annotations

import pytest

from protocol.errors import ApiError
from protocol.records.batch import Record, RecordBatch
from protocol.records.control_records import (
    ControlRecordType,
    EndTxnMarker,
    build_end_txn_marker,
    control_type,
    decode_end_txn_marker,
)


@pytest.mark.parametrize("kind", [ControlRecordType.COMMIT, ControlRecordType.ABORT])
def test_markers(kind: ControlRecordType) -> None:
    marker = EndTxnMarker(kind, 17)
    data = build_end_txn_marker(
        marker, timestamp=5, producer_id=9, producer_epoch=2, base_offset=40, partition_leader_epoch=3
    )
    batch = RecordBatch(memoryview(data))
    batch.ensure_valid()
    assert batch.is_control
    assert batch.is_transactional
    assert (batch.base_offset, batch.producer_id, batch.producer_epoch, batch.base_sequence) == (40, 9, 2, -1)
    (record,) = batch.records()
    assert decode_end_txn_marker(record) == marker
    with pytest.raises(ApiError, match="control records"):
        RecordBatch(memoryview(build_end_txn_marker(marker, timestamp=5, producer_id=9, producer_epoch=2))).validate()


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0", b"\xff\xff\0\0"])
def test_no_control_key(key: bytes | None) -> None:
    with pytest.raises(ApiError, match="control record"):
        control_type(Record(3, 0, key, b""))


def test_kinds_of_a_later_kafka_are_unknown() -> None:
    assert control_type(Record(0, 0, b"\0\0\0\x63", None)) is ControlRecordType.UNKNOWN
    assert control_type(Record(0, 0, b"\0\1\0\x02", None)) is ControlRecordType.LEADER_CHANGE


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"\0\0\0\x02", b"\0\0\0\0\0\x01"),
        (b"\0\0\0\1", None),
        (b"\0\0\0\1", b"\0\0\0"),
        (b"\0\0\0\1", b"\xff\xff\0\0\0\1"),
    ],
)
def test_no_end_of_a_transaction(key: bytes, value: bytes | None) -> None:
    with pytest.raises(ApiError):
        decode_end_txn_marker(Record(3, 0, key, value))
