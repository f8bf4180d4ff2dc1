"""Requests of members, in the coordinator's own terms, and how they are refused."""

from __future__ import annotations

from typing import Final, Protocol

from protocol.errors import ErrorCode
from protocol.messages.groups import JoinGroupResponse, SyncGroupResponse
from protocol.value import Value, field, maker

Protocols = list[tuple[str, bytes]]
"""Names and metadata of the assignment protocols a member can do, the preferred one first."""

UNKNOWN_MEMBER_ID = ""

PROTOCOLS_OF_A_MEMBER: Final = 1_000
"""Most protocols that a member may offer. Kafka Connect offers three, other clients one or two."""
FEW_PROTOCOLS: Final = 4
PROTOCOL_BYTES: Final = 150
"""Memory of a protocol beside its name and metadata. The first few of a member are not charged for it."""


class Joining(Value):
    """Who joins with what, and what its version of JoinGroup can express.

    `requires_known_member_id`: a new member is sent away with its id first (v4+, KIP-394). `skips_assignment`: a static
    leader can be told to leave the assignment as it is (v9+, KIP-814).
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


make_joining = maker(Joining)


class Caller(Protocol):
    """Whoever an event is of: a request that has these fields, or a `GroupMember`."""

    member_id: str
    generation_id: int
    group_instance_id: str | None


class GroupMember(Value, frozen=False):
    """The member of an event, and the generation that it knows (-1 and no id stand for no member)."""

    member_id: str
    generation_id: int
    group_instance_id: str | None = None


class Leaving(Value):
    """A member that leaves; without a member id the instance is removed by an administrator (KIP-345)."""

    member_id: str
    group_instance_id: str | None = None
    reason: str | None = None


class Left(Value, frozen=False):
    """The outcome for the group, and for each member that leaves in the order of asking."""

    error_code: ErrorCode
    members: list[ErrorCode] = field(default_factory=list)


def size_of(protocols: Protocols) -> int:
    """Bytes that the protocols take: names, metadata and, of more than a few, what keeps them."""
    return PROTOCOL_BYTES * max(len(protocols) - FEW_PROTOCOLS, 0) + sum(
        len(name) + len(metadata) for name, metadata in protocols
    )


def distinct(protocols: Protocols) -> Protocols:
    """The first protocol of each name: one that a client names twice counts once."""
    if len(protocols) == 1:
        return protocols
    by_name: dict[str, bytes] = {}
    for name, metadata in protocols:
        by_name.setdefault(name, metadata)
    return list(by_name.items())


def join_error(member_id: str, error_code: ErrorCode) -> JoinGroupResponse:
    """The answer to a JoinGroup that is refused."""
    return JoinGroupResponse(error_code=error_code, protocol_name=None, leader="", member_id=member_id, members=[])


def sync_error(error_code: ErrorCode) -> SyncGroupResponse:
    """The answer to a SyncGroup that is refused."""
    return SyncGroupResponse(error_code=error_code, assignment=b"")
