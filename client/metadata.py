"""A client's metadata of the cluster: an immutable snapshot of brokers, topics and leaders, and the metadata of a
producer's or consumer's topics, which is refreshed when old or wrong.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from client.errors import ClientTimeoutError, DisconnectedError
from protocol.errors import ApiError, ErrorCode
from protocol.messages.metadata import MetadataResponse
from protocol.topic_partition import TopicPartition
from protocol.uuids import ZERO_UUID, Uuid
from protocol.value import Value, field

if TYPE_CHECKING:
    from client.kafka_client import KafkaClient


class Node(NamedTuple):
    """A broker and its address."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{self.host}:{self.port}"


class PartitionMetadata(NamedTuple):
    """One partition; `leader` and `leader_epoch` are -1 if missing or unknown."""

    partition: int
    error_code: ErrorCode
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]


class TopicMetadata(Value):
    """One topic with its partitions by index, or with an error code instead."""

    name: str
    topic_id: Uuid
    error_code: ErrorCode
    is_internal: bool
    partitions: Mapping[int, PartitionMetadata]


class Metadata(Value):
    """A snapshot of a cluster. `topics` holds the requested topics."""

    cluster_id: str | None = None
    controller_id: int = -1
    nodes: Mapping[int, Node] = field(default_factory=dict)
    topics: Mapping[str, TopicMetadata] = field(default_factory=dict)
    topic_names: Mapping[Uuid, str] = field(default_factory=dict)

    @classmethod
    def of(cls, response: MetadataResponse) -> Metadata:
        """Convert a broker's response."""
        topics = {topic.name: _topic(topic, topic.name) for topic in response.topics if topic.name is not None}
        return cls(
            cluster_id=response.cluster_id,
            controller_id=response.controller_id,
            nodes={each.node_id: Node(each.node_id, each.host, each.port, each.rack) for each in response.brokers},
            topics=topics,
            topic_names={topic.topic_id: name for name, topic in topics.items() if topic.topic_id != ZERO_UUID},
        )

    def partition(self, topic: str, partition: int) -> PartitionMetadata | None:
        """One partition, or None if unknown."""
        known = self.topics.get(topic)
        return known.partitions.get(partition) if known else None

    def update(self, found: Metadata) -> Metadata:
        """The later snapshot `found`, but with this one's partitions where they have a higher leader epoch.

        An isolated broker reports former leaders. A producer that went back to one of them would take the shorter log
        for a loss (Kafka's `Metadata.updateLatestMetadata`, KIP-320).
        """
        topics = dict(found.topics)
        for name, topic in found.topics.items():
            known = self.topics.get(name)
            if known is not None and known.topic_id == topic.topic_id:
                topics[name] = _with_newest_leaders(known, topic)
        return Metadata(found.cluster_id, found.controller_id, found.nodes, topics, found.topic_names)


def _with_newest_leaders(known: TopicMetadata, found: TopicMetadata) -> TopicMetadata:
    partitions = dict(found.partitions)
    for number, partition in found.partitions.items():
        before = known.partitions.get(number)
        if before is not None and 0 <= partition.leader_epoch < before.leader_epoch:
            partitions[number] = before
    return TopicMetadata(found.name, found.topic_id, found.error_code, found.is_internal, partitions)


def _topic(topic: MetadataResponse.MetadataResponseTopic, name: str) -> TopicMetadata:
    partitions = {
        each.partition_index: PartitionMetadata(
            each.partition_index,
            ErrorCode.of(each.error_code),
            each.leader_id,
            each.leader_epoch,
            tuple(each.replica_nodes),
            tuple(each.isr_nodes),
            tuple(each.offline_replicas),
        )
        for each in sorted(topic.partitions, key=lambda each: each.partition_index)
    }
    return TopicMetadata(name, topic.topic_id, ErrorCode.of(topic.error_code), topic.is_internal, partitions)


logger = logging.getLogger("kafka.clients.Metadata")

STALE_ERRORS: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
"""Error codes that say that the client's leaders are outdated."""


class _RefusedLeader(NamedTuple):
    """The leader of `leader_epoch` must not be asked before `until_s` (loop time)."""

    leader: int
    leader_epoch: int
    until_s: float


