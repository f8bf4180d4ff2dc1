"""Rates and throttle times equal Kafka's; the models here keep every single record."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.quotas.client_quota import (
    MAX_THROTTLE_MS,
    ClientQuota,
    QuotaWindow,
    Rate,
    SimpleRate,
    TokenBucket,
    throttle_time_ms,
)
from cluster.quotas.entities import QuotaLimits

STEPS = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 50), st.integers(900, 1100), st.integers(0, 15_000)),
        st.sampled_from(["record", "measure", "both"]),
        st.integers(-50, 10_000),
    ),
    max_size=60,
)


class Windows:
    """The naive model: every window since the start, as the list of its samples."""

    def __init__(self, samples: int, window_ms: int) -> None:
        self.samples, self.window_ms = samples, window_ms
        self.all: list[list[tuple[int, int]]] = []

    def record(self, value: int, now_ms: int) -> None:
        if not self.all or now_ms - self.all[-1][0][0] >= self.window_ms:
            self.all.append([])
        self.all[-1].append((now_ms, value))

    def counting(self, now_ms: int) -> Sequence[Sequence[tuple[int, int]]]:
        counting = [each for each in self.all if now_ms - each[-1][0] < self.samples * self.window_ms]
        if not counting:
            self.record(0, now_ms)
            counting = self.all[-1:]
        return counting

    def rate(self, now_ms: int) -> tuple[float, float]:
        counting = self.counting(now_ms)
        length = now_ms - counting[0][0][0]
        length += max(self.samples - 1 - length // self.window_ms, 0) * self.window_ms
        return sum(value for window in counting for _, value in window) * 1000 / length, length


@given(STEPS, st.integers(2, 12), st.sampled_from([1000, 2000]))
def test_rates_equal_those_of_the_model(steps: list[tuple[int, str, int]], samples: int, window_ms: int) -> None:
    now_ms = 1_000
    rate, model = Rate(samples, window_ms), Windows(samples, window_ms)
    for pause_ms, what, value in steps:
        now_ms += pause_ms
        if what != "measure":
            rate.record(value, now_ms)
            model.record(value, now_ms)
        if what != "record":
            expected, length_ms = model.rate(now_ms)
            assert rate.measure(now_ms) == pytest.approx(expected)
            assert rate.length_ms(now_ms) == length_ms


@given(STEPS, st.integers(1, 12), st.sampled_from([-1.0, 0.0, 0.5, 100.0, 3000.0, inf]))
def test_throttle_times_equal_those_of_the_model(steps: list[tuple[int, str, int]], samples: int, limit: float) -> None:
    """However a window is charged at low usage."""
    now_ms = 1_000
    quota, model = ClientQuota(QuotaWindow(samples, 1000)), Windows(samples, 1000)
    quota.set_limits(QuotaLimits({("alice", None): limit}))
    longest_ms = MAX_THROTTLE_MS if limit > 0 else samples * 1000
    for pause_ms, what, value in steps:
        now_ms += pause_ms
        model.record(value if what != "measure" else -value, now_ms)
        if what == "measure":
            quota.take_back("alice", "app", value, now_ms)
            continue
        expected = throttle_time_ms(*_measured(model, limit, now_ms), longest_ms)
        assert quota.record("alice", "app", value, now_ms) == pytest.approx(expected, abs=1)


def _measured(model: Windows, limit: float, now_ms: int) -> tuple[float, float, float]:
    counting = model.counting(now_ms)
    elapsed_ms = now_ms - counting[0][0][0]
    # The first window has its elapsed time as its length, except at its very start.
    length_ms = elapsed_ms + max(model.samples - 1 - elapsed_ms // 1000, 0) * 1000 or 1000
    return sum(value for window in counting for _, value in window) * 1000 / length_ms, limit, length_ms


def test_the_first_burst_is_of_the_whole_window() -> None:
    rate = Rate(11, 1000)
    rate.record(1000, 50_000)
    assert rate.measure(50_000) == 100
    assert rate.measure(50_500) == pytest.approx(1000 / 10.5)


def test_with_one_sample_the_window_counts_from_its_beginning() -> None:
    rate = Rate(1, 1000)
    rate.record(7, 0)
    assert rate.measure(0) == 7


def test_a_simple_rate_counts_one_window_at_least() -> None:
    rate = SimpleRate(11, 1000)
    rate.record(500, 0)
    assert (rate.measure(0), rate.measure(999), rate.measure(2000)) == (500, 500, 250)


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_after_the_throttle_time_the_rate_is_kept(size: int, limit: int) -> None:
    rate = Rate(11, 1000)
    rate.record(size, 0)
    length_ms = rate.length_ms(0)
    time_ms = throttle_time_ms(rate.measure(0), limit, length_ms)
    assert (time_ms == 0) == (size / 10 <= limit or round((size / 10 - limit) / limit * length_ms) == 0)
    if time_ms:
        assert size / (length_ms + time_ms) * 1000 == pytest.approx(limit, rel=1e-3, abs=0.51 * limit / 10_000)


@pytest.mark.parametrize("limit", [0, -1, -0.5, -inf, nan])
def test_a_limit_that_cannot_be_kept_lets_nobody_off(limit: float) -> None:
    assert throttle_time_ms(0.1, limit, 1000) == MAX_THROTTLE_MS
    assert throttle_time_ms(0.1, limit, 1000, 11_000) == 11_000


def test_throttle_times_are_bounded() -> None:
    assert throttle_time_ms(1e300, 1e-300, 1000) == MAX_THROTTLE_MS
    assert throttle_time_ms(300, 100, 1000, 1000) == 1000
    assert throttle_time_ms(100, 100, 1000) == 0


@given(st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 100)), max_size=40), st.integers(1, 20))
def test_buckets_equal_those_of_the_model(steps: list[tuple[int, int]], per_second: int) -> None:
    """The model counts in thousandths of a token to avoid fractions."""
    now_ms, most = 5_000, per_second * 11 * 1000
    bucket, model, updated_ms = TokenBucket(11, 1000), most, now_ms
    for pause_ms, tokens in steps:
        now_ms += pause_ms
        model = min(most, model + per_second * (now_ms - updated_ms)) - tokens * 1000
        updated_ms = now_ms
        bucket.take(tokens, per_second, now_ms)
        assert bucket.tokens(per_second, now_ms) == pytest.approx(model / 1000, abs=1e-6)
        expected = max(-model / per_second, 0)
        assert bucket.throttle_time_ms(per_second, now_ms) == pytest.approx(expected, abs=0.51)


def test_an_overdrawn_bucket_of_a_rate_of_zero_stays_so() -> None:
    bucket = TokenBucket(11, 1000)
    assert bucket.throttle_time_ms(0, 1) == 0
    bucket.take(1, 0, 1)
    assert bucket.throttle_time_ms(0, 10**9) == MAX_THROTTLE_MS


def test_a_rate_of_almost_nothing_is_waited_for_as_long_as_an_answer_can_say() -> None:
    bucket = TokenBucket(11, 1000)
    bucket.take(5, 1e-320, 1000)
    assert bucket.throttle_time_ms(1e-320, 1000) == MAX_THROTTLE_MS
