"""The outgoing side of a connection: sends replies in the given order, as fast as the client reads. Bytes of a log
segment are read only when the socket has room.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from environment.contract import Executor
from storage.io.file_system import Bytes, File

if TYPE_CHECKING:
    from broker.network.connection import Connection


class FileSlice:
    """`length` bytes of `file` from `position`. Consumed from the front by `advance`."""

    __slots__ = ("_file", "_length", "_position")

    def __init__(self, file: File, position: int, length: int) -> None:
        self._file = file
        self._position = position
        self._length = length

    def __len__(self) -> int:
        """Bytes left."""
        return self._length

    def __repr__(self) -> str:
        return f"{self._length} bytes of {self.path} at {self._position}"

    @property
    def path(self) -> str:
        """The path of the file."""
        return self._file.path

    def try_read(self, size: int) -> bytes | bytearray | None:
        """The next `size` bytes if they are in memory, or None if reading them would block on the disk."""
        return self._file.try_pread(self._position, size)

    def try_read_into(self, buffer: memoryview) -> memoryview | None:
        """Read the next bytes into the buffer. Returns the filled part, or None if reading would block on the disk."""
        count = self._file.try_pread_into(self._position, buffer)
        return None if count is None else buffer[:count]

    def read(self, size: int) -> bytes | bytearray:
        """The next `size` bytes; may block on the disk."""
        return self._file.pread(self._position, size)

    def advance(self, size: int) -> None:
        """Drop `size` bytes from the front."""
        self._position += size
        self._length -= size


Part = Bytes | FileSlice
"""One piece of a reply."""


CHUNK_BYTES: Final = 1 << 20
"""Most bytes read from a log at once while a reply is sent."""

LARGE_BYTES: Final = 64 * 1024
"""Parts of at most this total size are joined, to leave in one system call."""

TURN_BYTES: Final = 4 * CHUNK_BYTES
"""Bytes sent from files before the event loop serves other connections."""

READ_COST_BYTES: Final = 8 * 1024
"""Reading a small slice takes as long as sending this many bytes: a turn has room for 512 of them."""

Parts = list[Part]


class SendBuffer:
    """The memory through which the connections of an event loop copy large slices from files to sockets.

    It is reused while the sockets accept all data at once: memory in the processor's cache is cheaper than fresh
    memory.
    """

    __slots__ = ("_memory",)

    def __init__(self) -> None:
        self._memory: memoryview | None = None

    def memory(self, size: int) -> memoryview:
        """The first `size` bytes, at most CHUNK_BYTES, with arbitrary contents."""
        if self._memory is None:
            self._memory = memoryview(bytearray(CHUNK_BYTES))
        return self._memory[:size]

    def leave_to(self, transport: asyncio.Transport) -> None:
        """Call after a write from this memory: if the transport has unsent data, it keeps the memory and the next write
        gets a new one.
        """
        if transport.get_write_buffer_size():
            self._memory = None


class ReplyWriter:
    """Owns the queue of replies, the reading of file slices and the client's back-pressure.

    While `is_behind` is false, the transport's buffer is empty: its limit is zero, so it reports a full socket at once.
    """

    __slots__ = (
        "_connection",
        "_executor",
        "_holds",
        "_loop",
        "_queue",
        "_queued_bytes",
        "_send_buffer",
        "_socket_full",
        "_tail",
        "_transport",
        "is_behind",
    )

    def __init__(
        self, connection: Connection, executor: Executor, send_buffer: SendBuffer, transport: asyncio.Transport
    ) -> None:
        self._connection = connection
        self._executor = executor
        self._send_buffer = send_buffer
        self._transport = transport
        transport.set_write_buffer_limits(high=0)
        self._queue: deque[Part] = deque()
        self._tail: bytearray | None = None
        """The last reply in the queue; the next one is appended to it, so that they leave in one piece."""
        self._queued_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._socket_full = False
        self._holds = False
        """Whether the writer pauses: a thread reads the slice at the head of the queue, or other connections have their
        turn.
        """
        self.is_behind = False
        """Whether replies wait for the client to read, or for the disk."""

    @property
    def unsent_bytes(self) -> int:
        """Memory of replies that the socket has not accepted."""
        return self._queued_bytes + self._transport.get_write_buffer_size()

    def send(self, parts: Parts) -> None:
        """Send a reply; the queue must be empty."""
        if len(parts) == 1 and not self._queue:
            self._transport.write(parts[0])  # type: ignore[arg-type]  # a reply never begins with a slice
        else:
            self.queue(parts)
            self.flush()

    def queue(self, parts: Parts) -> int:
        """Queue a reply for the next `flush`. Returns the queued bytes, without those that are still in files."""
        if len(parts) == 1 and isinstance(parts[0], bytearray):
            reply = parts[0]
            self._queued_bytes += len(reply)
            if self._tail is None:
                self._queue.append(reply)
                self._tail = reply
            else:
                self._tail += reply
            return self._queued_bytes
        self._tail = None
        for part in parts:
            if not isinstance(part, FileSlice):
                self._queued_bytes += len(part)
        self._queue.extend(parts)
        return self._queued_bytes

    def flush(self) -> None:
        """Send the queue until the socket is full or other connections have their turn."""
        self._tail = None
        budget = TURN_BYTES
        while self._queue and not self._socket_full and not self._holds:
            if budget <= 0:
                self._holds = True
                self._loop.call_soon(self._on_next_turn)
                break
            budget -= self._write_next()
        self.is_behind = self._socket_full or bool(self._queue)

    def _write_next(self) -> int:
        """Write as many parts from the head of the queue as fit together, and a large one behind them.

        Returns the cost of file reads, in bytes.
        """
        queue = self._queue
        small: list[bytes | bytearray | memoryview] = []
        large: bytes | bytearray | memoryview | None = None
        room = LARGE_BYTES
        cost = 0
        while queue and room > 0 and not self._holds:
            part = queue[0]
            if isinstance(part, FileSlice):
                chunk = self._read(part)
                if chunk is None:
                    break
                cost += max(len(chunk), READ_COST_BYTES)
            else:
                chunk = part
                queue.popleft()
                self._queued_bytes -= len(chunk)
            if len(chunk) >= LARGE_BYTES:
                large = chunk
                break
            small.append(chunk)
            room -= len(chunk)
        head = small[0] if len(small) == 1 else b"".join(small)
        if large is None:
            if small:
                self._transport.write(head)
            return cost
        if small:
            self._transport.writelines([head, large])
        else:
            self._transport.write(large)
        self._send_buffer.leave_to(self._transport)
        return cost

    def discard(self) -> None:
        """Drop the queue: the connection is closed."""
        self._queue.clear()
        self._tail = None
        self._queued_bytes = 0

    def pause(self) -> None:
        """The socket accepts no more (asyncio's pause_writing)."""
        self._socket_full = True
        self.is_behind = True

    def resume(self) -> None:
        """The socket has accepted everything (asyncio's resume_writing)."""
        self._socket_full = False
        self._continue()

    def _on_next_turn(self) -> None:
        self._holds = False
        self._continue()

    def _continue(self) -> None:
        self.flush()
        if not self.is_behind:
            self._connection.replies_sent()

    def _read(self, part: FileSlice) -> bytes | bytearray | memoryview | None:
        """The next bytes of the slice at the head of the queue, or None while a thread reads them or after the read
        failed.
        """
        size = min(len(part), CHUNK_BYTES)
        chunk: bytes | bytearray | memoryview | None
        try:
            if size >= LARGE_BYTES:
                chunk = part.try_read_into(self._send_buffer.memory(size))
            else:
                chunk = part.try_read(size)
        except OSError as error:
            self._fail_read(part, error)
            return None
        if chunk is None:
            self._read_on_thread(part, size)
            return None
        self._advance(part, len(chunk))
        return chunk or None

    def _advance(self, part: FileSlice, size: int) -> bool:
        """Count `size` bytes as sent or read. Returns whether any are left."""
        if not size:
            self._fail_read(part, None)
            return False
        part.advance(size)
        if not len(part):
            self._queue.popleft()
            return False
        return True

    def _read_on_thread(self, part: FileSlice, size: int) -> None:
        self._holds = True
        task = asyncio.ensure_future(self._executor.run(part.read, size))
        task.add_done_callback(self._on_cold_read)

    def _on_cold_read(self, future: asyncio.Future[bytes | bytearray]) -> None:
        self._holds = False
        if future.cancelled() or not self._queue:
            return
        part = self._queue[0]
        assert isinstance(part, FileSlice)
        error = future.exception()
        if error is not None:
            self._fail_read(part, error)
            return
        chunk = future.result()
        self._advance(part, len(chunk))
        if chunk:
            self._transport.write(chunk)
            self._continue()

    def _fail_read(self, part: FileSlice, error: BaseException | None) -> None:
        """Close the connection after a failed read: part of the reply may already be sent, so it cannot become an
        error.
        """
        self.discard()
        if error is None:
            self._connection.close(f"{part!r} is no longer readable", level=logging.WARNING, soon=True)
            return
        is_deleted = isinstance(error, FileNotFoundError)
        level = logging.WARNING if is_deleted else logging.ERROR
        self._connection.close(f"{part!r} could not be read: {error}", level=level, soon=True)
        if isinstance(error, OSError):
            self._connection.reading_failed(part.path, error)
