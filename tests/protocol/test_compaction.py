"""Compaction of single batches against a naive model over the ordinary record decoder."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ApiError, ErrorCode
from protocol.records.batch import Record, RecordBatch, RecordBatchBuilder, build_batch
from protocol.records.compaction import LatestOffsets, filter_batch, latest_offsets_of, note_keys
from protocol.records.compression import CompressionType
from protocol.records.control_records import ControlRecordType, EndTxnMarker, build_end_txn_marker
from tests.protocol.record_values import INT64_MAX, header_lists, normal, patch, seal

NOW_MS = 1_800_000_000_000
RETENTION_MS = 86_400_000

keys = st.sampled_from([None, b"", b"a", b"b", b"c", b"longer-key", b"k" * 70])
values = st.none() | st.binary(max_size=5) | st.integers(40, 200).map(lambda size: b"v" * size)
timestamps = st.integers(0, 300) | st.integers(-1, 2**45) | st.integers(-(2**61), 2**61)


@dataclass(frozen=True)
class Sparse:
    """A batch that may have lost records to an earlier compaction."""

    rows: list[Record]
    options: dict[str, object]

    def build(self) -> RecordBatch:
        builder = RecordBatchBuilder(**self.options)  # type: ignore[arg-type]
        for row in self.rows:
            builder.append(row.timestamp, row.key, row.value, row.headers, row.offset)
        return RecordBatch(memoryview(builder.build()))


@st.composite
def mixed_batches(draw: st.DrawFn) -> Sparse:
    offset = base = draw(st.sampled_from([0, 7, 10**12]))
    rows = []
    for _ in range(draw(st.integers(1, 40))):
        offset += draw(st.sampled_from([0, 0, 0, 1, 70, 9000]))
        rows.append(Record(offset, draw(timestamps), draw(keys), draw(values), draw(header_lists)))
        offset += 1
    return Sparse(rows, {"base_offset": base, **draw(batch_options())})


@st.composite
def uniform_batches(draw: st.DrawFn) -> Sparse:
    """Long runs of one shape, which are decoded by columns."""
    base = draw(st.sampled_from([0, 10**12]))
    distinct = draw(st.sampled_from([1, 7, 90]))
    value = draw(st.sampled_from([None, b"", b"v" * 90]))
    step = draw(st.sampled_from([0, 1, 200]))
    size = draw(st.integers(1, 900))
    odd = draw(st.sets(st.integers(0, size), max_size=2))
    rows = [
        Record(base + at, 1_700_000_000_000 + at * step, b"%03d" % (at * 17 % distinct), b"odd" if at in odd else value)
        for at in range(size)
    ]
    return Sparse(rows, {"base_offset": base, **draw(batch_options())})


@st.composite
def batch_options(draw: st.DrawFn) -> dict[str, object]:
    options: dict[str, object] = {
        "compression": draw(st.sampled_from(list(CompressionType))),
        "log_append_time_ms": draw(st.sampled_from([None, None, 1_700_000_123_456])),
        "delete_horizon_ms": draw(st.sampled_from([None, None, NOW_MS - 1, NOW_MS, NOW_MS + 1])),
        "partition_leader_epoch": draw(st.sampled_from([0, 9])),
    }
    if draw(st.booleans()):
        options |= {"producer_id": 4000, "producer_epoch": 3, "base_sequence": 2**31 - 3}
        options["is_transactional"] = draw(st.booleans())
    return options


batches = mixed_batches() | uniform_batches()


def model_keys(batch: RecordBatch, capacity: int, from_offset: int) -> tuple[dict[bytes, int], int]:
    latest: dict[bytes, int] = {}
    for record in batch.records():
        if record.key is not None and record.offset >= from_offset:
            if len(latest) >= capacity:
                return latest, record.offset
            latest[record.key] = record.offset
    return latest, batch.next_offset


@given(batches, st.sampled_from([1, 2, 5, 60, 10**6]), st.integers(-1, 900))
def test_keys_are_noted_with_their_last_offsets(sparse: Sparse, capacity: int, skipped: int) -> None:
    batch = sparse.build()
    from_offset = batch.base_offset + skipped
    latest: dict[bytes, int] = {}
    end = note_keys(batch, latest, capacity, from_offset)
    assert (latest, end) == model_keys(batch, capacity, from_offset)


def test_what_the_map_held_is_replaced() -> None:
    latest = {b"a": 3, b"z": 4}
    batch = RecordBatch(memoryview(build_batch([Record(0, 0, b"a", b"1")], base_offset=9)))
    assert note_keys(batch, latest, 3) == 10
    assert latest == {b"a": 9, b"z": 4}


def stays(record: Record, latest: dict[bytes, int], map_end: int, *, keep_tombstones: bool) -> bool:
    if record.offset >= map_end:
        return True
    if record.key is None or record.offset < latest.get(record.key, -1):
        return False
    return record.value is not None or keep_tombstones


@given(batches, st.data())
def test_the_records_that_stay_and_all_that_is_said_about_them(sparse: Sparse, data: st.DataObject) -> None:
    batch = sparse.build()
    rows = list(batch.records())
    known = sorted({row.key for row in rows if row.key is not None})
    near = st.integers(batch.base_offset - 1, batch.last_offset + 2)
    latest = data.draw(st.dictionaries(st.sampled_from(known), near)) if known else {}
    map_end = data.draw(near | st.just(batch.next_offset))
    horizon = batch.delete_horizon_ms
    keep_tombstones = horizon is None or horizon > NOW_MS
    expected = [row for row in rows if stays(row, latest, map_end, keep_tombstones=keep_tombstones)]
    out = filter_batch(batch, latest, map_end, NOW_MS, delete_retention_ms=RETENTION_MS)
    if not expected:
        assert out is None
        emptied = filter_batch(batch, latest, map_end, NOW_MS, delete_retention_ms=RETENTION_MS, keep_empty=True)
        assert_emptied(batch, emptied)
        return
    assert out is not None
    must_stamp = horizon is None and any(row.value is None for row in expected)
    if len(expected) == len(rows) and not must_stamp:
        assert out is batch.buffer
        return
    new = RecordBatch(memoryview(out))
    assert new.is_valid
    found = list(new.records())
    assert [row.offset for row in found] == [row.offset for row in expected]
    assert list(map(normal, found)) == list(map(normal, expected))
    append_time = sparse.options["log_append_time_ms"]
    assert new.max_timestamp == (append_time or max(-1, *(row.timestamp for row in expected)))
    assert new.delete_horizon_ms == (NOW_MS + RETENTION_MS if must_stamp else horizon)
    assert new.count == len(expected)
    assert same_frame(new) == same_frame(batch)
    assert new.compression is batch.compression


def same_frame(batch: RecordBatch) -> tuple[object, ...]:
    return (
        batch.base_offset,
        batch.last_offset,
        batch.partition_leader_epoch,
        batch.timestamp_type,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.is_transactional,
        batch.is_control,
    )


def assert_emptied(batch: RecordBatch, out: memoryview | bytes | None) -> None:
    """Check the header against Kafka's `writeEmptyHeader`."""
    assert out is not None
    new = RecordBatch(memoryview(out))
    assert new.is_valid
    assert (new.count, new.size_in_bytes, new.compression) == (0, 61, CompressionType.NONE)
    assert (new.base_timestamp, new.max_timestamp, new.delete_horizon_ms) == (-1, batch.max_timestamp, None)
    assert same_frame(new) == same_frame(batch)


