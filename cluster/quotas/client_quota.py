"""Quotas of one kind: usage by clients over sampled windows, and throttle times (Kafka classes `ClientQuotaManager`,
`Rate`, `SampledStat`, `TokenBucket`, `QuotaUtils`). Times are monotonic milliseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import floor
from typing import Any, Final, Generic, TypeVar

from cluster.quotas.entities import QuotaLimits, Sharers
from protocol.value import Value

MAX_THROTTLE_MS: Final = 2**31 - 1
"""The maximum throttle time of a response."""
FULL_BUCKET: Final = float("inf")
NEVER: Final = float("-inf")


class Rate:
    """The recorded sum per second, over `samples` windows of `window_ms`; the last window is still open.

    Empty windows are included, also those before the first record. So a first burst does not exceed a limit that it
    keeps on average.
    """

    __slots__ = (
        "_before",
        "_begin_ms",
        "_kept_ms",
        "_over",
        "_rolled_until_ms",
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
        """Start, time of the last record, and sum of each closed window with records."""
        self._before = 0.0
        """The sum of the closed windows."""
        self._begin_ms = 0.0
        self._sum = 0.0
        """The sum of the open window."""
        self.last_ms = NEVER
        """The time of the last record, or of the start of a window."""
        self._rolled_until_ms = NEVER
        """Until this time the open window stays open and none expires."""

    def record(self, value: float, now_ms: float) -> None:
        """Record `value`; a negative one undoes earlier records."""
        if now_ms >= self._rolled_until_ms:
            self._roll_windows(now_ms)
        self._sum += value
        self.last_ms = now_ms

    def record_within(self, value: float, now_ms: float, most: float) -> bool:
        """Record `value`; whether the sum over all windows is at most `most`."""
        if now_ms >= self._rolled_until_ms:
            self._roll_windows(now_ms)
        self._sum = total = self._sum + value
        self.last_ms = now_ms
        return self._before + total <= most

    def measure(self, now_ms: float) -> float:
        """The rate per second."""
        length_ms = self.length_ms(now_ms)
        return (self._before + self._sum) / (length_ms / 1000)

    def total(self, now_ms: float) -> float:
        """The sum over all windows that have not expired."""
        self._forget(now_ms)
        return self._before + self._sum

    def length_ms(self, now_ms: float) -> float:
        """The length of time that the rate covers."""
        elapsed_ms = self._elapsed_ms(now_ms)
        missing = self._whole - int(elapsed_ms / self._window_ms)
        return elapsed_ms + missing * self._window_ms if missing > 0 else elapsed_ms or self._window_ms

    def least_length_ms(self) -> float:
        """The minimum of `length_ms`."""
        return self._whole * self._window_ms

    def _elapsed_ms(self, now_ms: float) -> float:
        self._forget(now_ms)
        if self.last_ms == NEVER:
            # Measuring starts a window, as in Kafka.
            self._roll_windows(now_ms)
        return now_ms - (self._over[0][0] if self._over else self._begin_ms)

    def _roll_windows(self, now_ms: float) -> None:
        """Start a new window if the last one is over."""
        self._forget(now_ms)
        over = self._over
        if self.last_ms == NEVER or now_ms - self._begin_ms >= self._window_ms:
            if self.last_ms != NEVER:
                over.append((self._begin_ms, self.last_ms, self._sum))
                self._before += self._sum
            self._begin_ms = self.last_ms = now_ms
            self._sum = 0.0
        ends_ms = self._begin_ms + self._window_ms
        self._rolled_until_ms = min(ends_ms, over[0][1] + self._kept_ms) if over else ends_ms

    def _forget(self, now_ms: float) -> None:
        over = self._over
        if now_ms - self.last_ms >= self._kept_ms:
            over.clear()
            self._before = self._sum = 0.0
            self.last_ms = self._rolled_until_ms = NEVER
        elif over and now_ms - over[0][1] >= self._kept_ms:
            while over and now_ms - over[0][1] >= self._kept_ms:
                over.popleft()
            self._before = sum(each[2] for each in over)


class SimpleRate(Rate):
    """A rate without the windows before the first record, over the length of one window at least."""

    __slots__ = ()

    def length_ms(self, now_ms: float) -> float:
        return max(self._elapsed_ms(now_ms), self._window_ms)


def throttle_time_ms(rate: float, limit: float, length_ms: float, longest_ms: float = MAX_THROTTLE_MS) -> int:
    """How long to pause until `rate`, measured over `length_ms`, has dropped to `limit`; 0 unless it exceeds it.

    If `limit` is not positive, the result is `longest_ms`. Kafka does not throttle in that case, because its arithmetic
    overflows.
    """
    if rate <= limit:
        return 0
    if not limit > 0:
        return int(longest_ms)
    return floor(min((rate - limit) / limit * length_ms + 0.5, longest_ms))


class TokenBucket:
    """Tokens refilled at a rate, with a capacity of `samples` windows of `window_ms`. The balance may be negative."""

    __slots__ = ("_kept_s", "_tokens", "_updated_ms")

    def __init__(self, samples: int, window_ms: int) -> None:
        self._kept_s = samples * window_ms / 1000
        self._tokens = FULL_BUCKET
        self._updated_ms = 0.0

    def tokens(self, per_second: float, now_ms: float) -> float:
        """The balance; negative if overdrawn."""
        refill = per_second * (now_ms - self._updated_ms) / 1000
        self._tokens = min(per_second * self._kept_s, self._tokens + refill)
        self._updated_ms = now_ms
        return self._tokens

    def take(self, tokens: float, per_second: float, now_ms: float) -> None:
        """Take tokens, even if that overdraws the bucket."""
        self._tokens = min(per_second * self._kept_s, self.tokens(per_second, now_ms) - tokens)

    def throttle_time_ms(self, per_second: float, now_ms: float) -> int:
        """How long until the balance is not negative. If the rate is not positive, the maximum, except for an unused
        bucket.
        """
        missing = -self.tokens(per_second, now_ms)
        if missing <= 0:
            return 0
        # With a tiny rate the time is infinite.
        return floor(min(missing / per_second * 1000 + 0.5, MAX_THROTTLE_MS)) if per_second > 0 else MAX_THROTTLE_MS


MOST_REMEMBERED_CLIENTS: Final = 4096
"""Maximum of cached usages by client, and of usages before idle ones are dropped."""
NEVER_WITHIN: Final = float("-inf")
THROTTLE_SAMPLES: Final = 2
THROTTLE_WINDOW_MS: Final = 30_000
"""The window for the mean throttle time, as for every metric in Kafka."""


class QuotaWindow(Value):
    """quota.window.num and quota.window.size.seconds, or the settings for controller mutations."""

    samples: int
    window_ms: int


class Usage:
    """Usage of one limit, by all clients that share it."""

    __slots__ = ("_asked_ms", "_limit", "_throttle_times", "_throttles", "rate", "surely_within")

    def __init__(self, window: QuotaWindow, limit: float) -> None:
        self._asked_ms = 0.0
        self.rate = Rate(window.samples, window.window_ms)
        self._limit = self.surely_within = limit
        self.limit = limit
        self._throttles = Rate(THROTTLE_SAMPLES, THROTTLE_WINDOW_MS)
        self._throttle_times = Rate(THROTTLE_SAMPLES, THROTTLE_WINDOW_MS)

    @property
    def limit(self) -> float:
        """The maximum rate."""
        return self._limit

    @limit.setter
    def limit(self, limit: float) -> None:
        self._limit = limit
        # A sum up to this is within the limit at any time.
        self.surely_within = limit * self.rate.least_length_ms() / 1000 if limit >= 0 else NEVER_WITHIN

    @property
    def last_used_ms(self) -> float:
        """The time of the last look-up or record."""
        return max(self._asked_ms, self.rate.last_ms)

    def asked(self, now_ms: float) -> None:
        """Note a look-up."""
        self._asked_ms = now_ms

    def throttled(self, time_ms: int, now_ms: float) -> None:
        """Count a throttled client."""
        self._throttles.record(1, now_ms)
        self._throttle_times.record(time_ms, now_ms)

    def mean_throttle_time_ms(self, now_ms: float) -> float:
        """The mean over the last 30 to 60 seconds; 0 if no client was throttled."""
        count = self._throttles.total(now_ms)
        return self._throttle_times.total(now_ms) / count if count else 0.0


U = TypeVar("U", bound=Usage)


class UsageTable(Generic[U]):
    """Usages of all clients with a limit."""

    def __init__(self, window: QuotaWindow, usage_type: type[U]) -> None:
        self._window = window
        self._usage_type = usage_type
        self._limits = QuotaLimits({})
        self._usages: dict[Sharers, U] = {}
        self._by_client: dict[tuple[str, str], U | None] = {}
        self._most_usages = MOST_REMEMBERED_CLIENTS
        self.remembered: list[dict[Any, U | None]] = [self._by_client]
        """Caches of usages returned by `of`, cleared when these may be stale."""

    def set_limits(self, limits: QuotaLimits) -> None:
        """Replace the limits. Usages survive if they still have a limit."""
        self._limits = limits
        self._forget()
        for sharers, usage in list(self._usages.items()):
            limit = limits.limit(sharers)
            if limit is None:
                del self._usages[sharers]
            else:
                usage.limit = limit

    def of(self, user: str, client_id: str, now_ms: float) -> U | None:
        """The usage of the client's limit, or None without one."""
        key = (user, client_id)
        usage = self._by_client.get(key)
        if usage is None and key not in self._by_client:
            usage = self._find(user, client_id, now_ms)
            if len(self._by_client) >= MOST_REMEMBERED_CLIENTS:
                self._by_client.clear()
            self._by_client[key] = usage
        if usage is not None:
            usage.asked(now_ms)
        return usage

    def throttled(self, user: str, client_id: str, time_ms: int, now_ms: float) -> None:
        """Count that a client is throttled."""
        usage = self.of(user, client_id, now_ms)
        if usage is not None:
            usage.throttled(time_ms, now_ms)

    def _find(self, user: str, client_id: str, now_ms: float) -> U | None:
        sharers = self._limits.sharers(user, client_id)
        limit = self._limits.limit(sharers)
        if limit is None:
            return None
        usage = self._usages.get(sharers)
        if usage is None:
            if len(self._usages) >= self._most_usages:
                self._drop_idle(now_ms)
            usage = self._usages[sharers] = self._usage_type(self._window, limit)
        return usage

    def _drop_idle(self, now_ms: float) -> None:
        """Forget idle usages: a client may choose any client id."""
        kept_ms = max(self._window.samples * self._window.window_ms, THROTTLE_SAMPLES * THROTTLE_WINDOW_MS)
        self._usages = {
            sharers: usage for sharers, usage in self._usages.items() if now_ms - usage.last_used_ms < kept_ms
        }
        self._forget()
        self._most_usages = max(MOST_REMEMBERED_CLIENTS, 2 * len(self._usages))

    def _forget(self) -> None:
        for each in self.remembered:
            each.clear()

    def __iter__(self) -> Iterator[tuple[Sharers, U]]:
        return iter(self._usages.items())


