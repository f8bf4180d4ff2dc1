"""Reading the batches of a file: everything in storage that turns bytes of a file into batches is built on this.

A `Reading` says how much is read at a time and what is checked. Where the bytes are no batch, a `BatchReader` ends and
its `fault` says why; or it raises, if its Reading `refuses`. The caller decides what follows: recovery ends the segment
there, the cleaner sets the log aside, and a `BatchWalk` looks for the next batch that is sound.
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
"""Where they are in `Fields`."""

Found: TypeAlias = tuple[int, int, memoryview, int, Fields]
"""Position and size of a batch in the file, the window that its header is in and where in it, and its fields. A tuple,
because an object for each batch would take as long as all the rest (see docs/decisions/storage.md).
"""


class Reading(NamedTuple):
    """How a file is read, and how strictly."""

    window_bytes: int
    """Read at once; a header at least."""
    checks_crc: bool = False
    """Without it only headers are looked at, and what a window does not have of the records is never read."""
    is_whole: bool = False
    """Every batch is in its window from begin to end, however long it is."""
    refuses: bool = False
    """Bytes that cannot be a batch raise ApiError CORRUPT_MESSAGE naming file and position. A batch that is cut off
    ends the iteration in any case.
    """


HEADERS = Reading(16 * 1024, refuses=True)
"""For the headers of a few batches of which the records were checked, or do not matter."""
SOUND = Reading(120 * 1024, checks_crc=True)
"""A size that malloc still takes from its heap: fresh pages for every read would cost more than the CRC does."""


class Fault(Value):
    """The bytes at `position` are no batch."""

    position: int
    reason: str
    is_cut_off: bool = False
    """The file ends too early for what is there, which may be right as far as it goes."""


def header_of(found: Found) -> RecordBatch:
    """The header as an object; its `buffer` may be longer or shorter than the batch."""
    return RecordBatch(found[2][found[3] :])


class BatchReader:
    """The batches of a file that ends at `end`. Belongs to one thread.

    Checked are magic and size of each batch, and what its Reading says. Offsets are not: what is possible depends on
    more than one batch.
    """

    __slots__ = ("_end", "_on_read", "_path", "_read", "_reading", "_window", "_window_at", "fault")

    def __init__(
        self, path: str, read: Read, end: int, reading: Reading, on_read: Callable[[int], None] | None = None
    ) -> None:
        """`path` is for errors; `on_read` is called with the bytes of every read."""
        self._path = path
        self._read = read
        self._end = end
        self._reading = reading._replace(window_bytes=max(reading.window_bytes, HEADER_BYTES))
        self._on_read = on_read
        self._window = _NOTHING
        self._window_at = 0
        self.fault: Fault | None = None
        """Why the last iteration ended; None when it came to `end`, or was given up."""

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
            self._end_at(position, f"{end - position} bytes are no batch", is_cut_off=True)

    def window(self, position: int) -> memoryview:
        """The bytes of the file from `position` on, a header at least unless it ends."""
        at = position - self._window_at
        if at < 0 or len(self._window) - at < HEADER_BYTES:
            return self._fill(position, self._reading.window_bytes)
        return self._window[at:]

    def _fill(self, position: int, size: int, known: memoryview = _NOTHING) -> memoryview:
        """Read the window of at most `size` bytes at `position`, of which the `known` come first."""
        self._window = _NOTHING  # its memory may serve again
        have = len(known)
        data = self._read(position + have, min(size, self._end - position) - have)
        if self._on_read is not None:
            self._on_read(len(data))
        self._window = memoryview(b"".join((known, data)) if have else data)
        self._window_at = position
        return self._window

    def _reaches(self, position: int, size: int, known: memoryview, fields: Fields) -> bool:
        """Whether a batch is all right that goes beyond the window, which has the `known` bytes of it. The window moves
        to have it as a whole, if it has to be, or piece by piece to the end of it: a length can be wrong by a gigabyte.
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
        self.fault = Fault(position, reason, is_cut_off)
        if self._reading.refuses and not is_cut_off:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{self._path} is corrupt at byte {position}: {reason}")
