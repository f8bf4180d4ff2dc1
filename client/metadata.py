"""A client's metadata of the cluster: brokers, topics, leaders. Immutable; a newer answer replaces it (`update`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from protocol.errors import ErrorCode
from protocol.messages.metadata import MetadataResponse
from protocol.uuids import ZERO_UUID, Uuid
from protocol.value import Value, field


class Node(NamedTuple):
    """A broker and where to reach it."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{self.host}:{self.port}"


class PartitionMetadata(NamedTuple):
    """One partition; `leader` and `leader_epoch` are -1 when there is none or it is not known."""

    partition: int
    error_code: ErrorCode
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]


class TopicMetadata(Value):
    """One topic, its partitions by index; an error code says why there is nothing to know of it."""

    name: str
    topic_id: Uuid
    error_code: ErrorCode
    is_internal: bool
    partitions: Mapping[int, PartitionMetadata]


class Metadata(Value):
    """A cluster at one moment. `topics` holds those that were asked for."""

    cluster_id: str | None = None
    controller_id: int = -1
    nodes: Mapping[int, Node] = field(default_factory=dict)
    topics: Mapping[str, TopicMetadata] = field(default_factory=dict)
    topic_names: Mapping[Uuid, str] = field(default_factory=dict)

    @classmethod
    def of(cls, response: MetadataResponse) -> Metadata:
        """Convert a broker's answer."""
        topics = {topic.name: _topic(topic, topic.name) for topic in response.topics if topic.name is not None}
        return cls(
            cluster_id=response.cluster_id,
            controller_id=response.controller_id,
            nodes={each.node_id: Node(each.node_id, each.host, each.port, each.rack) for each in response.brokers},
            topics=topics,
            topic_names={topic.topic_id: name for name, topic in topics.items() if topic.topic_id != ZERO_UUID},
        )

    def partition(self, topic: str, partition: int) -> PartitionMetadata | None:
        """One partition, None when it is not known."""
        known = self.topics.get(topic)
        return known.partitions.get(partition) if known else None

    def update(self, found: Metadata) -> Metadata:
        """A later answer, with the partitions of this one that it has with a lower leader epoch.

        A broker that is cut off tells of leaders that were. A producer that followed it back to one of them would
        take the end of that log for a loss (Kafka's `Metadata.updateLatestMetadata`, KIP-320).
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
