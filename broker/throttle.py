"""Keeping a stream of bytes below a rate (Kafka's `Throttler`)."""

from __future__ import annotations

import math
from collections.abc import Callable

_WINDOW_S = 1.0
"""For how long bytes that were not used may be made up for."""
_SHORTEST_SLEEP_S = 1e-6
"""Less than that no clock can show: waiting for it might never end."""
_LONGEST_SLEEP_S = 0.3
"""A new rate counts after this time at the latest, also in the midst of a sleep."""


class Throttle:
    """To be called with each number of bytes; sleeps as long as they came too fast.

    `bytes_per_second` may be changed at any time, on any thread. `monotonic_s` and `sleep` are the clock's.
    """

    def __init__(
        self, monotonic_s: Callable[[], float], sleep: Callable[[float], None], bytes_per_second: float = math.inf
    ) -> None:
        self.bytes_per_second = bytes_per_second
        self._monotonic_s = monotonic_s
        self._sleep = sleep
        self._began_s = monotonic_s()
        self._seen = 0

    def __call__(self, size: int) -> None:
        """Note `size` bytes; returns when that many may have passed."""
        self._seen += size
        while True:
            elapsed_s = self._monotonic_s() - self._began_s
            ahead_s = self._seen / self.bytes_per_second - elapsed_s
            if ahead_s < _SHORTEST_SLEEP_S:
                if elapsed_s > _WINDOW_S:
                    self._began_s += elapsed_s
                    self._seen = 0
                return
            self._sleep(min(ahead_s, _LONGEST_SLEEP_S))
