"""Limits on connections and on the memory of requests and replies (Kafka's ConnectionQuotas and MemoryPool)."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Mapping
from typing import Final, Protocol

from broker.environment.contract import Clock
from cluster.quotas.client_quota import ClientQuota, QuotaWindow, Usage
from protocol.wire.frames import Memory

MAX_UNREAD_REPLY_BYTES: Final = 128 << 20
"""Limit on the memory of all encoded replies that clients have not read. Kafka has no such limit."""


CREATION_RATE: Final = "max.connection.creation.rate"
"""The reason for which a new connection is not read yet."""
UNLIMITED: Final = 2**31 - 1
_WHOLE_BROKER: Final = ""
_DEFAULT_WINDOW: Final = QuotaWindow(11, 1000)
REQUEST_MEMORY: Final = "queued.max.request.bytes"
"""The reason for which a connection that waits for memory is not read."""
TURN: Final = "turn"
"""The reason for which a connection is not read again in the same turn of the event loop."""
TURN_BYTES: Final = 4 << 20
"""To take so much from sockets, into memory that is new, takes some 4 ms."""
PROGRESS_S: Final = 1.0
PROGRESS_BYTES: Final = 64 * 1024
"""A frame of which so little has come in `PROGRESS_S` is stalled while others wait for memory."""


class Throttled(Protocol):
    """A connection whose reading the limits can pause."""

    def pause_reading(self, reason: str) -> None: ...

    def resume_reading(self, reason: str) -> None: ...


class Counted(Throttled, Protocol):
    """A connection as `ConnectionLimits` sees it."""

    client_address: str
    listener_name: str
    counted: bool


class ConnectionLimits:
    """max.connections, also that of a listener, and max.connections.per.ip (with overrides).

    A connection over the limit of its address is refused. A connection over the limit of the broker or of its
    listener is not read until another one closes; Kafka's acceptor blocks in this case, which looks the same to
    clients. Waiting connections are open and use descriptors: above `most_open` connections in all, every further one
    is refused, because the remaining descriptors are reserved for the logs.
    """

    def __init__(
        self,
        max_connections: int,
        max_per_ip: int,
        per_ip_overrides: Mapping[str, int],
        most_open: int | None = None,
        per_listener: Mapping[str, int] | None = None,
    ) -> None:
        """`per_listener` has limits by listener name. `most_open` None means no limit on open connections."""
        self._most_open = most_open
        self.max_connections = max_connections
        self.max_per_ip = max_per_ip
        self.per_ip_overrides = dict(per_ip_overrides)
        self.per_listener = dict(per_listener or {})
        self._by_address: Counter[str] = Counter()
        self._by_listener: Counter[str] = Counter()
        self._admitted = 0
        self._waiting: deque[Counted] = deque()

    def admit(self, connection: Counted) -> str | None:
        """Count `connection`, or say why it is refused."""
        address = connection.client_address
        limit = self.per_ip_overrides.get(address, self.max_per_ip)
        if self._by_address[address] >= limit:
            return (
                f"Rejected connection from /{address}, address already has the configured maximum of {limit} "
                "connections."
            )
        if self._most_open is not None and self._admitted + len(self._waiting) >= self._most_open:
            return (
                f"Rejected connection from /{address}, {self._most_open} connections are open, and the other files "
                "that this process may open (ulimit -n) are reserved for the logs."
            )
        self._by_address[address] += 1
        connection.counted = True
        if self._has_place(connection):
            self._count(connection)
        else:
            self._waiting.append(connection)
            connection.pause_reading("max.connections")
        return None

    def release(self, connection: Counted) -> None:
        """Forget a connection that closed; the longest waiting one takes its place."""
        if not connection.counted:
            return
        connection.counted = False
        self._by_address[connection.client_address] -= 1
        if not self._by_address[connection.client_address]:
            del self._by_address[connection.client_address]
        if connection in self._waiting:
            self._waiting.remove(connection)
            return
        self._admitted -= 1
        self._by_listener[connection.listener_name] -= 1
        self._admit_waiting()

    def change(
        self,
        max_connections: int,
        max_per_ip: int,
        per_ip_overrides: Mapping[str, int],
        per_listener: Mapping[str, int] | None = None,
    ) -> None:
        """Change the limits while the broker runs (dynamic configs); open connections stay."""
        self.max_connections = max_connections
        self.max_per_ip = max_per_ip
        self.per_ip_overrides = dict(per_ip_overrides)
        self.per_listener = dict(per_listener or {})
        self._admit_waiting()

    def _has_place(self, connection: Counted) -> bool:
        limit = self.per_listener.get(connection.listener_name)
        is_free = limit is None or self._by_listener[connection.listener_name] < limit
        return is_free and self._admitted < self.max_connections

    def _count(self, connection: Counted) -> None:
        self._admitted += 1
        self._by_listener[connection.listener_name] += 1

    def _admit_waiting(self) -> None:
        """Those that have a place now, the longest waiting first. The others of a full listener hold up nobody."""
        still: deque[Counted] = deque()
        while self._waiting and self._admitted < self.max_connections:
            connection = self._waiting.popleft()
            if self._has_place(connection):
                self._count(connection)
                connection.resume_reading("max.connections")
            else:
                still.append(connection)
        self._waiting.extendleft(reversed(still))


class ConnectionRates:
    """max.connection.creation.rate, of the broker and of single listeners (KIP-612).

    A connection beyond a rate is not read until its turn comes, and later ones of its listener wait behind it; Kafka's
    acceptor waits in this case, which looks the same to clients. The listener of brokers counts for its own rate only.
    """

    def __init__(self, clock: Clock, window: QuotaWindow = _DEFAULT_WINDOW) -> None:
        self._now_s = clock.monotonic_s
        self._quota = ClientQuota(window, longest_ms=window.window_ms)
        self._window = window
        self._usages: dict[str, Usage] = {}
        """Of each listener that has a rate, and that of the broker."""
        self._exempt: str | None = None
        self._waiting: dict[str, dict[Counted, None]] = {}
        """By listener, as long as the one that came first has to wait; it alone has been counted."""

    def change(self, rate: int, per_listener: Mapping[str, int], exempt: str | None) -> None:
        """Have these rates; connections of the listener `exempt` do not count for that of the broker."""
        rates = {_WHOLE_BROKER: rate, **per_listener}
        before, self._usages = self._usages, {}
        for name, limit in rates.items():
            if limit < UNLIMITED:
                usage = self._usages[name] = before.get(name) or Usage(self._window, limit)
                usage.limit = limit
        self._exempt = exempt

    def admit(self, connection: Counted) -> None:
        """Count `connection`, which waits if it has to."""
        waiting = self._waiting.get(connection.listener_name)
        if waiting is None:
            delay_ms = self._charge(connection.listener_name) if self._usages else 0
            if not delay_ms:
                return
            waiting = self._waiting[connection.listener_name] = {}
            self._resume_after(delay_ms, connection)
        waiting[connection] = None
        connection.pause_reading(CREATION_RATE)

    def release(self, connection: Counted) -> None:
        """Forget a connection that closed."""
        waiting = self._waiting.get(connection.listener_name)
        if waiting is not None:
            waiting.pop(connection, None)

    def _charge(self, listener: str) -> int:
        """Count a connection; gives for how many milliseconds it has to wait."""
        now_ms = self._now_s() * 1000
        names = (listener,) if listener == self._exempt else (_WHOLE_BROKER, listener)
        usages = [self._usages[each] for each in names if each in self._usages]
        return max((self._quota.charge(each, 1, now_ms) for each in usages), default=0)

    def _resume_after(self, delay_ms: int, connection: Counted) -> None:
        asyncio.get_running_loop().call_later(delay_ms / 1000, self._resume, connection)

    def _resume(self, counted: Counted) -> None:
        """Read a connection that was counted, unless it has closed, and those behind it as far as the rate allows."""
        listener = counted.listener_name
        waiting = self._waiting[listener]
        if counted in waiting:
            del waiting[counted]
            counted.resume_reading(CREATION_RATE)
        for connection in list(waiting):
            delay_ms = self._charge(listener)
            if delay_ms:
                self._resume_after(delay_ms, connection)
                return
            del waiting[connection]
            connection.resume_reading(CREATION_RATE)
        del self._waiting[listener]


class Receiving(Throttled, Protocol):
    """A connection as `RequestMemory` sees it."""

    @property
    def received_of_frame(self) -> int | None:
        """Bytes that have arrived of an incomplete frame; None if the client is not expected to send more now."""
        ...

    def close(self, reason: str) -> None: ...


class RequestMemory:
    """queued.max.request.bytes: what requests that arrive in pieces may hold together (-1: no limit).

    Like Kafka's SimpleMemoryPool it gives as long as anything is left, so one request may overdraw it and none is
    starved: a connection that finds it empty stops reading until its turn comes. While any waits, frames that do not
    arrive are closed, the slowest first: clients that begin large frames and send no more must not keep others out.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._held: dict[Receiving, int] = {}
        self._waiting: dict[Receiving, int] = {}
        self._received: dict[Receiving, int] = {}
        """Bytes of each incomplete frame that had arrived at the last check."""
        self._next_look: asyncio.TimerHandle | None = None

    def take(self, connection: Receiving, size: int) -> None:
        """Charge `size` bytes to `connection`, or pause it until they can be charged."""
        if self._is_empty(self._held_bytes):
            self._waiting[connection] = size
            connection.pause_reading(REQUEST_MEMORY)
            if self._next_look is None:
                self._look()
        else:
            self._charge(connection, size)

    def give_back(self, connection: Receiving) -> None:
        """Return what `take` charged, if anything; those that wait are served in order."""
        if self._waiting.pop(connection, None) is not None:
            return
        self._held_bytes -= self._held.pop(connection, 0)
        self._serve_waiting()

    def shrink(self, connection: Receiving, size: int) -> bool:
        """Charge only `size` bytes of those that are charged to `connection`. False if none are."""
        if connection not in self._held:
            return False
        self._held_bytes -= self._held[connection] - size
        self._held[connection] = size
        self._serve_waiting()
        return True

    def _serve_waiting(self) -> None:
        while self._waiting and not self._is_empty(self._held_bytes):
            waiting = next(iter(self._waiting))
            self._charge(waiting, self._waiting.pop(waiting))
            waiting.resume_reading(REQUEST_MEMORY)

    def _is_empty(self, held_bytes: int) -> bool:
        return 0 <= self._limit_bytes <= held_bytes

    def _charge(self, connection: Receiving, size: int) -> None:
        self._held[connection] = size
        self._held_bytes += size

    def _look(self) -> None:
        received = ((each, each.received_of_frame) for each in self._held)
        self._received = {each: count for each, count in received if count is not None}
        self._next_look = asyncio.get_running_loop().call_later(PROGRESS_S, self._close_stalled)

    def _close_stalled(self) -> None:
        """Close the slowest frames until there is memory for others, if any wait."""
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


