"""Validates every record of a produced batch (Kafka's `LogValidator`); the header alone is `RecordBatch.validate`.

Kafka does this on every append. Here it only runs where the header does not suffice: for keys of compacted topics, for
timestamp limits, and if the broker is configured to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from protocol.errors import ApiError, ErrorCode
from protocol.records.batch import NO_TIMESTAMP, Record, RecordBatch, TimestampType
from protocol.value import Value


class RecordError(NamedTuple):
    """The fault of one record of a refused batch; `batch_index` starts at 0."""

    batch_index: int
    message: str


class RecordValidationError(ApiError):
    """A batch was refused because of the records in `record_errors`."""

    def __init__(self, error_code: ErrorCode, message: str, record_errors: Sequence[RecordError]) -> None:
        super().__init__(error_code, message)
        self.record_errors = record_errors


class TimestampRule(Value):
    """A topic's rule for timestamps. The limits, inclusive milliseconds, only apply to CreateTime."""

    timestamp_type: TimestampType
    earliest_ms: int
    latest_ms: int


def validate_records_deep(
    batch: RecordBatch,
    topic_partition: str,
    *,
    compacted: bool,
    timestamps: TimestampRule,
) -> int:
    """Walk all records of a batch whose header is valid; returns their largest timestamp, or -1.

    Raises RecordValidationError, with Kafka's code and words, for records without a key if `compacted`, and for
    timestamps against the rule; ApiError INVALID_RECORD when the bytes are not `count` records with the offset deltas
    0, 1, 2 and so on (which Kafka only requires of compressed batches).
    """
    errors: list[RecordError] = []
    latest = NO_TIMESTAMP
    code = ErrorCode.INVALID_RECORD
    for index, record in enumerate(batch.records()):
        if record.offset != batch.base_offset + index:
            raise ApiError(
                ErrorCode.INVALID_RECORD,
                f"Inner {describe(record)} inside the record batch does not have incremental offsets, "
                f"expected offset is {batch.base_offset + index} in topic partition {topic_partition}.",
            )
        latest = max(latest, record.timestamp)
        if compacted and record.key is None:
            message = f"Compacted topic cannot accept message without key in topic partition {topic_partition}"
            errors.append(RecordError(index, message))
            continue
        complaint = _timestamp_complaint(record, batch, timestamps)
        if complaint is not None:
            code = ErrorCode.INVALID_TIMESTAMP
            errors.append(RecordError(index, complaint))
    if errors:
        raise RecordValidationError(code, _summary(code, errors), errors)
    return latest


def _timestamp_complaint(record: Record, batch: RecordBatch, rule: TimestampRule) -> str | None:
    timestamp = record.timestamp
    if rule.timestamp_type is TimestampType.CREATE_TIME and timestamp != NO_TIMESTAMP:
        if rule.earliest_ms <= timestamp <= rule.latest_ms:
            return None
        return (
            f"Timestamp {timestamp} of message with offset {record.offset} is out of range. "
            f"The timestamp should be within [{_wrapped(rule.earliest_ms)}, {_wrapped(rule.latest_ms)}]"
        )
    if batch.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return (
            f"Invalid timestamp type in message {describe(record)}. "
            "Producer should not set timestamp type to LogAppendTime."
        )
    return None


def _wrapped(number: int) -> int:
    """`number` wrapped to 64 bits: Kafka adds the limit to the time without an overflow check."""
    return (number + 2**63) % 2**64 - 2**63


def _summary(code: ErrorCode, errors: Sequence[RecordError]) -> str:
    if code is ErrorCode.INVALID_TIMESTAMP:
        return "One or more records have been rejected due to invalid timestamp"
    shown = ", ".join(f"RecordError(batchIndex={at}, message='{text}')" for at, text in errors[:3])
    return (
        f"One or more records have been rejected due to {len(errors)} record errors in total, "
        f"and only showing the first three errors at most: [{shown}]"
    )


def describe(record: Record) -> str:
    """A record's name in Kafka's error messages."""
    key_size, value_size = len(record.key or b""), len(record.value or b"")
    return (
        f"DefaultRecord(offset={record.offset}, timestamp={record.timestamp}, "
        f"key={key_size} bytes, value={value_size} bytes)"
    )