@given(batches)
def test_a_second_filter_with_the_same_map_changes_nothing(sparse: Sparse) -> None:
    batch = sparse.build()
    latest: dict[bytes, int] = {}
    map_end = note_keys(batch, latest, 10**6)
    out = filter_batch(batch, latest, map_end, NOW_MS, delete_retention_ms=RETENTION_MS)
    if out is not None:
        again = RecordBatch(memoryview(out))
        assert filter_batch(again, latest, map_end, NOW_MS, delete_retention_ms=RETENTION_MS) is again.buffer


@given(st.lists(batches, min_size=1, max_size=4), st.sampled_from([3, 40, 10**6]), st.data())
def test_survivors_say_what_the_map_says(several: list[Sparse], capacity: int, data: st.DataObject) -> None:
    """A log of batches, some of them already clean: with or without them, each gives the same result."""
    log: list[RecordBatch] = []
    for sparse in several:
        shift = (log[-1].next_offset if log else 0) - sparse.rows[0].offset + data.draw(st.sampled_from([0, 5]))
        rows = [row._replace(offset=row.offset + shift) for row in sparse.rows]
        log.append(Sparse(rows, {**sparse.options, "base_offset": rows[0].offset}).build())
    first_dirty = data.draw(st.sampled_from(log)).base_offset + data.draw(st.sampled_from([0, 0, 1]))
    latest: dict[bytes, int] = {}
    end = first_dirty
    for batch in log:
        if batch.last_offset >= first_dirty:
            end = note_keys(batch, latest, capacity, first_dirty)
            if end < batch.next_offset:
                break
    latest_offsets = latest_offsets_of(latest, first_dirty, end)
    for batch in log:
        plain = filter_batch(batch, latest, end, NOW_MS, delete_retention_ms=1)
        quick = filter_batch(batch, latest, end, NOW_MS, delete_retention_ms=1, latest_offsets=latest_offsets)
        assert (quick is None) == (plain is None)
        assert bytes(quick or b"") == bytes(plain or b"")


