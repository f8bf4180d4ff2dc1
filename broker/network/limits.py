"""Limits on connections, and on what a turn of the event loop receives (Kafka's ConnectionQuotas)."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

from broker.environment.contract import Clock
from cluster.quotas.client_quota import ClientQuota, QuotaWindow, Usage
from protocol.wire.frames import Memory

if TYPE_CHECKING:
    from broker.network.connection import Connection

CREATION_RATE: Final = "max.connection.creation.rate"
"""The reason for which a new connection is not read yet."""
UNLIMITED: Final = 2**31 - 1
_WHOLE_BROKER: Final = ""
_DEFAULT_WINDOW: Final = QuotaWindow(11, 1000)
TURN: Final = "turn"
"""The reason for which a connection is not read again in the same turn of the event loop."""
TURN_BYTES: Final = 4 << 20
"""To take so much from sockets, into memory that is new, takes some 4 ms."""


class Throttled(Protocol):
    """A connection whose reading the limits can pause."""

    def pause_reading(self, reason: str) -> None: ...

    def resume_reading(self, reason: str) -> None: ...


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
        self._waiting: deque[Connection] = deque()

    def admit(self, connection: Connection) -> str | None:
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

    def release(self, connection: Connection) -> None:
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

    def _has_place(self, connection: Connection) -> bool:
        limit = self.per_listener.get(connection.listener_name)
        is_free = limit is None or self._by_listener[connection.listener_name] < limit
        return is_free and self._admitted < self.max_connections

    def _count(self, connection: Connection) -> None:
        self._admitted += 1
        self._by_listener[connection.listener_name] += 1

    def _admit_waiting(self) -> None:
        """Those that have a place now, the longest waiting first. The others of a full listener hold up nobody."""
        still: deque[Connection] = deque()
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
        self._waiting: dict[str, dict[Connection, None]] = {}
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

    def admit(self, connection: Connection) -> None:
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

    def release(self, connection: Connection) -> None:
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

    def _resume_after(self, delay_ms: int, connection: Connection) -> None:
        asyncio.get_running_loop().call_later(delay_ms / 1000, self._resume, connection)

    def _resume(self, counted: Connection) -> None:
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
