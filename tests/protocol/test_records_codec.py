"""Encoding and decoding of records: against a naive model, against other codecs, and with malformed bytes."""

from __future__ import annotations

import contextlib
import random
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka.record import default_records as aiokafka_records
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import ApiError, ErrorCode
from protocol.records.batch import Record, RecordBatch, build_batch, build_values_batch
from protocol.records.compression import CompressionType
from protocol.records.record_runs import MIN_RUN_RECORDS, find_run
from protocol.records.varint import decode_varint, encode_varint, small_varints
from tests.kit.due import due
from tests.protocol.record_values import (
    INT64_MAX,
    INT64_MIN,
    model_batch,
    model_payload,
    model_varint,
    normal,
    record_lists,
    seal,
    uniform_lists,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its schemas with a deprecated function
    from kafka.record import default_records as kafka_python_records

FUZZ_CASES = 100_000


def read(batch: bytes) -> list[Record]:
    return list(RecordBatch(memoryview(batch)).records())


@given(st.integers(INT64_MIN, INT64_MAX))
def test_varints(number: int) -> None:
    encoded = encode_varint(number)
    assert encoded == model_varint(number)
    assert decode_varint(b"\xff" + encoded, 1, 10) == (number, len(encoded) + 1)


def test_small_varints() -> None:
    assert small_varints() == tuple(map(model_varint, range(8192)))


def test_varints_are_bounded() -> None:
    with pytest.raises(ApiError):
        decode_varint(b"\x80" * 4 + b"\x80\x00", 0)
    with pytest.raises(IndexError):
        decode_varint(b"\x80\x80", 0)


@given(record_lists | uniform_lists, st.integers(0, 2**50))
@settings(max_examples=150, deadline=None)
def test_a_batch_is_what_the_model_writes_and_reads_back(rows: list[Record], base_offset: int) -> None:
    batch = build_batch(rows, base_offset=base_offset)
    assert batch == model_batch(rows, base_offset)
    found = read(batch)
    assert [normal(row) for row in found] == [normal(row) for row in rows]
    assert [row.offset for row in found] == list(range(base_offset, base_offset + len(rows)))


def test_a_batch_larger_than_all_tables() -> None:
    rows = [Record(at, 1000 + at // 3, None, b"x" * (20 + at % 2)) for at in range(20_000)]
    batch = build_batch(rows)
    assert batch == model_batch(rows)
    assert read(batch) == rows


def test_a_batch_of_values() -> None:
    values = [b"%05d" % at for at in range(9000)]
    assert build_values_batch(values, 1234) == build_batch([Record(0, 1234, None, value) for value in values])


def test_runs_are_taken_for_what_they_are() -> None:
    """The shortcut through columns must be taken (otherwise it is dead weight), and only for whole runs."""
    rows = [Record(at, 1000 + at, b"k%03d" % at, b"v" * 90) for at in range(600)]
    payload = model_payload(rows)
    run = find_run(payload, 0, 512)
    assert run is not None
    assert run.size == 64  # the offset delta of the next record takes two bytes
    assert run.offset_delta == 0
    run = find_run(payload, run.end, 64)
    assert run is not None
    assert (run.size, run.offset_delta) == (64, 64)
    assert list(run.values()) == [b"v" * 90] * 64
    assert find_run(payload, 1, 512) is None
    assert find_run(payload, 0, MIN_RUN_RECORDS - 1) is None


@given(uniform_lists.filter(lambda rows: len(rows) > 20), st.data())
@settings(max_examples=200, deadline=None)
def test_a_run_with_one_changed_byte(rows: list[Record], data: st.DataObject) -> None:
    """Both ways of decoding must treat every byte alike: decoding by columns is compared with one record at a time."""
    payload = bytearray(model_payload(rows))
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at] = data.draw(st.integers(0, 255))
    assert outcome(bytes(payload), len(rows)) == one_by_one(bytes(payload), len(rows))


def outcome(payload: bytes, count: int) -> tuple[list[Any], bool]:
    found: list[Any] = []
    try:
        for record in RecordBatch(memoryview(seal(payload, count))).records():
            found.append((record.offset, *normal(record)))
    except ApiError as error:
        return found, error.error_code is not ErrorCode.INVALID_RECORD
    return found, True


def one_by_one(payload: bytes, count: int) -> tuple[list[Any], bool]:
    """A slow decoder written from the description of the format."""
    found: list[Any] = []

    def number(at: int, limit: int) -> tuple[int, int]:
        raw = shift = 0
        for step in range(limit):
            byte = payload[at + step]
            raw |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return (raw // 2 if raw % 2 == 0 else -(raw + 1) // 2), at + step + 1
        raise ValueError

    def content(at: int) -> tuple[bytes | None, int]:
        size, at = number(at, 5)
        if size < 0:
            return None, at
        if at + size > len(payload):
            raise ValueError
        return payload[at : at + size], at + size

    at = 0
    try:
        for _ in range(count):
            size, at = number(at, 5)
            end = at + size
            if size < 0 or end > len(payload):
                raise ValueError
            delta, at = number(at + 1, 10)
            offset, at = number(at, 5)
            key, at = content(at)
            value, at = content(at)
            header_count, at = number(at, 5)
            headers = []
            if not 0 <= header_count <= (end - at) // 2:
                raise ValueError
            for _ in range(header_count):
                name, at = content(at)
                if name is None:
                    raise ValueError
                header_value, at = content(at)
                headers.append((name.decode(errors="replace"), header_value))
            if at != end:
                raise ValueError
            timestamp = (1000 + delta + 2**63) % 2**64 - 2**63
            found.append((offset, timestamp, key, value, headers))
        return found, at == len(payload)
    except (ValueError, IndexError):
        return found, False


def test_timestamps_wrap_as_javas_longs_do() -> None:
    payload = b"".join(record_with_delta(delta, at) for at, delta in enumerate((0, 1, INT64_MIN)))
    assert [row.timestamp for row in read(seal(payload, 3, INT64_MAX))] == [INT64_MAX, INT64_MIN, -1]
    assert [row.timestamp for row in read(seal(payload, 3, -1))] == [-1, 0, INT64_MAX]


def record_with_delta(timestamp_delta: int, offset_delta: int) -> bytes:
    body = b"\0" + model_varint(timestamp_delta) + model_varint(offset_delta) + b"\x01\x02v\x00"
    return model_varint(len(body)) + body


def test_what_stands_before_the_damage_is_read() -> None:
    rows = [Record(at, 1000, None, b"v%d" % at) for at in range(50)]
    payload = model_payload(rows)
    found, complete = outcome(payload[:-1] + b"\x05", 50)
    assert not complete
    assert len(found) == 49


@pytest.mark.parametrize("count", [-1, 2, 4, 2**31 - 1, -(2**31) + 1])
def test_a_count_that_lies(count: int) -> None:
    payload = model_payload([Record(0, 1000, b"k", b"v")] * 3)
    assert not outcome(payload, count)[1]


def fuzz(seed: int, cases: int) -> None:
    rng = random.Random(seed)
    rows = [
        Record(0, 1000 + at, rng.choice([None, b"", b"key"]), rng.choice([None, b"v" * rng.randrange(200)]), headers)
        for at, headers in enumerate([[], [("h", b"v")], [], [("a", None), ("b", b"")]] * 6)
    ]
    uniform = [Record(0, 1000 + at, None, b"x" * 30) for at in range(60)]
    seeds = [build_batch(some, compression=codec) for some in (rows, uniform) for codec in CompressionType]
    for _ in range(cases):
        batch = bytearray(rng.choice(seeds))
        for _ in range(rng.choice([1, 1, 1, 2, 4, 16])):
            at = rng.randrange(len(batch)) if rng.random() < 0.6 else rng.randrange(57, min(len(batch), 90))
            match rng.randrange(4):
                case 0:
                    batch[at] ^= 1 << rng.randrange(8)
                case 1:
                    batch[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
                case 2:
                    del batch[at : at + rng.randrange(1, 9)]
                case _:
                    batch[at:at] = rng.randbytes(rng.randrange(1, 9))
            if len(batch) < 61:
                break
        with contextlib.suppress(ApiError):
            RecordBatch(memoryview(batch)).validate()
        with contextlib.suppress(ApiError):
            for record in RecordBatch(memoryview(batch)).records():
                assert INT64_MIN <= record.timestamp <= INT64_MAX


def test_mutated_batches_give_records_or_api_errors() -> None:
    started = time.process_time()
    fuzz(1, FUZZ_CASES // 5)
    assert time.process_time() - started < 60


@pytest.mark.slow
@pytest.mark.parametrize("seed", due(range(4)))
def test_many_mutated_batches(seed: int) -> None:
    fuzz(seed + 2, FUZZ_CASES)


HEADERS_BODY = b"\0\0\0\x01\x01" + model_varint(300_000) + b"\x00\x01" * 300_000
MANY_HEADERS = model_varint(len(HEADERS_BODY)) + HEADERS_BODY


@pytest.mark.parametrize(
    "payload",
    [
        b"\x0c\x00\x00\x00\x01\x00\x00" * 100_000,
        b"\x00" * 700_000,
        b"\xff" * 700_000,
        b"\x80" * 700_000,
        MANY_HEADERS,
    ],
)
def test_time_is_linear_in_the_bytes(payload: bytes) -> None:
    started = time.process_time()
    for count in (1, 1000, 100_000):
        outcome(payload, count)
    assert time.process_time() - started < 10


Writer = Callable[[list[Record], int], bytes]


def write_with_kafka_python(rows: list[Record], codec: int) -> bytes:
    builder = kafka_python_records.DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
    for at, row in enumerate(rows):
        builder.append(at, row.timestamp, row.key, row.value, list(row.headers))
    return bytes(builder.build())


def write_with_aiokafka(rows: list[Record], codec: int) -> bytes:
    builder = aiokafka_records.DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
    for at, row in enumerate(rows):
        builder.append(at, row.timestamp, row.key, row.value, list(row.headers))
    return bytes(builder.build())


ROWS = [
    Record(
        at, 1_700_000_000_000 + at * 37, [None, b"", b"key"][at % 3], [b"v" * at, None, b""][at % 3 and at % 2], headers
    )
    for at, headers in enumerate([[], [("h", b"1")], [("a", None), ("ż", b"")]] * 40)
]


@pytest.mark.parametrize("codec", CompressionType)
@pytest.mark.parametrize("write", [write_with_kafka_python, write_with_aiokafka])
def test_batches_of_other_clients_are_read(write: Writer, codec: CompressionType) -> None:
    batch = RecordBatch(memoryview(write(ROWS, codec)))
    batch.validate()
    assert [normal(row) for row in batch.records()] == [normal(row) for row in ROWS]
    if codec is CompressionType.NONE:  # kafka-python and aiokafka write 0 where Java writes -1: no leader epoch yet
        assert bytes(batch.buffer) == build_batch(ROWS, partition_leader_epoch=batch.partition_leader_epoch)


@pytest.mark.parametrize("codec", CompressionType)
@pytest.mark.parametrize("library", [kafka_python_records, aiokafka_records])
def test_other_clients_read_our_batches(library: Any, codec: CompressionType) -> None:
    batch = library.DefaultRecordBatch(build_batch(ROWS, compression=codec))
    assert batch.validate_crc()
    found = [(row.timestamp, row.key, row.value, [(key, value) for key, value in row.headers]) for row in batch]
    assert found == [normal(row) for row in ROWS]
