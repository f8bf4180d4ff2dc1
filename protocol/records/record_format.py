"""The layout of a v2 record batch, and the numbers that mean "none" (Kafka's `DefaultRecordBatch`, KIP-98)."""

from __future__ import annotations

import struct

HEADER = struct.Struct(">qiibIhiqqqhii")
"""baseOffset, batchLength, partitionLeaderEpoch, magic, crc, attributes, lastOffsetDelta, baseTimestamp, maxTimestamp,
producerId, producerEpoch, baseSequence, records count."""
HEADER_BYTES = HEADER.size
CRC = struct.Struct(">I")

BASE_OFFSET_AT = 0
LENGTH_AT = 8
MAGIC_AT = 16
CRC_AT = 17
ATTRIBUTES_AT = 21
"""The CRC-32C covers everything from here to the end of the batch."""
MAX_TIMESTAMP_AT = 35
LOG_OVERHEAD_BYTES = 12
"""Size of base offset and length, which batchLength does not include."""

MIN_RECORD_BYTES = 7
"""Size of a record without key, value and headers: length, attributes, two deltas and three counts, one byte each."""
MAX_EXPANSION = (1, 1032, 22, 255, 32768)
"""The most bytes that one compressed byte can become, by codec: deflate's longest match takes 2 bits, a Snappy copy
turns 3 bytes into 64, LZ4 adds 255 to a length for each byte, and Zstandard encodes blocks of 128 KiB in 4 bytes.
"""

MAGIC_V2 = 2
CODEC_MASK = 0x07
LOG_APPEND_TIME_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20
DELETE_HORIZON_FLAG = 0x40

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_PARTITION_LEADER_EPOCH = -1
MAX_INT32 = 2**31 - 1


def is_transactional(records: bytes | memoryview | None) -> bool:
    """Whether the attributes mark a batch as transactional."""
    if records is None or len(records) < HEADER_BYTES:
        return False
    return records[ATTRIBUTES_AT + 1] & TRANSACTIONAL_FLAG != 0


def increment_sequence(sequence: int, increment: int) -> int:
    """`sequence + increment`, wrapping to 0 after 2^31-1 (Kafka's `incrementSequence`)."""
    return (sequence + increment) & MAX_INT32
