"""Helpers that build requests to group coordinators."""

from __future__ import annotations

import struct

from protocol.messages.group_admin import DescribeGroupsRequest
from protocol.messages.group_offsets import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from protocol.messages.groups import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest

JOIN, SYNC, HEARTBEAT, LEAVE, COMMIT, FETCH, DESCRIBE, LIST, DELETE = 9, 5, 4, 5, 9, 9, 5, 5, 2
"""The newest versions."""
SESSION_MS, REBALANCE_MS = 10_000, 10_000


def subscription(*topics: str) -> bytes:
    """A consumer's metadata (ConsumerProtocolSubscription v0)."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


def join(
    group: str,
    member: str = "",
    *,
    instance: str | None = None,
    protocols: list[tuple[str, bytes]] | None = None,
    session_ms: int = SESSION_MS,
    rebalance_ms: int = REBALANCE_MS,
    protocol_type: str = "consumer",
) -> JoinGroupRequest:
    chosen = [("range", subscription("t"))] if protocols is None else protocols
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        member_id=member,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=data) for name, data in chosen],
    )


def sync(
    group: str,
    member: str,
    generation: int,
    assignments: dict[str, bytes] | None = None,
    *,
    instance: str | None = None,
    protocol_type: str | None = "consumer",
    protocol_name: str | None = "range",
) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        assignments=[
            SyncGroupRequest.SyncGroupRequestAssignment(member_id=each, assignment=data)
            for each, data in (assignments or {}).items()
        ],
    )


def heartbeat(group: str, member: str, generation: int, instance: str | None = None) -> HeartbeatRequest:
    return HeartbeatRequest(group_id=group, generation_id=generation, member_id=member, group_instance_id=instance)


def leave(group: str, *members: tuple[str, str | None]) -> LeaveGroupRequest:
    return LeaveGroupRequest(
        group_id=group,
        members=[
            LeaveGroupRequest.MemberIdentity(member_id=member, group_instance_id=instance, reason="why not")
            for member, instance in members
        ],
    )


def commit(
    group: str,
    offsets: list[tuple[str, int, int]],
    member: str = "",
    generation: int = -1,
    *,
    instance: str | None = None,
    metadata: str | None = "",
    leader_epoch: int = -1,
    retention_ms: int = -1,
    timestamp: int = -1,
) -> OffsetCommitRequest:
    topics: dict[str, list[OffsetCommitRequest.OffsetCommitRequestPartition]] = {}
    for topic, partition, offset in offsets:
        topics.setdefault(topic, []).append(
            OffsetCommitRequest.OffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=offset,
                committed_leader_epoch=leader_epoch,
                commit_timestamp=timestamp,
                committed_metadata=metadata,
            )
        )
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        group_instance_id=instance,
        retention_time_ms=retention_ms,
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(name=name, partitions=partitions)
            for name, partitions in topics.items()
        ],
    )


def fetch(group: str, topics: dict[str, list[int]] | None, *, stable: bool = False) -> OffsetFetchRequest:
    """For versions below 8."""
    asked = None
    if topics is not None:
        asked = [
            OffsetFetchRequest.OffsetFetchRequestTopic(name=name, partition_indexes=indexes)
            for name, indexes in topics.items()
        ]
    return OffsetFetchRequest(group_id=group, topics=asked, require_stable=stable)


def fetch_groups(groups: dict[str, dict[str, list[int]] | None], *, stable: bool = False) -> OffsetFetchRequest:
    """For versions 8 and above."""
    return OffsetFetchRequest(
        groups=[
            OffsetFetchRequest.OffsetFetchRequestGroup(
                group_id=group,
                topics=None
                if topics is None
                else [
                    OffsetFetchRequest.OffsetFetchRequestTopics(name=name, partition_indexes=indexes)
                    for name, indexes in topics.items()
                ],
            )
            for group, topics in groups.items()
        ],
        require_stable=stable,
    )


def delete_offsets(group: str, topics: dict[str, list[int]]) -> OffsetDeleteRequest:
    return OffsetDeleteRequest(
        group_id=group,
        topics=[
            OffsetDeleteRequest.OffsetDeleteRequestTopic(
                name=name,
                partitions=[OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=each) for each in indexes],
            )
            for name, indexes in topics.items()
        ],
    )


def describe(*groups: str, operations: bool = False) -> DescribeGroupsRequest:
    return DescribeGroupsRequest(groups=list(groups), include_authorized_operations=operations)
