"""Rates over sampled windows, and how long to wait until one is below its limit (Kafka classes `Rate`, `SampledStat`,
`SimpleRate`, `TokenBucket`, `QuotaUtils`). Times are milliseconds that never go back.
"""

from __future__ import annotations

from collections import deque
from math import floor
from typing import Final

MAX_THROTTLE_MS: Final = 2**31 - 1
"""The longest time that a response can name."""
FULL_BUCKET: Final = float("inf")
NEVER: Final = float("-inf")


class Rate:
    """The sum of all records per second, over `samples` windows of `window_ms`, the last of which is not over yet.

    Windows in which nothing was recorded count as well, those before the first record too: the first burst does not
    exceed a limit that it would keep on average.
    """

    __slots__ = (
        "_before",
        "_begin_ms",
        "_kept_ms",
        "_over",
        "_settled_until_ms",
        "_sum",
        "_whole",
        "_window_ms",
        "last_ms",
    )

    def __init__(self, samples: int, window_ms: int) -> None:
        self._window_ms = window_ms
        self._whole = samples - 1
        self._kept_ms = samples * window_ms
        self._over: deque[tuple[float, float, float]] = deque()
        """Begin, last record and sum of each window in which something was recorded, but for the last."""
        self._before = 0.0
        """The sum of those."""
        self._begin_ms = 0.0
        self._sum = 0.0
        """Of the last window."""
        self.last_ms = NEVER
        """When something was recorded last, or a window began."""
        self._settled_until_ms = NEVER
        """Until then the last window goes on, and none is to be forgotten."""

    def record(self, value: float, now_ms: float) -> None:
        """Count `value`; a negative one takes back what was counted."""
        if now_ms >= self._settled_until_ms:
            self._settle(now_ms)
        self._sum += value
        self.last_ms = now_ms

    def record_within(self, value: float, now_ms: float, most: float) -> bool:
        """Count `value`; gives whether the sum of all records that count is `most` or less."""
        if now_ms >= self._settled_until_ms:
            self._settle(now_ms)
        self._sum = total = self._sum + value
        self.last_ms = now_ms
        return self._before + total <= most

    def measure(self, now_ms: float) -> float:
        """The rate per second."""
        length_ms = self.length_ms(now_ms)
        return (self._before + self._sum) / (length_ms / 1000)

    def total(self, now_ms: float) -> float:
        """The sum of what was recorded and still counts."""
        self._forget(now_ms)
        return self._before + self._sum

    def length_ms(self, now_ms: float) -> float:
        """The time that the rate is of."""
        elapsed_ms = self._elapsed_ms(now_ms)
        missing = self._whole - int(elapsed_ms / self._window_ms)
        return elapsed_ms + missing * self._window_ms if missing > 0 else elapsed_ms or self._window_ms

    def least_length_ms(self) -> float:
        """The rate is never of less time."""
        return self._whole * self._window_ms

    def _elapsed_ms(self, now_ms: float) -> float:
        self._forget(now_ms)
        if self.last_ms == NEVER:
            # As in Kafka, whoever measures begins a window.
            self._settle(now_ms)
        return now_ms - (self._over[0][0] if self._over else self._begin_ms)

    def _settle(self, now_ms: float) -> None:
        """Begin a window if the last is over, so that something can be recorded."""
        self._forget(now_ms)
        over = self._over
        if self.last_ms == NEVER or now_ms - self._begin_ms >= self._window_ms:
            if self.last_ms != NEVER:
                over.append((self._begin_ms, self.last_ms, self._sum))
                self._before += self._sum
            self._begin_ms = self.last_ms = now_ms
            self._sum = 0.0
        ends_ms = self._begin_ms + self._window_ms
        self._settled_until_ms = min(ends_ms, over[0][1] + self._kept_ms) if over else ends_ms

    def _forget(self, now_ms: float) -> None:
        over = self._over
        if now_ms - self.last_ms >= self._kept_ms:
            over.clear()
            self._before = self._sum = 0.0
            self.last_ms = self._settled_until_ms = NEVER
        elif over and now_ms - over[0][1] >= self._kept_ms:
            while over and now_ms - over[0][1] >= self._kept_ms:
                over.popleft()
            self._before = sum(each[2] for each in over)


class SimpleRate(Rate):
    """A rate to which windows before the first record do not count; at least one window's length does."""

    __slots__ = ()

    def length_ms(self, now_ms: float) -> float:
        return max(self._elapsed_ms(now_ms), self._window_ms)


def throttle_time_ms(rate: float, limit: float, length_ms: float, longest_ms: float = MAX_THROTTLE_MS) -> int:
    """How long nothing may be recorded until `rate`, which is of `length_ms`, has come down to `limit`; 0 for a rate
    that is not above it.

    A limit that is not above 0 is never kept: the time is `longest_ms` then. Kafka does not throttle at all in that
    case, as its arithmetic overflows.
    """
    if rate <= limit:
        return 0
    if not limit > 0:
        return int(longest_ms)
    return floor(min((rate - limit) / limit * length_ms + 0.5, longest_ms))


class TokenBucket:
    """Tokens that come at a rate, and are kept for `samples` windows of `window_ms` at most. It may be overdrawn."""

    __slots__ = ("_kept_s", "_tokens", "_updated_ms")

    def __init__(self, samples: int, window_ms: int) -> None:
        self._kept_s = samples * window_ms / 1000
        self._tokens = FULL_BUCKET
        self._updated_ms = 0.0

    def tokens(self, per_second: float, now_ms: float) -> float:
        """The tokens that are there; negative when it is overdrawn."""
        refill = per_second * (now_ms - self._updated_ms) / 1000
        self._tokens = min(per_second * self._kept_s, self._tokens + refill)
        self._updated_ms = now_ms
        return self._tokens

    def take(self, tokens: float, per_second: float, now_ms: float) -> None:
        """Take tokens, whether they are there or not."""
        self._tokens = min(per_second * self._kept_s, self.tokens(per_second, now_ms) - tokens)

    def throttle_time_ms(self, per_second: float, now_ms: float) -> int:
        """How long until the bucket is not overdrawn any more. At a rate that is not above 0, that is never, but for a
        bucket of which nothing was taken.
        """
        missing = -self.tokens(per_second, now_ms)
        if missing <= 0:
            return 0
        # A rate of almost nothing makes a time that is infinite.
        return floor(min(missing / per_second * 1000 + 0.5, MAX_THROTTLE_MS)) if per_second > 0 else MAX_THROTTLE_MS
