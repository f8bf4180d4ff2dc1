"""How long one client waits for another: legal requests that are large, and clients that behave badly.

Every load is prepared first (topics made, requests encoded), then run while a probe asks (`bench.probe`).
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench import wait_loads as loads
from bench.brokers import Broker
from bench.probe import Probe
from bench.scenario import Context, Measure, Sample, Scenario

CALM_S: Final = 1.0
"""The probe goes on so long after the load."""


def longest_wait(prepare: loads.Prepare) -> Measure:
    """Milliseconds that the slowest probe waited, and by how much the broker's memory was larger at its peak."""

    def measure(context: Context, broker: Broker, topic: str) -> Sample:
        with ExitStack() as stack:
            load = prepare(context, broker, topic, stack)
            broker.cpu_s()  # once it has come to rest
            before = memory_bytes(broker.pid)
            with Probe(broker.port) as probe:
                load()
                time.sleep(CALM_S)
            more = max(memory_bytes(broker.pid, at_the_peak=True) - before, 0)
            return Sample(probe.longest_ms, details={"MB_more_at_the_peak": more / 1e6})

    return measure


def memory_bytes(pid: int, *, at_the_peak: bool = False) -> int:
    """The memory that a process has, or the most that it ever had, without its children."""
    name = "VmHWM:" if at_the_peak else "VmRSS:"
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def _scenario(name: str, title: str, prepare: loads.Prepare, **settings: str) -> Scenario:
    return Scenario(
        f"wait-{name}", f"wait: {title}", "ms", longest_wait(prepare), higher_is_better=False,
        target=1.0, limit=100, either=True, leaves_many_files=True, settings=settings,
    )  # fmt: skip


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
    _scenario(
        "group", "group of 2,500", loads.large_group, **{"group.initial.rebalance.delay.ms": str(loads.JOIN_WINDOW_MS)}
    ),
    _scenario("pipeline", "8,000 Metadata, unread", loads.pipelined_metadata),
]  # fmt: skip
