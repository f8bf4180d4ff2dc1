"""The replicas that one fetcher fetches for: which the next fetch is about, and which are left out for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from broker.replication.follower_session import FollowerSession
from broker.replication.replication_quota import ReplicationQuota
from cluster.replication.follower import UNKNOWN
from cluster.replication.partition import Partition
from protocol.topic_partition import TopicPartition
from storage.log_config import UNLIMITED

FIRST_BACKOFF_MS, QUICK_RETRIES = 20, 5
"""The pause after an error, and how often it is that short in a row. It doubles after that."""


class Followed:
    """A replica that is fetched for. Another role, even of the same epoch, makes another object."""

    __slots__ = (
        "failures",
        "leader_epoch",
        "leader_high_watermark",
        "leader_log_start_offset",
        "log_start_moved",
        "partition",
        "retry_at_s",
        "work",
    )

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.failures = 0
        """In a row."""
        self.retry_at_s = 0.0
        self.leader_high_watermark = self.leader_log_start_offset = UNKNOWN
        """As its leader told them last."""
        self.log_start_moved = False
        """Whether the leader has moved the log start, and it is not on disk yet."""
        self.work: asyncio.Future[None] | None = None
        """The work on its log by other threads."""

    @property
    def is_caught_up(self) -> bool:
        """Whether it has everything that its leader's last answer called committed."""
        return UNKNOWN < self.leader_high_watermark <= self.partition.log.log_end_offset

    @property
    def flush_target(self) -> int | None:
        """The offset up to which the log is to be flushed before its end may be confirmed to the leader: as much as
        flush.messages asks for before a leader acknowledges. None when that is so.
        """
        local = self.partition.log.local
        if local.config.flush_messages == UNLIMITED or local.flush_limit_offset >= local.log_end_offset:
            return None
        return local.log_end_offset + 1 - local.config.flush_messages


class FollowedReplicas:
    """Owner of them. `session` is what the leader was asked for; `quota` holds replicas back that are behind."""

    def __init__(
        self, session: FollowerSession, quota: ReplicationQuota, backoff_ms: int, monotonic_s: Callable[[], float]
    ) -> None:
        """`backoff_ms` is the longest pause after an error (replica.fetch.backoff.ms)."""
        self._session = session
        self._quota = quota
        self._backoff_ms = backoff_ms
        self._monotonic_s = monotonic_s
        self.all: dict[TopicPartition, Followed] = {}
        self.due: dict[TopicPartition, None] = {}
        """Those whose next position is to be told to the leader."""
        self._delayed: dict[TopicPartition, None] = {}
        """Left out until their `retry_at_s`."""
        self._held_back: dict[TopicPartition, None] = {}
        """Left out while the quota is exceeded."""

    def add(self, partition: Partition) -> None:
        """A replica that was not here."""
        self.all[partition.topic_partition] = Followed(partition)
        self.due[partition.topic_partition] = None

    def drop(self, topic_partition: TopicPartition) -> Followed | None:
        """Forget a replica."""
        followed = self.all.pop(topic_partition, None)
        if followed is not None:
            self._leave_out(topic_partition)
            self._delayed.pop(topic_partition, None)
            self._held_back.pop(topic_partition, None)
        return followed

    def _leave_out(self, topic_partition: TopicPartition) -> None:
        self._session.drop(topic_partition)
        self.due.pop(topic_partition, None)

    def delay(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Leave replicas out for a while: up to replica.fetch.backoff.ms, and less at first. After a change of leaders
        some hear of it a moment before the others, and nothing is acknowledged until all in sync fetch.
        """
        now_s = self._monotonic_s()
        for topic_partition in topic_partitions:
            followed = self.all[topic_partition]
            doublings = min(max(followed.failures - QUICK_RETRIES, 0), 20)
            pause_ms = min(FIRST_BACKOFF_MS << doublings, self._backoff_ms)
            followed.failures += 1
            followed.retry_at_s = now_s + pause_ms / 1000
            self._leave_out(topic_partition)
            self._held_back.pop(topic_partition, None)
            self._delayed[topic_partition] = None

    def delay_all(self) -> None:
        """Leave out all that are not left out after an error yet."""
        self.delay([each for each in self.all if each not in self._delayed])

    def take_up(self) -> None:
        """Have the next fetch be about what need not be left out any more, and not about what the quota holds back."""
        now_s = self._monotonic_s()
        for topic_partition in [each for each in self._delayed if self.all[each].retry_at_s <= now_s]:
            del self._delayed[topic_partition]
            self.due[topic_partition] = None
        quota = self._quota
        if not (quota.throttled or self._held_back):
            return
        is_exceeded = quota.is_exceeded
        for topic_partition in [each for each in self._held_back if not (is_exceeded and quota.is_throttled(each))]:
            del self._held_back[topic_partition]
            self.due[topic_partition] = None
        if is_exceeded:
            for topic_partition, followed in self.all.items():
                if not followed.is_caught_up and quota.is_throttled(topic_partition):
                    self._hold_back(topic_partition)

    def _hold_back(self, topic_partition: TopicPartition) -> None:
        if topic_partition not in self._delayed and topic_partition not in self._held_back:
            self._leave_out(topic_partition)
            self._held_back[topic_partition] = None

    def count(self, topic_partition: TopicPartition, size: int) -> None:
        """Bytes of records have come for a replica."""
        if size and self._quota.is_throttled(topic_partition):
            self._quota.record(size)

    def pause_s(self) -> float | None:
        """How long to wait when there is nothing to fetch; None for until something is added."""
        ends = [self.all[each].retry_at_s for each in self._delayed]
        now_s = self._monotonic_s()
        if self._held_back:
            ends.append(now_s + self._backoff_ms / 1000)
        return max(min(ends) - now_s, 0.001) if ends else None

    def longest_wait_ms(self, wait_ms: int) -> int:
        """`wait_ms`, or less: the leader must not hold up what is to be tried again."""
        now_s = self._monotonic_s()
        for topic_partition in self._delayed:
            left_ms = int((self.all[topic_partition].retry_at_s - now_s) * 1000) + 1
            wait_ms = max(min(wait_ms, left_ms), 0)
        return wait_ms
