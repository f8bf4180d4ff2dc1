"""The plan of a seed of a cluster: that of one broker, with more brokers, replicas and faults."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.simulation.plan import FAULTS, Plan, ProducerPlan, TopicPlan, draw_plan
from tests.simulation.transactions.transactions_plan import broker_settings, draw_transactions

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
    "deposition",
    "reassignment",
    "preferred election",
)
RARER_CLUSTER_FAULTS = ("disk error", "disk full", "records deletion")

PROFILES: dict[str, tuple[str, ...]] = {
    "controllers": (
        *("deposition", "deposition", "kill of the controller", "pause of the controller", "coordination cut"),
        *("coordination loss", "session expiry", "kill of a leader", "reassignment", "preferred election"),
    ),
    "in-sync replicas": (
        *("coordination loss", "coordination cut", "pause of a leader", "pause", "one-way cut of brokers"),
        *("partition of brokers", "hold", "slow disk", "kill of a leader", "isolation"),
    ),
    "disks": (
        *("disk error", "disk error", "disk full", "slow disk", "kill in a disk call", "power cut"),
        *("kill of a leader", "pause of the controller", "records deletion"),
    ),
    "moves": (
        *("reassignment", "reassignment", "preferred election", "records deletion", "clean stop", "kill"),
        *("kill of a leader", "pause of the controller", "hold", "isolation"),
    ),
}
"""Kinds of faults that reinforce each other. Every second seed has such a profile, the others any mixture."""

LEAST_ACKNOWLEDGED = 500
MOST_NEEDED = 560
"""Enough records to send, as some are never acknowledged."""
LEAST_FAULTS = 20
LEAST_VIRTUAL_S = 120.0
ACTIVE_S = 95.0


TORN_LOGS = (
    *("torn log", "torn log", "torn log", "clean stop", "clean stop", "kill of a leader", "kill in a disk call"),
    *("power cut", "kill", "records deletion"),
)
"""The faults of about every ninth seed: logs truncated below their high watermarks (trap M22)."""


def tracks_eligible_leaders(seed: int) -> bool:
    """Whether the brokers of a seed use KIP-966."""
    return seed % 7 == 6


def tears_logs(seed: int) -> bool:
    """Whether the faults of a seed are TORN_LOGS. With KIP-966, no killed replica is trusted, and the last known leader
    leads even if its log was truncated.
    """
    return seed % 9 == 7 and not tracks_eligible_leaders(seed)


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
        "eligible.leader.replicas.enable": str(tracks_eligible_leaders(seed)).lower(),
    }
    faults = list(TORN_LOGS) if tears_logs(seed) else _faults(rng)
    if plan.renewed is not None:
        faults += ["topic deletion"] * 2
    transactions = draw_transactions(seed, min_isr, lossless=plan.groups_lossless)
    if transactions is not None:
        broker |= broker_settings(seed, min_isr)
        # A transaction that begins with a clock an hour ahead stays open an hour longer.
        transactions = replace(transactions, closes=transactions.closes or "clock jump" in faults)
    if "disk error" in faults:
        broker["log.dirs"] = rng.choice(["/data", "/data,/data2"])
    return replace(
        plan,
        broker=broker,
        topics=[_replicated(topic, min_isr) for topic in plan.topics],
        renewed=None if plan.renewed is None else _replicated(plan.renewed, min_isr),
        producers=_replicated_producers(plan),
        faults=faults,
        fault_pause_s=rng.choice([1.2, 2.0, 2.8]),
        active_s=ACTIVE_S,
        coordination="remote",
        brokers=rng.choice([3, 3, 3, 4, 5]),
        replication_factor=3,
        broker_session_timeout_s=rng.choice([2.0, 6.0]),
        least_s=LEAST_VIRTUAL_S,
        keeps_pace=True,
        transactions=transactions,
    )


def _faults(rng: Random) -> list[str]:
    if rng.random() < 0.5:
        return list(PROFILES[rng.choice(list(PROFILES))])
    faults = [each for each in (*FAULTS, *CLUSTER_FAULTS) if rng.random() < 0.5]
    faults += [each for each in RARER_CLUSTER_FAULTS if rng.random() < 0.2]
    return faults or ["kill of a leader"]


def _replicated(topic: TopicPlan, min_isr: str) -> TopicPlan:
    return replace(topic, config={**topic.config, "min.insync.replicas": min_isr})


def _replicated_producers(plan: Plan) -> list[ProducerPlan]:
    """Producers whose records are acknowledged when they are committed. They send enough records, even if the topic
    that is sometimes deleted gets none of them; and not all of them write to it.
    """
    renewed = None if plan.renewed is None else plan.renewed.name
    producers = [replace(each, settings={**each.settings, "acks": "all"}) for each in plan.producers]
    if all(each.topic == renewed for each in producers):
        producers[0] = replace(producers[0], topic=plan.topics[0].name)
    lasting = sum(each.topic != renewed for each in producers)
    return [replace(each, records=max(each.records, MOST_NEEDED // lasting)) for each in producers]
