"""A follower's side of an incremental fetch session (KIP-227; Kafka class `FetchSessionHandler`), and the replicas of
one fetcher.

The leader remembers the requested position of each partition. A request carries only the changes since the last one, so
its size does not depend on the number of partitions. `positions` always holds everything that the leader should read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from broker.replication.replication_quota import ReplicationQuota
from cluster.replication.follower import UNKNOWN, FetchPosition
from cluster.replication.partition import Partition
from protocol.errors import ErrorCode
from protocol.messages.fetch import FetchRequest, FetchResponse
from protocol.topic_partition import TopicPartition
from protocol.uuids import ZERO_UUID, Uuid
from storage.log_config import UNLIMITED

NO_SESSION: Final = 0
FULL: Final = 0
"""The epoch of a request that names all partitions and begins a session."""
LAST_EPOCH: Final = 2**31 - 1
VERSION_WITH_IDS: Final = 17
VERSION_WITH_NAMES: Final = 12
"""For topics without an id (KIP-516)."""

Asked = FetchRequest.FetchPartition
AskedTopic = FetchRequest.FetchTopic
Answer = tuple[TopicPartition, FetchPosition, FetchResponse.PartitionData]


class FollowerSession:
    """The positions requested from one leader. One request at a time: `request`, then `accept` or `reset`."""

    def __init__(self, max_bytes_per_partition: int) -> None:
        self._max_bytes = max_bytes_per_partition
        self.positions: dict[TopicPartition, FetchPosition] = {}
        self._topic_ids: dict[TopicPartition, Uuid] = {}
        self._by_id: dict[tuple[Uuid, int], TopicPartition] = {}
        self._without_id: dict[TopicPartition, None] = {}
        self._changed: dict[TopicPartition, None] = {}
        """Partitions whose new position the leader does not know yet."""
        self._forgotten: dict[TopicPartition, Uuid] = {}
        self._asked_before: dict[TopicPartition, FetchPosition | None] = {}
        """For partitions changed since the last request, their position in it, or None if they were not in it."""
        self._session_id = NO_SESSION
        self._epoch = FULL
        self._uses_ids = True

    def ask(self, topic_partition: TopicPartition, topic_id: Uuid | None, position: FetchPosition) -> None:
        """Ask for this position in the next request."""
        before = self.positions.get(topic_partition)
        if before == position:
            return
        self._asked_before.setdefault(topic_partition, before)
        if before is None:
            self._topic_ids[topic_partition] = topic_id or ZERO_UUID
            if topic_id is None:
                self._without_id[topic_partition] = None
            else:
                self._by_id[topic_id, topic_partition.partition] = topic_partition
                if self._forgotten.get(topic_partition, topic_id) == topic_id:
                    self._forgotten.pop(topic_partition, None)
        self.positions[topic_partition] = position
        self._changed[topic_partition] = None

    def drop(self, topic_partition: TopicPartition) -> None:
        """Leave this partition out of the next request."""
        before = self.positions.pop(topic_partition, None)
        if before is None:
            return
        self._asked_before.setdefault(topic_partition, before)
        topic_id = self._topic_ids.pop(topic_partition)
        self._by_id.pop((topic_id, topic_partition.partition), None)
        self._without_id.pop(topic_partition, None)
        self._changed.pop(topic_partition, None)
        self._forgotten[topic_partition] = topic_id

    def reset(self) -> None:
        """Begin a new session with the next request, because the connection is lost or its data was invalid. The
        request names the old session, so that the leader can drop it.
        """
        self._epoch = FULL

    def request(self) -> tuple[FetchRequest, int]:
        """The request, without replica id and wait time, and its version."""
        uses_ids = not self._without_id
        if uses_ids != self._uses_ids:
            self._epoch = FULL
        self._uses_ids = uses_ids
        is_full = self._epoch == FULL
        request = FetchRequest(
            session_id=self._session_id,
            session_epoch=self._epoch,
            topics=self._topics(self.positions if is_full else self._changed),
            forgotten_topics_data=[] if is_full else self._forgotten_topics(),
            max_wait_ms=0,
            min_bytes=0,
        )
        self._changed = {}
        self._forgotten = {}
        self._asked_before = {}
        return request, VERSION_WITH_IDS if uses_ids else VERSION_WITH_NAMES

    def _topics(self, wanted: dict[TopicPartition, FetchPosition] | dict[TopicPartition, None]) -> list[AskedTopic]:
        topics: dict[tuple[str, Uuid], AskedTopic] = {}
        for topic_partition in wanted:
            key = topic_partition.topic, self._topic_ids[topic_partition]
            topic = topics.get(key)
            if topic is None:
                topic = topics[key] = AskedTopic(topic=key[0], topic_id=key[1], partitions=[])
            position = self.positions[topic_partition]
            topic.partitions.append(
                Asked(
                    partition=topic_partition.partition,
                    current_leader_epoch=position.leader_epoch,
                    fetch_offset=position.fetch_offset,
                    last_fetched_epoch=position.last_fetched_epoch,
                    log_start_offset=position.log_start_offset,
                    partition_max_bytes=self._max_bytes,
                )
            )
        return list(topics.values())

    def _forgotten_topics(self) -> list[FetchRequest.ForgottenTopic]:
        topics: dict[tuple[str, Uuid], FetchRequest.ForgottenTopic] = {}
        for topic_partition, topic_id in self._forgotten.items():
            key = topic_partition.topic, topic_id
            topic = topics.get(key)
            if topic is None:
                topic = topics[key] = FetchRequest.ForgottenTopic(topic=key[0], topic_id=key[1], partitions=[])
            topic.partitions.append(topic_partition.partition)
        return list(topics.values())

    def accept(self, response: FetchResponse) -> Iterator[Answer]:
        """The answers in `response`, each with the requested position. Empty when the session is over; the next request
        begins another one.
        """
        error_code = response.error_code
        if error_code:
            if error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self._session_id = NO_SESSION
            self._epoch = FULL
            return iter(())
        if self._epoch == FULL:
            self._session_id = response.session_id
        self._epoch = FULL if response.session_id == NO_SESSION else 1 if self._epoch == LAST_EPOCH else self._epoch + 1
        return self._answers(response)

    def _answers(self, response: FetchResponse) -> Iterator[Answer]:
        for topic in response.responses:
            for data in topic.partitions:
                if self._uses_ids:
                    topic_partition = self._by_id.get((topic.topic_id, data.partition_index))
                else:
                    topic_partition = TopicPartition(topic.topic, data.partition_index)
                if topic_partition is None:
                    continue
                asked = self._asked_before.get(topic_partition, self.positions.get(topic_partition))
                if asked is not None:
                    yield topic_partition, asked, data


FIRST_BACKOFF_MS, QUICK_RETRIES = 20, 5
"""The pause after an error, and how many times in a row it is used. After that it doubles."""


class Followed:
    """A replica that is being fetched. Each new role, even in the same epoch, gets a new object."""

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
        """Consecutive failures."""
        self.retry_at_s = 0.0
        self.leader_high_watermark = self.leader_log_start_offset = UNKNOWN
        """As last reported by the leader."""
        self.log_start_moved = False
        """Whether the leader has moved the log start offset, and it is not on disk yet."""
        self.work: asyncio.Future[None] | None = None
        """Work of other threads on its log."""

    @property
    def is_caught_up(self) -> bool:
        """Whether it has everything that was committed according to the leader's last answer."""
        return UNKNOWN < self.leader_high_watermark <= self.partition.log.log_end_offset

    @property
    def flush_target(self) -> int | None:
        """The offset to flush to before the log end is confirmed to the leader: as far as flush.messages requires
        before a leader acknowledges. It is None if the log is already flushed as far.
        """
        local = self.partition.log.local
        if local.config.flush_messages == UNLIMITED or local.flush_limit_offset >= local.log_end_offset:
            return None
        return local.log_end_offset + 1 - local.config.flush_messages


