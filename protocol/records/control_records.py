"""Control records, which brokers write between the records of clients (KIP-98; Kafka's `ControlRecordType`,
`EndTransactionMarker`).
"""

from __future__ import annotations

import struct
from enum import IntEnum

from protocol.errors import ApiError, ErrorCode
from protocol.records.record_builder import RecordBatchBuilder
from protocol.records.record_codec import Record
from protocol.records.record_format import NO_PARTITION_LEADER_EPOCH
from protocol.value import Value

_KEY = struct.Struct(">hh")
_END_TXN_VALUE = struct.Struct(">hi")
_VERSION = 0


class ControlRecordType(IntEnum):
    """The types of control records; those from LEADER_CHANGE on only occur in KRaft's metadata log."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class EndTxnMarker(Value):
    """The marker that ends the transaction of the batch's producer in one partition."""

    control_type: ControlRecordType
    coordinator_epoch: int


def control_type(record: Record) -> ControlRecordType:
    """The type of a control record; UNKNOWN for types of later Kafka versions. Raises ApiError INVALID_RECORD for an
    invalid key.
    """
    key = record.key
    if key is None or len(key) < _KEY.size:
        raise ApiError(ErrorCode.INVALID_RECORD, f"Invalid key of the control record at offset {record.offset}")
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise ApiError(
            ErrorCode.INVALID_RECORD, f"Invalid version {version} of the control record at offset {record.offset}"
        )
    try:
        return ControlRecordType(number)
    except ValueError:
        return ControlRecordType.UNKNOWN


def decode_end_txn_marker(record: Record) -> EndTxnMarker:
    """The marker in `record`. Raises ApiError INVALID_RECORD for any other record."""
    kind = control_type(record)
    value = record.value
    if kind not in {ControlRecordType.ABORT, ControlRecordType.COMMIT} or value is None or len(value) < 6:
        raise ApiError(ErrorCode.INVALID_RECORD, f"No end of a transaction in the record at offset {record.offset}")
    version, coordinator_epoch = _END_TXN_VALUE.unpack_from(value)
    if version < 0:
        raise ApiError(ErrorCode.INVALID_RECORD, f"Invalid version {version} of the marker at offset {record.offset}")
    return EndTxnMarker(kind, coordinator_epoch)


def encode_end_txn_marker(marker: EndTxnMarker) -> tuple[bytes, bytes]:
    """Key and value of the control record for `marker`."""
    return _KEY.pack(_VERSION, marker.control_type), _END_TXN_VALUE.pack(_VERSION, marker.coordinator_epoch)


def build_end_txn_marker(
    marker: EndTxnMarker,
    *,
    timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_offset: int = 0,
    partition_leader_epoch: int = NO_PARTITION_LEADER_EPOCH,
) -> bytes:
    """The batch of one record that a broker appends for `marker` (`MemoryRecords.withEndTransactionMarker`)."""
    builder = RecordBatchBuilder(
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
        partition_leader_epoch=partition_leader_epoch,
    )
    builder.append(timestamp, *encode_end_txn_marker(marker))
    return builder.build()
