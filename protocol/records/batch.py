"""Record batches of message format v2: a view of the bytes that leaves the records opaque on the hot path.

A broker only needs the 61 header bytes: `RecordBatch` unpacks them in one call, `validate` checks them and the CRC, and
`assign_offsets` rewrites base offset and leader epoch in place, which the CRC does not cover. The records
(protocol.records.record_codec) are decoded only on demand.

Layout and rules: Kafka's `DefaultRecordBatch`, `LogValidator.validateBatch` and KIP-98 (format v2), KIP-534 (delete
horizon). This module stands alone: it imports only other modules of `protocol`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum

from protocol.errors import ApiError, ErrorCode, invalid_record
from protocol.records.checksum import crc32c
from protocol.records.compression import CompressionType, compress, decompress
from protocol.records.record_builder import BatchOptions, RecordBatchBuilder, build_batch, build_values_batch
from protocol.records.record_codec import Header, Record, decode_records
from protocol.records.record_format import (
    ATTRIBUTES_AT,
    BASE_OFFSET_AT,
    CODEC_MASK,
    CONTROL_FLAG,
    CRC,
    CRC_AT,
    DELETE_HORIZON_FLAG,
    HEADER,
    HEADER_BYTES,
    LENGTH_AT,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD_BYTES,
    MAGIC_AT,
    MAGIC_V2,
    MAX_EXPANSION,
    MAX_TIMESTAMP_AT,
    MIN_RECORD_BYTES,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
    increment_sequence,
)

__all__ = [
    "HEADER_BYTES",
    "LOG_OVERHEAD_BYTES",
    "MAGIC_V2",
    "NO_PRODUCER_EPOCH",
    "NO_PRODUCER_ID",
    "NO_SEQUENCE",
    "NO_TIMESTAMP",
    "BatchOptions",
    "CompressionType",
    "Header",
    "Record",
    "RecordBatch",
    "RecordBatchBuilder",
    "TimestampType",
    "build_batch",
    "build_values_batch",
    "find_timestamp",
    "increment_sequence",
    "offset_of_max_timestamp",
    "read_batches",
    "recompress",
]

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_BASE_OFFSET_TO_EPOCH = struct.Struct(">qii")
_SIZE_AND_MAGIC = struct.Struct(">iib")


class TimestampType(IntEnum):
    """The origin of a batch's timestamps: the producer, or the broker at the append."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class RecordBatch:
    """A view of one v2 batch. Cheap to create: it only checks that the buffer holds a header.

    After `validate` or `read_batches`, `buffer` is exactly this batch. Timestamps are milliseconds since the epoch, or
    -1.
    """

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "buffer",
        "count",
        "crc",
        "last_offset_delta",
        "length",
        "magic",
        "max_timestamp",
        "partition_leader_epoch",
        "producer_epoch",
        "producer_id",
    )

    base_offset: int
    length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    def __init__(self, buffer: memoryview) -> None:
        """Raises ApiError CORRUPT_MESSAGE when `buffer` is shorter than a batch header."""
        self.buffer = buffer
        try:
            (
                self.base_offset,
                self.length,
                self.partition_leader_epoch,
                self.magic,
                self.crc,
                self.attributes,
                self.last_offset_delta,
                self.base_timestamp,
                self.max_timestamp,
                self.producer_id,
                self.producer_epoch,
                self.base_sequence,
                self.count,
            ) = HEADER.unpack_from(buffer)
        except struct.error:
            raise ApiError(
                ErrorCode.CORRUPT_MESSAGE,
                f"Record batch of {len(buffer)} bytes is shorter than its header ({HEADER_BYTES} bytes)",
            ) from None

    @property
    def size_in_bytes(self) -> int:
        """Size of the whole batch, including the 12 bytes that `length` leaves out."""
        return self.length + LOG_OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record, wrapping after 2^31-1; -1 without a sequence."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return increment_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def compression(self) -> CompressionType:
        """Raises ApiError INVALID_RECORD for an unknown codec id."""
        codec = self.attributes & CODEC_MASK
        if codec > CompressionType.ZSTD:
            raise invalid_record(f"Unknown compression type id {codec} in record batch")
        return CompressionType(codec)

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType.LOG_APPEND_TIME if self.attributes & LOG_APPEND_TIME_FLAG else TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_FLAG)

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID

    @property
    def delete_horizon_ms(self) -> int | None:
        """The time when tombstones and markers of this batch may be removed (KIP-534), or None until the cleaner sets
        it.
        """
        return self.base_timestamp if self.attributes & DELETE_HORIZON_FLAG else None

    @property
    def is_valid(self) -> bool:
        """Whether size, magic and CRC-32C match the bytes."""
        return (
            self.magic == MAGIC_V2
            and HEADER_BYTES <= self.size_in_bytes == len(self.buffer)
            and crc32c(self.buffer[ATTRIBUTES_AT:]) == self.crc
        )

    def ensure_valid(self) -> None:
        """Raises ApiError CORRUPT_MESSAGE unless size, magic and CRC-32C match the bytes.

        Every batch in a log passes, even if its records were compacted away.
        """
        buffer = self.buffer
        size = self.length + LOG_OVERHEAD_BYTES
        if size != len(buffer) or size < HEADER_BYTES:
            raise ApiError(
                ErrorCode.CORRUPT_MESSAGE,
                f"Record batch declares {size} bytes of at least {HEADER_BYTES}, there are {len(buffer)}",
            )
        if self.magic != MAGIC_V2:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"Invalid magic {self.magic} in record batch, not 2")
        computed = crc32c(buffer[ATTRIBUTES_AT:])
        if computed != self.crc:
            raise ApiError(
                ErrorCode.CORRUPT_MESSAGE, f"Record is corrupt (stored crc = {self.crc}, computed crc = {computed})"
            )

    def validate(self) -> None:
        """Check a batch sent by a client, before its offsets are assigned; the records are not walked.

        Raises ApiError CORRUPT_MESSAGE for wrong sizes, magic or CRC, INVALID_RECORD for a header that is inconsistent
        or declares more records than its bytes can hold. Timestamps and unused attribute bits are not checked, as in
        Kafka.
        """
        buffer = self.buffer
        size = len(buffer)
        if (
            self.length != size - LOG_OVERHEAD_BYTES
            or self.magic != MAGIC_V2
            or crc32c(buffer[ATTRIBUTES_AT:]) != self.crc
        ):
            self.ensure_valid()  # raises the exact fault
        count = self.count
        if count <= 0:
            raise invalid_record(f"Invalid reported count for record batch: {count}")
        if self.last_offset_delta != count - 1:
            raise invalid_record(
                f"Inconsistent batch offset range [{self.base_offset}, {self.last_offset}] and count of records {count}"
            )
        if self.base_offset != 0:
            raise invalid_record(
                f"The baseOffset of a record batch to append should be 0, but it is {self.base_offset}"
            )
        attributes = self.attributes
        most_bytes = size - HEADER_BYTES
        if attributes:
            codec = attributes & CODEC_MASK
            if codec > CompressionType.ZSTD:
                raise invalid_record(f"Unknown compression type id {codec} in record batch")
            most_bytes *= MAX_EXPANSION[codec]
            if attributes & CONTROL_FLAG:
                raise invalid_record("Clients are not allowed to write control records")
            if attributes & TRANSACTIONAL_FLAG and self.producer_id <= NO_PRODUCER_ID:
                raise invalid_record("Transactional record batch without a producerId")
        if count * MIN_RECORD_BYTES > most_bytes:
            raise invalid_record(f"A record batch of {size} bytes cannot have the {count} records it declares")
        if self.producer_id > NO_PRODUCER_ID and self.base_sequence < 0:
            raise invalid_record(
                f"Invalid sequence number {self.base_sequence} in record batch with producerId {self.producer_id}"
            )

    def assign_offsets(
        self,
        base_offset: int,
        leader_epoch: int,
        log_append_time_ms: int | None = None,
        max_timestamp: int | None = None,
    ) -> None:
        """Set the place of the batch in the log. The batch must be writable and validated.

        Base offset and leader epoch are written in place. `log_append_time_ms` makes it the timestamp of every record
        (LogAppendTime); None keeps the producer's timestamps, and a `max_timestamp` found in the records then replaces
        the producer's. The CRC is only recomputed if this changes the header.
        """
        buffer = self.buffer
        _BASE_OFFSET_TO_EPOCH.pack_into(buffer, BASE_OFFSET_AT, base_offset, self.length, leader_epoch)
        self.base_offset = base_offset
        self.partition_leader_epoch = leader_epoch
        if log_append_time_ms is not None:
            self._set_timestamps(self.attributes | LOG_APPEND_TIME_FLAG, log_append_time_ms)
        elif self.attributes & LOG_APPEND_TIME_FLAG or max_timestamp not in {None, self.max_timestamp}:
            latest = self.max_timestamp if max_timestamp is None else max_timestamp
            self._set_timestamps(self.attributes & ~LOG_APPEND_TIME_FLAG, latest)

    def _set_timestamps(self, attributes: int, max_timestamp: int) -> None:
        buffer = self.buffer
        _I16.pack_into(buffer, ATTRIBUTES_AT, attributes)
        _I64.pack_into(buffer, MAX_TIMESTAMP_AT, max_timestamp)
        self.attributes, self.max_timestamp = attributes, max_timestamp
        self.crc = _set_crc(buffer)

    def records_payload(self) -> bytes:
        """The encoded records, decompressed (see protocol.records.compression for the limit and the errors)."""
        return decompress(self.compression, self.buffer[HEADER_BYTES:])

    def records(self) -> Iterator[Record]:
        """The records in order, with absolute offsets and timestamps.

        Raises ApiError INVALID_RECORD for records that do not parse or do not fill the batch exactly, and the errors of
        protocol.records.compression, but never other exceptions.
        """
        append_time = self.max_timestamp if self.attributes & LOG_APPEND_TIME_FLAG else None
        return decode_records(self.records_payload(), self.count, self.base_offset, self.base_timestamp, append_time)

    def __repr__(self) -> str:
        return (
            f"RecordBatch(offsets={self.base_offset}..{self.last_offset}, count={self.count}, "
            f"size={self.size_in_bytes}, attributes={self.attributes:#x}, epoch={self.partition_leader_epoch}, "
            f"producer={self.producer_id}/{self.producer_epoch})"
        )