class FollowedReplicas:
    """Owns these replicas. `session` holds the positions requested from the leader; `quota` pauses replicas that are
    behind.
    """

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
        """Replicas whose next position must be sent to the leader."""
        self._delayed: dict[TopicPartition, None] = {}
        """Paused until their `retry_at_s`."""
        self._held_back: dict[TopicPartition, None] = {}
        """Paused while the quota is exceeded."""

    def add(self, partition: Partition) -> None:
        """Add a new replica."""
        self.all[partition.topic_partition] = Followed(partition)
        self.due[partition.topic_partition] = None

    def drop(self, topic_partition: TopicPartition) -> Followed | None:
        """Forget a replica."""
        followed = self.all.pop(topic_partition, None)
        if followed is not None:
            self._remove(topic_partition)
            self._delayed.pop(topic_partition, None)
            self._held_back.pop(topic_partition, None)
        return followed

    def _remove(self, topic_partition: TopicPartition) -> None:
        self._session.drop(topic_partition)
        self.due.pop(topic_partition, None)

    def delay(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Pause replicas, first briefly, then for up to replica.fetch.backoff.ms. After a leader change, brokers learn
        of it at slightly different times, and nothing is acknowledged until all in-sync replicas fetch.
        """
        now_s = self._monotonic_s()
        for topic_partition in topic_partitions:
            followed = self.all[topic_partition]
            doublings = min(max(followed.failures - QUICK_RETRIES, 0), 20)
            pause_ms = min(FIRST_BACKOFF_MS << doublings, self._backoff_ms)
            followed.failures += 1
            followed.retry_at_s = now_s + pause_ms / 1000
            self._remove(topic_partition)
            self._held_back.pop(topic_partition, None)
            self._delayed[topic_partition] = None

    def delay_all(self) -> None:
        """Pause all replicas that are not already paused after an error."""
        self.delay([each for each in self.all if each not in self._delayed])

    def resume_due(self) -> None:
        """Resume the replicas whose pause is over, and pause those that the quota holds back."""
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
            self._remove(topic_partition)
            self._held_back[topic_partition] = None

    def count(self, topic_partition: TopicPartition, size: int) -> None:
        """Count bytes of records received for a replica."""
        if size and self._quota.is_throttled(topic_partition):
            self._quota.record(size)

    def pause_s(self) -> float | None:
        """Seconds to wait when there is nothing to fetch, or None to wait until a replica is added."""
        ends = [self.all[each].retry_at_s for each in self._delayed]
        now_s = self._monotonic_s()
        if self._held_back:
            ends.append(now_s + self._backoff_ms / 1000)
        return max(min(ends) - now_s, 0.001) if ends else None

    def longest_wait_ms(self, wait_ms: int) -> int:
        """`wait_ms`, or less if a paused replica is due earlier: the leader must not delay its retry."""
        now_s = self._monotonic_s()
        for topic_partition in self._delayed:
            left_ms = int((self.all[topic_partition].retry_at_s - now_s) * 1000) + 1
            wait_ms = max(min(wait_ms, left_ms), 0)
        return wait_ms
