"""A follower's side of an incremental fetch session (KIP-227; Kafka class `FetchSessionHandler`).

The leader remembers what it was asked for, partition by partition. A request says what has changed since, so its size
does not depend on how many partitions there are. `positions` always holds all that the leader is to read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cluster.replication.follower import FetchPosition
from protocol.errors import ErrorCode
from protocol.messages.fetch import FetchRequest, FetchResponse
from protocol.topic_partition import TopicPartition
from protocol.uuids import ZERO_UUID, Uuid

NO_SESSION: Final = 0
FULL: Final = 0
"""The epoch of a request that names all partitions, and begins a session."""
LAST_EPOCH: Final = 2**31 - 1
VERSION_WITH_IDS: Final = 17
VERSION_WITH_NAMES: Final = 12
"""For topics without an id (KIP-516)."""

Asked = FetchRequest.FetchPartition
AskedTopic = FetchRequest.FetchTopic
Answer = tuple[TopicPartition, FetchPosition, FetchResponse.PartitionData]


class FollowerSession:
    """The positions that one leader was asked for. One request at a time: `request`, then `accept` or `reset`."""

    def __init__(self, max_bytes_per_partition: int) -> None:
        self._max_bytes = max_bytes_per_partition
        self.positions: dict[TopicPartition, FetchPosition] = {}
        self._topic_ids: dict[TopicPartition, Uuid] = {}
        self._by_id: dict[tuple[Uuid, int], TopicPartition] = {}
        self._without_id: dict[TopicPartition, None] = {}
        self._changed: dict[TopicPartition, None] = {}
        """Partitions of which the leader does not know the position yet."""
        self._forgotten: dict[TopicPartition, Uuid] = {}
        self._asked_before: dict[TopicPartition, FetchPosition | None] = {}
        """The positions in the last request, where something else is wanted by now; None for what was not in it."""
        self._session_id = NO_SESSION
        self._epoch = FULL
        self._uses_ids = True

    def ask(self, topic_partition: TopicPartition, topic_id: Uuid | None, position: FetchPosition) -> None:
        """The next request is to ask for this."""
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
        """The next request is to ask for this partition no longer."""
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
        """The connection is gone, or what came over it made no sense: begin a new session with the next request. It
        names the old one, which the leader lets go of if it has it still.
        """
        self._epoch = FULL

    def request(self) -> tuple[FetchRequest, int]:
        """The request, without who asks and how long to wait, and its version."""
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
        """The answers in `response`, each with what was asked. None when the session is over; the next request begins
        another one.
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
