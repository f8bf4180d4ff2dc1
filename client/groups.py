"""Administration of groups: list, describe, delete, and committed offsets (Kafka class `KafkaAdminClient`)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from client.broker_connection import BrokerConnection
from client.errors import DisconnectedError, UnsupportedVersionError
from client.kafka_client import Coordinator, CoordinatorType, KafkaClient
from protocol.errors import ApiError, ErrorCode
from protocol.messages.group_admin import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from protocol.topic_partition import TopicPartition, by_topic

DescribedGroup = DescribeGroupsResponse.DescribedGroup
ListedGroup = ListGroupsResponse.ListedGroup

_STATES_VERSION = 4
_TYPES_VERSION = 5
_STABLE_VERSION = 7
_SEVERAL_GROUPS_VERSION = 8


class OffsetAndMetadata(NamedTuple):
    """A committed offset: the offset of the next record to read, with the client's metadata."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class GroupMetadata(NamedTuple):
    """The group member for which a transaction commits offsets (KIP-447, `ConsumerGroupMetadata`).

    Without generation and member id, a zombie of the group is not fenced.
    """

    group_id: str
    generation: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


# -- groups ------------------------------------------------------------------------------------------------------------


async def list_groups(
    client: KafkaClient, *, states: Sequence[str] = (), types: Sequence[str] = ()
) -> list[ListedGroup]:
    """The groups of all brokers, filtered by `states` and `types` if given.

    Raises UnsupportedVersionError if a broker does not support the filter, ApiError if one refuses.
    """

    async def ask(node_id: int) -> list[ListedGroup]:
        async def attempt() -> list[ListedGroup]:
            connection = await client.node_connection(node_id)
            _check_filters(connection, bool(states), bool(types))
            request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
            answer = await connection.ask(request, ListGroupsResponse)
            if answer.error_code:
                raise ApiError(ErrorCode.of(answer.error_code), f"broker {node_id} cannot list its groups")
            return answer.groups

        return await client.retry("listConsumerGroups", attempt)

    metadata = await client.describe_topics([])
    answers = await asyncio.gather(*(ask(node_id) for node_id in metadata.nodes))
    # A group that moves to another broker meanwhile may be listed twice.
    return list({group.group_id: group for groups in answers for group in groups}.values())


def _check_filters(connection: BrokerConnection, by_state: bool, by_type: bool) -> None:
    version = connection.version_of(ListGroupsRequest)
    if by_state and version < _STATES_VERSION:
        raise UnsupportedVersionError("The broker only supports ListGroups v3 or lower, which has no states")
    if by_type and version < _TYPES_VERSION:
        raise UnsupportedVersionError("The broker only supports ListGroups v4 or lower, which has no types")


async def describe_group(client: KafkaClient, group_id: str) -> tuple[DescribedGroup, int]:
    """A group and its coordinator's id. A missing group is described as Dead. Raises ApiError."""

    async def attempt() -> tuple[DescribedGroup, int]:
        node_id = await client.find_coordinator(group_id)
        connection = await client.node_connection(node_id)
        answer = await connection.ask(DescribeGroupsRequest(groups=[group_id]), DescribeGroupsResponse)
        group = answer.groups[0]
        if group.error_code:
            raise ApiError(ErrorCode.of(group.error_code), "")
        return group, node_id

    return await client.retry("describeConsumerGroups", attempt)


async def delete_group(client: KafkaClient, group_id: str) -> None:
    """Delete a group, which must be empty, with its offsets (KIP-229). Raises ApiError."""
    answer = await client.ask_coordinator(
        "deleteConsumerGroups",
        group_id,
        DeleteGroupsRequest(groups_names=[group_id]),
        DeleteGroupsResponse,
        lambda response: [each.error_code for each in response.results],
    )
    code = answer.results[0].error_code
    if code:
        raise ApiError(ErrorCode.of(code), "")


# -- offsets -----------------------------------------------------------------------------------------------------------