class ClientQuota(UsageTable[Usage]):
    """Limits of a rate: bytes per second, or percentage of time."""

    def __init__(self, window: QuotaWindow, longest_ms: int | None = None) -> None:
        """`longest_ms` caps the throttle time."""
        super().__init__(window, Usage)
        self._longest_ms = longest_ms

    def record(self, user: str, client_id: str, value: float, now_ms: float) -> int:
        """Record a client's usage and return its throttle time in milliseconds."""
        usage = self.of(user, client_id, now_ms)
        return 0 if usage is None else self.charge(usage, value, now_ms)

    def charge(self, usage: Usage, value: float, now_ms: float) -> int:
        """As `record`, for a usage returned by `of`."""
        rate = usage.rate
        if rate.record_within(value, now_ms, usage.surely_within):
            return 0
        length_ms = rate.length_ms(now_ms)
        longest_ms = self._longest_ms
        if longest_ms is None:
            longest_ms = MAX_THROTTLE_MS if usage.limit > 0 else self._window.samples * self._window.window_ms
        return throttle_time_ms(rate.measure(now_ms), usage.limit, length_ms, longest_ms)

    def take_back(self, user: str, client_id: str, value: float, now_ms: float) -> None:
        """Undo a recorded usage."""
        usage = self.of(user, client_id, now_ms)
        if usage is not None:
            usage.rate.record(-value, now_ms)

    def most_at_once(self, user: str, client_id: str, now_ms: float) -> float:
        """A single amount above this exceeds the limit in any case; infinite without a limit."""
        usage = self.of(user, client_id, now_ms)
        if usage is None:
            return float("inf")
        return max(0.0, usage.limit) * (self._window.samples - 1) * self._window.window_ms / 1000


