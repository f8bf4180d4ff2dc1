"""Scenarios for three brokers and three replicas, acks=all."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from bench import cluster_partitions as partitions
from bench.brokers import SESSION_TIMEOUT_MS, Broker, await_listening
from bench.clusters import Cluster, SessionWatch, cluster_of
from bench.scenario import Context, Sample, Scenario
from bench.scenarios import idle_memory, produce, start
from protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.kit.wire_client import WireClient

BROKERS = 3
ALL = -1
LATENCY_RATE = 1_000
BEFORE_S = 3.0
"""Seconds of load before a broker dies."""
STALL_S = 30
MOVE_S = 15
_PATIENCE_S = 30.0
_CATCH_UP_LIMIT_S = 300
_POLL_S = 0.02


def latency(context: Context, broker: Broker, topic: str) -> Sample:
    """p99 in milliseconds from the time a record was due to be sent until the consumer had it."""
    context.load.run("latency", broker.address, f"{topic}-warm", context.count(5_000), LATENCY_RATE, ALL)
    before = broker.cpu_s()
    result = context.load.run("latency", broker.address, topic, context.count(20_000), LATENCY_RATE, ALL)
    return Sample(
        value=result["p99_ms"],
        broker_cpu_s=broker.cpu_s() - before,
        client_cpu_s=result["client_cpu_s"],
        details={name: result[name] for name in ("p50_ms", "p99_ms", "p999_ms")},
    )


def fail_over(context: Context, broker: Broker, topic: str) -> Sample:
    """Milliseconds from the end of a killed leader's session with ZooKeeper to the next acknowledgement.

    Raises RuntimeError if a record is lost or refused, or if the session does not end.
    """
    cluster = cluster_of(broker)
    context.load.run("first", broker.address, topic)
    leader = partition_zero(cluster, topic).leader_id
    with SessionWatch(cluster, leader) as session:
        result = longest_stall(context, broker, topic, STALL_S, session.kill)
    return Sample(
        (result["stalled_until"] - session.ended_s) * 1000,
        details={"whole_gap_ms": result["stalled_s"] * 1000, "session_timeout_ms": SESSION_TIMEOUT_MS},
    )


def leader_move(context: Context, broker: Broker, topic: str) -> Sample:
    """The longest time, in milliseconds, without an acknowledgement while the leader's broker stops cleanly.

    Raises RuntimeError if a record is lost or refused.
    """
    cluster = cluster_of(broker)
    context.load.run("first", broker.address, topic)
    leader = partition_zero(cluster, topic).leader_id
    result = longest_stall(context, broker, topic, MOVE_S, cluster.member(leader).end)
    return Sample(result["stalled_s"] * 1000)


def longest_stall(
    context: Context, broker: Broker, topic: str, seconds: float, happen: Callable[[], None]
) -> dict[str, float]:
    """Run the load `stall` for `seconds`, call `happen` meanwhile, and return the load's output.

    Raises RuntimeError if a record is lost or refused.
    """
    load = context.load.spawn("stall", broker.address, topic, seconds)
    try:
        time.sleep(BEFORE_S)
        happen()
        said, _ = load.communicate(timeout=seconds * 3)
        if load.returncode:
            raise RuntimeError("records were lost or refused")
    finally:
        load.kill()
        load.communicate()
    result: dict[str, float] = json.loads(said)
    return result


def catch_up(context: Context, broker: Broker, topic: str) -> Sample:
    """Megabytes a second that a returning follower copies, from the opening of its port until it is in sync.

    Raises RuntimeError if that takes too long.
    """
    cluster = cluster_of(broker)
    context.load.run("first", broker.address, topic)
    leader = partition_zero(cluster, topic).leader_id
    # Not the first broker, which answers the queries below; two of three brokers remain.
    follower = cluster.member(next(number for number in (2, 3) if number != leader))
    follower.end()
    result = context.load.run("produce", broker.address, topic, context.count(2_000_000), 1000, ALL)
    follower.launch()
    if follower.process is not None:
        await_listening(follower.port, follower.process)
    cpu_before, began = cluster.cpu_s_now(), time.monotonic()
    while len(partition_zero(cluster, topic).isr_nodes) < BROKERS:
        if time.monotonic() > began + _CATCH_UP_LIMIT_S:
            raise RuntimeError(f"a follower of {topic} was not in sync after {_CATCH_UP_LIMIT_S} s")
        time.sleep(_POLL_S)
    seconds, spent = time.monotonic() - began, cluster.cpu_s_now() - cpu_before
    return Sample(result["bytes"] / seconds / 1e6, spent, gigabytes=result["bytes"] / 1e9)


def partition_zero(cluster: Cluster, topic: str) -> MetadataResponse.MetadataResponsePartition:
    """Partition 0 of the topic, once the first broker knows it. Raises RuntimeError on timeout."""
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
    )
    deadline = time.monotonic() + _PATIENCE_S
    with WireClient("127.0.0.1", cluster.port) as client:
        while time.monotonic() < deadline:
            answer = client.ask(request, 8)
            if not isinstance(answer, MetadataResponse):
                raise TypeError("not the answer to Metadata")
            if answer.topics[0].partitions:
                return answer.topics[0].partitions[0]
            time.sleep(_POLL_S)
    raise RuntimeError(f"the first broker did not hear of {topic} in {_PATIENCE_S} s")


SCENARIOS = [
    Scenario("cluster-start", "three brokers, start to first acks=all", "ms",
        start, higher_is_better=False, target=0.5, limit=1500, launches=True, brokers=BROKERS,
    ),
    Scenario("cluster-memory", "resident memory of three brokers, idle", "MB",
        idle_memory, higher_is_better=False, target=0.15, limit=150, brokers=BROKERS,
    ),
    Scenario("cluster-produce-1000", "three brokers, produce 1 kB, acks=all", "records/s",
        produce(500_000, 1000, acks=ALL), target=2.5, cpu_target=0.2, brokers=BROKERS,
    ),
    Scenario("cluster-produce-100", "three brokers, produce 100 B, acks=all", "records/s",
        produce(2_000_000, 100, acks=ALL), target=2.5, cpu_target=0.2, brokers=BROKERS,
    ),
    Scenario("cluster-latency", "three brokers, p99 at 1,000 records/s", "ms",
        latency, higher_is_better=False, target=0.4, brokers=BROKERS,
    ),
    Scenario("cluster-fail-over", "three brokers, fail-over after kill -9", "ms",
        fail_over, higher_is_better=False, target=0.7, brokers=BROKERS,
    ),
    Scenario("cluster-controller-10000", "a controller dies, 10,000 partitions", "s",
        partitions.controller_dies_with(10_000), 1, higher_is_better=False, target=0.7, brokers=BROKERS,
        leaves_many_files=True,
    ),
    Scenario("cluster-move", "three brokers, a leader is stopped", "ms",
        leader_move, higher_is_better=False, brokers=BROKERS,
    ),
    Scenario("cluster-catch-up", "a follower catches up 2 GB", "MB/s",
        catch_up, target=1.0, brokers=BROKERS,
    ),
    Scenario("cluster-start-10000", "three brokers start, 10,000 partitions", "s",
        partitions.start_with(10_000), 1, higher_is_better=False, target=0.5, brokers=BROKERS, leaves_many_files=True,
    ),
    Scenario("cluster-memory-10000", "a replica, one of 10,000 a broker", "kB",
        partitions.memory_with(10_000), 1, higher_is_better=False, limit=6, brokers=BROKERS, leaves_many_files=True,
    ),
    Scenario("cluster-flat-10000", "a produce, 10,000 partitions to 10", "times",
        partitions.produce_with(10_000), 1, higher_is_better=False, limit=1.2, brokers=BROKERS, leaves_many_files=True,
    ),
    Scenario("cluster-idle-1000", "a broker of three, 1,000 partitions", "% CPU",
        partitions.idle_with(1_000), 1, higher_is_better=False, limit=2, brokers=BROKERS,
    ),
]  # fmt: skip
