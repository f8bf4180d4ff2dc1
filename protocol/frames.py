"""Frames out of a byte stream: an int32 length, then that many bytes.

Made for `asyncio.BufferedProtocol`: all connections of a loop receive into one shared buffer, and frames that are
complete in it are handed out where they lie. Only what stays incomplete gets memory of its own, which grows with the
bytes that arrive and never on the word of the length. An idle connection holds no buffer at all.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

SHARED_BYTES: Final = 256 * 1024
"""Size of the shared buffer: the most that one read takes from a socket, and the largest frame that is never copied."""

_LENGTH: Final = struct.Struct(">i")
_MIN_CAPACITY: Final = 4096
_GROWTH: Final = 4
_DIRECT_BYTES: Final = 32 * 1024
_SPARE_BYTES: Final = 4 << 20


class FrameError(Exception):
    """A frame whose length no peer may send; the connection cannot be read any further."""


class ReceiveBuffer:
    """The buffer that the connections of one loop share, and the spare buffers of large frames (4 MiB at most).

    Reads of different connections must not overlap: between `get_buffer` and the end of `buffer_updated` nothing else
    may receive. An event loop that reads and calls back in one go (asyncio, uvloop) guarantees that.
    """

    __slots__ = ("_spare_bytes", "_spares", "view")

    def __init__(self, size: int = SHARED_BYTES) -> None:
        self.view = memoryview(bytearray(size))
        self._spares: list[bytearray] = []
        self._spare_bytes = 0

    def take(self, capacity: int) -> bytearray:
        """A buffer of at least `capacity` bytes, with anything in it."""
        for index in range(len(self._spares) - 1, -1, -1):
            if len(self._spares[index]) >= capacity:
                spare = self._spares.pop(index)
                self._spare_bytes -= len(spare)
                return spare
        return bytearray(capacity)

    def give_back(self, buffer: bytearray) -> None:
        """Keep a buffer that nobody reads any more for the next large frame, if there is room."""
        if len(buffer) >= _DIRECT_BYTES and self._spare_bytes + len(buffer) <= _SPARE_BYTES:
            self._spares.append(buffer)
            self._spare_bytes += len(buffer)


class FrameReader:
    """Splits the bytes of one connection into frames of at most `max_frame_bytes`."""

    __slots__ = ("_direct", "_filled", "_head", "_max_frame_bytes", "_partial", "_shared", "_size")

    def __init__(self, max_frame_bytes: int, shared_buffer: ReceiveBuffer) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._shared = shared_buffer
        self._head = b""
        # A frame that has begun: its size (-1 for none), the bytes of it that are here, and how many those are.
        self._size = -1
        self._partial: bytearray | None = None
        self._filled = 0
        self._direct = False

    @property
    def partial_frame_bytes(self) -> int:
        """The size of the frame that has begun and is not complete; 0 for none."""
        return max(self._size, 0)

    def get_buffer(self, size_hint: int = -1) -> memoryview:  # noqa: ARG002  asyncio's hint says nothing of a socket
        """Where the next bytes of this connection are to be received."""
        self._direct = self._size - self._filled >= _DIRECT_BYTES and self._filled > 0
        if not self._direct:
            return self._shared.view
        return memoryview(self._room(0))[self._filled : self._size]

    def buffer_updated(self, received: int) -> Iterator[memoryview]:
        """Account for `received` bytes at the start of the last `get_buffer`; iterate over the complete frames.

        To be iterated to the end, unless the connection is given up. A frame is writable and valid until the next one
        is asked for; whoever wants to keep any of it copies it. Raises FrameError, naming the size, for a negative
        length and for one above `max_frame_bytes`.
        """
        if self._direct:
            self._filled += received
            if self._filled == self._size:
                yield from self._finish()
            return
        view = self._shared.view
        position = 0
        if self._size >= 0:
            position = self._absorb(view[:received])
            if self._filled < self._size:
                return
            yield from self._finish()
        elif self._head:
            position = min(_LENGTH.size - len(self._head), received)
            self._head += bytes(view[:position])
            if len(self._head) < _LENGTH.size:
                return
            size = self._checked(_LENGTH.unpack(self._head)[0])
            self._head = b""
            if size > received - position:
                self._begin(size, view[position:received])
                return
            yield view[position : position + size]
            position += size
        while received - position >= _LENGTH.size:
            size = self._checked(_LENGTH.unpack_from(view, position)[0])
            position += _LENGTH.size
            if size > received - position:
                self._begin(size, view[position:received])
                return
            yield view[position : position + size]
            position += size
        self._head = bytes(view[position:received])

    def _checked(self, size: int) -> int:
        if size < 0:
            raise FrameError(f"Invalid receive (size = {size})")
        if size > self._max_frame_bytes:
            raise FrameError(f"Invalid receive (size = {size} larger than {self._max_frame_bytes})")
        return size

    def _begin(self, size: int, data: memoryview) -> None:
        self._size = size
        self._filled = 0
        self._absorb(data)

    def _absorb(self, data: memoryview) -> int:
        """Copy what belongs to the begun frame from `data`; gives how many bytes that was."""
        count = min(self._size - self._filled, len(data))
        if count:
            self._room(count)[self._filled : self._filled + count] = data[:count]
            self._filled += count
        return count

    def _room(self, count: int) -> bytearray:
        """The begun frame's buffer, with room for `count` more bytes, and at least one if it is not complete.

        A buffer in use is never resized, since the event loop may still have a view of it.
        """
        partial = self._partial
        needed = self._filled + max(count, 1)
        if partial is None or len(partial) < needed:
            grown = self._shared.take(min(self._size, max(_GROWTH * (self._filled + count), _MIN_CAPACITY)))
            if partial is not None:
                grown[: self._filled] = memoryview(partial)[: self._filled]
                self._shared.give_back(partial)
            self._partial = partial = grown
        return partial

    def _finish(self) -> Iterator[memoryview]:
        """Hand out the frame that is complete, and let go of its buffer when the next one is asked for."""
        partial, size = self._partial, self._size
        self._partial, self._size, self._filled = None, -1, 0
        if partial is None:
            yield self._shared.view[:0]
            return
        yield memoryview(partial)[:size]
        self._shared.give_back(partial)
