"""Writes v2 record batches (Kafka's `MemoryRecordsBuilder`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from crc32c import crc32c

from protocol.compression import CompressionType, compress
from protocol.record_codec import Header, Record, encode_headers, encode_varint
from protocol.record_format import (
    CONTROL_FLAG,
    CRC_AT,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD_BYTES,
    MAGIC_V2,
    NO_PARTITION_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
)

_SMALL = tuple(encode_varint(number) for number in range(16384))
_SMALL_COUNT = len(_SMALL)
_NULL = encode_varint(-1)


def _varint(number: int) -> bytes:
    return _SMALL[number] if 0 <= number < _SMALL_COUNT else encode_varint(number)


class RecordBatchBuilder:
    """Collects records and gives the finished batch.

    Offsets count up from `base_offset` unless `append` is told otherwise (compaction keeps gaps).
    """

    def __init__(
        self,
        *,
        base_offset: int = 0,
        compression: CompressionType = CompressionType.NONE,
        compression_level: int | None = None,
        log_append_time_ms: int | None = None,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        is_transactional: bool = False,
        is_control: bool = False,
        partition_leader_epoch: int = NO_PARTITION_LEADER_EPOCH,
    ) -> None:
        self.base_offset = base_offset
        self.compression = compression
        self.compression_level = compression_level
        self.log_append_time_ms = log_append_time_ms
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.is_transactional = is_transactional
        self.is_control = is_control
        self.partition_leader_epoch = partition_leader_epoch
        self.count = 0
        self.size_in_bytes = HEADER_BYTES
        self._parts: list[bytes] = []
        self._base_timestamp = NO_TIMESTAMP
        self._max_timestamp = NO_TIMESTAMP
        self._last_offset_delta = -1

    def append(
        self,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header] = (),
        offset: int | None = None,
    ) -> None:
        """Add one record; `size_in_bytes` then tells the size of the batch before compression."""
        if self.count == 0:
            self._base_timestamp = timestamp
        self._max_timestamp = max(self._max_timestamp, timestamp)
        delta = self._last_offset_delta + 1 if offset is None else offset - self.base_offset
        self._last_offset_delta = delta
        body = b"".join(
            (
                b"\x00",
                _varint(timestamp - self._base_timestamp),
                _varint(delta),
                *((_NULL,) if key is None else (_varint(len(key)), key)),
                *((_NULL,) if value is None else (_varint(len(value)), value)),
                encode_headers(headers) if headers else b"\x00",
            )
        )
        size = _varint(len(body))
        self._parts += (size, body)
        self.size_in_bytes += len(size) + len(body)
        self.count += 1

    def build(self) -> bytes:
        """The batch, its CRC computed. The builder stays usable: more records may be appended and built again."""
        attributes = int(self.compression)
        max_timestamp = self._max_timestamp
        if self.log_append_time_ms is not None:
            attributes |= LOG_APPEND_TIME_FLAG
            max_timestamp = self.log_append_time_ms
        if self.is_transactional:
            attributes |= TRANSACTIONAL_FLAG
        if self.is_control:
            attributes |= CONTROL_FLAG
        body = b"".join(self._parts)
        if self.compression != CompressionType.NONE:
            body = compress(self.compression, body, self.compression_level)
        header = bytearray(
            HEADER.pack(
                self.base_offset,
                HEADER_BYTES + len(body) - LOG_OVERHEAD_BYTES,
                self.partition_leader_epoch,
                MAGIC_V2,
                0,
                attributes,
                self._last_offset_delta,
                self._base_timestamp,
                max_timestamp,
                self.producer_id,
                self.producer_epoch,
                self.base_sequence,
                self.count,
            )
        )
        crc = crc32c(body, crc32c(memoryview(header)[CRC_AT + 4 :]))
        header[CRC_AT : CRC_AT + 4] = crc.to_bytes(4, "big")
        return bytes(header) + body


def build_batch(
    records: Iterable[Record],
    *,
    compression: CompressionType = CompressionType.NONE,
    compression_level: int | None = None,
    base_offset: int = 0,
    log_append_time_ms: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    partition_leader_epoch: int = NO_PARTITION_LEADER_EPOCH,
) -> bytes:
    """One batch of `records`, whose offsets count up from `base_offset` (those in the records are not looked at)."""
    builder = RecordBatchBuilder(
        base_offset=base_offset,
        compression=compression,
        compression_level=compression_level,
        log_append_time_ms=log_append_time_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        is_transactional=is_transactional,
        partition_leader_epoch=partition_leader_epoch,
    )
    for record in records:
        builder.append(record.timestamp, record.key, record.value, record.headers)
    return builder.build()
