"""The plan of a seed of a cluster: that of one broker, with more brokers, replicas and faults."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.simulation.plan import FAULTS, Plan, ProducerPlan, TopicPlan, draw_plan

CLUSTER_FAULTS = (
    "power cut of all",
    "kill of a leader",
    "kill of the controller",
    "kill of all",
    "pause of a leader",
    "pause of the controller",
    "partition of brokers",
    "one-way cut of brokers",
    "isolation",
    "coordination cut",
)

LEAST_ACKNOWLEDGED = 500
LEAST_FAULTS = 20
LEAST_VIRTUAL_S = 120.0
ACTIVE_S = 95.0


def draw_cluster_plan(seed: int) -> Plan:
    """The plan of a seed."""
    rng = Random(f"cluster plan {seed}")
    plan = draw_plan(rng.getrandbits(60))
    min_isr = rng.choice(["1", "2", "2"])
    broker = {
        **plan.broker,
        "log.dirs": "/data",
        "default.replication.factor": "3",
        "min.insync.replicas": min_isr,
        "offsets.topic.replication.factor": "3",
        "replica.fetch.wait.max.ms": str(rng.choice([100, 500])),
        "replica.fetch.backoff.ms": str(rng.choice([100, 1_000])),
        "replica.lag.time.max.ms": str(rng.choice([2_000, 10_000, 30_000])),
        "replica.socket.timeout.ms": str(rng.choice([2_000, 8_000])),
        "controller.socket.timeout.ms": str(rng.choice([2_000, 8_000])),
    }
    faults = [each for each in (*FAULTS, *CLUSTER_FAULTS) if rng.random() < 0.5] or ["kill of a leader"]
    if plan.renewed is not None:
        faults += ["topic deletion"] * 2
    return replace(
        plan,
        broker=broker,
        topics=[_replicated(topic, min_isr) for topic in plan.topics],
        renewed=None if plan.renewed is None else _replicated(plan.renewed, min_isr),
        producers=[_replicated_producer(each, len(plan.producers)) for each in plan.producers],
        faults=faults,
        fault_pause_s=rng.choice([1.5, 2.5, 3.5]),
        active_s=ACTIVE_S,
        coordination="remote",
        brokers=rng.choice([3, 3, 3, 4, 5]),
        replication_factor=3,
        broker_session_timeout_s=rng.choice([2.0, 6.0]),
        least_s=LEAST_VIRTUAL_S,
    )


def _replicated(topic: TopicPlan, min_isr: str) -> TopicPlan:
    return replace(topic, config={**topic.config, "min.insync.replicas": min_isr})


def _replicated_producer(producer: ProducerPlan, producers: int) -> ProducerPlan:
    """One whose records are acknowledged when they are committed, and that sends its share of enough records."""
    settings = {**producer.settings, "acks": "all"}
    return replace(producer, settings=settings, records=max(producer.records, LEAST_ACKNOWLEDGED // producers + 10))
