"""Malformed batches in a Produce request: our verdict and Apache Kafka 3.9.1's.

Each was sent to a real broker once (CreateTime topic, compression.type=producer); the third column is its error code.
Where ours differs, the fourth column has our code and the fifth the reason. "header" is what `RecordBatch.validate`
sees; "deep" adds `validate_records_deep`.
"""

from __future__ import annotations

from collections.abc import Callable

import cramjam
import lz4.frame
import pytest

from protocol.errors import ApiError, ErrorCode
from protocol.records.batch import Record, RecordBatch, TimestampType, build_batch
from protocol.records.compression import CompressionType, compress
from protocol.records.record_format import HEADER_BYTES, MAX_EXPANSION, MIN_RECORD_BYTES
from protocol.records.record_validation import RecordValidationError, TimestampRule, validate_records_deep
from tests.protocol.record_values import model_bytes, model_varint, patch, seal, seal_raw

NOW = 1_795_266_832_069
ANY_TIME = TimestampRule(TimestampType.CREATE_TIME, -(2**63), 2**63 - 1)
OK = build_batch([Record(0, NOW + at, b"k%d" % at, b"v") for at in range(3)])


def row(
    timestamp_delta: int,
    offset_delta: int,
    *,
    key: bytes | None = b"k",
    headers: bytes = b"\0",
    attributes: bytes = b"\0",
    grow: int = 0,
    tail: bytes = b"",
) -> bytes:
    body = attributes + model_varint(timestamp_delta) + model_varint(offset_delta)
    body += model_bytes(key) + b"\x02v" + headers + tail
    return model_varint(len(body) + grow) + body


THREE = row(0, 0) + row(1, 1) + row(2, 2)
LYING_KEY = b"\0" + model_varint(1) + model_varint(1)

GOOD, CORRUPT, INVALID, UNKNOWN = 0, 2, 87, -1

HEADER_CASES: list[tuple[str, bytes, int, int]] = [
    ("untouched", OK, GOOD, GOOD),
    ("magic 3", patch(OK, magic=3), CORRUPT, CORRUPT),
    ("wrong CRC", patch(OK, keep_crc=True, max_timestamp=5), CORRUPT, CORRUPT),
    ("a leader epoch", patch(OK, leader_epoch=7), GOOD, GOOD),
    ("base offset 5", patch(OK, base_offset=5), INVALID, INVALID),
    ("base offset -1", patch(OK, base_offset=-1), INVALID, INVALID),
    ("LogAppendTime", patch(OK, attributes=0x08), GOOD, GOOD),
    ("control", patch(OK, attributes=0x20), INVALID, INVALID),
    ("delete horizon", patch(OK, attributes=0x40), GOOD, GOOD),
    ("attribute bit 7", patch(OK, attributes=0x80), GOOD, GOOD),
    ("attribute bit 8", patch(OK, attributes=0x100), GOOD, GOOD),
    ("attribute bit 15", patch(OK, attributes=-0x8000), GOOD, GOOD),
    # Kafka lets an internal exception escape; the client must not retry either way
    ("codec 5", patch(OK, attributes=5), UNKNOWN, INVALID),
    ("codec 7", patch(OK, attributes=7), UNKNOWN, INVALID),
    ("last offset delta too small", patch(OK, last_offset_delta=1), INVALID, INVALID),
    ("last offset delta too large", patch(OK, last_offset_delta=5), INVALID, INVALID),
    ("last offset delta -1", patch(OK, last_offset_delta=-1), INVALID, INVALID),
    ("count 0", patch(OK, count=0), INVALID, INVALID),
    ("count 0, no offsets", patch(OK, count=0, last_offset_delta=-1), INVALID, INVALID),
    ("count -1", patch(OK, count=-1), INVALID, INVALID),
    ("2^31-1 records in 90 bytes", patch(OK, count=2**31 - 1, last_offset_delta=2**31 - 2), INVALID, INVALID),
    ("length one short", patch(OK, length=len(OK) - 13), CORRUPT, CORRUPT),
    ("length below the header's", patch(OK, length=48), CORRUPT, CORRUPT),
    ("negative length", patch(OK, length=-5), CORRUPT, CORRUPT),
    ("no base timestamp", patch(OK, base_timestamp=-1), GOOD, GOOD),
    ("negative base timestamp", patch(OK, base_timestamp=-5), GOOD, GOOD),
    ("largest base timestamp", patch(OK, base_timestamp=2**63 - 1), GOOD, GOOD),
    ("max timestamp missing", patch(OK, max_timestamp=-1), GOOD, GOOD),
    ("max timestamp too large", patch(OK, max_timestamp=2**63 - 1), GOOD, GOOD),
    ("producer without sequence", patch(OK, producer_id=5, producer_epoch=0), INVALID, INVALID),
    ("producer without epoch", patch(OK, producer_id=6, base_sequence=0), GOOD, GOOD),
    ("sequence about to wrap", patch(OK, producer_id=7, producer_epoch=0, base_sequence=2**31 - 2), GOOD, GOOD),
    ("sequence without producer", patch(OK, producer_epoch=3, base_sequence=5), GOOD, GOOD),
    ("producer -5", patch(OK, producer_id=-5, base_sequence=0), GOOD, GOOD),
]