class ReceivingTurn:
    """Bounds what a turn of the event loop spends on frames that arrive in pieces, however many there are: it receives
    `TURN_BYTES` and one more read of each connection, and frees the memory of one frame that will not be complete.
    """

    def __init__(self) -> None:
        self._received = 0
        self._paused: list[Throttled] = []
        self._unused: deque[Memory] = deque()
        self._continues = False

    def count(self, connection: Throttled, size: int) -> None:
        """Account for `size` bytes of a frame, and stop reading until the next turn if there are too many."""
        self._received += size
        if self._received >= TURN_BYTES:
            self._paused.append(connection)
            connection.pause_reading(TURN)
        self._go_on()

    def free(self, memory: Memory) -> None:
        """Free what a closed connection has received of a frame. 80 MB take 4 ms, and forty may close at once."""
        self._unused.append(memory)
        self._go_on()

    def _go_on(self) -> None:
        if not self._continues:
            self._continues = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._continues = False
        paused, self._paused, self._received = self._paused, [], 0
        for connection in paused:
            connection.resume_reading(TURN)
        if self._unused:
            self._unused.popleft()
        if self._unused:
            self._go_on()


class Answered(Protocol):
    """A connection as `ReplyMemory` sees it."""

    def take_up_again(self) -> None:
        """Take up requests again."""
        ...


