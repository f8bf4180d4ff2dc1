"""Checks of batches before they become part of a log (Kafka classes `UnifiedLog`, `LogValidator`), and the verification
of transactional batches (KIP-890; Kafka classes `VerificationGuard`, `VerificationStateEntry`).

The header decides nearly everything; the records are decoded only where necessary: keys of a compacted topic, a
timestamp limit that the header leaves open, and `validate_records=deep`.

Before the first batch of a transaction, the broker asks the transaction coordinator whether the partition is part of
it. A guard stands for that request, from before it is sent until a batch or a marker of the producer is appended. So a
response that arrives after the marker, which ended the transaction, admits no batch.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import Enum
from typing import Final

from protocol.errors import ApiError, ErrorCode
from protocol.records.batch import HEADER_BYTES, NO_TIMESTAMP, RecordBatch, TimestampType, recompress
from protocol.records.record_format import (
    CODEC_MASK,
    LENGTH_AT,
    LOG_OVERHEAD_BYTES,
    MAGIC_AT,
    MAGIC_V2,
    TRANSACTIONAL_FLAG,
)
from protocol.records.record_validation import TimestampRule, validate_records_deep
from protocol.topic_partition import TopicPartition
from protocol.value import Value
from storage.log_config import UNLIMITED, LogConfig, ValidateRecords


class AppendOrigin(Enum):
    """The origin of an append, which selects the checks (Kafka class `AppendOrigin`)."""

    CLIENT = 0
    COORDINATOR = 1
    REPLICATION = 2


SMALLEST_RECORD_BYTES = 14
"""A record of message format 0 without key and value (Kafka's LegacyRecord.RECORD_OVERHEAD_V0)."""
_LENGTH = struct.Struct(">i")
_CLIENT = AppendOrigin.CLIENT


class NotOneBatchError(ApiError):
    """The records are not exactly one batch of message format 2, as an append requires."""


def validate_produced(
    records: memoryview,
    name: TopicPartition,
    config: LogConfig,
    origin: AppendOrigin,
    now_ms: int,
    *,
    in_transaction: bool = False,
) -> tuple[RecordBatch, int | None]:
    """Validate the one batch in `records` for partition `name`. Returns the batch, a new one if it was recompressed,
    and the largest timestamp (ms) of its records, None if they were not read. Trailing bytes that are not a whole batch
    are cut off, as in Kafka. Clients may send transactional batches only `in_transaction`.

    Raises ApiError: NotOneBatchError (INVALID_RECORD, CORRUPT_MESSAGE), INVALID_RECORD for a batch that contradicts
    itself, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, CORRUPT_MESSAGE, TRANSACTIONAL_ID_AUTHORIZATION_FAILED;
    RecordValidationError (INVALID_RECORD, INVALID_TIMESTAMP) for single invalid records.
    """
    size = len(records)
    if size < HEADER_BYTES:
        raise _no_batch(records, name)
    batch = RecordBatch(records)
    if batch.length != size - LOG_OVERHEAD_BYTES or batch.magic != MAGIC_V2:
        batch = _first_batch(records, name)
        size = len(batch.buffer)
    if size > config.max_message_bytes:
        _refuse_size(size, name, config)
    latest = None
    if origin is _CLIENT:
        if batch.attributes & TRANSACTIONAL_FLAG and not in_transaction:
            problem = f"A transactional batch came for {name} without a transactional id"
            raise ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, problem)
        batch.validate()
        if config.header_suffices:
            must_decode = batch.max_timestamp - now_ms > config.message_timestamp_after_max_ms
        else:
            must_decode = _must_decode(batch, config, now_ms)
        if must_decode:
            rule = TimestampRule(
                config.message_timestamp_type,
                now_ms - config.message_timestamp_before_max_ms,
                now_ms + config.message_timestamp_after_max_ms,
            )
            latest = validate_records_deep(batch, str(name), compacted=config.is_compacted, timestamps=rule)
    else:
        batch.ensure_valid()
    codec = config.compression_type
    if codec is not None and batch.attributes & CODEC_MASK != codec and not batch.is_control:
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
    return batch, latest


def check_copied(batches: Sequence[RecordBatch], name: TopicPartition, expected: int) -> tuple[int, int, int]:
    """Check batches that a follower will append to partition `name` at the offset `expected` or after it. Returns their
    size in bytes, their largest timestamp, and the last offset of the first batch with that timestamp.

    Raises ApiError CORRUPT_MESSAGE (CRC, sizes), OFFSET_OUT_OF_RANGE for offsets that do not ascend.
    """
    max_timestamp, max_timestamp_offset, size = NO_TIMESTAMP, -1, 0
    for batch in batches:
        batch.ensure_valid()
        if batch.base_offset < expected:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Batch at offset {batch.base_offset} cannot be appended to {name}, "
                f"where offset {expected} is expected",
            )
        expected = batch.next_offset
        size += batch.size_in_bytes
        if batch.max_timestamp > max_timestamp:
            max_timestamp, max_timestamp_offset = batch.max_timestamp, batch.last_offset
    return size, max_timestamp, max_timestamp_offset


def _first_batch(records: memoryview, name: TopicPartition) -> RecordBatch:
    """The batch at the beginning of `records`; no second batch may follow it (Kafka's
    ProduceRequest.validateRecords).
    """
    size = _first_size(records)
    if size is None:
        raise _no_batch(records, name)
    magic = records[MAGIC_AT]
    if magic != MAGIC_V2:
        raise NotOneBatchError(
            ErrorCode.INVALID_RECORD, f"The batch for {name} has magic {magic}; only magic version 2 is allowed"
        )
    if size < HEADER_BYTES:
        raise _no_batch(records, name)
    if _first_size(records[size:]) is not None:
        raise NotOneBatchError(ErrorCode.INVALID_RECORD, f"More than one batch came for {name}; exactly one is allowed")
    return RecordBatch(records[:size])