RECORD_CASES: list[tuple[str, bytes, int, int, int]] = [
    # name, records, their count, Kafka's result uncompressed, Kafka's result compressed
    ("three records", THREE, 3, GOOD, GOOD),
    ("offset deltas 0 2 4", row(0, 0) + row(1, 2) + row(2, 4), 3, GOOD, UNKNOWN),
    ("offset deltas 0 0 0", row(0, 0) + row(1, 0) + row(2, 0), 3, GOOD, UNKNOWN),
    ("offset deltas 2 1 0", row(0, 2) + row(1, 1) + row(2, 0), 3, GOOD, UNKNOWN),
    ("offset delta -1", row(0, -1) + row(1, 0) + row(2, 1), 3, GOOD, UNKNOWN),
    ("a byte too many", THREE + b"\0", 3, INVALID, INVALID),
    ("count 2 of 3", THREE, 2, INVALID, INVALID),
    ("count 4 of 3", THREE, 4, INVALID, INVALID),
    ("count 2^31-1", THREE, 2**31 - 1, INVALID, INVALID),
    ("record size too large", row(0, 0) + row(1, 1, grow=1) + row(2, 2), 3, INVALID, GOOD),
    ("record size too small", row(0, 0) + row(1, 1, grow=-1) + row(2, 2), 3, INVALID, GOOD),
    ("bytes after the headers", row(0, 0) + row(1, 1, tail=b"\0\0") + row(2, 2), 3, INVALID, INVALID),
    ("record attributes 1", row(0, 0) + row(1, 1, attributes=b"\1") + row(2, 2), 3, GOOD, GOOD),
    ("record attributes 255", row(0, 0) + row(1, 1, attributes=b"\xff") + row(2, 2), 3, GOOD, GOOD),
    ("key size -2", row(0, 0) + model_varint(7) + LYING_KEY + b"\x03\x02v\0" + row(2, 2), 3, GOOD, GOOD),
    (
        "key size 2^31-1",
        row(0, 0) + model_varint(12) + LYING_KEY + model_varint(2**31 - 1) + b"\x02v\0" + row(2, 2),
        3,
        INVALID,
        INVALID,
    ),
    ("header count -1", row(0, 0, headers=model_varint(-1)), 1, INVALID, INVALID),
    ("header count 1000", row(0, 0, headers=model_varint(1000)), 1, INVALID, INVALID),
    ("header without key", row(0, 0, headers=b"\x02\x01\x01"), 1, INVALID, INVALID),
    ("header without value", row(0, 0, headers=b"\x02\x02h\x01"), 1, GOOD, GOOD),
    ("header key not UTF-8", row(0, 0, headers=b"\x02\x02\xff\x01"), 1, GOOD, GOOD),
    ("varint of six bytes", b"\x8e\x80\x80\x80\x80\x00" + row(0, 0)[1:], 1, UNKNOWN, INVALID),
    ("no key", row(0, 0, key=None), 1, GOOD, GOOD),
    ("later than max timestamp says", row(0, 0) + row(500, 1) + row(2, 2), 3, GOOD, GOOD),
    ("timestamps going back", row(0, 0) + row(-5000, 1) + row(2, 2), 3, GOOD, GOOD),
    ("timestamp beyond 64 bits", row(0, 0) + row(2**63 - 1, 1) + row(2, 2), 3, GOOD, GOOD),
]

