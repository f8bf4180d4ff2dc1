"""Pace for the tools that send at a given rate (Kafka class `ThroughputThrottler`)."""

from __future__ import annotations

import asyncio
import time
from typing import Final

_SHORTEST_SLEEP_S: Final = 0.002
"""Sleeping less is not worth waking up for; what is late then goes out at once."""


class Throttle:
    """Gives leave to send `per_second` records from now on; negative for no limit, 0 for one record and no more."""

    def __init__(self, per_second: float, pause_s: float = 0.0) -> None:
        self._per_second = per_second
        self._pause_s = max(pause_s, _SHORTEST_SLEEP_S)
        self._start_s = time.monotonic()
        self._granted = 0

    async def take(self, limit: int) -> int:
        """Wait until at least one record may go; how many may, at most `limit`, which are counted as gone."""
        if self._per_second < 0:
            return limit
        while True:
            due = int((time.monotonic() - self._start_s) * self._per_second) + 1
            if self._per_second == 0 and self._granted:
                await asyncio.Event().wait()
            if due > self._granted:
                taken = min(limit, due - self._granted)
                self._granted += taken
                return taken
            await asyncio.sleep(self._pause_s)