def test_survivors_are_not_made_where_they_cost_more_than_the_map() -> None:
    assert latest_offsets_of({b"a": 5}, 5, 69) is not None
    assert latest_offsets_of({b"a": 5}, 5, 70) is None
    assert latest_offsets_of({}, 5, 5) is None
    assert latest_offsets_of({b"a": 4}, 5, 9) is None
    assert latest_offsets_of({b"a": 9}, 5, 9) is None


def test_discarded_batches_leave_at_most_their_header() -> None:
    batch = RecordBatch(memoryview(build_batch([Record(0, 5, b"k", b"v")], base_offset=3, producer_id=1)))
    assert filter_batch(batch, {}, 0, NOW_MS, delete_retention_ms=0, discard=True) is None
    emptied = filter_batch(batch, {}, 0, NOW_MS, delete_retention_ms=0, discard=True, keep_empty=True)
    assert_emptied(batch, emptied)
    again = RecordBatch(memoryview(emptied or b""))
    assert filter_batch(again, {}, 9, NOW_MS, delete_retention_ms=0, keep_empty=True) is again.buffer
    assert filter_batch(again, {}, 9, NOW_MS, delete_retention_ms=0) is None


def test_markers_get_a_horizon_once_their_transaction_is_empty() -> None:
    marker = build_end_txn_marker(
        EndTxnMarker(ControlRecordType.COMMIT, 5), timestamp=1234, producer_id=9, producer_epoch=2, base_offset=8
    )
    batch = RecordBatch(memoryview(marker))
    assert filter_batch(batch, {}, 100, NOW_MS, delete_retention_ms=RETENTION_MS) is batch.buffer
    out = filter_batch(batch, {}, 100, NOW_MS, delete_retention_ms=RETENTION_MS, ends_empty_transaction=True)
    assert out is not None
    stamped = RecordBatch(memoryview(out))
    assert stamped.is_valid
    assert stamped.delete_horizon_ms == NOW_MS + RETENTION_MS
    assert list(stamped.records()) == list(batch.records())
    assert (stamped.max_timestamp, stamped.is_control) == (1234, True)
    later = NOW_MS + 5
    assert (
        filter_batch(stamped, {}, 100, later, delete_retention_ms=RETENTION_MS, ends_empty_transaction=True)
        is stamped.buffer
    )