def _no_batch(records: memoryview, name: TopicPartition) -> ApiError:
    """The error to raise when the records do not contain a whole batch."""
    if _first_size(records) is None:
        return NotOneBatchError(ErrorCode.INVALID_RECORD, f"An append to {name} must have at least one record batch")
    return ApiError(ErrorCode.CORRUPT_MESSAGE, f"The record batch for {name} is shorter than its header")


def _first_size(records: memoryview) -> int | None:
    """Size of the first batch or message in bytes, None if it is incomplete (Kafka's ByteBufferLogInputStream).

    Raises NotOneBatchError CORRUPT_MESSAGE for an impossible length or magic.
    """
    if len(records) <= LOG_OVERHEAD_BYTES:
        return None
    length: int = _LENGTH.unpack_from(records, LENGTH_AT)[0]
    if length < SMALLEST_RECORD_BYTES:
        raise NotOneBatchError(
            ErrorCode.CORRUPT_MESSAGE,
            f"Record size {length} is less than the minimum record overhead ({SMALLEST_RECORD_BYTES})",
        )
    if len(records) <= MAGIC_AT:
        return None
    magic = (records[MAGIC_AT] ^ 0x80) - 0x80
    if not 0 <= magic <= MAGIC_V2:
        raise NotOneBatchError(ErrorCode.CORRUPT_MESSAGE, f"Invalid magic found in record: {magic}")
    size = length + LOG_OVERHEAD_BYTES
    return size if size <= len(records) else None


def _refuse_size(size: int, name: TopicPartition, config: LogConfig) -> None:
    raise ApiError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"The record batch size in the append to {name} is {size} bytes "
        f"which exceeds the maximum configured value of {config.max_message_bytes}.",
    )


def _must_decode(batch: RecordBatch, config: LogConfig, now_ms: int) -> bool:
    """Whether the header does not suffice, or shows an error that must be reported for each record."""
    if config.validate_records is ValidateRecords.DEEP or config.is_compacted:
        return True
    if config.uses_append_time:
        return batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    if batch.max_timestamp - now_ms > config.message_timestamp_after_max_ms:
        return True
    before = config.message_timestamp_before_max_ms
    if before == UNLIMITED:
        return False
    # The header has the first and the largest timestamp; the smallest is known only if no other record follows.
    return batch.count > 2 or now_ms - min(batch.base_timestamp, batch.max_timestamp) > before


class VerificationGuard:
    """One verification request to a coordinator, compared by identity."""

    __slots__ = ()


NOT_VERIFIED: Final = VerificationGuard()
"""Admits everything: verification is switched off."""

ONGOING: Final = VerificationGuard()
"""The transaction was ongoing in the log, so the coordinator was not asked. Admits batches while it still is."""


class _VerificationRequest(Value, frozen=False):
    guard: VerificationGuard
    producer_epoch: int
    lowest_sequence: int
    asked_ms: int


class TransactionVerification:
    """The verification requests of one log that no append has settled yet, by producer id."""

    __slots__ = ("pending",)

    def __init__(self) -> None:
        self.pending: dict[int, _VerificationRequest] = {}

    def begin(self, producer_id: int, producer_epoch: int, sequence: int, now_ms: int) -> VerificationGuard:
        """The guard for a batch that begins with `sequence`. All waiting batches of a producer share it."""
        request = self.pending.get(producer_id)
        if request is None:
            request = _VerificationRequest(VerificationGuard(), producer_epoch, sequence, now_ms)
            self.pending[producer_id] = request
        elif producer_epoch > request.producer_epoch:
            request.producer_epoch, request.lowest_sequence = producer_epoch, sequence
        elif producer_epoch == request.producer_epoch and sequence < request.lowest_sequence:
            request.lowest_sequence = sequence
        return request.guard

    def check(self, batch: RecordBatch, guard: VerificationGuard, name: str) -> None:
        """Raise ApiError INVALID_TXN_STATE unless `guard` admits `batch`, which would begin a transaction in partition
        `name`.
        """
        request = self.pending.get(batch.producer_id)
        if guard is not NOT_VERIFIED and (request is None or request.guard is not guard):
            raise ApiError(
                ErrorCode.INVALID_TXN_STATE,
                f"The batch of producer {batch.producer_id} for {name} was not part of an ongoing transaction",
            )

    def check_sequence(self, batch: RecordBatch, offset: int, name: str) -> None:
        """Raise ApiError OUT_OF_ORDER_SEQUENCE_NUMBER for a batch if an earlier one was refused while this one waited:
        the producer will resend the earlier one.

        A late copy of a batch from the previous transaction has the same effect: the next transaction is refused, and
        its producer aborts it and continues with its next epoch. Kafka's brokers do the same.
        """
        request = self.pending.get(batch.producer_id)
        if request is not None and batch.base_sequence > request.lowest_sequence:
            raise ApiError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Out of order sequence number for producer {batch.producer_id} at offset {offset} in partition "
                f"{name}: {batch.base_sequence} (incoming seq. number), "
                f"{request.lowest_sequence} (earliest seen sequence)",
            )

    def end(self, producer_id: int) -> None:
        """Invalidate the producer's guard, because a batch or a marker of the producer was appended."""
        self.pending.pop(producer_id, None)

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget requests older than `expiration_ms`."""
        for producer_id, request in list(self.pending.items()):
            if now_ms - request.asked_ms >= expiration_ms:
                del self.pending[producer_id]

    def clear(self) -> None:
        """Forget all requests."""
        self.pending.clear()
