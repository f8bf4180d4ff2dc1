"""Limits on the memory of requests and replies (Kafka's MemoryPool)."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.network.connection import Connection

MAX_UNREAD_REPLY_BYTES: Final = 128 << 20
"""Limit on the memory of all encoded replies that clients have not read. Kafka has nothing like it."""
DECODED_TIMES: Final = 16
"""Memory of a request with many elements and its answer, as a multiple of its bytes (18: Fetch; 8: Metadata)."""
LONGEST_TURN_S: Final = 10.0
"""A large request that takes longer, such as a fetch that waits for records, no longer blocks others."""
REQUEST_MEMORY: Final = "queued.max.request.bytes"
"""The pause reason of a connection that waits for memory."""
LEAST_ARRIVED_BYTES: Final = 4 << 20
"""Bytes that may always have arrived of requests that wait for memory."""
PROGRESS_S: Final = 1.0
PROGRESS_BYTES: Final = 64 * 1024
"""A frame or a reply is stalled if fewer bytes of it moved in `PROGRESS_S` while others wait for memory."""


class RequestMemory:
    """queued.max.request.bytes: the memory of all requests that arrive in pieces (-1: no limit).

    Like Kafka's SimpleMemoryPool it grants memory as long as any is left, so one request may overdraw it and none
    starves. A connection that finds it empty stops reading until its turn comes. While any connection waits, those with
    stalled frames are closed, the slowest first: a client that begins large frames and sends no more must not lock out
    others. Waiting requests may have received a quarter of the limit together. Beyond that, the newest one of the
    address that holds most is closed.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._held: dict[Connection, int] = {}
        self._waiting: dict[Connection, tuple[int, int]] = {}
        """For each waiting connection: the bytes that it waits for, and how many of them have arrived."""
        self._arrived: Counter[str] = Counter()
        """The sum of the arrived bytes, by address."""
        self._received: dict[Connection, int] = {}
        """The arrived bytes of each incomplete frame at the last check."""
        self._next_look: asyncio.TimerHandle | None = None

    def take(self, connection: Connection, size: int, arrived: int = 0) -> None:
        """Charge `size` more bytes to `connection`, or pause it until they are available; `arrived` bytes are already
        received.
        """
        if self._is_empty(self._held_bytes):
            self._waiting[connection] = (size, arrived)
            self._arrived[connection.client_address] += arrived
            connection.pause_reading(REQUEST_MEMORY)
            if self._next_look is None:
                self._look()
            while self._arrived.total() > max(self._limit_bytes // 4, LEAST_ARRIVED_BYTES):
                self._close_newest()
        else:
            self._charge(connection, size)

    def release(self, connection: Connection) -> None:
        """Return the charge of `take`, if any; waiting connections are served in order."""
        if connection in self._waiting:
            self._leave(connection)
        self._held_bytes -= self._held.pop(connection, 0)
        self._serve_waiting()

    def shrink(self, connection: Connection, size: int) -> bool:
        """Reduce the charge of `connection` to `size` bytes. Returns False if it waits for memory or holds none."""
        if connection in self._waiting or connection not in self._held:
            return False
        self._held_bytes -= self._held[connection] - size
        self._held[connection] = size
        self._serve_waiting()
        return True

    def _serve_waiting(self) -> None:
        while self._waiting and not self._is_empty(self._held_bytes):
            waiting = next(iter(self._waiting))
            self._charge(waiting, self._leave(waiting))
            waiting.resume_reading(REQUEST_MEMORY)

    def _leave(self, connection: Connection) -> int:
        """Remove a connection from the queue. Returns the bytes that it waited for."""
        size, arrived = self._waiting.pop(connection)
        address = connection.client_address
        self._arrived[address] -= arrived
        if not self._arrived[address]:
            del self._arrived[address]
        return size

    def _close_newest(self) -> None:
        address = max(self._arrived, key=self._arrived.__getitem__)
        newest = next(each for each in reversed(self._waiting) if each.client_address == address)
        self._leave(newest)
        newest.close(f"too many requests wait for memory, and most of them from {address} ({REQUEST_MEMORY})")

    def _is_empty(self, held_bytes: int) -> bool:
        return 0 <= self._limit_bytes <= held_bytes

    def _charge(self, connection: Connection, size: int) -> None:
        self._held[connection] = self._held.get(connection, 0) + size
        self._held_bytes += size

    def _look(self) -> None:
        received = ((each, each.received_of_frame) for each in self._held)
        self._received = {each: count for each, count in received if count is not None}
        self._next_look = asyncio.get_running_loop().call_later(PROGRESS_S, self._close_stalled)

    def _close_stalled(self) -> None:
        """If any connection waits, close the slowest frames until memory is available."""
        self._next_look = None
        before, self._received = self._received, {}
        if not self._waiting:
            return
        progress = {
            each: count - before[each]
            for each in self._held
            if each in before and (count := each.received_of_frame) is not None
        }
        held_bytes = self._held_bytes
        for connection in sorted(progress, key=lambda each: progress[each]):
            if not self._is_empty(held_bytes):
                break
            if 0 <= progress[connection] < PROGRESS_BYTES:
                held_bytes -= self._held[connection]
                connection.close(
                    f"a request of {self._held[connection]} bytes has not come further for {PROGRESS_S:.0f} s, and "
                    f"others wait for its memory ({REQUEST_MEMORY})"
                )
        self._look()


class Turn:
    """One large request's claim to memory."""

    __slots__ = ("_memory", "_size", "_timer", "granted", "has_ended")

    def __init__(self, memory: LargeRequestMemory, size: int) -> None:
        self._memory = memory
        self._size = size
        self._timer: asyncio.TimerHandle | None = None
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the request may be decoded."""
        self.has_ended = False

    def grant(self) -> int:
        """Let the request be decoded. Returns the bytes that it takes."""
        self.granted.set_result(None)
        self._timer = asyncio.get_running_loop().call_later(LONGEST_TURN_S, self.end)
        return self._size

    def end(self, _: object = None) -> None:
        """Return the memory, if granted; a waiting turn is withdrawn."""
        self.has_ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._memory.release(self._size)


class LargeRequestMemory:
    """Limits the total memory of decoded requests with many elements (-1: no limit).

    It grants memory as long as any is left, so that one request may overdraw it. Addresses take turns. `RequestMemory`
    counts the bytes of the requests that wait.
    """

    def __init__(self, limit_bytes: int = -1) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._waiting: dict[str, deque[Turn]] = {}
        """Waiting turns by address, in turn order."""

    def take(self, address: str, request_bytes: int) -> Turn:
        """A claim for a request of `request_bytes`, which may have to wait. The caller must call its `end`."""
        turn = Turn(self, request_bytes * DECODED_TIMES)
        self._waiting.setdefault(address, deque()).append(turn)
        self._grant()
        return turn

    def release(self, size: int) -> None:
        """Called by a turn that has ended."""
        self._held_bytes -= size
        self._grant()

    def _grant(self) -> None:
        while self._waiting and not 0 <= self._limit_bytes <= self._held_bytes:
            address = next(iter(self._waiting))
            turns = self._waiting.pop(address)
            turn = turns.popleft()
            if turns:
                self._waiting[address] = turns
            if not (turn.has_ended or turn.granted.done()):
                self._held_bytes += turn.grant()


class ReplyMemory:
    """Limits the memory of encoded replies that clients have not read.

    A connection processes no request while its own replies are unread. Above the limit, that also applies to
    connections whose address holds a quarter of it; above twice the limit, to all connections, until some replies are
    read. Then clients that do not read are closed, those that hold most first.
    """

    def __init__(self, limit_bytes: int = MAX_UNREAD_REPLY_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._held: dict[Connection, int] = {}
        self._by_address: Counter[str] = Counter()
        self._waiting: dict[Connection, None] = {}
        self._next_look: asyncio.TimerHandle | None = None
        self.is_exhausted = False

    def hold(self, connection: Connection, size: int) -> None:
        """Set the charge of `connection` to `size` bytes."""
        growth = size - self._held.pop(connection, 0)
        if size:
            self._held[connection] = size
        self._held_bytes += growth
        address = connection.client_address
        self._by_address[address] += growth
        if not self._by_address[address]:
            del self._by_address[address]
        self.is_exhausted = self._held_bytes > self._limit_bytes
        if self.is_exhausted:
            if self._next_look is None:
                self._look()
        elif self._waiting:
            waiting, self._waiting = self._waiting, {}
            for each in waiting:
                each.schedule_processing()

    def must_wait(self, connection: Connection) -> bool:
        """Whether `connection` must wait; its `schedule_processing` is called when the wait is over."""
        if not self.is_exhausted:
            return False
        is_hoarder = self._by_address[connection.client_address] > self._limit_bytes // 4
        if is_hoarder or self._held_bytes > 2 * self._limit_bytes:
            self._waiting[connection] = None
            return True
        return False

    def forget(self, connection: Connection) -> None:
        """Called by a connection that has closed."""
        self._waiting.pop(connection, None)
        if connection in self._held:
            self.hold(connection, 0)

    def _look(self) -> None:
        unsent = {each: each.unsent_bytes for each in self._held}
        self._next_look = asyncio.get_running_loop().call_later(PROGRESS_S, self._close_stalled, unsent)

    def _close_stalled(self, before: dict[Connection, int]) -> None:
        """Close connections that have read next to nothing, until the others are within the limit."""
        self._next_look = None
        held_bytes = self._held_bytes
        for connection in sorted(before, key=before.__getitem__, reverse=True):
            if held_bytes <= self._limit_bytes:
                break
            if connection not in self._held:
                continue
            unsent_bytes = connection.unsent_bytes
            if before[connection] - unsent_bytes < PROGRESS_BYTES:
                held_bytes -= self._held[connection]
                connection.close(f"its client did not read {unsent_bytes} bytes while others waited for memory")
        if self.is_exhausted:
            self._look()
