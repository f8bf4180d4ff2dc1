"""The plan of a seed: the broker's configuration, topics, clients and kinds of faults, all drawn in advance.

Kinds of faults are switched on and off as a whole (some seeds have none), since one kind may hide bugs that appear
without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

FAULTS = (
    "kill",
    "kill in a disk call",
    "power cut",
    "pause",
    "clean stop",
    "partition",
    "one-way cut",
    "reset",
    "hold",
    "slow disk",
    "clock jump",
    "session expiry",
    "coordination loss",
    "client kill",
    "client pause",
)

RARER_FAULTS = ("topic deletion", "disk error", "disk full", "bit flip")
"""Kinds that fewer seeds have, as they reduce what the others can check."""


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic. `lossless`: records are fsynced before they are acknowledged."""

    name: str
    partitions: int
    config: dict[str, str]
    lossless: bool


@dataclass(frozen=True, slots=True)
class ProducerPlan:
    """A producer and how it sends."""

    name: str
    topic: str
    settings: dict[str, str]
    idempotent: bool
    records: int
    most_at_once: int
    value_bytes: int


@dataclass(frozen=True, slots=True)
class TransactionsPlan:
    """Transactional producers that write to `inputs`, and a loop that reads those and writes to `outputs`."""

    inputs: TopicPlan
    outputs: TopicPlan
    producers: int
    timeout_ms: int
    """Timeout after which brokers abort a transaction."""
    give_up_s: float
    """Timeout after which a client aborts a transaction."""
    pause_s: float
    abort_chance: float
    hold_chance: float
    """Probability that a transaction is aborted while one of its produce requests is held back and arrives later."""
    twins: int
    """How often another client starts with a transactional id in use."""
    closes: bool
    """Whether each transactional id gets a new producer at the end; otherwise open transactions must time out."""
    request_timeout_ms: int
    client_ids: tuple[str, ...]
    """The transactional ids of our own client; the others belong to clients that send their own requests."""
    instances: int = 0
    """Members of the loop's group; 0: the loop is one client without a group."""
    loop_session_timeout_ms: int = 6_000
    loop_assignor: str = "range"
    strike_chance: float = 0.0
    """Probability that the end of a transaction meets a fault of `tests.simulation.transactions.strikes`."""


@dataclass(frozen=True, slots=True)
class Plan:
    """See the module."""

    broker: dict[str, str]
    groups_lossless: bool
    topics: list[TopicPlan]
    producers: list[ProducerPlan]
    members: int
    client: dict[str, str]
    consumer: dict[str, str]
    session_timeout_ms: int
    faults: list[str]
    fault_pause_s: float
    active_s: float
    most_delay_s: float
    renewed: TopicPlan | None
    """The topic that is sometimes deleted and recreated."""
    coordination: str
    """"embedded": the broker keeps the tree on its disk; "remote": another machine does."""
    brokers: int = 1
    replication_factor: int = 1
    broker_session_timeout_s: float = 6.0
    """The timeout of the brokers' sessions with the tree that they share."""
    least_s: float = 60.0
    """The minimum duration of a seed."""
    keeps_pace: bool = False
    """Delayed producers send faster afterwards, so that all is sent before the faults end."""
    transactions: TransactionsPlan | None = None

    @property
    def all_topics(self) -> list[TopicPlan]:
        """All topics, including those of the transactional clients."""
        transactions = self.transactions
        added = [] if transactions is None else [transactions.inputs, transactions.outputs]
        return [*self.topics, *added]


