"""The classic group protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and the consumer protocol embedded in them.

The coordinator passes the embedded messages on without decoding them (Kafka class `ConsumerProtocol`). They have an
int16 version prefix. A reader decodes a newer version as the newest one it knows and ignores the rest: read the
version, then use `decode_prefix`.
"""

from __future__ import annotations

from protocol.api_keys import ApiKey
from protocol.wire.schema import (
    Message,
    Request,
    Response,
    Struct,
    boolean,
    bytes_,
    field,
    int16,
    int32,
    nullable_bytes,
    nullable_string,
    string,
)


class JoinGroupRequest(Request, api_key=ApiKey.JOIN_GROUP, versions="0-9"):
    """A member, known or new, asks to be in the next generation.

    - v1: a rebalance timeout apart from the session timeout (KIP-62)
    - v4: a new member gets MEMBER_ID_REQUIRED and must rejoin with its id (KIP-394)
    - v5: static members (KIP-345)
    - v6: flexible
    - v8: why the member joins (KIP-800)
    - v9: the response may let the leader skip the assignment (KIP-814)
    """

    class JoinGroupRequestProtocol(Struct):
        """An assignor that the member supports, with its metadata."""

        name: string
        metadata: bytes_

    group_id: string
    session_timeout_ms: int32
    rebalance_timeout_ms: int32 = field("1+", default=-1, ignorable=True)
    member_id: string
    group_instance_id: nullable_string = field("5+", default=None)
    protocol_type: string
    protocols: list[JoinGroupRequestProtocol]
    reason: nullable_string = field("8+", default=None, ignorable=True)


class JoinGroupResponse(Response, api_key=ApiKey.JOIN_GROUP, versions="0-9"):
    """The new generation; only the leader gets the list of members.

    - v2: throttle time
    - v5: instance ids of static members (KIP-345)
    - v6: flexible
    - v7: protocol type, and a null protocol name with errors (KIP-559)
    - v9: whether the leader keeps the assignment it had (KIP-814)
    """

    class JoinGroupResponseMember(Struct):
        """A member, for the leader."""

        member_id: string
        group_instance_id: nullable_string = field("5+", default=None, ignorable=True)
        metadata: bytes_

    throttle_time_ms: int32 = field("2+", default=0, ignorable=True)
    error_code: int16
    generation_id: int32 = -1
    protocol_type: nullable_string = field("7+", default=None, ignorable=True)
    protocol_name: nullable_string = field(nullable="7+")
    leader: string
    skip_assignment: boolean = field("9+", default=False)
    member_id: string
    members: list[JoinGroupResponseMember]


class SyncGroupRequest(Request, api_key=ApiKey.SYNC_GROUP, versions="0-5"):
    """Asks for the assignment; the leader sends all assignments.

    - v3: static members (KIP-345)
    - v4: flexible
    - v5: protocol type and name, to be checked (KIP-559)
    """

    class SyncGroupRequestAssignment(Struct):
        """The leader's assignment for one member."""

        member_id: string
        assignment: bytes_

    group_id: string
    generation_id: int32
    member_id: string
    group_instance_id: nullable_string = field("3+", default=None)
    protocol_type: nullable_string = field("5+", default=None, ignorable=True)
    protocol_name: nullable_string = field("5+", default=None, ignorable=True)
    assignments: list[SyncGroupRequestAssignment]


class SyncGroupResponse(Response, api_key=ApiKey.SYNC_GROUP, versions="0-5"):
    """The member's assignment.

    - v1: throttle time
    - v4: flexible
    - v5: protocol type and name (KIP-559)
    """

    throttle_time_ms: int32 = field("1+", default=0, ignorable=True)
    error_code: int16
    protocol_type: nullable_string = field("5+", default=None, ignorable=True)
    protocol_name: nullable_string = field("5+", default=None, ignorable=True)
    assignment: bytes_


class HeartbeatRequest(Request, api_key=ApiKey.HEARTBEAT, versions="0-4"):
    """Keeps a member alive in its group.

    - v3: static members (KIP-345)
    - v4: flexible
    """

    group_id: string
    generation_id: int32
    member_id: string
    group_instance_id: nullable_string = field("3+", default=None)


class HeartbeatResponse(Response, api_key=ApiKey.HEARTBEAT, versions="0-4"):
    """Whether the member is still in: REBALANCE_IN_PROGRESS asks it to join again.

    - v1: throttle time
    - v4: flexible
    """

    throttle_time_ms: int32 = field("1+", default=0, ignorable=True)
    error_code: int16


class LeaveGroupRequest(Request, api_key=ApiKey.LEAVE_GROUP, versions="0-5"):
    """Members leave.

    - v3: several at once, also by instance id (KIP-345)
    - v4: flexible
    - v5: why (KIP-800)
    """

    class MemberIdentity(Struct):
        """A member by id, or by instance id with an empty member id."""

        member_id: string
        group_instance_id: nullable_string = None
        reason: nullable_string = field("5+", default=None, ignorable=True)

    group_id: string
    member_id: string = field("0-2", default="")
    members: list[MemberIdentity] = field("3+", default=[])


class LeaveGroupResponse(Response, api_key=ApiKey.LEAVE_GROUP, versions="0-5"):
    """The outcome.

    - v1: throttle time
    - v3: the outcome per member
    - v4: flexible
    """

    class MemberResponse(Struct):
        """The outcome for one member."""

        member_id: string
        group_instance_id: nullable_string
        error_code: int16

    throttle_time_ms: int32 = field("1+", default=0, ignorable=True)
    error_code: int16
    members: list[MemberResponse] = field("3+", default=[])


class ConsumerProtocolSubscription(Message, versions="0-3"):
    """The subscription of a member, in the metadata of JoinGroup.

    - v1: the partitions it owns, for cooperative rebalancing (KIP-429)
    - v2: the generation of that ownership
    - v3: rack
    """

    class TopicPartition(Struct):
        """The partitions owned of one topic."""

        topic: string
        partitions: list[int32]

    topics: list[string]
    user_data: nullable_bytes = None
    owned_partitions: list[TopicPartition] = field("1+", default=[], ignorable=True)
    generation_id: int32 = field("2+", default=-1, ignorable=True)
    rack_id: nullable_string = field("3+", default=None, ignorable=True)


class ConsumerProtocolAssignment(Message, versions="0-3"):
    """The partitions assigned to a member, in the assignment of SyncGroup."""

    class TopicPartition(Struct):
        """The partitions assigned of one topic."""

        topic: string
        partitions: list[int32]

    assigned_partitions: list[TopicPartition]
    user_data: nullable_bytes = None
