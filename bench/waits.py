"""How long one client waits for others: for large requests, and for misbehaving clients.

Every load is first prepared (topics created, requests encoded), then runs while a probe sends requests (`bench.probe`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Final

from bench import wait_loads as loads
from bench.brokers import Broker
from bench.probe import Probe
from bench.scenario import Context, Measure, Sample, Scenario
from tests.kit import heavy_requests as heavy

CALM_S: Final = 2.0
"""How long the probe continues after the load."""
KEPT: Final = {"MB_more_2_s_later": 5}
"""How far above idle the memory may stay after a load without lasting effects."""
LIMITS: Final = {"peak_by_request_and_answer": 3, **KEPT}
"""Limits of one such request; the peak of its memory is a multiple of the bytes of request and response."""


def longest_wait(prepare: loads.Prepare) -> Measure:
    """The slowest probe in milliseconds; below, how much more memory the broker had at its peak and afterwards."""

    def measure(context: Context, broker: Broker, topic: str) -> Sample:
        with ExitStack() as stack:
            load = prepare(context, broker, topic, stack)
            spent = broker.cpu_s()  # waits until the broker is idle
            idle = memory_bytes(broker.pid)
            forget_peak(broker.pid)
            with Probe(broker.port) as probe:
                began = time.monotonic()
                exchanged = load()
                seconds = time.monotonic() - began
                time.sleep(CALM_S)
                later = memory_bytes(broker.pid) - idle
            peak = max(memory_bytes(broker.pid, at_the_peak=True) - idle, 0)
            details = {
                "seconds_of_the_load": seconds,
                "MB_more_at_the_peak": peak / 1e6,
                "MB_more_2_s_later": later / 1e6,
            }
            if exchanged:
                details["peak_by_request_and_answer"] = peak / exchanged
            return Sample(probe.longest_ms, broker.cpu_s() - spent, details=details)

    return measure


def memory_bytes(pid: int, *, at_the_peak: bool = False) -> int:
    """The current memory of a process without its children, or its peak since `forget_peak`.

    Raises RuntimeError if the process has ended.
    """
    name = "VmHWM:" if at_the_peak else "VmRSS:"
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    raise RuntimeError("the broker has ended")


def forget_peak(pid: int) -> None:
    """Reset the peak of a process's memory to its present size (`/proc/PID/clear_refs`, see man 5 proc)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _scenario(
    name: str,
    title: str,
    prepare: loads.Prepare,
    *,
    target: float | None = 1.0,
    limits: Mapping[str, float] = MappingProxyType({}),
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Scenario:
    return Scenario(
        f"wait-{name}", f"wait: {title}", "ms", longest_wait(prepare), higher_is_better=False,
        target=target, limit=100, either=True, leaves_many_files=True, settings=settings, detail_limits=limits,
    )  # fmt: skip


def _request(
    name: str, title: str, make: Callable[[int], bytes], count: int, *, clients: int = 1, in_a_group: bool = False
) -> Scenario:
    prepare = loads.request(make, count, clients=clients, in_a_group=in_a_group)
    return _scenario(name, title, prepare, target=None, limits=LIMITS)


SCENARIOS = [
    _scenario("describe-brokers", "describe 2,000 brokers", loads.describe_brokers),
    _scenario("describe-topics", "describe 10,000 topics", loads.describe_topics),
    _scenario("describe-ids", "describe 2,000 broker ids", loads.describe_broker_ids),
    _scenario("describe-distinct", "describe 10,000 distinct topics", loads.describe_distinct_topics),
    _scenario("wake", "100 produces, 50,000 waiting", loads.wake_fetches),
    _scenario("produce", "produce to 5,000", loads.produce_to_all),
    _scenario("fetch", "fetch from 5,000", loads.fetch_from_all),
    _scenario("commit", "commit 10,000 offsets", loads.commit_offsets),
    _scenario("alter", "alter 500 topics", loads.alter_configs),
    _scenario("create", "create 500 topics", loads.create_topics),
    _scenario("create-large", "create 5,000 partitions", loads.create_large_topic),
    _scenario("delete-large", "delete 5,000 partitions", loads.delete_large_topic),
    _scenario("group", "group of 2,500", loads.large_group, settings=loads.JOIN_SETTINGS),
    _scenario("pipeline", "8,000 Metadata, unread", loads.pipelined_metadata),
    _request("fetch-unknown", "Fetch of 999,000 unknown", heavy.fetch_unknown, heavy.MOST_ELEMENTS),
    _request("fetch-refused", "Fetch of 3,000,000 unknown", heavy.fetch_unknown, 3_000_000),
    _request("metadata", "Metadata of 500,000 names", heavy.metadata_of_unknown, heavy.NAMES),
    _request("metadata-alike", "Metadata of one, 999,000 times", heavy.metadata_of_one, heavy.MOST_ELEMENTS),
    _request("metadata-six", "six Metadata of 18 MB at once", heavy.metadata_of_unknown, 428_000, clients=6),
    _request("list-offsets", "ListOffsets of 999,000", heavy.list_offsets_of_unknown, heavy.MOST_ELEMENTS),
    _request("leader-epochs", "OffsetForLeaderEpoch of 999,000", heavy.epochs_of_unknown, heavy.MOST_ELEMENTS),
    _request("offset-fetch", "OffsetFetch of 999,000", heavy.offset_fetch, heavy.MOST_ELEMENTS, in_a_group=True),
    _request("produce-empty", "Produce to 500,000, no records", heavy.produce_nothing, heavy.NAMES),
    _request("join", "JoinGroup, 500,000 protocols", heavy.join_group, heavy.NAMES, in_a_group=True),
    _request("create-bad", "CreateTopics of 100,000 bad names", heavy.create_bad_names, 100_000),
    _scenario("half-frames", "40 x 80 of 100 MB", loads.half_frames(40), target=None, limits=KEPT),
    _scenario("hang-ups", "3 x 10 x 80 of 100 MB, hung up", loads.hang_ups, target=None, limits=KEPT),
]  # fmt: skip