def draw_plan(seed: int) -> Plan:
    """The plan of a seed."""
    rng = Random(f"plan {seed}")
    more = Random(f"more {seed}")
    all_flushed = rng.random() < 0.4
    segment_bytes = rng.choice([5_000, 20_000, 100_000, 1 << 30])
    broker = {
        "log.segment.bytes": str(segment_bytes),
        "log.index.interval.bytes": str(rng.choice([1, 500, 4_096])),
        "log.roll.ms": str(rng.choice([7_000, 604_800_000])),
        "log.flush.offset.checkpoint.interval.ms": str(rng.choice([1_000, 60_000])),
        "replica.high.watermark.checkpoint.interval.ms": str(rng.choice([500, 5_000])),
        "log.flush.scheduler.interval.ms": str(rng.choice([1_000, 9_223_372_036_854_775_807])),
        "offsets.topic.num.partitions": str(rng.choice([1, 3])),
        "offsets.topic.segment.bytes": str(rng.choice([2_000, 104_857_600])),
        "group.initial.rebalance.delay.ms": str(rng.choice([0, 0, 500])),
        "max.incremental.fetch.session.cache.slots": str(rng.choice([1, 1000])),
        "fetch.purgatory.purge.interval.requests": "1",
    }
    if all_flushed:
        broker["log.flush.interval.messages"] = "1"
    topics = []
    for number in range(rng.choice([1, 1, 2])):
        lossless = all_flushed or rng.random() < 0.5
        config = {"flush.messages": "1"} if lossless and not all_flushed else {}
        topics.append(TopicPlan(f"t{number}", rng.choice([1, 2, 3]), config, lossless))
    rarer = [each for each in RARER_FAULTS[:3] if more.random() < 0.2]
    if Random(f"bit flip {seed}").random() < 0.2:
        rarer.append("bit flip")
    renewed = None
    if "topic deletion" in rarer:
        # Others exist too, and they behave as without deletions.
        renewed = TopicPlan("renewed", more.choice([1, 2]), {"flush.messages": "1"}, lossless=True)
        topics.append(renewed)
        broker["auto.create.topics.enable"] = "false"
    if "bit flip" in rarer:
        broker["log.scrub.interval.ms"] = Random(f"scrub {seed}").choice(["3000", "86400000"])
    if "disk error" in rarer:
        broker["log.dirs"] = more.choice(["/data", "/data,/data2"])
    producers = []
    kinds = [("all", True), ("all", True), ("all", False), ("1", False)]
    rng.shuffle(kinds)
    for number, (acks, idempotent) in enumerate(kinds[: rng.choice([2, 3])]):
        settings = {
            "acks": acks,
            "enable.idempotence": str(idempotent).lower(),
            "linger.ms": str(rng.choice([0, 0, 5, 100])),
            "batch.size": str(min(rng.choice([1, 200, 16_384]), segment_bytes // 3)),
            "compression.type": rng.choice(["none", "none", "gzip", "snappy", "lz4", "zstd"]),
            "delivery.timeout.ms": "600000",
            "max.block.ms": "600000",
            "request.timeout.ms": "5000",
        }
        producers.append(
            ProducerPlan(
                f"producer-{number}",
                rng.choice(topics).name,
                settings,
                idempotent,
                rng.choice([60, 150, 250]),
                rng.choice([1, 1, 3, 20]),
                rng.choice([0, 0, 100, 1_000]),
            )
        )
    faults = [each for each in FAULTS if rng.random() < 0.5] if rng.random() < 0.95 else []
    # A partition's limit must not be lower than the broker's minimum.
    fetch_bytes = rng.choice([(1, 200), (1, 1_048_576), (1_000, 1_048_576)])
    return Plan(
        broker=broker,
        groups_lossless=all_flushed,
        topics=topics,
        producers=producers,
        members=rng.choice([0, 1, 2, 3]),
        client={"request.timeout.ms": "5000", "metadata.max.age.ms": str(rng.choice([5_000, 300_000]))},
        consumer={
            "fetch.max.wait.ms": str(rng.choice([200, 500, 1_000, 2_000])),
            "fetch.min.bytes": str(fetch_bytes[0]),
            "max.partition.fetch.bytes": str(fetch_bytes[1]),
            "max.poll.records": str(rng.choice([1, 10, 500])),
            # Consumers must not check the CRC: the broker's checks are under test.
            "check.crcs": str("bit flip" not in rarer).lower(),
            "partition.assignment.strategy": rng.choice(["range", "roundrobin", "cooperative-sticky"]),
        },
        session_timeout_ms=rng.choice([2_000, 6_000, 10_000]),
        faults=faults + rarer,
        fault_pause_s=rng.choice([2.0, 4.0, 8.0]),
        active_s=55.0,
        most_delay_s=rng.choice([0.000_2, 0.002, 0.02]),
        renewed=renewed,
        coordination=rng.choice(["embedded", "embedded", "remote"]),
    )
