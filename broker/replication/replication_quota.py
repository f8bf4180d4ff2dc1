"""Limits on the replication of chosen replicas (KIP-73; Kafka class `ReplicationQuotaManager`).

A topic names its throttled replicas: on their leaders by `leader.replication.throttled.replicas`, on their followers by
`follower.replication.throttled.replicas`. A broker limits the bytes per second of all of them together. All bytes sent
or fetched for a throttled replica are counted, but only a follower that is not in sync is held back, so that a throttle
never removes a replica from the ISR.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from cluster.metadata_image import MetadataImage
from cluster.quotas.client_quota import SimpleRate
from config.broker_keys import FOLLOWER_RATE, LEADER_RATE, UNLIMITED_RATE
from config.topic_config import FOLLOWER_THROTTLED_REPLICAS, LEADER_THROTTLED_REPLICAS
from environment.contract import Clock
from protocol.config_resources import ConfigResourceType
from protocol.topic_partition import TopicPartition

ALL_REPLICAS: Final = "*"


class ReplicationQuota:
    """The throttled replicas of one side, their recent bytes, and their limit."""

    def __init__(self, clock: Clock, samples: int, sample_s: int) -> None:
        """The rate is that of the last `samples` times `sample_s` seconds (replication.quota.window.*)."""
        self._clock = clock
        self._rate = SimpleRate(samples, sample_s * 1000)
        self.bytes_per_second = UNLIMITED_RATE
        self.throttled: Mapping[str, frozenset[int] | None] = {}
        """Partitions whose replica on this broker is throttled, by topic. The value None stands for all partitions."""

    def is_throttled(self, topic_partition: TopicPartition) -> bool:
        """Whether the bytes of the replica are counted."""
        topic, number = topic_partition
        if topic not in self.throttled:
            return False
        numbers = self.throttled[topic]
        return numbers is None or number in numbers

    def record(self, size: int) -> None:
        """Count bytes of a throttled replica."""
        self._rate.record(size, self._clock.monotonic_s() * 1000)

    @property
    def rate(self) -> float:
        """Bytes per second in the window. At its beginning, and after a pause, the window has at least the length of
        one sample.
        """
        return self._rate.measure(self._clock.monotonic_s() * 1000)

    @property
    def is_exceeded(self) -> bool:
        """Whether throttled replicas that are not in sync must wait."""
        return self.bytes_per_second != UNLIMITED_RATE and self.rate > self.bytes_per_second


class ReplicationQuotas:
    """A broker's quotas as leader and as follower. `limit(key)` returns a dynamic limit of this broker."""

    def __init__(
        self,
        broker_id: int,
        clock: Clock,
        limit: Callable[[str], int],
        image: MetadataImage,
        *,
        samples: int,
        sample_s: int,
    ) -> None:
        self._broker_id = broker_id
        self._limit = limit
        self.leader = ReplicationQuota(clock, samples, sample_s)
        self.follower = ReplicationQuota(clock, samples, sample_s)
        self._apply(image)

    def image_changed(self, old: MetadataImage, new: MetadataImage) -> None:
        """Apply the configurations of a new metadata image."""
        if new.configs is not old.configs:
            self._apply(new)

    def _apply(self, image: MetadataImage) -> None:
        for quota, rate, replicas in (
            (self.leader, LEADER_RATE, LEADER_THROTTLED_REPLICAS),
            (self.follower, FOLLOWER_RATE, FOLLOWER_THROTTLED_REPLICAS),
        ):
            quota.bytes_per_second = self._limit(rate)
            quota.throttled = {
                topic: throttled_partitions(overrides[replicas], self._broker_id)
                for (kind, topic), overrides in image.configs.items()
                if kind == ConfigResourceType.TOPIC and overrides.get(replicas)
            }


def throttled_partitions(text: str, broker_id: int) -> frozenset[int] | None:
    """The partitions that `text` names for one broker in `partition:broker` pairs, or None for `*` (all). Anything but
    a pair is ignored: it was written without validation.
    """
    if text.strip() == ALL_REPLICAS:
        return None
    pairs = (each.strip().partition(":") for each in text.split(","))
    return frozenset(
        int(number)
        for number, _, broker in pairs
        if number.isdecimal() and broker.isdecimal() and int(broker) == broker_id
    )