STRICTER = {
    "offset deltas 0 2 4": "Kafka assigns such a batch offsets with holes or twice the same; compressed, it fails",
    "offset deltas 0 0 0": "as above",
    "offset deltas 2 1 0": "as above",
    "offset delta -1": "as above",
    "record size too large": "uncompressed, Kafka refuses it; compressed, it skips over fields without adding up",
    "record size too small": "as above",
}
"""Records that we refuse with INVALID_RECORD, and Kafka accepts in one of the two forms."""


def verdict(judge: Callable[[], object]) -> int:
    try:
        judge()
    except ApiError as error:
        return int(error.error_code)
    return GOOD


@pytest.mark.parametrize(
    ("batch", "kafka", "ours"), [case[1:] for case in HEADER_CASES], ids=[c[0] for c in HEADER_CASES]
)
def test_headers(batch: bytes, kafka: int, ours: int) -> None:
    assert verdict(RecordBatch(memoryview(batch)).validate) == ours
    assert ours == kafka or kafka == UNKNOWN


@pytest.mark.parametrize("codec", CompressionType)
def test_counts_and_the_bytes_at_hand(codec: CompressionType) -> None:
    """The smallest possible records are accepted, however well they compress; more than a codec can pack are not."""
    count = 100_000
    batch = build_batch([Record(0, 0, None, None)] * count, compression=codec)
    RecordBatch(memoryview(batch)).validate()
    declared = (len(batch) - HEADER_BYTES) * MAX_EXPANSION[codec] // MIN_RECORD_BYTES + 1
    assert verdict(RecordBatch(memoryview(patch(batch, count=declared, last_offset_delta=declared - 1))).validate) == 87


@pytest.mark.parametrize("codec", CompressionType)
def test_no_codec_packs_more_than_it_may(codec: CompressionType) -> None:
    for size in (10, 1_000, 1_000_000, 50_000_000):
        assert len(compress(codec, bytes(size))) * MAX_EXPANSION[codec] >= size


@pytest.mark.parametrize("codec", CompressionType)
@pytest.mark.parametrize("case", RECORD_CASES, ids=[case[0] for case in RECORD_CASES])
def test_records(case: tuple[str, bytes, int, int, int], codec: CompressionType) -> None:
    name, payload, count, plain, compressed = case
    batch = RecordBatch(memoryview(seal(payload, count, codec=codec)))
    batch.ensure_valid()
    kafka = plain if codec is CompressionType.NONE else compressed
    ours = verdict(lambda: validate_records_deep(batch, "t-0", compacted=False, timestamps=ANY_TIME))
    assert ours == (INVALID if name in STRICTER or kafka == UNKNOWN else kafka)


FOREIGN_PAYLOADS: list[tuple[str, CompressionType, bytes, int]] = [
    ("gzip and junk", CompressionType.GZIP, compress(CompressionType.GZIP, THREE) + b"junk", GOOD),
    ("lz4 and junk", CompressionType.LZ4, compress(CompressionType.LZ4, THREE) + b"junk", GOOD),
    ("zstd and junk", CompressionType.ZSTD, compress(CompressionType.ZSTD, THREE) + b"junk", UNKNOWN),
    (
        "two zstd frames",
        CompressionType.ZSTD,
        compress(CompressionType.ZSTD, THREE[:9]) + compress(CompressionType.ZSTD, THREE[9:]),
        GOOD,
    ),
    (
        "two gzip members",
        CompressionType.GZIP,
        compress(CompressionType.GZIP, THREE[:9]) + compress(CompressionType.GZIP, THREE[9:]),
        GOOD,
    ),
    ("raw snappy", CompressionType.SNAPPY, bytes(cramjam.snappy.compress_raw(THREE)), GOOD),
    ("linked lz4", CompressionType.LZ4, lz4.frame.compress(THREE, block_linked=True), GOOD),
    (
        "lz4 with checksums and size",
        CompressionType.LZ4,
        lz4.frame.compress(THREE, block_linked=False, content_checksum=True, block_checksum=True, store_size=True),
        GOOD,
    ),
    ("gzip cut off", CompressionType.GZIP, compress(CompressionType.GZIP, THREE)[:-6], UNKNOWN),
    *((f"{codec.name} claimed", codec, THREE, UNKNOWN) for codec in CompressionType if codec),
]


