"""Records to write and read in the tests: a hypothesis strategy, and a plain model of the format to compare with."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from crc32c import crc32c
from hypothesis import strategies as st

from protocol.records.batch import Header, Record
from protocol.records.compression import CompressionType, compress

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

contents = st.none() | st.binary(max_size=40) | st.integers(60, 300).map(lambda size: b"v" * size)
header_lists = st.lists(st.tuples(st.text(max_size=6), contents), max_size=3)
timestamps = st.integers(0, 2**45) | st.integers(-1, 300) | st.integers(INT64_MIN // 4, INT64_MAX // 4)
records = st.builds(Record, st.just(0), timestamps, contents, contents, header_lists)
record_lists = st.lists(records, min_size=1, max_size=60)
uniform_lists = st.builds(
    lambda count, size, key_size, times: [
        Record(0, times[at % len(times)], None if key_size < 0 else b"%0*d" % (key_size, at % 10), b"x" * size)
        for at in range(count)
    ],
    st.integers(1, 700),
    st.integers(0, 130),
    st.integers(-1, 3),
    st.lists(st.integers(1000, 1000 + 9000), min_size=1, max_size=5),
)


def model_varint(number: int) -> bytes:
    raw = number * 2 if number >= 0 else -number * 2 - 1
    out = b""
    while True:
        raw, low = divmod(raw, 128)
        out += bytes([low + (128 if raw else 0)])
        if not raw:
            return out


def model_bytes(content: bytes | None) -> bytes:
    return model_varint(-1) if content is None else model_varint(len(content)) + content


def model_record(record: Record, timestamp_delta: int, offset_delta: int) -> bytes:
    body = b"\0" + model_varint(timestamp_delta) + model_varint(offset_delta)
    body += model_bytes(record.key) + model_bytes(record.value) + model_varint(len(record.headers))
    for key, value in record.headers:
        body += model_bytes(key.encode()) + model_bytes(value)
    return model_varint(len(body)) + body


def model_payload(rows: Sequence[Record]) -> bytes:
    base = rows[0].timestamp
    return b"".join(model_record(row, row.timestamp - base, at) for at, row in enumerate(rows))


def model_batch(rows: Sequence[Record], base_offset: int = 0) -> bytes:
    """An uncompressed CreateTime batch, written field by field from the format's description."""
    latest = max(-1, *(row.timestamp for row in rows)) if rows else -1
    return seal(model_payload(rows), len(rows), rows[0].timestamp, latest, base_offset=base_offset)


def seal(
    payload: bytes,
    count: int,
    base_timestamp: int = 1000,
    max_timestamp: int = 1002,
    *,
    codec: CompressionType = CompressionType.NONE,
    base_offset: int = 0,
) -> bytes:
    """A batch around any `payload`."""
    return seal_raw(
        compress(codec, payload), count, base_timestamp, max_timestamp, codec=codec, base_offset=base_offset
    )


def seal_raw(
    payload: bytes,
    count: int,
    base_timestamp: int = 1000,
    max_timestamp: int = 1002,
    *,
    codec: int = 0,
    base_offset: int = 0,
) -> bytes:
    """Like `seal`, for bytes that are already compressed (or claim to be)."""
    covered = struct.pack(">hiqqqhii", codec, count - 1, base_timestamp, max_timestamp, -1, -1, -1, count) + payload
    tail = struct.pack(">ibI", -1, 2, crc32c(covered)) + covered
    return struct.pack(">qi", base_offset, len(tail)) + tail


FIELDS = {
    "base_offset": (0, ">q"),
    "length": (8, ">i"),
    "leader_epoch": (12, ">i"),
    "magic": (16, ">b"),
    "attributes": (21, ">h"),
    "last_offset_delta": (23, ">i"),
    "base_timestamp": (27, ">q"),
    "max_timestamp": (35, ">q"),
    "producer_id": (43, ">q"),
    "producer_epoch": (51, ">h"),
    "base_sequence": (53, ">i"),
    "count": (57, ">i"),
}


def patch(batch: bytes, *, keep_crc: bool = False, **values: int) -> bytes:
    """`batch` with header fields replaced, and with a correct CRC unless the test wants a wrong one."""
    out = bytearray(batch)
    for name, value in values.items():
        position, form = FIELDS[name]
        struct.pack_into(form, out, position, value)
    if not keep_crc:
        struct.pack_into(">I", out, 17, crc32c(bytes(out[21:])))
    return bytes(out)


def normal(record: Record) -> tuple[int, bytes | None, bytes | None, list[Header]]:
    """The content of a record, without its offset."""
    return record.timestamp, record.key, record.value, [(key, value) for key, value in record.headers]
