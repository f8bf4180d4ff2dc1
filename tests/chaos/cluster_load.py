"""Producers that send without a pause while a cluster loses brokers and connections, and the checks that follow."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence, Sized
from typing import Protocol

from confluent_kafka import KafkaError, Message

from tests.compat.steady_load import PARTITIONS, Sender, judge
from tests.kit.broker_cluster import BrokerCluster
from tests.kit.waiting import eventually

MORE = 50
"""How many more acknowledgements of each sender prove that production continues."""


class TimedSender(Sender):
    """A sender that records the longest time, in seconds, without an acknowledgement from any one partition."""

    def __init__(self, name: str, address: str, topic: str, *, idempotent: bool) -> None:
        super().__init__(name, address, topic, idempotent=idempotent)
        self.longest_gap_s = 0.0
        self._last_s: dict[int | None, float] = {}

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        now, partition = time.monotonic(), message.partition()
        self.longest_gap_s = max(self.longest_gap_s, now - self._last_s.get(partition, now))
        self._last_s[partition] = now
        super()._delivered(error, message)


class Producing(Protocol):
    """A producer whose acknowledgements can be counted."""

    @property
    def acknowledged(self) -> Sized: ...


def goes_on(senders: Sequence[Producing]) -> None:
    """Return when each sender has `MORE` acknowledgements more than now."""
    goals = [len(sender.acknowledged) + MORE for sender in senders]
    eventually(
        "acknowledgements",
        lambda: [goal - len(sender.acknowledged) for sender, goal in zip(senders, goals, strict=True)],
        lambda missing: max(missing) <= 0,
    )


@contextlib.contextmanager
def load(cluster: BrokerCluster, topic: str) -> Iterator[list[TimedSender]]:
    """Run two idempotent producers for the duration of a block; afterwards all replicas are in sync within a minute,
    and the leaders hold every acknowledged record, once and in order.
    """
    senders = [TimedSender(f"once{number}", cluster.address, topic, idempotent=True) for number in range(2)]
    for sender in senders:
        sender.start()
    try:
        goes_on(senders)
        yield senders
        goes_on(senders)
    finally:
        for sender in senders:
            sender.stop()
    cluster.await_full_isr(topic)
    verdict = judge(cluster.address, senders)
    assert (verdict.lost, verdict.doubled) == (0, 0), verdict
    assert verdict.acknowledged == sum(sum(sender.sent) for sender in senders)


def check_replicas(cluster: BrokerCluster, topic: str) -> None:
    """Check that all replicas hold the same bytes and that no broker logged a bug. The cluster must be stopped."""
    for partition in range(PARTITIONS):
        assert len(set(cluster.logs_of(topic, partition).values())) == 1, f"replicas of {topic}-{partition} differ"
    assert cluster.traceback() is None


def check_all_replicas(cluster: BrokerCluster) -> None:
    """`check_replicas` of all topics; stops the cluster."""
    topics = [name for name in cluster.metadata().topics if not name.startswith("__")]
    assert topics
    cluster.stop()
    for topic in topics:
        check_replicas(cluster, topic)
