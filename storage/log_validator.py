"""What a produced batch must satisfy before it becomes part of a log (Kafka classes `UnifiedLog`, `LogValidator`).

The header decides nearly everything; the records are decoded only where the meaning needs it: keys of a compacted
topic, a timestamp limit that the header leaves open, and `validate_records=deep`.
"""

from __future__ import annotations

from typing import NamedTuple

from protocol.errors import ApiError, ErrorCode
from protocol.record_validation import TimestampRule, validate_records_deep
from protocol.records import HEADER_BYTES, RecordBatch, TimestampType, recompress
from protocol.topic_partition import TopicPartition
from storage.log_config import UNLIMITED, LogConfig, ValidateRecords
from storage.producer_state import AppendOrigin


class ValidatedBatch(NamedTuple):
    """A batch fit to be appended. `max_timestamp` (ms) is what the records say, None where they were not read."""

    batch: RecordBatch
    max_timestamp: int | None


def validate_produced(
    records: memoryview, name: TopicPartition, config: LogConfig, origin: AppendOrigin, now_ms: int
) -> ValidatedBatch:
    """The one batch that `records` must be for partition `name`; a new one if it had to be recompressed.

    Raises ApiError: INVALID_RECORD (not exactly one v2 batch, or one that contradicts itself), MESSAGE_TOO_LARGE,
    RECORD_LIST_TOO_LARGE, CORRUPT_MESSAGE, INVALID_TXN_STATE; RecordValidationError (INVALID_RECORD,
    INVALID_TIMESTAMP) where single records are at fault.
    """
    size = len(records)
    if size < HEADER_BYTES:
        raise ApiError(ErrorCode.INVALID_RECORD, f"An append to {name} must have at least one record batch")
    batch = RecordBatch(records)
    if size != batch.length + 12 or batch.magic != 2:
        _refuse_shape(batch, size, name)
    if size > config.max_message_bytes:
        _refuse_size(size, name, config)
    if origin is AppendOrigin.CLIENT:
        batch.validate()
        if batch.attributes & 0x10:
            raise ApiError(ErrorCode.INVALID_TXN_STATE, "Record was not part of an ongoing transaction")
    else:
        batch.ensure_valid()
    latest = None
    if origin is AppendOrigin.CLIENT and _must_decode(batch, config, now_ms):
        rule = TimestampRule(
            config.message_timestamp_type,
            now_ms - config.message_timestamp_before_max_ms,
            now_ms + config.message_timestamp_after_max_ms,
        )
        latest = validate_records_deep(batch, str(name), compacted=config.is_compacted, timestamps=rule)
    codec = config.compression_type
    if codec is not None and batch.attributes & 7 != codec and not batch.is_control:
        batch = RecordBatch(memoryview(recompress(batch, codec, config.compression_level)))
        size = batch.size_in_bytes
        if size > config.max_message_bytes:
            _refuse_size(size, name, config)
    if size > config.segment_bytes:
        raise ApiError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"Message batch size is {size} bytes in append to partition {name}, "
            f"which exceeds the maximum configured segment size of {config.segment_bytes}.",
        )
    return ValidatedBatch(batch, latest)


def _refuse_shape(batch: RecordBatch, size: int, name: TopicPartition) -> None:
    """Anything but one complete v2 batch; sizes too small to be any batch are left to `RecordBatch.validate`."""
    if batch.magic in {0, 1}:
        problem = f"has magic {batch.magic}; only magic version 2 is allowed"
    elif batch.size_in_bytes > size:
        problem = "is cut off"
    elif batch.size_in_bytes >= HEADER_BYTES and batch.magic == 2:
        problem = "is not the only one; exactly one is allowed"
    else:
        return
    raise ApiError(ErrorCode.INVALID_RECORD, f"The record batch in the append to {name} {problem}")


def _refuse_size(size: int, name: TopicPartition, config: LogConfig) -> None:
    raise ApiError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"The record batch size in the append to {name} is {size} bytes "
        f"which exceeds the maximum configured value of {config.max_message_bytes}.",
    )


def _must_decode(batch: RecordBatch, config: LogConfig, now_ms: int) -> bool:
    """Whether the header leaves something open, or shows a fault that has to be told record by record."""
    if config.validate_records is ValidateRecords.DEEP or config.is_compacted:
        return True
    if config.message_timestamp_type is not TimestampType.CREATE_TIME:
        return batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    if batch.max_timestamp - now_ms > config.message_timestamp_after_max_ms:
        return True
    before = config.message_timestamp_before_max_ms
    if before == UNLIMITED:
        return False
    # The header has the first and the largest timestamp; the smallest is known only where there are no others.
    return batch.count > 2 or now_ms - min(batch.base_timestamp, batch.max_timestamp) > before
