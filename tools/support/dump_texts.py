"""Parts of the lines that kafka-dump-log prints, in the words of Kafka's tool."""

from __future__ import annotations

from crc32c import crc32c

from protocol.records.batch import NO_SEQUENCE, Record, RecordBatch, TimestampType, increment_sequence
from protocol.records.control_records import ControlRecordType, control_type, decode_end_txn_marker
from protocol.records.record_format import ATTRIBUTES_AT, HEADER_BYTES


def boolean(truth: bool) -> str:
    return "true" if truth else "false"


def optional_long(number: int | None) -> str:
    return "OptionalLong.empty" if number is None else f"OptionalLong[{number}]"


def has_valid_crc(batch: RecordBatch) -> bool:
    """Tell whether the CRC matches, which is all that Kafka checks here."""
    return batch.size_in_bytes >= HEADER_BYTES and crc32c(batch.buffer[ATTRIBUTES_AT:]) == batch.crc


def timestamp_name(batch: RecordBatch) -> str:
    return "LogAppendTime" if batch.timestamp_type is TimestampType.LOG_APPEND_TIME else "CreateTime"


def metadata_of(record: Record, batch: RecordBatch) -> str:
    sequence = batch.base_sequence
    if sequence >= 0:
        sequence = increment_sequence(sequence, record.offset - batch.base_offset)
    else:
        sequence = NO_SEQUENCE
    return (
        f"| offset: {record.offset} {timestamp_name(batch)}: {record.timestamp} "
        f"keySize: {-1 if record.key is None else len(record.key)} "
        f"valueSize: {-1 if record.value is None else len(record.value)} sequence: {sequence} "
        f"headerKeys: [{','.join(key for key, _ in record.headers)}]"
    )


def control_text(record: Record) -> str:
    kind = control_type(record)
    if kind in {ControlRecordType.ABORT, ControlRecordType.COMMIT}:
        marker = decode_end_txn_marker(record)
        return f" endTxnMarker: {marker.control_type.name} coordinatorEpoch: {marker.coordinator_epoch}"
    number = int.from_bytes((record.key or b"")[2:4], "big", signed=True)
    return f" controlType: {kind.name}({number})"
