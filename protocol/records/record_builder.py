"""Writes v2 record batches, byte for byte as Kafka's `MemoryRecordsBuilder`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import sub
from typing import TypedDict, Unpack

from protocol.records.checksum import crc32c
from protocol.records.compression import CompressionType, compress
from protocol.records.record_codec import Header, Record, encode_records
from protocol.records.record_format import (
    ATTRIBUTES_AT,
    CONTROL_FLAG,
    CRC,
    CRC_AT,
    DELETE_HORIZON_FLAG,
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


class BatchOptions(TypedDict, total=False):
    """The fields of a batch besides its records. All are optional; the default is a batch of a plain producer.

    `log_append_time_ms` makes the batch LogAppendTime; `delete_horizon_ms` marks it as in KIP-534.
    """

    base_offset: int
    compression: CompressionType
    compression_level: int | None
    log_append_time_ms: int | None
    delete_horizon_ms: int | None
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool
    is_control: bool
    partition_leader_epoch: int


class RecordBatchBuilder:
    """Collects records one by one; `build` encodes them all at once."""

    def __init__(self, **options: Unpack[BatchOptions]) -> None:
        self._options = options
        self._base_offset = options.get("base_offset", 0)
        self._timestamps: list[int] = []
        self._offset_deltas: list[int] = []
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._headers: list[Sequence[Header]] = []

    def __len__(self) -> int:
        return len(self._values)

    def append(
        self,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header] = (),
        offset: int | None = None,
    ) -> None:
        """Add one record; with `offset` None it gets the next offset."""
        deltas = self._offset_deltas
        if offset is not None:
            deltas.append(offset - self._base_offset)
        else:
            deltas.append(deltas[-1] + 1 if deltas else 0)
        self._timestamps.append(timestamp)
        self._keys.append(key)
        self._values.append(value)
        self._headers.append(headers)

    def build(self) -> bytes:
        """The batch. Raises ValueError if it is empty."""
        return _build(self._timestamps, self._offset_deltas, self._keys, self._values, self._headers, self._options)


def build_batch(records: Iterable[Record], **options: Unpack[BatchOptions]) -> bytes:
    """One batch of `records`, with consecutive offsets from `base_offset` (offsets in the records are ignored).

    Raises ValueError if `records` is empty.
    """
    rows = list(records)
    if not rows:
        raise ValueError("a record batch needs at least one record")
    _, timestamps, keys, values, headers = zip(*rows, strict=True)
    return _build(timestamps, range(len(rows)), keys, values, headers, options)


def build_values_batch(values: Sequence[bytes], timestamp: int, **options: Unpack[BatchOptions]) -> bytes:
    """One batch of records that only have a value and share one `timestamp`: the fastest way to write.

    Raises ValueError without values.
    """
    count = len(values)
    return _build((timestamp,) * count, range(count), (None,) * count, values, ((),) * count, options)


def _build(
    timestamps: Sequence[int],
    offset_deltas: Sequence[int],
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[Sequence[Header]],
    options: BatchOptions,
) -> bytes:
    if not values:
        raise ValueError("a record batch needs at least one record")
    horizon = options.get("delete_horizon_ms")
    base_timestamp = timestamps[0] if horizon is None else horizon
    deltas = list(map(sub, timestamps, repeat(base_timestamp)))
    body = encode_records(deltas, offset_deltas, keys, values, headers)
    compression = options.get("compression", CompressionType.NONE)
    if compression:
        body = compress(compression, body, options.get("compression_level"))
    latest = max(timestamps)
    append_time = options.get("log_append_time_ms")
    header = bytearray(
        HEADER.pack(
            options.get("base_offset", 0),
            HEADER_BYTES + len(body) - LOG_OVERHEAD_BYTES,
            options.get("partition_leader_epoch", NO_PARTITION_LEADER_EPOCH),
            MAGIC_V2,
            0,
            _attributes(compression, options),
            offset_deltas[-1],
            base_timestamp,
            max(NO_TIMESTAMP, latest) if append_time is None else append_time,
            options.get("producer_id", NO_PRODUCER_ID),
            options.get("producer_epoch", NO_PRODUCER_EPOCH),
            options.get("base_sequence", NO_SEQUENCE),
            len(values),
        )
    )
    CRC.pack_into(header, CRC_AT, crc32c(body, crc32c(memoryview(header)[ATTRIBUTES_AT:])))
    return b"".join((header, body))


def _attributes(compression: CompressionType, options: BatchOptions) -> int:
    attributes = int(compression)
    if options.get("log_append_time_ms") is not None:
        attributes |= LOG_APPEND_TIME_FLAG
    if options.get("is_transactional"):
        attributes |= TRANSACTIONAL_FLAG
    if options.get("is_control"):
        attributes |= CONTROL_FLAG
    if options.get("delete_horizon_ms") is not None:
        attributes |= DELETE_HORIZON_FLAG
    return attributes
