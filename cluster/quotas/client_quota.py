"""Quotas of one kind: what clients have used, and how long they have to wait (Kafka classes `ClientQuotaManager` and
`ControllerMutationQuotaManager`). Times are milliseconds that never go back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Generic, TypeVar

from cluster.quotas.precedence import Limits, Sharers
from cluster.quotas.rates import MAX_THROTTLE_MS, Rate, TokenBucket, throttle_time_ms
from protocol.value import Value

MOST_REMEMBERED_CLIENTS: Final = 4096
"""Clients of which it is remembered who they share a limit with; and users of limits, before idle ones are dropped."""
NEVER_WITHIN: Final = float("-inf")
THROTTLE_SAMPLES: Final = 2
THROTTLE_WINDOW_MS: Final = 30_000
"""The times that the mean of throttle times is of, as that of every metric in Kafka."""


class QuotaWindow(Value):
    """quota.window.num and quota.window.size.seconds, or their counterparts for changes of topics."""

    samples: int
    window_ms: int


class Usage:
    """Use of one limit by all who share it."""

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
        """The rate that may not be exceeded."""
        return self._limit

    @limit.setter
    def limit(self, limit: float) -> None:
        self._limit = limit
        # As long as no more than this counts, the limit is kept whatever the time.
        self.surely_within = limit * self.rate.least_length_ms() / 1000 if limit >= 0 else NEVER_WITHIN

    @property
    def last_used_ms(self) -> float:
        """When it was asked for, or something recorded."""
        return max(self._asked_ms, self.rate.last_ms)

    def asked(self, now_ms: float) -> None:
        """Take down that it is used."""
        self._asked_ms = now_ms

    def throttled(self, time_ms: int, now_ms: float) -> None:
        """Count that somebody has to wait."""
        self._throttles.record(1, now_ms)
        self._throttle_times.record(time_ms, now_ms)

    def mean_throttle_time_ms(self, now_ms: float) -> float:
        """Of the last half to whole minute; 0 when nobody had to wait."""
        count = self._throttles.total(now_ms)
        return self._throttle_times.total(now_ms) / count if count else 0.0


U = TypeVar("U", bound=Usage)


class UsageTable(Generic[U]):
    """Who has used what, of those that have a limit."""

    def __init__(self, window: QuotaWindow, usage_type: type[U]) -> None:
        self._window = window
        self._usage_type = usage_type
        self._limits = Limits({})
        self._usages: dict[Sharers, U] = {}
        self._by_client: dict[tuple[str, str], U | None] = {}
        self._most_usages = MOST_REMEMBERED_CLIENTS
        self.remembered: list[dict[Any, U | None]] = [self._by_client]
        """Where usages that `of` gave are kept: emptied when others may have taken their places."""

    def set_limits(self, limits: Limits) -> None:
        """Have these limits from now on. What was used stays counted where there is still a limit."""
        self._limits = limits
        self._forget()
        for sharers, usage in list(self._usages.items()):
            limit = limits.limit(sharers)
            if limit is None:
                del self._usages[sharers]
            else:
                usage.limit = limit

    def of(self, user: str, client_id: str, now_ms: float) -> U | None:
        """The usage of the limit that counts for a client; None where none does."""
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
        """Count that a client has to wait."""
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
        """Forget whose usage no longer counts: a client may call itself anything."""
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
    """Limits of a rate: of bytes per second, or of percents of time."""

    def __init__(self, window: QuotaWindow, longest_ms: int | None = None) -> None:
        """With `longest_ms` nobody has to wait longer for it."""
        super().__init__(window, Usage)
        self._longest_ms = longest_ms

    def record(self, user: str, client_id: str, value: float, now_ms: float) -> int:
        """Count what a client has used; gives how long it has to wait, in milliseconds."""
        usage = self.of(user, client_id, now_ms)
        return 0 if usage is None else self.charge(usage, value, now_ms)

    def charge(self, usage: Usage, value: float, now_ms: float) -> int:
        """As `record`, for the client whose usage it is."""
        rate = usage.rate
        if rate.record_within(value, now_ms, usage.surely_within):
            return 0
        length_ms = rate.length_ms(now_ms)
        longest_ms = self._longest_ms
        if longest_ms is None:
            longest_ms = MAX_THROTTLE_MS if usage.limit > 0 else self._window.samples * self._window.window_ms
        return throttle_time_ms(rate.measure(now_ms), usage.limit, length_ms, longest_ms)

    def take_back(self, user: str, client_id: str, value: float, now_ms: float) -> None:
        """Count that a client has not used it after all."""
        usage = self.of(user, client_id, now_ms)
        if usage is not None:
            usage.rate.record(-value, now_ms)

    def most_at_once(self, user: str, client_id: str, now_ms: float) -> float:
        """More than this, used at once, would be too much in any case; infinite without a limit."""
        usage = self.of(user, client_id, now_ms)
        if usage is None:
            return float("inf")
        return max(0.0, usage.limit) * (self._window.samples - 1) * self._window.window_ms / 1000


class MutationUsage(Usage):
    """Use of a limit on changes by all who share it."""

    __slots__ = ("bucket",)

    def __init__(self, window: QuotaWindow, limit: float) -> None:
        super().__init__(window, limit)
        self.bucket = TokenBucket(window.samples, window.window_ms)


class MutationQuota(UsageTable[MutationUsage]):
    """Limits of partitions created and deleted per second (KIP-599)."""

    def __init__(self, window: QuotaWindow) -> None:
        super().__init__(window, MutationUsage)

    def record(self, user: str, client_id: str, mutations: float, now_ms: float, *, is_strict: bool) -> int:
        """Count changes; gives how long the client has to wait.

        A strict quota takes any number of changes as long as it is not exceeded, and no more then: after a time above 0
        they were not counted, and must not be made. One that is not strict takes all, and has the client wait.
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