@pytest.mark.parametrize("case", FOREIGN_PAYLOADS, ids=[case[0] for case in FOREIGN_PAYLOADS])
def test_payloads_of_other_writers(case: tuple[str, CompressionType, bytes, int]) -> None:
    _, codec, payload, kafka = case
    batch = RecordBatch(memoryview(seal_raw(payload, 3, codec=codec)))
    batch.validate()
    ours = verdict(lambda: validate_records_deep(batch, "t-0", compacted=False, timestamps=ANY_TIME))
    assert ours == (INVALID if kafka == UNKNOWN else kafka)


# -- keys and timestamps, in Kafka's words ---------------------------------------------------------------------------


def deep(batch: bytes, *, compacted: bool = False, rule: TimestampRule = ANY_TIME) -> int:
    return validate_records_deep(RecordBatch(memoryview(batch)), "cmp-0", compacted=compacted, timestamps=rule)


def test_the_largest_timestamp_found_is_returned() -> None:
    assert deep(seal(row(0, 0) + row(500, 1) + row(2, 2), 3)) == 1500
    assert deep(build_batch([Record(0, -1, None, b"v")] * 2)) == -1
    assert deep(build_batch([Record(0, -7, None, b"v")] * 2)) == -1


def test_records_without_key_in_a_compacted_topic() -> None:
    rows = [Record(0, NOW, b"k", b"v"), *[Record(0, NOW, None, b"v")] * 4]
    with pytest.raises(RecordValidationError) as error:
        deep(build_batch(rows), compacted=True)
    assert error.value.error_code is ErrorCode.INVALID_RECORD
    complaint = "Compacted topic cannot accept message without key in topic partition cmp-0"
    assert [tuple(found) for found in error.value.record_errors] == [(at, complaint) for at in (1, 2, 3, 4)]
    assert error.value.message == (
        "One or more records have been rejected due to 4 record errors in total, and only showing the first three "
        f"errors at most: [RecordError(batchIndex=1, message='{complaint}'), "
        f"RecordError(batchIndex=2, message='{complaint}'), RecordError(batchIndex=3, message='{complaint}')]"
    )
    assert deep(build_batch(rows)) == NOW


def test_timestamps_out_of_bounds() -> None:
    rule = TimestampRule(TimestampType.CREATE_TIME, NOW - 1000, NOW + 1000)
    times = [NOW - 1001, NOW - 1000, NOW + 1000, NOW + 1001, -1]
    with pytest.raises(RecordValidationError) as error:
        deep(build_batch([Record(0, at, b"k", b"v") for at in times]), rule=rule)
    assert error.value.error_code is ErrorCode.INVALID_TIMESTAMP
    assert error.value.message == "One or more records have been rejected due to invalid timestamp"
    bounds = f"[{NOW - 1000}, {NOW + 1000}]"
    for found, at in zip(error.value.record_errors, (0, 3), strict=True):
        said = f"Timestamp {times[at]} of message with offset {at} is out of range. "
        assert found == (at, f"{said}The timestamp should be within {bounds}")


def test_a_producer_must_not_claim_log_append_time() -> None:
    batch = build_batch([Record(0, NOW, b"k1", b"v")], log_append_time_ms=NOW + 2)
    assert deep(batch) == NOW + 2
    with pytest.raises(RecordValidationError) as error:
        deep(batch, rule=ANY_TIME.replace(timestamp_type=TimestampType.LOG_APPEND_TIME))
    assert error.value.error_code is ErrorCode.INVALID_TIMESTAMP
    said = (
        f"Invalid timestamp type in message DefaultRecord(offset=0, timestamp={NOW + 2}, key=2 bytes, value=1 bytes)."
    )
    assert error.value.record_errors == [(0, f"{said} Producer should not set timestamp type to LogAppendTime.")]
