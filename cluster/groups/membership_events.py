"""Requests of members in the coordinator's own types, and their error responses."""

from __future__ import annotations

from typing import Final, Protocol

from protocol.errors import ErrorCode
from protocol.messages.groups import JoinGroupResponse, SyncGroupResponse
from protocol.value import Value, field, maker

Protocols = list[tuple[str, bytes]]
"""Names and metadata of the assignment protocols that a member supports, the preferred one first."""

UNKNOWN_MEMBER_ID = ""

PROTOCOLS_OF_A_MEMBER: Final = 1_000
"""Maximum protocols per member. Kafka Connect offers three, other clients one or two."""
FEW_PROTOCOLS: Final = 4
PROTOCOL_BYTES: Final = 150
"""Memory per protocol besides its name and metadata. The first few of a member are not charged."""


class JoiningMember(Value):
    """The joining member, and the features of its JoinGroup version.

    `requires_known_member_id`: a new member first gets its id and has to rejoin (v4+, KIP-394). `skips_assignment`: the
    response can tell a static leader to keep the assignment (v9+, KIP-814).
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    reason: str | None = None
    requires_known_member_id: bool = True
    skips_assignment: bool = True


make_joining_member = maker(JoiningMember)


class MemberRequest(Protocol):
    """The sender of an event: a request with these fields, or a `GroupMember`."""

    member_id: str
    generation_id: int
    group_instance_id: str | None


class GroupMember(Value, frozen=False):
    """A member and its generation (-1 and an empty id if it is not a member)."""

    member_id: str
    generation_id: int
    group_instance_id: str | None = None


class DepartingMember(Value):
    """A leaving member; without a member id, an administrator removes the instance (KIP-345)."""

    member_id: str
    group_instance_id: str | None = None
    reason: str | None = None


class LeaveGroupResult(Value, frozen=False):
    """The result for the group, and for each leaving member in request order."""

    error_code: ErrorCode
    members: list[ErrorCode] = field(default_factory=list)


def size_of(protocols: Protocols) -> int:
    """Bytes of the protocols: names, metadata and, above the first few, overhead."""
    return PROTOCOL_BYTES * max(len(protocols) - FEW_PROTOCOLS, 0) + sum(
        len(name) + len(metadata) for name, metadata in protocols
    )


def distinct(protocols: Protocols) -> Protocols:
    """The protocols without later duplicates of a name."""
    if len(protocols) == 1:
        return protocols
    by_name: dict[str, bytes] = {}
    for name, metadata in protocols:
        by_name.setdefault(name, metadata)
    return list(by_name.items())


def join_error(member_id: str, error_code: ErrorCode) -> JoinGroupResponse:
    """An error response to a JoinGroup."""
    return JoinGroupResponse(error_code=error_code, protocol_name=None, leader="", member_id=member_id, members=[])


def sync_error(error_code: ErrorCode) -> SyncGroupResponse:
    """An error response to a SyncGroup."""
    return SyncGroupResponse(error_code=error_code, assignment=b"")
