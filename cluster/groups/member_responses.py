"""Responses to the members of a group: the generation that begins, and their assignments."""

from __future__ import annotations

from cluster.groups.group import Group, Member
from protocol.errors import NO_ERROR
from protocol.messages.groups import JoinGroupResponse, SyncGroupResponse
from protocol.value import maker

_make_join_response = maker(JoinGroupResponse)
_make_member = maker(JoinGroupResponse.JoinGroupResponseMember)
_make_sync_response = maker(SyncGroupResponse)


def join_response(group: Group, member_id: str, *, leader_id: str | None = None) -> JoinGroupResponse:
    """The current generation as a member is told it: the leader, with all members' metadata, itself included.

    `leader_id` names another leader than the real one. An empty protocol name is told as null (Kafka class
    JoinGroupResponse).
    """
    leader = group.leader_id if leader_id is None else leader_id
    protocol_name = group.protocol_name
    return _make_join_response(
        error_code=NO_ERROR,
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=protocol_name or None,
        leader=leader or "",
        member_id=member_id,
        members=[
            _make_member(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata(protocol_name),
            )
            for member in group.members.values()
        ]
        if leader == member_id
        else [],
    )


def sync_response(group: Group, member: Member) -> SyncGroupResponse:
    """A member's assignment."""
    return _make_sync_response(
        error_code=NO_ERROR,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )
