"""Reading the batches of a file. All code in storage that turns bytes of a file into batches uses this.

A `Reading` sets the size of reads and the checks. At bytes that are not a batch, a `BatchReader` stops and sets `fault`
to the reason, or raises if its Reading `refuses`. The caller decides what to do: recovery ends the segment there, the
cleaner marks the log uncleanable, and a `BatchWalk` looks for the next sound batch.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from protocol.errors import ApiError, ErrorCode
from protocol.records.batch import RecordBatch
from protocol.records.checksum import crc32c
from protocol.records.record_format import ATTRIBUTES_AT, HEADER_BYTES, LOG_OVERHEAD_BYTES, MAGIC_V2
from protocol.value import Value

_FIELDS = struct.Struct(">qiibI2xi8xqq")
"""The part of a batch header that `Fields` names."""
_NOTHING = memoryview(b"")
_TOO_SHORT = "the file ends"

Read: TypeAlias = Callable[[int, int], bytes | bytearray]
"""`File.pread`: (position, size) -> bytes."""

Fields: TypeAlias = tuple[int, int, int, int, int, int, int, int]
"""Base offset, batch length, leader epoch, magic, CRC, last offset delta, largest timestamp and producer id."""
BASE_OFFSET, LAST_OFFSET_DELTA, MAX_TIMESTAMP = 0, 5, 6
"""Their places in `Fields`."""

Found: TypeAlias = tuple[int, int, memoryview, int, Fields]
"""Position and size of a batch in the file, the window that holds its header, the header's position in the window, and
the fields. It is a tuple, because an object for each batch would double the time (see docs/decisions/storage.md).
"""


class Reading(NamedTuple):
    """How a file is read, and how strictly."""

    window_bytes: int
    """Bytes per read; at least a header."""
    checks_crc: bool = False
    """Whether to check the CRC. Otherwise only headers are read, and records outside the window are skipped."""
    is_whole: bool = False
    """Whether the window always holds the whole batch, however long it is."""
    refuses: bool = False
    """Whether bytes that cannot be a batch raise ApiError CORRUPT_MESSAGE, naming file and position. An incomplete
    batch only ends the iteration.
    """


HEADERS = Reading(16 * 1024, refuses=True)
"""For the headers of a few batches, if their records were checked or do not matter."""
SOUND = Reading(120 * 1024, checks_crc=True)
"""malloc still serves this size from its heap: fresh pages for every read would cost more than the CRC."""


class BatchFault(Value):
    """The bytes at `position` are not a batch."""

    position: int
    reason: str
    is_cut_off: bool = False
    """The file ends within the batch, whose existing bytes may be right."""


def header_of(found: Found) -> RecordBatch:
    """The header as an object; its `buffer` may be longer or shorter than the batch."""
    return RecordBatch(found[2][found[3] :])


class BatchReader:
    """Reads the batches of a file that ends at `end`. Belongs to one thread.

    It checks magic and size of each batch, and the CRC if its Reading says so. It does not check offsets, because that
    takes more than one batch.
    """

    __slots__ = ("_end", "_on_read", "_path", "_read", "_reading", "_window", "_window_at", "fault")

    def __init__(
        self, path: str, read: Read, end: int, reading: Reading, on_read: Callable[[int], None] | None = None
    ) -> None:
        """`path` is for errors; `on_read` is called with the size of every read."""
        self._path = path
        self._read = read
        self._end = end
        self._reading = reading._replace(window_bytes=max(reading.window_bytes, HEADER_BYTES))
        self._on_read = on_read
        self._window = _NOTHING
        self._window_at = 0
        self.fault: BatchFault | None = None
        """The reason why the last iteration ended, or None if it reached `end` or was abandoned."""

    def batches(self, position: int) -> Iterator[Found]:
        """The batches from `position` on, up to the first fault. Raises what `read` raises."""
        unpack, checksum, end, smallest = _FIELDS.unpack_from, crc32c, self._end, HEADER_BYTES
        window_bytes, checks_crc, is_whole, _ = self._reading
        self.fault = None
        window, window_at = self._window, self._window_at
        at = position - window_at
        while end - window_at - at >= smallest:
            if at < 0 or len(window) - at < smallest:
                window_at, at = window_at + at, 0
                window = self._fill(window_at, window_bytes)
                if len(window) < smallest:
                    self._end_at(window_at, _TOO_SHORT, is_cut_off=True)
                    return
            window_end = len(window)
            while window_end - at >= smallest:
                fields = unpack(window, at)
                after = at + fields[1] + LOG_OVERHEAD_BYTES
                if fields[3] != MAGIC_V2 or after - at < smallest:
                    self._refuse_header(window_at + at, fields)
                    return
                if after > window_end:
                    break
                if checks_crc and checksum(window[at + ATTRIBUTES_AT : after]) != fields[4]:
                    self._refuse_crc(window_at + at, fields[4], crc32c(window[at + ATTRIBUTES_AT : after]))
                    return
                yield window_at + at, after - at, window, at, fields
                at = after
            else:
                continue
            position, size = window_at + at, after - at
            if not self._reaches(position, size, window[at:], fields):
                return
            if is_whole:
                window, window_at, at = self._window, position, 0
                continue
            yield position, size, window, at, fields
            window, window_at = self._window, self._window_at
            at = position + size - window_at
        position = window_at + at
        if position < end:
            self._end_at(position, f"{end - position} bytes are not a batch", is_cut_off=True)

    def window(self, position: int) -> memoryview:
        """The bytes of the file from `position` on, at least a header unless the file ends."""
        at = position - self._window_at
        if at < 0 or len(self._window) - at < HEADER_BYTES:
            return self._fill(position, self._reading.window_bytes)
        return self._window[at:]

    def _fill(self, position: int, size: int, known: memoryview = _NOTHING) -> memoryview:
        """Read the window of at most `size` bytes at `position`, which begins with the bytes `known`."""
        self._window = _NOTHING  # lets malloc reuse its memory
        have = len(known)
        data = self._read(position + have, min(size, self._end - position) - have)
        if self._on_read is not None:
            self._on_read(len(data))
        self._window = memoryview(b"".join((known, data)) if have else data)
        self._window_at = position
        return self._window

    def _reaches(self, position: int, size: int, known: memoryview, fields: Fields) -> bool:
        """Check a batch that extends beyond the window, which holds its first bytes, `known`. The window moves to hold
        the whole batch, if required, or moves piece by piece to its end: a length can be wrong by a gigabyte.
        """
        window_bytes, checks_crc, is_whole, _ = self._reading
        if size > self._end - position:
            self._end_at(position, f"batch length {fields[1]}", is_cut_off=True)
            return False
        if is_whole:
            if len(self._fill(position, max(size, window_bytes), known)) < size:
                self._end_at(position, _TOO_SHORT, is_cut_off=True)
                return False
            return True
        if not checks_crc:
            return True
        computed = crc32c(known[ATTRIBUTES_AT:])
        at, after = position + len(known), position + size
        while at < after:
            piece = self._fill(at, window_bytes)
            if not piece:
                self._end_at(position, _TOO_SHORT, is_cut_off=True)
                return False
            at += len(piece)
            computed = crc32c(piece if at <= after else piece[: after - at], computed)
            del piece
        if computed != fields[4]:
            self._refuse_crc(position, fields[4], computed)
        return computed == fields[4]

    def _refuse_header(self, position: int, fields: Fields) -> None:
        self._end_at(position, f"batch length {fields[1]}" if fields[3] == MAGIC_V2 else f"magic {fields[3]}")

    def _refuse_crc(self, position: int, stored: int, computed: int) -> None:
        self._end_at(position, f"stored crc = {stored}, computed crc = {computed}")

    def _end_at(self, position: int, reason: str, *, is_cut_off: bool = False) -> None:
        self.fault = BatchFault(position, reason, is_cut_off)
        if self._reading.refuses and not is_cut_off:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{self._path} is corrupt at byte {position}: {reason}")
