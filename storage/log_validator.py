"""What a produced batch must satisfy before it becomes part of a log (Kafka class `LogValidator`).

The header decides nearly everything; the records are decoded only where the meaning needs it: keys of a compacted
topic, a timestamp limit that the header leaves open, a change of codec, and `validate_records=deep`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from protocol.errors import ApiError, ErrorCode
from protocol.records import (
    HEADER_BYTES,
    NO_TIMESTAMP,
    Record,
    RecordBatch,
    RecordBatchBuilder,
    TimestampType,
)
from protocol.topic_partition import TopicPartition
from storage.log_config import LogConfig, ValidateRecords
from storage.producer_state import AppendOrigin

_UNLIMITED_MS = 2**63 - 1


class RecordError(NamedTuple):
    """Why one record of a refused batch is at fault; `batch_index` counts from 0."""

    batch_index: int
    message: str


class RecordValidationError(ApiError):
    """A batch refused because of single records, which `record_errors` names."""

    def __init__(self, error_code: ErrorCode, message: str, record_errors: Sequence[RecordError]) -> None:
        super().__init__(error_code, message)
        self.record_errors = record_errors


def validate_produced(
    records: memoryview, name: TopicPartition, config: LogConfig, origin: AppendOrigin, now_ms: int
) -> RecordBatch:
    """The one batch that `records` must be, fit to be appended to partition `name`; another one if it had to be
    recompressed.

    Raises ApiError: INVALID_RECORD (not exactly one v2 batch, or it contradicts itself), MESSAGE_TOO_LARGE,
    RECORD_LIST_TOO_LARGE, CORRUPT_MESSAGE, INVALID_TIMESTAMP, INVALID_TXN_STATE; RecordValidationError where
    single records are at fault.
    """
    size = len(records)
    if size < HEADER_BYTES:
        raise ApiError(ErrorCode.INVALID_RECORD, f"An append to {name} must have at least one record batch")
    batch = RecordBatch(records)
    if size != batch.size_in_bytes or batch.magic != 2:
        _refuse_shape(batch, size, name)
    if size > config.max_message_bytes:
        _refuse_size(size, name, config)
    if origin is AppendOrigin.CLIENT:
        batch.validate()
        if batch.attributes:
            _check_attributes(batch, config)
    else:
        batch.ensure_valid()
    if _must_decode(batch, config, origin, now_ms):
        _check_records(batch, name, config, now_ms)
    if config.compression_type is not None and batch.attributes & 7 != config.compression_type and not batch.is_control:
        batch = _recompressed(batch, config)
        if batch.size_in_bytes > config.max_message_bytes:
            _refuse_size(batch.size_in_bytes, name, config)
    if batch.size_in_bytes > config.segment_bytes:
        raise ApiError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"Message batch size is {batch.size_in_bytes} bytes in append to partition {name}, "
            f"which exceeds the maximum configured segment size of {config.segment_bytes}.",
        )
    return batch


def _refuse_shape(batch: RecordBatch, size: int, name: TopicPartition) -> None:
    if batch.magic in {0, 1}:
        raise ApiError(
            ErrorCode.INVALID_RECORD,
            f"Record batch in the append to {name} has magic {batch.magic}; only magic version 2 is allowed",
        )
    if HEADER_BYTES <= batch.size_in_bytes < size:
        raise ApiError(ErrorCode.INVALID_RECORD, f"An append to {name} must contain exactly one record batch")
    if batch.size_in_bytes > size:
        raise ApiError(ErrorCode.INVALID_RECORD, f"The record batch in the append to {name} is cut off")


def _refuse_size(size: int, name: TopicPartition, config: LogConfig) -> None:
    raise ApiError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"The record batch size in the append to {name} is {size} bytes "
        f"which exceeds the maximum configured value of {config.max_message_bytes}.",
    )


def _check_attributes(batch: RecordBatch, config: LogConfig) -> None:
    if batch.is_transactional:
        raise ApiError(ErrorCode.INVALID_TXN_STATE, "Record was not part of an ongoing transaction")
    if (
        config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
        and batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    ):
        errors = [
            RecordError(
                index, "Invalid timestamp type in message. Producer should not set timestamp type to LogAppendTime."
            )
            for index in range(min(batch.count, 1))
        ]
        raise _timestamp_error(errors)


def _must_decode(batch: RecordBatch, config: LogConfig, origin: AppendOrigin, now_ms: int) -> bool:
    """Whether the header leaves something open that the records decide."""
    if origin is not AppendOrigin.CLIENT:
        return False
    if config.validate_records is ValidateRecords.DEEP or config.is_compacted:
        return True
    if config.message_timestamp_type is not TimestampType.CREATE_TIME:
        return False
    before, after = config.message_timestamp_before_max_ms, config.message_timestamp_after_max_ms
    if batch.max_timestamp - now_ms > after:
        return True
    if before == _UNLIMITED_MS:
        return False
    # The header has the first and the largest timestamp; the smallest is known only where they are the only ones.
    return batch.count > 2 or now_ms - min(batch.base_timestamp, batch.max_timestamp) > before


def _check_records(batch: RecordBatch, name: TopicPartition, config: LogConfig, now_ms: int) -> None:
    errors: list[RecordError] = []
    bad_timestamp = False
    check_time = config.message_timestamp_type is TimestampType.CREATE_TIME
    earliest = now_ms - config.message_timestamp_before_max_ms
    latest = now_ms + config.message_timestamp_after_max_ms
    for index, record in enumerate(batch.records()):
        if config.is_compacted and record.key is None:
            message = f"Compacted topic cannot accept message without key in topic partition {name}"
            errors.append(RecordError(index, message))
        elif check_time and record.timestamp != NO_TIMESTAMP and not earliest <= record.timestamp <= latest:
            bad_timestamp = True
            message = (
                f"Timestamp {record.timestamp} of message with offset {record.offset} is out of range. "
                f"The timestamp should be within [{earliest}, {latest}]"
            )
            errors.append(RecordError(index, message))
    if bad_timestamp:
        raise _timestamp_error(errors)
    if errors:
        shown = ", ".join(f"RecordError(batchIndex={at}, message='{text}')" for at, text in errors[:3])
        raise RecordValidationError(
            ErrorCode.INVALID_RECORD,
            f"One or more records have been rejected due to {len(errors)} record errors in total, "
            f"and only showing the first three errors at most: [{shown}]",
            errors,
        )


def _timestamp_error(errors: Sequence[RecordError]) -> RecordValidationError:
    return RecordValidationError(
        ErrorCode.INVALID_TIMESTAMP, "One or more records have been rejected due to invalid timestamp", errors
    )


def _recompressed(batch: RecordBatch, config: LogConfig) -> RecordBatch:
    """The same records in the topic's codec; offsets start at 0 as in what a client sends."""
    assert config.compression_type is not None
    builder = RecordBatchBuilder(
        compression=config.compression_type,
        compression_level=config.compression_level,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        is_transactional=batch.is_transactional,
    )
    record: Record
    for record in batch.records():
        builder.append(record.timestamp, record.key, record.value, record.headers)
    return RecordBatch(memoryview(bytearray(builder.build())))
