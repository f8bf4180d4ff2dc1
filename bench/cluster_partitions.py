"""Scenarios for three brokers with thousands of partitions of three replicas each."""

from __future__ import annotations

import re
import time

from bench import starts
from bench.brokers import Broker
from bench.clusters import REPLICAS, Cluster, SessionWatch, cluster_of
from bench.scenario import Context, Measure, Sample
from protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.kit.wire_client import WireClient

FEW = 10
SETTLE_S = 15
"""Time until the replicas of new partitions have settled."""
IDLE_S = 20
REQUESTS = 20_000
LIMIT_S = 300
POLL_S = 0.02
_READ = re.compile(r"Read \d+ topics with (\d+) partitions in (\d+) ms")


def start_with(partitions: int) -> Measure:
    """Seconds from the launch of all brokers until each of `partitions` has a leader, after all stopped cleanly."""

    def measure(context: Context, broker: Broker, topic: str) -> Sample:
        count = context.count(partitions)
        context.load.run("create", broker.address, topic, count)
        began = time.monotonic()
        broker.end()
        stop_s = time.monotonic() - began
        start_s = starts.launch_until_led(broker, topic, count)
        return Sample(start_s, details={"seconds_of_the_stop_before": stop_s})

    return measure


def controller_dies_with(partitions: int) -> Measure:
    """Seconds from the end of a killed controller's session until each of `partitions` has another leader."""

    def measure(context: Context, broker: Broker, topic: str) -> Sample:
        cluster = cluster_of(broker)
        count = context.count(partitions)
        context.load.run("create", broker.address, topic, count)
        time.sleep(SETTLE_S)
        dead = controller_of(cluster)
        survivor = next(each for number, each in enumerate(cluster.members, 1) if number != dead)
        with SessionWatch(cluster, dead) as session, WireClient("127.0.0.1", survivor.port) as client:
            session.kill()
            while starts.led(client, topic, but_by=dead) < count:
                if time.time() - session.ended_s > LIMIT_S:
                    raise RuntimeError(f"{broker.name} did not lead {count} partitions after {LIMIT_S} s")
                time.sleep(POLL_S)
            taken_s = time.time() - session.ended_s
        return Sample(taken_s, details=tree_read(cluster))

    return measure


def controller_of(cluster: Cluster) -> int:
    """The controller, according to the first broker."""
    with WireClient("127.0.0.1", cluster.port) as client:
        answer = client.ask(MetadataRequest(topics=[]), 8)
    assert isinstance(answer, MetadataResponse)
    return answer.controller_id


def tree_read(cluster: Cluster) -> dict[str, float]:
    """How long a controller took to read the fullest tree, for brokers that report it."""
    logs = [each.directory / "broker.log" for each in cluster.members]
    said = [(int(count), float(ms)) for log in logs for count, ms in _READ.findall(log.read_text())]
    return {"ms_to_read_the_tree": max(said)[1]} if said else {}


def memory_with(partitions: int) -> Measure:
    """Kilobytes of resident memory for each replica of `partitions` new ones, over all brokers."""

    def measure(context: Context, broker: Broker, topic: str) -> Sample:
        count = context.count(partitions)
        context.load.run("first", broker.address, f"{topic}-first")
        time.sleep(SETTLE_S)
        before = broker.rss_bytes()
        result = context.load.run("create", broker.address, topic, count)
        time.sleep(SETTLE_S)
        taken = broker.rss_bytes() - before
        return Sample(taken / (count * REPLICAS) / 1000, details={"seconds_to_create": result["seconds"]})

    return measure


def idle_with(partitions: int) -> Measure:
    """Percent of a core that each broker uses without any client requests."""

    def measure(context: Context, broker: Broker, topic: str) -> Sample:
        cluster = cluster_of(broker)
        context.load.run("create", broker.address, topic, context.count(partitions))
        time.sleep(SETTLE_S)
        before = cluster.cpu_s_now()
        time.sleep(IDLE_S)
        return Sample((cluster.cpu_s_now() - before) / IDLE_S / len(cluster.members) * 100)

    return measure


def produce_with(partitions: int) -> Measure:
    """CPU of all brokers for a produce request (one record, acks=all) with `partitions`, relative to that with FEW.

    Both measurements send to the same topic. A client works harder for a topic with many partitions (librdkafka ten
    times) and sends its requests farther apart, so that the broker handles more of them alone.
    """

    def measure(context: Context, broker: Broker, topic: str) -> Sample:
        cluster = cluster_of(broker)
        context.load.run("create", broker.address, topic, FEW)
        with_few = cpu_us_a_request(context, cluster, topic)
        context.load.run("create", broker.address, f"{topic}-many", context.count(partitions))
        time.sleep(SETTLE_S)
        with_many = cpu_us_a_request(context, cluster, topic)
        details = {"CPU_us_a_request_with_few": with_few, "CPU_us_a_request_with_all": with_many}
        return Sample(with_many / with_few, details=details)

    return measure


def cpu_us_a_request(context: Context, cluster: Cluster, topic: str) -> float:
    """CPU microseconds, summed over all brokers, for each pipelined request; after a warm-up of the same size."""
    requests = context.count(REQUESTS)
    context.load.run("unbatched", cluster.address, topic, requests, 100, -1)
    before = cluster.cpu_s_now()
    context.load.run("unbatched", cluster.address, topic, requests, 100, -1)
    return (cluster.cpu_s_now() - before) / requests * 1e6
