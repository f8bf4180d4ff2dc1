"""Limits on connections and on the bytes received per event-loop turn (Kafka's ConnectionQuotas)."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

from cluster.quotas.client_quota import ClientQuota, QuotaWindow, Usage
from environment.contract import Clock
from protocol.wire.frames import Memory

if TYPE_CHECKING:
    from broker.network.connection import Connection

CREATION_RATE: Final = "max.connection.creation.rate"
"""The pause reason of a new connection that must wait."""
UNLIMITED: Final = 2**31 - 1
_WHOLE_BROKER: Final = ""
_DEFAULT_WINDOW: Final = QuotaWindow(11, 1000)
TURN: Final = "turn"
"""The pause reason of a connection that is not read again in this event-loop turn."""
TURN_BYTES: Final = 4 << 20
"""Receiving this many bytes into fresh memory takes some 4 ms."""


class Throttled(Protocol):
    """A connection whose reading the limits can pause."""

    def pause_reading(self, reason: str) -> None: ...

    def resume_reading(self, reason: str) -> None: ...


class ConnectionLimits:
    """max.connections, of the broker and of each listener, and max.connections.per.ip (with overrides).

    A connection over the limit of its address is refused. A connection over the limit of the broker or of its listener
    is not read until another one closes; Kafka's acceptor blocks in this case, which looks the same to clients. Waiting
    connections are open and use descriptors: above `most_open` connections in all, every further one is refused,
    because the remaining descriptors are reserved for the logs.
    """

    def __init__(
        self,
        max_connections: int,
        max_per_ip: int,
        per_ip_overrides: Mapping[str, int],
        most_open: int | None = None,
        per_listener: Mapping[str, int] | None = None,
    ) -> None:
        """`per_listener` holds limits by listener name. With `most_open` None the number of open connections is not
        limited.
        """
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
        """Count `connection`. Returns None, or the reason to refuse it."""
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
        """Forget a closed connection; the longest waiting one takes its place."""
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
        """Change the limits at runtime (dynamic configs); open connections stay."""
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
        """Admit the waiting connections that have a place now, longest waiting first. Those of a full listener do not
        block the others.
        """
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
    acceptor waits in this case, which looks the same to clients. The inter-broker listener counts only towards its own
    rate.
    """

    def __init__(self, clock: Clock, window: QuotaWindow = _DEFAULT_WINDOW) -> None:
        self._now_s = clock.monotonic_s
        self._quota = ClientQuota(window, longest_ms=window.window_ms)
        self._window = window
        self._usages: dict[str, Usage] = {}
        """Usage of each listener that has a rate, and of the broker."""
        self._exempt: str | None = None
        self._waiting: dict[str, dict[Connection, None]] = {}
        """Waiting connections by listener, while the first of them must wait; only the first has been counted."""

    def change(self, rate: int, per_listener: Mapping[str, int], exempt: str | None) -> None:
        """Set the rates; connections of the listener `exempt` do not count towards the broker's rate."""
        rates = {_WHOLE_BROKER: rate, **per_listener}
        before, self._usages = self._usages, {}
        for name, limit in rates.items():
            if limit < UNLIMITED:
                usage = self._usages[name] = before.get(name) or Usage(self._window, limit)
                usage.limit = limit
        self._exempt = exempt

    def admit(self, connection: Connection) -> None:
        """Count `connection`, and make it wait if necessary."""
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
        """Forget a closed connection."""
        waiting = self._waiting.get(connection.listener_name)
        if waiting is not None:
            waiting.pop(connection, None)

    def _charge(self, listener: str) -> int:
        """Count a connection. Returns how many milliseconds it must wait."""
        now_ms = self._now_s() * 1000
        names = (listener,) if listener == self._exempt else (_WHOLE_BROKER, listener)
        usages = [self._usages[each] for each in names if each in self._usages]
        return max((self._quota.charge(each, 1, now_ms) for each in usages), default=0)

    def _resume_after(self, delay_ms: int, connection: Connection) -> None:
        asyncio.get_running_loop().call_later(delay_ms / 1000, self._resume, connection)

    def _resume(self, counted: Connection) -> None:
        """Read a connection that has been counted, unless it has closed, and as many behind it as the rate allows."""
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
    """Limits the work per event-loop turn on frames that arrive in pieces, however many there are. A turn receives
    `TURN_BYTES` and one more read of each connection, and frees the memory of one abandoned frame.
    """

    def __init__(self) -> None:
        self._received = 0
        self._paused: list[Throttled] = []
        self._unused: deque[Memory] = deque()
        self._continues = False

    def count(self, connection: Throttled, size: int) -> None:
        """Count `size` received bytes of a frame; beyond the limit, stop reading until the next turn."""
        self._received += size
        if self._received >= TURN_BYTES:
            self._paused.append(connection)
            connection.pause_reading(TURN)
        self._continue()

    def free(self, memory: Memory) -> None:
        """Free the received part of a frame whose connection has closed. 80 MB take 4 ms; forty may close at once."""
        self._unused.append(memory)
        self._continue()

    def _continue(self) -> None:
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
            self._continue()
