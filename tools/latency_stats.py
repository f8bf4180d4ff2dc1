"""Latencies of sent records, counted by batch, and the lines that tell them (Kafka's `ProducerPerformance.Stats`)."""

from __future__ import annotations

from collections import Counter
from typing import Final

_MEBIBYTE: Final = 1024 * 1024
_QUANTILES: Final = (0.5, 0.95, 0.99, 0.999)


class _Sums:
    """Records of a time span that began at `start_ms`."""

    def __init__(self, start_ms: float) -> None:
        self.start_ms = start_ms
        self.count = 0
        self.size_bytes = 0
        self.total_latency_ms = 0
        self.max_latency_ms = 0

    def add(self, count: int, size_bytes: int, latency_ms: int) -> None:
        """`count` more records, all with the same latency."""
        self.count += count
        self.size_bytes += size_bytes
        self.total_latency_ms += latency_ms * count
        self.max_latency_ms = max(self.max_latency_ms, latency_ms)

    def rates(self, now_ms: float) -> tuple[float, float]:
        """Records and MB (2^20 bytes) per second."""
        elapsed_s = max(now_ms - self.start_ms, 1) / 1000
        return self.count / elapsed_s, self.size_bytes / elapsed_s / _MEBIBYTE

    def average(self, digits: int) -> str:
        """The mean latency in ms, NaN without records."""
        return f"{self.total_latency_ms / self.count:.{digits}f}" if self.count else "NaN"


class LatencyStats:
    """All records of a run. A line is printed whenever `interval_ms` have passed; times are those of any steady clock.

    Latencies are whole milliseconds, as Kafka has them, so that counting them gives quantiles of all records, not of a
    sample.
    """

    def __init__(self, start_ms: float, interval_ms: int = 5_000) -> None:
        self._all = _Sums(start_ms)
        self._window = _Sums(start_ms)
        self._interval_ms = interval_ms
        self._counts: Counter[int] = Counter()

    @property
    def count(self) -> int:
        """How many records were acknowledged."""
        return self._all.count

    def add(self, count: int, size_bytes: int, sent_ms: float, now_ms: float) -> None:
        """`count` records with `size_bytes` of payload were sent at `sent_ms` and acknowledged now."""
        latency_ms = int(now_ms - sent_ms)
        self._all.add(count, size_bytes, latency_ms)
        self._window.add(count, size_bytes, latency_ms)
        self._counts[latency_ms] += count
        if now_ms - self._window.start_ms >= self._interval_ms:
            print(self.window_line(now_ms), flush=True)
            self._window = _Sums(now_ms)

    def window_line(self, now_ms: float) -> str:
        """The records since the last line."""
        rate, megabytes = self._window.rates(now_ms)
        return (
            f"{self._window.count} records sent, {rate:.1f} records/sec ({megabytes:.2f} MB/sec), "
            f"{self._window.average(1)} ms avg latency, {self._window.max_latency_ms:.1f} ms max latency."
        )

    def total_line(self, now_ms: float) -> str:
        """All records."""
        rate, megabytes = self._all.rates(now_ms)
        half, most, nearly, almost = self.quantiles()
        return (
            f"{self._all.count} records sent, {rate:.6f} records/sec ({megabytes:.2f} MB/sec), "
            f"{self._all.average(2)} ms avg latency, {self._all.max_latency_ms:.2f} ms max latency, "
            f"{half} ms 50th, {most} ms 95th, {nearly} ms 99th, {almost} ms 99.9th."
        )

    def quantiles(self) -> list[int]:
        """The 50th, 95th, 99th and 99.9th percentile in ms, 0 without records."""
        found: list[int] = []
        ranks = [int(quantile * self._all.count) for quantile in _QUANTILES]
        passed = 0
        for latency_ms, count in sorted(self._counts.items()):
            passed += count
            while len(found) < len(ranks) and ranks[len(found)] < passed:
                found.append(latency_ms)
        return found or [0] * len(ranks)