class TrackedMetadata:
    """Metadata of a growing set of topics. With `allow_auto_topic_creation` a request may create a missing topic."""

    def __init__(self, client: KafkaClient, *, allow_auto_topic_creation: bool) -> None:
        self.current = Metadata()
        self._client = client
        self._allow_auto_topic_creation = allow_auto_topic_creation
        self._topics: set[str] | None = set()
        self._loop = asyncio.get_running_loop()
        self._fetched_s = float("-inf")
        self._is_stale = False
        self._refusals: dict[TopicPartition, _RefusedLeader] = {}
        self._lock = asyncio.Lock()

    @property
    def needs_refresh(self) -> bool:
        """Whether the metadata is too old or known to be wrong."""
        if self._topics is not None and not self._topics:
            return False
        max_age_s = self._client.settings.metadata_max_age_ms / 1000
        return self._is_stale or self._loop.time() - self._fetched_s > max_age_s

    def mark_stale(self) -> None:
        """Mark the metadata as outdated; the next use refreshes it."""
        self._is_stale = True

    def track(self, topics: Iterable[str] | None) -> None:
        """Request these topics from now on, or all with None."""
        wanted = None if topics is None else set(topics)
        if wanted != self._topics:
            self._topics = wanted
            self._is_stale = True

    def refused(self, partition: TopicPartition) -> None:
        """Mark the leader as wrong: the metadata is stale, and this leader is avoided for `retry.backoff.ms`."""
        self._is_stale = True
        known = self.current.partition(*partition)
        if known is not None:
            until_s = self._loop.time() + self._client.settings.retry_backoff_ms / 1000
            self._refusals[partition] = _RefusedLeader(known.leader, known.leader_epoch, until_s)

    def leader_of(self, partition: TopicPartition) -> PartitionMetadata | None:
        """The partition, if it has a usable leader; otherwise None, and the metadata becomes stale."""
        known = self.current.partition(*partition)
        if known is None or known.leader < 0 or self._has_just_refused(partition, known):
            self._is_stale = True
            return None
        return known

    def _has_just_refused(self, partition: TopicPartition, known: PartitionMetadata) -> bool:
        refusal = self._refusals.get(partition)
        if refusal is None:
            return False
        is_same = (known.leader, known.leader_epoch) == refusal[:2]
        if is_same and self._loop.time() < refusal.until_s:
            return True
        del self._refusals[partition]
        return False

    async def refresh(self) -> None:
        """Ask a broker. Raises DisconnectedError."""
        async with self._lock:
            if not self.needs_refresh:
                return
            topics = None if self._topics is None else sorted(self._topics)
            self._is_stale = False
            try:
                found = await self._client.fetch_metadata(
                    topics, allow_auto_topic_creation=self._allow_auto_topic_creation
                )
            except BaseException:
                self._is_stale = True
                raise
            self.current = self.current.update(found)
            self._fetched_s = self._loop.time()

    async def await_topic(self, name: str, timeout_ms: int) -> TopicMetadata:
        """A topic with its partitions, auto-created if allowed.

        Raises ApiError for permanent errors, ClientTimeoutError if the topic is not available within `timeout_ms`.
        """
        if self._topics is not None and name not in self._topics:
            self._topics.add(name)
            self._is_stale = True
        deadline = self._loop.time() + timeout_ms / 1000
        backoff = self._client.backoff()
        while True:
            topic = self.current.topics.get(name)
            if topic is not None and topic.error_code == ErrorCode.NONE and topic.partitions:
                return topic
            self._is_stale = True
            try:
                async with asyncio.timeout_at(deadline):
                    await self.refresh()
            except TimeoutError:
                raise self._missing(name, timeout_ms) from None
            except DisconnectedError as error:
                logger.debug("No metadata for %s yet: %s", name, error)
            topic = self.current.topics.get(name)
            if topic is not None and topic.error_code == ErrorCode.NONE and topic.partitions:
                return topic
            code = ErrorCode.LEADER_NOT_AVAILABLE if topic is None else topic.error_code
            if code == ErrorCode.INVALID_TOPIC_EXCEPTION:
                raise ApiError(code, f"Invalid topics: [{name}]")
            if code != ErrorCode.NONE and not code.retriable:
                raise ApiError(code, f"Not authorized to access topics: [{name}]")
            pause_s = backoff.next_s()
            if self._loop.time() + pause_s > deadline:
                raise self._missing(name, timeout_ms)
            await asyncio.sleep(pause_s)

    @staticmethod
    def _missing(name: str, timeout_ms: int) -> ClientTimeoutError:
        return ClientTimeoutError(f"Topic {name} not present in metadata after {timeout_ms} ms.")