async def fetch_offsets(
    client: KafkaClient,
    group_id: str,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    require_stable: bool = False,
    coordinator: Coordinator | None = None,
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Committed offsets of a group, for `partitions` or all; those without one are left out. Raises ApiError.

    `require_stable` waits for the end of transactions that may commit others (KIP-447); brokers before 2.5 do not. A
    member passes the `coordinator` that it joined at.
    """
    asked = coordinator or Coordinator(client, group_id, CoordinatorType.GROUP, "")
    wanted = None if partitions is None else by_topic(sorted(partitions))

    async def fetch() -> dict[TopicPartition, OffsetAndMetadata]:
        # Use a separate connection from a member's own requests: a join may wait for the other members.
        connection = await asked.connect("")
        version = connection.version_of(OffsetFetchRequest)
        request = _offset_fetch(group_id, wanted, version)
        request.require_stable = require_stable and version >= _STABLE_VERSION
        answer = await connection.ask(request, OffsetFetchResponse, version)
        found = answer.groups[0] if version >= _SEVERAL_GROUPS_VERSION else answer
        if found.error_code:
            raise ApiError(ErrorCode.of(found.error_code), f"offsets of group '{group_id}'")
        offsets = {}
        for topic in found.topics:
            for each in topic.partitions:
                if each.error_code:
                    raise ApiError(ErrorCode.of(each.error_code), f"offset of group '{group_id}'")
                if each.committed_offset >= 0:
                    offsets[TopicPartition(topic.name, each.partition_index)] = OffsetAndMetadata(
                        each.committed_offset, each.metadata or "", each.committed_leader_epoch
                    )
        return offsets

    async def attempt() -> dict[TopicPartition, OffsetAndMetadata]:
        try:
            return await fetch()
        except (ApiError, DisconnectedError) as error:
            asked.forget_after(error)
            raise

    return await client.retry("listConsumerGroupOffsets", attempt)


def _offset_fetch(group_id: str, wanted: Mapping[str, list[int]] | None, version: int) -> OffsetFetchRequest:
    if version < _SEVERAL_GROUPS_VERSION:
        old_topic = OffsetFetchRequest.OffsetFetchRequestTopic
        return OffsetFetchRequest(
            group_id=group_id,
            topics=None
            if wanted is None
            else [old_topic(name=name, partition_indexes=indexes) for name, indexes in wanted.items()],
        )
    new_topic = OffsetFetchRequest.OffsetFetchRequestTopics
    return OffsetFetchRequest(
        groups=[
            OffsetFetchRequest.OffsetFetchRequestGroup(
                group_id=group_id,
                topics=None
                if wanted is None
                else [new_topic(name=name, partition_indexes=indexes) for name, indexes in wanted.items()],
            )
        ]
    )


def make_commit(
    group_id: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    *,
    member_id: str = "",
    generation: int = -1,
    instance_id: str | None = None,
) -> OffsetCommitRequest:
    """The request that commits `offsets` as a member or, by default, for an empty group."""
    topics: dict[str, list[OffsetCommitRequest.OffsetCommitRequestPartition]] = defaultdict(list)
    for (topic, partition), committed in sorted(offsets.items()):
        topics[topic].append(
            OffsetCommitRequest.OffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=committed.offset,
                committed_leader_epoch=committed.leader_epoch,
                committed_metadata=committed.metadata,
            )
        )
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(name=name, partitions=each) for name, each in topics.items()
        ],
    )


def commit_errors(answer: OffsetCommitResponse) -> dict[TopicPartition, ErrorCode]:
    """The partitions with a refused offset, and the reasons."""
    return {
        TopicPartition(topic.name, each.partition_index): ErrorCode.of(each.error_code)
        for topic in answer.topics
        for each in topic.partitions
        if each.error_code
    }


async def alter_offsets(
    client: KafkaClient, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> None:
    """Commit offsets for an empty group. Raises ApiError for the first refused offset."""
    answer = await client.ask_coordinator(
        "alterConsumerGroupOffsets",
        group_id,
        make_commit(group_id, offsets),
        OffsetCommitResponse,
        lambda response: commit_errors(response).values(),
    )
    for code in commit_errors(answer).values():
        raise ApiError(code, "")


async def delete_offsets(
    client: KafkaClient, group_id: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    """Delete offsets of a group (KIP-496); returns the outcome of each. Raises ApiError if the whole request fails."""
    request = OffsetDeleteRequest(
        group_id=group_id,
        topics=[
            OffsetDeleteRequest.OffsetDeleteRequestTopic(
                name=name,
                partitions=[
                    OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=index) for index in indexes
                ],
            )
            for name, indexes in by_topic(sorted(partitions)).items()
        ],
    )
    answer = await client.ask_coordinator(
        "deleteConsumerGroupOffsets", group_id, request, OffsetDeleteResponse, lambda response: [response.error_code]
    )
    if answer.error_code:
        raise ApiError(ErrorCode.of(answer.error_code), "")
    return {
        TopicPartition(topic.name, each.partition_index): ErrorCode.of(each.error_code)
        for topic in answer.topics
        for each in topic.partitions
    }