class MutationUsage(Usage):
    """Usage of one limit on mutations, by all clients that share it."""

    __slots__ = ("bucket",)

    def __init__(self, window: QuotaWindow, limit: float) -> None:
        super().__init__(window, limit)
        self.bucket = TokenBucket(window.samples, window.window_ms)


class MutationQuota(UsageTable[MutationUsage]):
    """Limits on partitions created and deleted per second (KIP-599)."""

    def __init__(self, window: QuotaWindow) -> None:
        super().__init__(window, MutationUsage)

    def record(self, user: str, client_id: str, mutations: float, now_ms: float, *, is_strict: bool) -> int:
        """Record mutations and return the client's throttle time.

        A strict quota accepts any number of mutations until it is exceeded, and then rejects all: if the returned time
        is above 0, the mutations were not recorded and must not be made. Otherwise all are accepted, and the client
        waits.
        """
        usage = self.of(user, client_id, now_ms)
        if usage is None:
            return 0
        bucket, limit = usage.bucket, usage.limit
        if is_strict:
            throttle_ms = bucket.throttle_time_ms(limit, now_ms)
            if throttle_ms:
                return throttle_ms
        usage.rate.record(mutations, now_ms)
        bucket.take(mutations, limit, now_ms)
        return 0 if is_strict else bucket.throttle_time_ms(limit, now_ms)
