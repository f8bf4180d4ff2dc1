"""The transactional clients of a seed of a cluster, and the broker settings for them."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.simulation.plan import TopicPlan, TransactionsPlan

FIRST_SEED = 2_000_000
"""Lower seeds have none, so that findings about them stay true."""
FIRST_STRUCK_SEED = 2_010_000
"""Lower seeds have neither strikes nor a group in the loop, so that findings about them stay true."""
SHARE = 0.7
GROUP = "loop"
LOOP = "transactional-loop"
PRODUCER = "transactional-producer"
"""Transactional ids and process names; several producers are numbered."""


def instances(count: int) -> list[str]:
    """The transactional ids and process names of the members of a loop."""
    return [f"{LOOP}-{number}" for number in range(count)]


def has_transactions(seed: int) -> bool:
    """Whether a seed has transactional clients."""
    return seed >= FIRST_SEED and Random(f"has transactions {seed}").random() < SHARE


def draw_transactions(seed: int, min_isr: str, *, lossless: bool) -> TransactionsPlan | None:
    """The transactional clients of a seed, or None. `lossless`: all topics are flushed."""
    if not has_transactions(seed):
        return None
    rng = Random(f"transactions {seed}")
    flushed = lossless or rng.random() < 0.5
    config = {"min.insync.replicas": min_isr}
    if flushed and not lossless:
        config["flush.messages"] = "1"
    plan = TransactionsPlan(
        inputs=TopicPlan("inputs", rng.choice([2, 3]), config, flushed),
        outputs=TopicPlan("outputs", rng.choice([1, 2]), config, flushed),
        producers=rng.choice([1, 2]),
        timeout_ms=rng.choice([3_000, 8_000, 15_000]),
        give_up_s=rng.choice([2.0, 10.0]),
        pause_s=rng.choice([0.7, 1.5, 3.0]),
        abort_chance=rng.choice([0.1, 0.3]),
        hold_chance=rng.choice([0.0, 0.1, 0.3]),
        twins=rng.choice([0, 1, 4]),
        closes=rng.random() < 0.5,
        request_timeout_ms=rng.choice([1_000, 5_000]),
        client_ids=tuple(each for each in (LOOP, f"{PRODUCER}-1") if rng.random() < 0.5),
    )
    return plan if seed < FIRST_STRUCK_SEED else _struck(seed, plan)


def _struck(seed: int, plan: TransactionsPlan) -> TransactionsPlan:
    rng = Random(f"strikes of {seed}")
    count = rng.choice([2, 2, 3])
    return replace(
        plan,
        client_ids=(*plan.client_ids, *(each for each in instances(count) if rng.random() < 0.5)),
        instances=count,
        loop_session_timeout_ms=rng.choice([2_000, 6_000]),
        loop_assignor=rng.choice(["range", "roundrobin", "cooperative-sticky"]),
        strike_chance=rng.choice([0.05, 0.2]),
    )


def broker_settings(seed: int, min_isr: str) -> dict[str, str]:
    """The configuration that transactions add to the brokers of a seed."""
    rng = Random(f"transaction settings {seed}")
    return {
        "transaction.state.log.replication.factor": "3",
        "transaction.state.log.min.isr": min_isr,
        "transaction.state.log.num.partitions": rng.choice(["1", "3"]),
        "transaction.state.log.segment.bytes": rng.choice(["2000", "104857600"]),
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": rng.choice(["500", "5000"]),
    }