def test_timestamps_that_overflow_wrap_as_in_the_reader() -> None:
    rows = [Record(0, 5, b"a", b"1"), Record(0, 10, b"b", b"2"), Record(0, 2, b"c", b"3")]
    batch = RecordBatch(memoryview(patch(build_batch(rows), base_timestamp=INT64_MAX - 1)))
    out = filter_batch(batch, {b"c": 9}, 9, NOW_MS, delete_retention_ms=0)
    assert out is not None
    new = RecordBatch(memoryview(out))
    found = list(new.records())
    assert found == list(batch.records())[:2]
    assert new.max_timestamp == max(row.timestamp for row in found) == INT64_MAX - 1


def same_failure(payload: bytes, count: int) -> None:
    """Both passes must raise INVALID_RECORD or succeed, and never loop or fail otherwise."""
    latest_offsets = LatestOffsets(0, bytearray(b"\1") * count)
    for codec in (CompressionType.NONE, CompressionType.LZ4):
        batch = RecordBatch(memoryview(seal(payload, count, codec=codec)))
        for act in (
            lambda: note_keys(batch, {}, 1000),  # noqa: B023
            lambda: filter_batch(batch, {b"a": 9}, 4, NOW_MS, delete_retention_ms=1),  # noqa: B023
            lambda: filter_batch(batch, {}, 99, NOW_MS, delete_retention_ms=1, latest_offsets=latest_offsets),  # noqa: B023
        ):
            try:
                act()
            except ApiError as error:
                assert error.error_code is ErrorCode.INVALID_RECORD


@given(st.binary(max_size=60), st.integers(1, 40))
def test_garbage_is_an_invalid_record_and_nothing_else(payload: bytes, count: int) -> None:
    same_failure(payload, count)


@given(st.integers(0, 2**31), st.integers(0, 255), st.sampled_from([3, 40]))
def test_flipped_bytes_are_an_invalid_record_and_nothing_else(where: int, byte: int, count: int) -> None:
    rows = [Record(at, 1000 + at, b"key%d" % (at % 3), None if at % 5 == 2 else b"v" * 20) for at in range(count)]
    payload = bytearray(RecordBatch(memoryview(build_batch(rows))).records_payload())
    payload[where % len(payload)] = byte
    same_failure(bytes(payload), count)


@pytest.mark.parametrize("cut", [1, 30])
def test_cut_off_records_are_refused(cut: int) -> None:
    rows = [Record(at, 1000 + at, b"key", b"v" * 20) for at in range(5)]
    payload = RecordBatch(memoryview(build_batch(rows))).records_payload()
    batch = RecordBatch(memoryview(seal(payload[:-cut], 5)))
    with pytest.raises(ApiError, match=r"are left|cut off"):
        note_keys(batch, {}, 1000)
    with pytest.raises(ApiError, match=r"are left|cut off"):
        filter_batch(batch, {}, 9, NOW_MS, delete_retention_ms=1)
    batch = RecordBatch(memoryview(seal(payload + b"x", 5)))
    with pytest.raises(ApiError, match="1 bytes follow the 5 declared records"):
        note_keys(batch, {}, 1000)
    with pytest.raises(ApiError, match="1 bytes follow the 5 declared records"):
        filter_batch(batch, {}, 9, NOW_MS, delete_retention_ms=1)


def test_the_crc_is_of_the_new_bytes() -> None:
    rows = [Record(at, 1000 + at, b"key%d" % (at % 2), b"v") for at in range(4)]
    batch = RecordBatch(memoryview(build_batch(rows)))
    out = filter_batch(batch, {b"key0": 2, b"key1": 3}, 4, NOW_MS, delete_retention_ms=1)
    assert out is not None
    assert RecordBatch(memoryview(out)).crc == crc32c(bytes(out[21:]))
