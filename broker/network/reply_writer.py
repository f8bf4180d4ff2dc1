"""The outgoing side of a connection: replies in the order in which they are given, as fast as the client reads."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final, Protocol

from broker.environment.contract import Executor
from broker.network.file_slice import FileSlice, Part

CHUNK_BYTES: Final = 1 << 20
"""What is read from a log at a time when a reply is sent."""

LARGE_BYTES: Final = 64 * 1024
"""Slices from here on are sent by the kernel; smaller parts are copied together to leave in one system call."""

TURN_BYTES: Final = 4 * CHUNK_BYTES
"""What is sent from files before others have their turn."""

READ_COST_BYTES: Final = 8 * 1024
"""Reading a small slice takes as long as sending so many bytes: 512 of them are one turn."""

NO_SOCKET: Final = -1

Parts = list[Part]


class Replying(Protocol):
    """What a ReplyWriter needs of its connection."""

    def close(self, reason: str, *, level: int = logging.INFO, soon: bool = False) -> None:
        """Hang up."""
        ...

    def replies_sent(self) -> None:
        """The client has read what it had not read for a while: `is_behind` is over."""
        ...

    def reading_failed(self, path: str, error: OSError) -> None:
        """The disk refused to read a part."""
        ...


class ReplyWriter:
    """Owns what is queued, the reading of file slices and the client's back-pressure.

    The transport's own buffer holds nothing while `is_behind` is false: its limit is zero, so that it says at once when
    the socket is full.
    """

    __slots__ = (
        "_connection",
        "_executor",
        "_holds",
        "_loop",
        "_queue",
        "_queued_bytes",
        "_socket",
        "_socket_full",
        "_tail",
        "_transport",
        "is_behind",
    )

    def __init__(self, connection: Replying, executor: Executor, transport: asyncio.Transport) -> None:
        self._connection = connection
        self._executor = executor
        self._transport = transport
        transport.set_write_buffer_limits(high=0)
        self._queue: deque[Part] = deque()
        self._tail: bytearray | None = None
        """A reply at the end of the queue that the next one is written behind, so that they leave in one piece."""
        self._queued_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._socket = _socket_of(transport)
        """The transport's descriptor, valid while the connection is open; NO_SOCKET where the kernel cannot send."""
        self._socket_full = False
        self._holds = False
        """Whether a thread reads the slice at the head of the queue, or others have their turn."""
        self.is_behind = False
        """Whether replies wait for the client to read, or for the disk."""

    @property
    def unsent_bytes(self) -> int:
        """Memory that replies hold which the socket has not taken."""
        return self._queued_bytes + self._transport.get_write_buffer_size()

    def send(self, parts: Parts) -> None:
        """Send a reply that nothing has to go in front of."""
        if len(parts) == 1 and not self._queue:
            self._transport.write(parts[0])  # type: ignore[arg-type]  # a reply never begins with a slice
        else:
            self.queue(parts)
            self.flush()

    def queue(self, parts: Parts) -> int:
        """Add a reply for the next `flush`; how many bytes are queued then, without those that lie in files."""
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
        """Send what is queued until the socket is full or others have their turn."""
        queue = self._queue
        self._tail = None
        budget = TURN_BYTES
        while queue and not self._socket_full and not self._holds:
            part = queue[0]
            if budget <= 0:
                self._holds = True
                self._loop.call_soon(self._on_next_turn)
                break
            if isinstance(part, FileSlice):
                budget -= len(part)
                if len(part) >= LARGE_BYTES and self._socket >= 0 and self._send_file(part):
                    continue
            budget -= self._write_next() * READ_COST_BYTES
        self.is_behind = self._socket_full or bool(queue)

    def _write_next(self) -> int:
        """Write the parts at the head of the queue that fit together; gives how many slices were read.

        The beginning of a large slice is among them: a packet of its own for the reply's header costs the client and us
        more than the copy.
        """
        queue = self._queue
        gathered: list[bytes | bytearray | memoryview] = []
        room = LARGE_BYTES
        slices = 0
        while queue and room > 0 and not self._holds:
            part = queue[0]
            if gathered and len(part) > room and (self._socket < 0 or not isinstance(part, FileSlice)):
                break
            is_slice = isinstance(part, FileSlice)
            chunk = self._chunk_of(part, room) if isinstance(part, FileSlice) else part
            if chunk is None:
                break
            slices += is_slice
            if chunk is part:
                queue.popleft()
                self._queued_bytes -= len(chunk)
            gathered.append(chunk)
            room -= len(chunk)
        if gathered:
            self._transport.write(gathered[0] if len(gathered) == 1 else b"".join(gathered))
        return slices

    def _send_file(self, part: FileSlice) -> bool:
        """Have the kernel send a slice; whether all of it is in the socket.

        If the socket is full, some of the slice has to be written through the transport, which then tells when the
        socket takes more: the transport itself is not told of a full socket.
        """
        for _ in range(TURN_BYTES // CHUNK_BYTES):
            size = min(len(part), CHUNK_BYTES)
            try:
                sent = part.try_send(self._socket, size)
            except BlockingIOError:
                return False
            except OSError:
                # Reading or writing in the usual way meets the error again, if there is one, and knows whose it is.
                self._socket = NO_SOCKET
                return False
            if sent is None:
                self._read_on_thread(part, size)
                return False
            if not self._advance(part, sent):
                return True
            if sent < size:
                return False
        return False

    def discard(self) -> None:
        """Drop what is queued: the connection is closed."""
        self._queue.clear()
        self._tail = None
        self._queued_bytes = 0

    def pause(self) -> None:
        """The socket takes no more (asyncio's pause_writing)."""
        self._socket_full = True
        self.is_behind = True

    def resume(self) -> None:
        """The socket has taken everything (asyncio's resume_writing)."""
        self._socket_full = False
        self._go_on()

    def _on_next_turn(self) -> None:
        self._holds = False
        self._go_on()

    def _go_on(self) -> None:
        self.flush()
        if not self.is_behind:
            self._connection.replies_sent()

    def _chunk_of(self, part: FileSlice, room: int) -> bytes | bytearray | None:
        """The next bytes of the slice at the head of the queue; None when a thread reads them, or nobody can."""
        size = min(len(part), CHUNK_BYTES if self._socket < 0 else room)
        try:
            chunk = part.try_read(size)
        except OSError as error:
            self._give_up(part, error)
            return None
        if chunk is None:
            self._read_on_thread(part, size)
            return None
        self._advance(part, len(chunk))
        return chunk or None

    def _advance(self, part: FileSlice, size: int) -> bool:
        """Account for `size` bytes that are sent or read; whether any are left."""
        if not size:
            self._give_up(part, None)
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
            self._give_up(part, error)
            return
        chunk = future.result()
        self._advance(part, len(chunk))
        if chunk:
            self._transport.write(chunk)
            self._go_on()

    def _give_up(self, part: FileSlice, error: BaseException | None) -> None:
        """The reply is half sent, or about to be, so that the client cannot be told otherwise."""
        self.discard()
        if error is None:
            self._connection.close(f"{part!r} is no longer readable", level=logging.WARNING, soon=True)
            return
        is_deleted = isinstance(error, FileNotFoundError)
        level = logging.WARNING if is_deleted else logging.ERROR
        self._connection.close(f"{part!r} could not be read: {error}", level=level, soon=True)
        if isinstance(error, OSError) and not is_deleted:
            self._connection.reading_failed(part.path, error)


def _socket_of(transport: asyncio.Transport) -> int:
    if transport.get_extra_info("sslcontext") is not None:
        return NO_SOCKET
    socket = transport.get_extra_info("socket")
    return NO_SOCKET if socket is None else int(socket.fileno())
