"""Administration of replicas: their brokers (KIP-455), leaders (KIP-460) and log directories (KIP-113).

The functions work like those of `client.admin`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from client.errors import raise_for, refusal
from client.kafka_client import KafkaClient
from protocol.errors import ApiError
from protocol.messages.log_dirs import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse
from protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from protocol.topic_partition import TopicPartition, by_topic


class Reassignment(NamedTuple):
    """A partition being reassigned: all its replicas, and those being added and removed."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


Outcomes = dict[TopicPartition, ApiError | None]
"""The error of each partition, or None."""


async def list_reassignments(
    client: KafkaClient, partitions: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, Reassignment]:
    """The ongoing reassignments of these partitions, or of all. Raises ApiError."""
    asked = None
    if partitions is not None:
        named = ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics
        asked = [named(name=name, partition_indexes=each) for name, each in by_topic(partitions).items()]
    request = ListPartitionReassignmentsRequest(timeout_ms=client.settings.request_timeout_ms, topics=asked)
    response = await client.ask_controller(
        "listPartitionReassignments", request, ListPartitionReassignmentsResponse, lambda answer: [answer.error_code]
    )
    raise_for(response.error_code, response.error_message)
    return {
        TopicPartition(topic.name, each.partition_index): Reassignment(
            tuple(each.replicas), tuple(each.adding_replicas), tuple(each.removing_replicas)
        )
        for topic in response.topics
        for each in topic.partitions
    }


async def alter_reassignments(client: KafkaClient, targets: Mapping[TopicPartition, Sequence[int] | None]) -> Outcomes:
    """Start to reassign partitions to these replicas, or with None cancel their reassignments. Raises ApiError."""
    changed = AlterPartitionReassignmentsRequest
    topics: dict[str, list[AlterPartitionReassignmentsRequest.ReassignablePartition]] = defaultdict(list)
    for (topic, partition), target in targets.items():
        replicas = None if target is None else list(target)
        topics[topic].append(changed.ReassignablePartition(partition_index=partition, replicas=replicas))
    request = changed(
        timeout_ms=client.settings.request_timeout_ms,
        topics=[changed.ReassignableTopic(name=name, partitions=each) for name, each in topics.items()],
    )
    response = await client.ask_controller(
        "alterPartitionReassignments",
        request,
        AlterPartitionReassignmentsResponse,
        lambda answer: [
            answer.error_code,
            *(each.error_code for topic in answer.responses for each in topic.partitions),
        ],
    )
    raise_for(response.error_code, response.error_message)
    return {
        TopicPartition(topic.name, each.partition_index): refusal(each.error_code, each.error_message)
        for topic in response.responses
        for each in topic.partitions
    }


async def elect_leaders(
    client: KafkaClient, election_type: ElectionType, partitions: Iterable[TopicPartition] | None
) -> Outcomes:
    """Elect leaders of these partitions, or of all that need one; returns the errors. Raises ApiError."""
    asked = None
    if partitions is not None:
        named = ElectLeadersRequest.TopicPartitions
        asked = [named(topic=name, partitions=each) for name, each in by_topic(partitions).items()]
    request = ElectLeadersRequest(
        election_type=election_type, topic_partitions=asked, timeout_ms=client.settings.request_timeout_ms
    )
    response = await client.ask_controller(
        "electLeaders",
        request,
        ElectLeadersResponse,
        lambda answer: [
            answer.error_code,
            *(each.error_code for topic in answer.replica_election_results for each in topic.partition_result),
        ],
    )
    raise_for(response.error_code)
    return {
        TopicPartition(topic.topic, each.partition_id): refusal(each.error_code, each.error_message)
        for topic in response.replica_election_results
        for each in topic.partition_result
    }


async def alter_replica_log_dirs(client: KafkaClient, node_id: int, targets: Mapping[TopicPartition, str]) -> Outcomes:
    """Move replicas of one broker to these directories, given by absolute path."""
    directories: dict[str, list[TopicPartition]] = defaultdict(list)
    for partition, path in targets.items():
        directories[path].append(partition)
    asked = AlterReplicaLogDirsRequest
    request = asked(
        dirs=[
            asked.AlterReplicaLogDir(
                path=path,
                topics=[
                    asked.AlterReplicaLogDirTopic(name=name, partitions=each)
                    for name, each in by_topic(partitions).items()
                ],
            )
            for path, partitions in directories.items()
        ]
    )
    response = await client.ask_node(node_id, "alterReplicaLogDirs", request, AlterReplicaLogDirsResponse)
    return {
        TopicPartition(topic.topic_name, each.partition_index): refusal(each.error_code)
        for topic in response.results
        for each in topic.partitions
    }
