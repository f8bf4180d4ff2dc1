"""Connections that are muted because their client has exceeded a quota (KIP-219; Kafka class `ThrottledChannel`)."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from broker.network.limits import Throttled

REASON: Final = "quota"
"""The reason for which such a connection is not read."""


class Muted(Throttled, Protocol):
    """A connection that can be muted."""

    def take_up_again(self) -> None:
        """Take up the requests that were received."""
        ...


class ThrottledChannel:
    """The time until which one connection takes up no request. Its replies are sent meanwhile."""

    __slots__ = ("_connection", "_loop", "_timer", "_until_s")

    def __init__(self, connection: Muted, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._until_s = 0.0

    @property
    def is_muted(self) -> bool:
        """Whether the connection is to take up no request now."""
        return self._timer is not None

    def mute(self, time_ms: int) -> float:
        """Mute the connection for that time from now on, or for as long as it is muted anyway; gives when that ends."""
        self._until_s = max(self._until_s, self._loop.time() + time_ms / 1000)
        if self._timer is None:
            self._timer = self._loop.call_at(self._until_s, self._at_the_end, self._until_s)
            self._connection.pause_reading(REASON)
        return self._until_s

    def _at_the_end(self, until_s: float) -> None:
        if until_s < self._until_s:
            # Requests that were under way have made the time longer; one timer does.
            self._timer = self._loop.call_at(self._until_s, self._at_the_end, self._until_s)
            return
        self._timer = None
        self._connection.resume_reading(REASON)
        self._connection.take_up_again()

    def close(self) -> None:
        """Forget the connection, which is closed."""
        if self._timer is not None:
            self._timer.cancel()
