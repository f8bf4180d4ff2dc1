"""Scenarios for three brokers and three replicas, acks=all."""

from __future__ import annotations

import json
import threading
import time

from kazoo.client import KazooClient

from bench.brokers import SESSION_TIMEOUT_MS, Broker
from bench.clusters import Cluster
from bench.scenario import Context, Sample, Scenario
from bench.scenarios import produce
from protocol.messages import MetadataRequest, MetadataResponse
from tests.kit.wire_client import WireClient

BROKERS = 3
ALL = -1
LATENCY_RATE = 1_000
BEFORE_S = 3.0
"""Of load before a broker dies."""
STALL_S = 30
_PATIENCE_S = 30.0


def latency(context: Context, broker: Broker, topic: str) -> Sample:
    """p99 in milliseconds from the moment a record was due to be sent until the consumer had it."""
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

    Raises RuntimeError when a record is lost or refused, or when the session does not end.
    """
    if not isinstance(broker, Cluster):
        raise TypeError("fail-over needs a cluster")
    context.load.run("first", broker.address, topic)
    leader = leader_of(broker, topic)
    zookeeper = KazooClient(broker.zookeeper.address)
    zookeeper.start()
    load = context.load.spawn("stall", broker.address, topic, STALL_S)
    try:
        ended = watch_end(zookeeper, leader)
        time.sleep(BEFORE_S)
        Broker.kill(broker.member(leader))
        if not ended.wait(_PATIENCE_S):
            raise RuntimeError(f"the session of broker {leader} did not end in {_PATIENCE_S} s")
        ended_at = ended.at
        said, _ = load.communicate(timeout=STALL_S * 3)
        if load.returncode:
            raise RuntimeError("records were lost or refused")
    finally:
        load.kill()
        load.communicate()
        zookeeper.stop()
        zookeeper.close()
    result = json.loads(said)
    return Sample(
        (result["stalled_until"] - ended_at) * 1000,
        details={"whole_gap_ms": result["stalled_s"] * 1000, "session_timeout_ms": SESSION_TIMEOUT_MS},
    )


class Ended(threading.Event):
    """The end of a session, with the time of the wall clock at which it was seen."""

    at = 0.0


def watch_end(zookeeper: KazooClient, broker_id: int) -> Ended:
    """An event that is set when the broker's node is gone. Raises RuntimeError when there is none."""
    ended = Ended()

    def on_change(_: object) -> None:
        ended.at = time.time()
        ended.set()

    if zookeeper.exists(f"/brokers/ids/{broker_id}", watch=on_change) is None:
        raise RuntimeError(f"broker {broker_id} is not registered")
    return ended


def leader_of(cluster: Cluster, topic: str) -> int:
    """The broker that leads partition 0."""
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
    )
    with WireClient("127.0.0.1", cluster.members[0].port) as client:
        answer = client.ask(request, 8)
    if not isinstance(answer, MetadataResponse):
        raise TypeError("not the answer to Metadata")
    return answer.topics[0].partitions[0].leader_id


SCENARIOS = [
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
]  # fmt: skip
