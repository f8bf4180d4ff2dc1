"""Scenarios for the coordinators: transactions, committed offsets, and a group whose members restart in turn."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench import coordinator_loading
from bench.brokers import Broker
from bench.rolling_group import RollingGroup
from bench.scenario import Context, Measure, Sample, Scenario
from bench.scenarios import throughput
from bench.wait_loads import await_coordinator, connect, encoded, few, make_topics
from protocol.errors import ErrorCode
from protocol.messages.group_offsets import OffsetCommitResponse
from tests.kit import group_requests
from tests.kit.wire_requests import framed

TRANSACTIONS_S: Final = 10
COMMITS_S: Final = 10
COMMIT_EVERY_MS: Final = 20
MEMBERS: Final = 200
GROUP_PARTITIONS: Final = 1_000
JOIN_TOGETHER: Final = {"group.initial.rebalance.delay.ms": "3000"}
"""Kafka's default: the first generation includes all members. No later generation waits."""
LOADED_IN_S: Final = 10
LONGEST_WAIT_MS: Final = 50
"""Limit for the waits of other clients while a coordinator loads."""
_COMMIT_VERSION: Final = 7


def _transactions(
    context: Context, broker: Broker, topic: str, records: int, every_ms: float, producers: int
) -> tuple[dict[str, float], float]:
    """Run the load `transactions` with records of 1 kB; returns its figures, and the broker's CPU seconds for it."""
    context.load.run("create", broker.address, topic, producers)
    before = broker.cpu_s()
    seconds = max(TRANSACTIONS_S * context.scale, 2)
    result = context.load.run("transactions", broker.address, topic, seconds, 1000, records, every_ms, producers)
    return result, broker.cpu_s() - before


def transactional(records: int, every_ms: float, producers: int) -> Measure:
    """Records a second of producers that end a transaction after so many records (0: any number) and milliseconds."""

    def measure(context: Context, broker: Broker, topic: str) -> Sample:
        result, spent = _transactions(context, broker, topic, records, every_ms, producers)
        context.load.run("delete", broker.address, topic)
        return throughput(result, spent)

    return measure


def commit_latency(context: Context, broker: Broker, topic: str) -> Sample:
    """p99 in milliseconds of committing transactions of 10 records, from one producer at a steady pace."""
    # Once to warm up: users do not wait for a JIT that compiles the path.
    _transactions(context, broker, f"{topic}-warm", 10, COMMIT_EVERY_MS, 1)
    result, _ = _transactions(context, broker, topic, 10, COMMIT_EVERY_MS, 1)
    return Sample(result["p99_ms"], details={name: result[name] for name in ("p50_ms", "p99_ms")})


def offset_commits(groups: int, at_once: int) -> Measure:
    """Offset commits a second for one partition, from consumers that each have a separate group and connection, with
    `at_once` commits in flight.
    """

    def measure(context: Context, broker: Broker, topic: str) -> Sample:
        frames = _encode_commits(broker, topic, groups)
        before = broker.cpu_s()
        seconds = max(COMMITS_S * context.scale, 2)
        result = context.load.run("repeat", str(broker.port), str(frames), seconds, at_once)
        spent = {"broker": broker.cpu_s() - before, "client": result["client_cpu_s"]}
        details = {f"{whose}_CPU_us_a_commit": cpu / result["requests"] * 1e6 for whose, cpu in spent.items()}
        return Sample(result["requests"] / result["seconds"], details=details)

    return measure


def _encode_commits(broker: Broker, topic: str, groups: int) -> Path:
    """A file with the commit of each group and its response, which is always the same."""
    with ExitStack() as stack:
        client = connect(broker, stack)
        make_topics(client, [topic])
        await_coordinator(broker, topic, stack)
        frames = broker.directory / "requests"
        with frames.open("wb") as file:
            for number in range(groups):
                request = encoded(group_requests.commit(f"{topic}-{number}", [(topic, 0, 1)]), _COMMIT_VERSION)
                client.send_bytes(request)
                answer = client.receive_frame()
                decoded = OffsetCommitResponse.decode(memoryview(answer)[4:], _COMMIT_VERSION)
                if decoded.topics[0].partitions[0].error_code != ErrorCode.NONE:
                    raise RuntimeError(f"an offset was not committed: {decoded}")
                file.write(request + framed(answer))
    return frames


def rolling_restart(context: Context, broker: Broker, topic: str) -> Sample:
    """Seconds until a group is stable again after each of its 200 members has left and come back in turn."""
    members, partitions = few(context, MEMBERS), few(context, GROUP_PARTITIONS)
    with ExitStack() as stack:
        make_topics(connect(broker, stack), [topic], partitions)
        await_coordinator(broker, topic, stack)
        group = RollingGroup(broker.port, topic, topic, members, partitions)
        stack.callback(group.close)
        group.assemble()
        before, client_before, began = broker.cpu_s(), time.process_time(), time.monotonic()
        group.restart_each()
        seconds, client_spent = time.monotonic() - began, time.process_time() - client_before
        return Sample(seconds, broker.cpu_s() - before, client_spent)


def _loading(name: str, title: str, measure: Measure, limit_mb: float) -> Scenario:
    return Scenario(
        f"load-{name}", title, "s", measure, 1, higher_is_better=False, limit=LOADED_IN_S,
        detail_limits={"longest_wait_ms": LONGEST_WAIT_MS, "MB_at_the_peak": limit_mb},
        settings=coordinator_loading.SETTINGS,
    )  # fmt: skip


SCENARIOS = [
    Scenario("transactions-100ms", "a transaction in 100 ms, 1 kB", "records/s",
        transactional(0, 100, 1), target=1.2, also_warm=True,
    ),
    Scenario("transactions-1000", "a transaction of 1,000 records, 1 kB", "records/s",
        transactional(1_000, 0, 1), target=1.2, also_warm=True,
    ),
    Scenario("commit-latency", "p99 of a transaction's commit", "ms",
        commit_latency, higher_is_better=False, target=0.5,
    ),
    Scenario("offset-commits", "commit offsets, 10 consumers, async", "commits/s",
        offset_commits(10, 20), target=3.0, also_warm=True,
    ),
    Scenario("offset-commits-waiting", "commit offsets, 50 consumers, sync", "commits/s",
        offset_commits(50, 1), also_warm=True,
    ),
    Scenario("group-restart", "200 members restart in turn", "s",
        rolling_restart, 1, higher_is_better=False, target=0.5, settings=JOIN_TOGETHER,
    ),
    _loading("offsets", "load 1,000,000 offsets", coordinator_loading.offsets(1_000, 1_000), limit_mb=400),
    _loading("groups", "load 100,000 groups of 10 offsets", coordinator_loading.offsets(100_000, 10), limit_mb=600),
    _loading(
        "transactions", "load 100,000 transactional ids", coordinator_loading.transactional_ids(100_000), limit_mb=200,
    ),
]  # fmt: skip
