"""Keeps a number of records per second (Kafka class `ThroughputThrottler`)."""

from __future__ import annotations

import asyncio

_MIN_SLEEP_S = 0.002
"""Shorter sleeps are not kept well; what they would sum up to is slept at once."""


class Throttle:
    """At most `per_second` records a second since it was made; negative is no limit, 0 lets nothing pass."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._loop = asyncio.get_running_loop()
        self._start_s = self._loop.time()

    async def wait(self, sent: int) -> None:
        """Wait until one more record may follow the `sent` ones."""
        if self._per_second < 0:
            return
        if self._per_second == 0:
            await asyncio.Event().wait()
        ahead_s = sent / self._per_second - (self._loop.time() - self._start_s)
        if ahead_s >= _MIN_SLEEP_S:
            await asyncio.sleep(ahead_s)
