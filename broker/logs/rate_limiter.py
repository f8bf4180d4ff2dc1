"""Keeping a stream of bytes below a rate (Kafka's `Throttler`)."""

from __future__ import annotations

import math
from collections.abc import Callable

_WINDOW_S = 1.0
"""For how long bytes that were not used may be made up for."""
_SHORTEST_SLEEP_S = 1e-6
"""Less than that no clock can show: waiting for it might never end."""
LONGEST_SLEEP_S = 0.3
"""A new rate counts after this time at the latest, also during a sleep."""


class RateLimiter:
    """How far a stream of bytes is ahead of a rate, for whoever waits in a way of its own.

    `bytes_per_second` may be changed at any time, on any thread; at 0 nothing may pass.
    """

    def __init__(self, monotonic_s: Callable[[], float], bytes_per_second: float = math.inf) -> None:
        self.bytes_per_second = bytes_per_second
        self._monotonic_s = monotonic_s
        self._began_s = monotonic_s()
        self._seen = 0

    def note(self, size: int) -> None:
        """Count bytes that have passed."""
        self._seen += size

    def wait_s(self) -> float:
        """How long to wait before more may pass: 0 for not at all, a sleep of `LONGEST_SLEEP_S` at most."""
        elapsed_s = self._monotonic_s() - self._began_s
        rate = self.bytes_per_second
        ahead_s = self._seen / rate - elapsed_s if rate > 0 else math.inf
        if ahead_s >= _SHORTEST_SLEEP_S:
            return min(ahead_s, LONGEST_SLEEP_S)
        if elapsed_s > _WINDOW_S:
            self._began_s += elapsed_s
            self._seen = 0
        return 0.0


class Throttle(RateLimiter):
    """Called with each number of bytes; sleeps when they came too fast. `monotonic_s` and `sleep` are the clock's."""

    def __init__(
        self, monotonic_s: Callable[[], float], sleep: Callable[[float], None], bytes_per_second: float = math.inf
    ) -> None:
        super().__init__(monotonic_s, bytes_per_second)
        self._sleep = sleep

    def __call__(self, size: int) -> None:
        """Note `size` bytes; returns when that many may have passed."""
        self.note(size)
        while wait_s := self.wait_s():
            self._sleep(wait_s)
