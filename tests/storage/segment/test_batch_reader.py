"""Reading batches through windows of any size, up to bytes that are not a batch."""

from __future__ import annotations

import pytest

from protocol.errors import ApiError
from protocol.records.batch import HEADER_BYTES, Record, build_batch, read_batches
from storage.segment.batch_reader import BASE_OFFSET, BatchFault, BatchReader, Found, Reading, header_of

SIZES = (1, 400, 3, 60, 1000, 2)
"""The sizes of the records' values in bytes."""


def content() -> bytes:
    """Batches of very different sizes, with the offsets 0, 1, ..."""
    data = b""
    for offset, size in enumerate(SIZES):
        batch = bytearray(build_batch([Record(offset=0, timestamp=7, key=None, value=bytes(size))]))
        batch[:8] = offset.to_bytes(8, "big")
        data += batch
    return data


class Disk:
    """An in-memory file that records the reads."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.reads: list[tuple[int, int]] = []

    def pread(self, position: int, size: int) -> bytes:
        self.reads.append((position, size))
        return self.data[position : position + size]


def read(data: bytes, reading: Reading, end: int | None = None) -> tuple[list[Found], BatchFault | None, Disk]:
    """All batches from the beginning, the error after them, and the reads."""
    disk = Disk(data)
    told: list[int] = []
    reader = BatchReader("a.log", disk.pread, len(data) if end is None else end, reading, told.append)
    found = list(reader.batches(0))
    assert told == [len(data[position : position + size]) for position, size in disk.reads]
    return found, reader.fault, disk


@pytest.mark.parametrize("window_bytes", [1, HEADER_BYTES, 100, 128, 500, 10_000])
@pytest.mark.parametrize("checks_crc", [False, True])
@pytest.mark.parametrize("is_whole", [False, True])
def test_windows_of_any_size_give_the_same(window_bytes: int, checks_crc: bool, is_whole: bool) -> None:
    data = content()
    whole = list(read_batches(memoryview(data)))
    found, fault, disk = read(data, Reading(window_bytes, checks_crc=checks_crc, is_whole=is_whole))
    assert fault is None
    assert [size for _, size, _, _, _ in found] == [batch.size_in_bytes for batch in whole]
    assert [fields[BASE_OFFSET] for *_, fields in found] == list(range(len(SIZES)))
    assert [header_of(each).crc for each in found] == [batch.crc for batch in whole]
    for (position, size, window, at, _), batch in zip(found, whole, strict=True):
        available = bytes(window[at : at + size])
        assert bytes(batch.buffer).startswith(available)
        assert len(available) >= HEADER_BYTES
        assert data[position : position + size] == bytes(batch.buffer)
        assert not is_whole or len(available) == size
    if checks_crc and is_whole:
        twice = sum(size for _, size in disk.reads) - len(data)
        assert twice < HEADER_BYTES * len(disk.reads), "of a batch at the end of a window, no more than half a header"
    if not checks_crc and not is_whole and window_bytes == HEADER_BYTES:
        assert sum(size for _, size in disk.reads) == len(SIZES) * HEADER_BYTES, "and no record"


@pytest.mark.parametrize("window_bytes", [HEADER_BYTES, 128, 10_000])
@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize(("at", "what"), [(16, "magic"), (8, "batch length"), (HEADER_BYTES + 5, "stored crc")])
@pytest.mark.parametrize("number", range(len(SIZES)))
def test_every_fault_ends_it(number: int, at: int, what: str, is_whole: bool, window_bytes: int) -> None:
    data = bytearray(content())
    position = read(bytes(data), Reading(HEADER_BYTES))[0][number][0]
    data[position + at] ^= 0x80
    found, fault, _ = read(bytes(data), Reading(window_bytes, checks_crc=True, is_whole=is_whole))
    assert len(found) == number
    assert fault is not None
    assert (fault.position, fault.reason[: len(what)]) == (position, what)
    with pytest.raises(ApiError, match=f"a.log is corrupt at byte {position}: {what}"):
        read(bytes(data), Reading(window_bytes, checks_crc=True, is_whole=is_whole, refuses=True))


@pytest.mark.parametrize("checks_crc", [False, True])
@pytest.mark.parametrize("is_whole", [False, True])
def test_a_file_that_ends_early(checks_crc: bool, is_whole: bool) -> None:
    data = content()
    reading = Reading(200, checks_crc=checks_crc, is_whole=is_whole, refuses=True)
    last = read(data, reading)[0][-1][0]
    for end in range(last + 1, len(data)):
        found, fault, _ = read(data[:end], reading)
        assert len(found) == len(SIZES) - 1
        assert fault is not None
        assert (fault.position, fault.is_cut_off) == (last, True)
    # The file was truncated since its size was read.
    found, fault, _ = read(data[: last + 10], reading, end=len(data))
    assert len(found) == len(SIZES) - 1
    assert fault is not None
    assert fault.is_cut_off


def test_it_goes_on_where_it_is_told() -> None:
    data = content()
    positions = [position for position, *_ in read(data, Reading(200, checks_crc=True))[0]]
    reader = BatchReader("a.log", Disk(data).pread, len(data), Reading(200, checks_crc=True))
    for position in (*positions, *reversed(positions)):
        assert next(reader.batches(position))[0] == position
    assert [found[0] for found in reader.batches(positions[2])] == positions[2:]