def read_batches(buffer: memoryview) -> Iterator[RecordBatch]:
    """The complete batches in `buffer`, each with its own slice of it; an incomplete one at the end is left out.

    Raises ApiError CORRUPT_MESSAGE for a size below the header's or a magic other than 2. CRCs are not checked.
    """
    position, end = 0, len(buffer)
    while end - position > MAGIC_AT:
        length, _, magic = _SIZE_AND_MAGIC.unpack_from(buffer, position + LENGTH_AT)
        size = length + LOG_OVERHEAD_BYTES
        if magic != MAGIC_V2:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"Invalid magic found in record: {magic} at byte {position}")
        if size < HEADER_BYTES:
            raise ApiError(
                ErrorCode.CORRUPT_MESSAGE,
                f"Record size {length} at byte {position} is less than the minimum record overhead ({HEADER_BYTES})",
            )
        if size > end - position:
            return
        yield RecordBatch(buffer[position : position + size])
        position += size


def _set_crc(batch: memoryview) -> int:
    crc = crc32c(batch[ATTRIBUTES_AT:])
    CRC.pack_into(batch, CRC_AT, crc)
    return crc


def recompress(
    batch: RecordBatch,
    compression: CompressionType,
    level: int | None = None,
) -> bytearray:
    """The same batch with another codec. Records are not decoded; of the header only codec, length and CRC change.

    Raises the errors of protocol.records.compression for the old contents.
    """
    payload = compress(compression, batch.records_payload(), level)
    out = bytearray(HEADER_BYTES + len(payload))
    out[:HEADER_BYTES] = batch.buffer[:HEADER_BYTES]
    out[HEADER_BYTES:] = payload
    view = memoryview(out)
    _I32.pack_into(view, LENGTH_AT, len(out) - LOG_OVERHEAD_BYTES)
    _I16.pack_into(view, ATTRIBUTES_AT, batch.attributes & ~CODEC_MASK | compression)
    _set_crc(view)
    return out


def find_timestamp(batch: RecordBatch, timestamp: int, from_offset: int = 0) -> Record | None:
    """The first record from `from_offset` on whose timestamp is at least `timestamp` (as `FileRecords`)."""
    if batch.max_timestamp < timestamp or batch.last_offset < from_offset:
        return None
    return next((row for row in batch.records() if row.timestamp >= timestamp and row.offset >= from_offset), None)


def offset_of_max_timestamp(batch: RecordBatch) -> int | None:
    """Offset of the first record with the batch's largest timestamp, or None."""
    if batch.attributes & LOG_APPEND_TIME_FLAG and batch.count > 0:
        return batch.base_offset
    latest = batch.max_timestamp
    return next((record.offset for record in batch.records() if record.timestamp == latest), None)
