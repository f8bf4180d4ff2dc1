"""The throttle on a test clock."""

from __future__ import annotations

import pytest

from storage.io.file_system import LONGEST_SLEEP_S, RateLimiter, Throttler


class Time:
    """A clock that only advances by sleeping."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.naps: list[float] = []

    def monotonic_s(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now_s += seconds


def test_bytes_pass_at_the_rate() -> None:
    time = Time()
    throttle = Throttler(time.monotonic_s, time.sleep, 1000)
    for _ in range(50):
        throttle(100)
    assert time.now_s - 100 == pytest.approx(5.0, abs=1e-5)


def test_nothing_is_held_back_below_the_rate_or_without_one() -> None:
    time = Time()
    throttle = Throttler(time.monotonic_s, time.sleep)
    throttle(10**12)
    throttle.bytes_per_second = 1000
    time.now_s += 10**10
    throttle(100)
    assert time.naps == []


def test_what_was_not_used_long_ago_is_not_made_up_for() -> None:
    time = Time()
    throttle = Throttler(time.monotonic_s, time.sleep, 1000)
    time.now_s += 3600
    throttle(100)
    throttle(2000)
    assert sum(time.naps) == pytest.approx(2.0, abs=1e-5)


def test_a_new_rate_counts_during_a_sleep() -> None:
    time = Time()
    throttle = Throttler(time.monotonic_s, time.sleep, 1)

    def sleep(seconds: float) -> None:
        time.sleep(seconds)
        throttle.bytes_per_second = 10**9

    throttle._sleep = sleep
    throttle(1_000_000)
    assert len(time.naps) == 1
    assert time.naps[0] < 1


def test_a_pace_says_how_long_to_wait_and_sleeps_for_nobody() -> None:
    time = Time()
    rate_limiter = RateLimiter(time.monotonic_s, 1000)
    assert rate_limiter.wait_s() == 0
    rate_limiter.note(100)
    assert rate_limiter.wait_s() == pytest.approx(0.1)
    rate_limiter.note(10**9)
    assert rate_limiter.wait_s() == LONGEST_SLEEP_S
    time.now_s += 10**6 + 1
    assert rate_limiter.wait_s() == 0
    assert time.naps == []


def test_at_0_nothing_may_pass() -> None:
    time = Time()
    rate_limiter = RateLimiter(time.monotonic_s, 0)
    time.now_s += 10**6
    assert rate_limiter.wait_s() == LONGEST_SLEEP_S
    rate_limiter.bytes_per_second = 1
    assert rate_limiter.wait_s() == 0