class ReplyMemory:
    """Counts the memory of encoded replies that clients have not read.

    A connection takes up no request while its own replies are unread. Above the limit no connection does, until some
    replies are read or `SocketServer` closes the connections that do not read.
    """

    def __init__(self, limit_bytes: int = MAX_UNREAD_REPLY_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._held: dict[Answered, int] = {}
        self._waiting: dict[Answered, None] = {}
        self.is_exhausted = False

    def hold(self, connection: Answered, size: int) -> None:
        """Charge `size` bytes to `connection`, in place of what it was charged before."""
        self._held_bytes += size - self._held.pop(connection, 0)
        if size:
            self._held[connection] = size
        self.is_exhausted = self._held_bytes > self._limit_bytes
        if not self.is_exhausted and self._waiting:
            waiting, self._waiting = self._waiting, {}
            for each in waiting:
                each.take_up_again()

    def keeps_waiting(self, connection: Answered) -> bool:
        """Whether `connection` has to wait; its `take_up_again` is called when that is over."""
        if self.is_exhausted:
            self._waiting[connection] = None
        return self.is_exhausted

    def forget(self, connection: Answered) -> None:
        """Called by a connection that closed."""
        self._waiting.pop(connection, None)
        if connection in self._held:
            self.hold(connection, 0)
