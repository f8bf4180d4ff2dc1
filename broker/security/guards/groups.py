"""Groups, their members and their committed offsets: rights on groups, and on the topics of offsets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from broker.network.registry import Reply, RequestContext
from broker.security.access import Client
from broker.security.replies import Outcome, Proceed, denied_topics, then, without_topics
from protocol.acl_types import AclOperation, ResourceType
from protocol.errors import ErrorCode
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
from protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

DENIED: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED
NO_OFFSET: Final = -1
FIRST_JOIN_WITH_NULL_PROTOCOL: Final = 7
FIRST_SYNC_WITH_PROTOCOL: Final = 5
FIRST_FETCH_FROM_COORDINATOR: Final = 1
FIRST_FETCH_WITH_GROUP_ERROR: Final = 2
FIRST_FETCH_OF_MANY_GROUPS: Final = 8

_Topic = OffsetFetchResponse.OffsetFetchResponseTopic
_Partition = OffsetFetchResponse.OffsetFetchResponsePartition
_GroupTopic = OffsetFetchResponse.OffsetFetchResponseTopics
_GroupPartition = OffsetFetchResponse.OffsetFetchResponsePartitions


def _may(client: Client, operation: AclOperation, group_id: str) -> bool:
    return client.may(operation, ResourceType.GROUP, group_id)


# -- members -----------------------------------------------------------------------------------------------------------


def guard_join(client: Client, context: RequestContext, request: JoinGroupRequest, proceed: Proceed) -> Outcome:
    """READ on the group."""
    if _may(client, AclOperation.READ, request.group_id):
        return proceed(request)
    return JoinGroupResponse(
        error_code=DENIED,
        protocol_name=None if context.api_version >= FIRST_JOIN_WITH_NULL_PROTOCOL else "",
        leader="",
        member_id="",
        members=[],
    )


def guard_sync(client: Client, context: RequestContext, request: SyncGroupRequest, proceed: Proceed) -> Outcome:
    """READ on the group."""
    names_protocol = request.protocol_type is not None and request.protocol_name is not None
    is_incomplete = context.api_version >= FIRST_SYNC_WITH_PROTOCOL and not names_protocol
    if is_incomplete or _may(client, AclOperation.READ, request.group_id):
        return proceed(request)  # incomplete requests are refused first
    return SyncGroupResponse(error_code=DENIED, assignment=b"")


def guard_heartbeat(client: Client, context: RequestContext, request: HeartbeatRequest, proceed: Proceed) -> Outcome:
    """READ on the group."""
    del context
    if _may(client, AclOperation.READ, request.group_id):
        return proceed(request)
    return HeartbeatResponse(error_code=DENIED)


def guard_leave(client: Client, context: RequestContext, request: LeaveGroupRequest, proceed: Proceed) -> Outcome:
    """READ on the group."""
    del context
    if _may(client, AclOperation.READ, request.group_id):
        return proceed(request)
    return LeaveGroupResponse(error_code=DENIED, members=[])


# -- administration ----------------------------------------------------------------------------------------------------


def guard_describe(
    client: Client, context: RequestContext, request: DescribeGroupsRequest, proceed: Proceed
) -> Outcome:
    """DESCRIBE on each group."""
    del context
    # Checks each occurrence, so that repeated groups are logged repeatedly.
    denied = {group_id for group_id in request.groups if not _may(client, AclOperation.DESCRIBE, group_id)}
    refused = [
        DescribeGroupsResponse.DescribedGroup(
            error_code=DENIED, group_id=group_id, group_state="", protocol_type="", protocol_data="", members=[]
        )
        for group_id in request.groups
        if group_id in denied
    ]
    request.groups = [group_id for group_id in request.groups if group_id not in denied]

    def add(response: DescribeGroupsResponse) -> DescribeGroupsResponse:
        response.groups = [*response.groups, *refused]
        return response

    return then(proceed(request), add) if refused else proceed(request)


def guard_list(client: Client, context: RequestContext, request: ListGroupsRequest, proceed: Proceed) -> Outcome:
    """DESCRIBE on the cluster shows all groups; otherwise, on each group."""
    del context
    if client.may_in_cluster(AclOperation.DESCRIBE, logs_denial=False):
        return proceed(request)

    def visible(response: ListGroupsResponse) -> ListGroupsResponse:
        names = [group.group_id for group in response.groups]
        denied = client.denied(AclOperation.DESCRIBE, ResourceType.GROUP, names, logs_denial=False)
        response.groups = [group for group in response.groups if group.group_id not in denied]
        return response

    return then(proceed(request), visible)


def guard_delete(client: Client, context: RequestContext, request: DeleteGroupsRequest, proceed: Proceed) -> Outcome:
    """DELETE on each group."""
    del context
    denied = client.denied(AclOperation.DELETE, ResourceType.GROUP, dict.fromkeys(request.groups_names))
    refused = [
        DeleteGroupsResponse.DeletableGroupResult(group_id=group_id, error_code=DENIED)
        for group_id in dict.fromkeys(request.groups_names)
        if group_id in denied
    ]
    request.groups_names = [group_id for group_id in request.groups_names if group_id not in denied]

    def add(response: DeleteGroupsResponse) -> DeleteGroupsResponse:
        response.results = [*response.results, *refused]
        return response

    return then(proceed(request), add) if refused else proceed(request)


# -- offsets -----------------------------------------------------------------------------------------------------------


def guard_commit(client: Client, context: RequestContext, request: OffsetCommitRequest, proceed: Proceed) -> Outcome:
    """READ on the group and on each topic."""
    del context
    if not _may(client, AclOperation.READ, request.group_id):
        return OffsetCommitResponse(topics=[_not_committed(topic, DENIED) for topic in request.topics])
    denied = denied_topics(client, AclOperation.READ, request.topics)
    if not denied:
        return proceed(request)
    refusal = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    refused = [_not_committed(topic, refusal) for topic in request.topics if topic.name in denied]
    return without_topics(request, denied, refused, proceed)


def _not_committed(
    topic: OffsetCommitRequest.OffsetCommitRequestTopic, error_code: ErrorCode
) -> OffsetCommitResponse.OffsetCommitResponseTopic:
    partition = OffsetCommitResponse.OffsetCommitResponsePartition
    return OffsetCommitResponse.OffsetCommitResponseTopic(
        name=topic.name,
        partitions=[
            partition(partition_index=each.partition_index, error_code=error_code) for each in topic.partitions
        ],
    )


def guard_fetch(client: Client, context: RequestContext, request: OffsetFetchRequest, proceed: Proceed) -> Outcome:
    """DESCRIBE on each group and topic. A request for all topics returns those that the client may describe."""
    if context.api_version >= FIRST_FETCH_OF_MANY_GROUPS:
        return _fetch_of_many(client, request, proceed)
    if not _may(client, AclOperation.DESCRIBE, request.group_id):
        if context.api_version >= FIRST_FETCH_WITH_GROUP_ERROR:
            return OffsetFetchResponse(error_code=DENIED, topics=[])
        if context.api_version >= FIRST_FETCH_FROM_COORDINATOR:
            return OffsetFetchResponse(topics=[])  # as in Kafka, whose response cannot carry the error here
        return OffsetFetchResponse(
            topics=[
                _Topic(name=topic.name, partitions=_failed(_Partition, topic, DENIED)) for topic in request.topics or ()
            ]
        )
    asked = request.topics
    if asked is None:
        return then(proceed(request), lambda response: _visible(client, response, [response]))
    if context.api_version >= FIRST_FETCH_FROM_COORDINATOR:
        denied = denied_topics(client, AclOperation.DESCRIBE, asked)
    else:
        # Kafka checks every partition only where it reads offsets from ZooKeeper.
        names = [topic.name for topic in asked for _ in topic.partition_indexes]
        denied = client.denied(AclOperation.DESCRIBE, ResourceType.TOPIC, names)
    if not denied:
        return proceed(request)
    refusal = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    refused = [
        _Topic(name=topic.name, partitions=_failed(_Partition, topic, refusal))
        for topic in asked
        if topic.name in denied
    ]

    def add(response: OffsetFetchResponse) -> OffsetFetchResponse:
        if not response.error_code:
            response.topics = [*response.topics, *refused]
        return response

    request.topics = [topic for topic in asked if topic.name not in denied]
    return then(proceed(request), add)


def _fetch_of_many(client: Client, request: OffsetFetchRequest, proceed: Proceed) -> Outcome:
    denied = client.denied(AclOperation.DESCRIBE, ResourceType.GROUP, [group.group_id for group in request.groups])
    order = {group.group_id: number for number, group in enumerate(request.groups)}
    refused = [
        OffsetFetchResponse.OffsetFetchResponseGroup(group_id=group.group_id, error_code=DENIED, topics=[])
        for group in request.groups
        if group.group_id in denied
    ]
    request.groups = [group for group in request.groups if group.group_id not in denied]
    of_all = {group.group_id for group in request.groups if group.topics is None}
    refused_topics: dict[str, list[_GroupTopic]] = {}
    for group in request.groups:
        asked = group.topics or []
        hidden = denied_topics(client, AclOperation.DESCRIBE, asked)
        if hidden:
            refusal = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            refused_topics[group.group_id] = [
                _GroupTopic(name=topic.name, partitions=_failed(_GroupPartition, topic, refusal))
                for topic in asked
                if topic.name in hidden
            ]
            group.topics = [topic for topic in asked if topic.name not in hidden]

    def add(response: OffsetFetchResponse) -> OffsetFetchResponse:
        _visible(client, response, [group for group in response.groups if group.group_id in of_all])
        for group in response.groups:
            if not group.error_code:
                group.topics = [*group.topics, *refused_topics.get(group.group_id, ())]
        response.groups = sorted([*response.groups, *refused], key=lambda group: order[group.group_id])
        return response

    return then(proceed(request), add) if refused or refused_topics or of_all else proceed(request)


def _failed(partition: Any, topic: Any, error_code: ErrorCode) -> list[Any]:
    return [
        partition(
            partition_index=index,
            committed_offset=NO_OFFSET,
            committed_leader_epoch=-1,
            metadata="",
            error_code=error_code,
        )
        for index in topic.partition_indexes
    ]


def _visible(client: Client, response: OffsetFetchResponse, holders: Iterable[Any]) -> Reply:
    """Remove topics that the client may not describe from each holder."""
    for holder in holders:
        denied = denied_topics(client, AclOperation.DESCRIBE, holder.topics)
        holder.topics = [topic for topic in holder.topics if topic.name not in denied]
    return response


def guard_delete_offsets(
    client: Client, context: RequestContext, request: OffsetDeleteRequest, proceed: Proceed
) -> Outcome:
    """DELETE on the group, and READ on each topic."""
    del context
    if not _may(client, AclOperation.DELETE, request.group_id):
        return OffsetDeleteResponse(error_code=DENIED, throttle_time_ms=0, topics=[])
    denied = denied_topics(client, AclOperation.READ, request.topics)
    if not denied:
        return proceed(request)
    partition = OffsetDeleteResponse.OffsetDeleteResponsePartition
    refusal = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    refused = [
        OffsetDeleteResponse.OffsetDeleteResponseTopic(
            name=topic.name,
            partitions=[
                partition(partition_index=each.partition_index, error_code=refusal) for each in topic.partitions
            ],
        )
        for topic in request.topics
        if topic.name in denied
    ]
    return without_topics(request, denied, refused, proceed)
