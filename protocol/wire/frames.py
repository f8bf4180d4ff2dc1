"""Splitting a byte stream into frames: an int32 length, then that many bytes.

Made for `asyncio.BufferedProtocol`: all connections of a loop receive into one shared buffer, and complete frames are
returned in place. Only an incomplete frame gets its own memory, which grows with the received bytes and never just
because of the declared length. An idle connection does not hold a buffer.

A frame above 4 MiB is received into a private memory map: it takes pages only when they are written, grows without a
copy, and is returned to the system when the frame is dropped. Creating a bytearray of 100 MB takes 200 ms.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
from typing import Final

SHARED_BYTES: Final = 256 * 1024
"""Size of the shared buffer: the most bytes that one read takes from a socket, and the largest frame that is never
copied.
"""

_LENGTH_BYTES: Final = 4
_length_at: Final = struct.Struct(">i").unpack_from
_MIN_CAPACITY: Final = 4096
_GROWTH: Final = 4
_DIRECT_BYTES: Final = 32 * 1024
_SPARE_BYTES: Final = 4 << 20
_MAP_FLAGS: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS

Memory = bytearray | mmap.mmap


class FrameError(Exception):
    """A frame with an invalid length; the rest of the connection cannot be read."""


class ReceiveBuffer:
    """The buffer shared by the connections of one loop, and the spare buffers for large frames (at most 4 MiB).

    Reads of different connections must not overlap: from `get_buffer` until the handler calls `keep`, no other
    connection may receive. Event loops that read and call back in one step (asyncio, uvloop) guarantee that.
    """

    __slots__ = ("_spare_bytes", "_spares", "view")

    def __init__(self, size: int = SHARED_BYTES) -> None:
        # A map takes memory page by page when written: small requests never touch all of it.
        self.view = memoryview(mmap.mmap(-1, size))
        self._spares: list[bytearray] = []
        self._spare_bytes = 0

    def take(self, capacity: int) -> Memory:
        """A buffer of at least `capacity` bytes with arbitrary content."""
        if capacity > _SPARE_BYTES:
            return mmap.mmap(-1, capacity, flags=_MAP_FLAGS)
        for index in range(len(self._spares) - 1, -1, -1):
            if len(self._spares[index]) >= capacity:
                spare = self._spares.pop(index)
                self._spare_bytes -= len(spare)
                return spare
        return bytearray(capacity)

    def give_back(self, buffer: Memory) -> None:
        """Keep an unused buffer for the next large frame, if there is space."""
        if (
            isinstance(buffer, bytearray)
            and len(buffer) >= _DIRECT_BYTES
            and self._spare_bytes + len(buffer) <= _SPARE_BYTES
        ):
            self._spares.append(buffer)
            self._spare_bytes += len(buffer)


def kept(frame: memoryview, start: int) -> memoryview:
    """The bytes of a frame from `start` on, for longer use. A frame with its own memory is not copied."""
    has_own_memory = len(frame) > _SPARE_BYTES and isinstance(frame.obj, mmap.mmap)
    return frame[start:] if has_own_memory else memoryview(bytes(frame[start:]))


class FrameReader:
    """Splits the bytes of one connection into frames of at most `max_frame_bytes`.

    The caller takes one frame at a time and may stop in between: `keep` then saves the unread bytes from the next user
    of the shared buffer.
    """

    __slots__ = (
        "_direct",
        "_end",
        "_filled",
        "_frame_at",
        "_head",
        "_lent",
        "_max_frame_bytes",
        "_partial",
        "_position",
        "_shared",
        "_size",
        "_view",
    )

    def __init__(self, max_frame_bytes: int, shared_buffer: ReceiveBuffer) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._shared = shared_buffer
        # Unread bytes: in the shared buffer during this connection's turn, in a copy after `keep`.
        self._view = shared_buffer.view
        self._position = 0
        self._end = 0
        self._frame_at = 0
        self._head = b""
        # The incomplete frame: its size (-1 for none), its received bytes, and their number.
        self._size = -1
        self._partial: Memory | None = None
        self._filled = 0
        self._direct = False
        self._lent: Memory | None = None
        """The buffer of the last returned frame, if it is a separate one."""

    def limit(self, max_frame_bytes: int) -> None:
        """Set the maximum size, from the next frame on."""
        self._max_frame_bytes = max_frame_bytes

    @property
    def has_unread(self) -> bool:
        """Whether there are received bytes that `next_frame` has not used."""
        return self._position < self._end or self._size == self._filled

    @property
    def held_bytes(self) -> int:
        """Memory that this connection claims: the incomplete frame at its full size, and the kept bytes."""
        return max(self._size - self._filled, 0) + self.kept_bytes

    @property
    def kept_bytes(self) -> int:
        """Received bytes of frames not returned yet."""
        kept = 0 if self._view is self._shared.view else len(self._view)
        return kept if self._size < 0 else self._filled + kept

    @property
    def received_of_frame(self) -> int | None:
        """Received bytes of the incomplete frame, or None without one."""
        return self._filled if self._filled < self._size else None

    def get_buffer(self, size_hint: int = -1) -> memoryview:  # noqa: ARG002 asyncio's hint is always -1 for sockets
        """The buffer for the next bytes of this connection."""
        if self._size < 0:  # no frame has begun
            self._direct = False
            return self._shared.view
        self._direct = self._size - self._filled >= _DIRECT_BYTES and self._filled > 0 and self._position == self._end
        if not self._direct:
            return self._shared.view
        # The batches of a producer arrive in one call, very large frames in many, up to forty in one turn.
        most = SHARED_BYTES if self._size > _SPARE_BYTES else self._size
        return memoryview(self._room(0))[self._filled : min(self._size, self._filled + most)]

    def only_frame(self, count: int) -> memoryview | None:
        """The frame, if the `count` bytes just received are exactly one frame and nothing else is unread: the usual
        case.

        The frame is then taken. Otherwise this does nothing, and the caller must call `received`.
        """
        if self._size < 0 and self._position == self._end and not self._head and count > _LENGTH_BYTES:
            size = _length_at(self._shared.view)[0]
            if size == count - _LENGTH_BYTES and size <= self._max_frame_bytes:
                return self._shared.view[_LENGTH_BYTES:count]
        return None

    def received(self, count: int) -> None:
        """Account for `count` bytes at the start of the last `get_buffer`."""
        if self._direct:
            self._filled += count
        elif self._position < self._end:
            kept = bytearray(self._view[self._position : self._end])
            kept += self._shared.view[:count]
            self._view, self._position, self._end = memoryview(kept), 0, len(kept)
        else:
            self._view, self._position, self._end = self._shared.view, 0, count

    def next_frame(self) -> memoryview | None:
        """The next frame, if complete. It is writable, and valid until the next use of this reader.

        To keep any of it, copy it or use `kept`. Raises FrameError, naming the size, for a negative length and for one
        above `max_frame_bytes`.
        """
        if self._lent is not None:
            self._take_back()
        at = self._position
        start = at + _LENGTH_BYTES
        if self._size < 0 and not self._head and start <= self._end:
            (size,) = _length_at(self._view, at)
            end = start + size
            if start <= end <= self._end and size <= self._max_frame_bytes:
                self._frame_at = at
                self._position = end
                return self._view[start:end]
        return self._next_in_pieces()

    def put_back(self) -> None:
        """Put the last frame back; the next call of `next_frame` returns it again."""
        if self._lent is None:
            self._position = self._frame_at
        else:
            self._partial, self._lent = self._lent, None
            self._size = self._filled

    def keep(self) -> None:
        """Save unread bytes, if any. Call it before another connection receives."""
        if self._lent is not None:
            self._take_back()
        if self._position == self._end:
            self._view, self._position, self._end = self._shared.view, 0, 0
        elif self._view is self._shared.view:
            kept = bytearray(self._view[self._position : self._end])
            self._view, self._position, self._end = memoryview(kept), 0, len(kept)

    def release(self) -> Memory | None:
        """Discard the incomplete frame and return its memory, if it has its own."""
        partial, self._partial = self._partial, None
        return partial

    def _take_back(self) -> None:
        assert self._lent is not None
        self._shared.give_back(self._lent)
        self._lent = None

    def _next_in_pieces(self) -> memoryview | None:
        if self._size < 0 and not self._begin():
            return None
        self._absorb()
        if self._filled < self._size:
            return None
        # An empty frame does not need a buffer.
        self._lent = bytearray() if self._partial is None else self._partial
        self._partial, self._size = None, -1
        return memoryview(self._lent)[: self._filled]

    def _begin(self) -> bool:
        """Read the length of the next frame; returns whether the frame is complete."""
        end = min(self._position + _LENGTH_BYTES - len(self._head), self._end)
        self._head += bytes(self._view[self._position : end])
        self._position = end
        if len(self._head) < _LENGTH_BYTES:
            return False
        size: int = _length_at(self._head)[0]
        if size < 0:
            raise FrameError(f"Invalid receive (size = {size})")
        if size > self._max_frame_bytes:
            raise FrameError(f"Invalid receive (size = {size} larger than {self._max_frame_bytes})")
        self._head, self._size, self._filled = b"", size, 0
        return True

    def _absorb(self) -> None:
        """Copy the unread bytes that belong to the incomplete frame."""
        count = min(self._size - self._filled, self._end - self._position)
        if count:
            data = self._view[self._position : self._position + count]
            self._room(count)[self._filled : self._filled + count] = data
            self._filled += count
            self._position += count

    def _room(self, count: int) -> Memory:
        """The incomplete frame's buffer, with room for `count` more bytes, and for at least one until it is
        complete.
        """
        partial = self._partial
        needed = self._filled + max(count, 1)
        if partial is None or len(partial) < needed:
            capacity = min(self._size, max(_GROWTH * (self._filled + count), _MIN_CAPACITY))
            if isinstance(partial, mmap.mmap):
                # The event loop may still have a view of it, and then it must not be resized.
                with contextlib.suppress(BufferError):
                    partial.resize(capacity)
                    return partial
            grown = self._shared.take(capacity)
            if partial is not None:
                grown[: self._filled] = memoryview(partial)[: self._filled]
                if self._size <= _SPARE_BYTES:
                    # Several very large frames at once would leave more spares than usual requests need.
                    self._shared.give_back(partial)
            self._partial = partial = grown
        return partial
