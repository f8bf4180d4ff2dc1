"""Keys and values in `__consumer_offsets`, each prefixed with an int16 version: see `encode_versioned`.

The key version is the type of record: 0 and 1 a committed offset, 2 a group. Offsets are written with 1. A null value
deletes the key's entry.
"""

from __future__ import annotations

from protocol.wire.schema import Message, Struct, bytes_, field, int32, int64, nullable_string, string


class OffsetCommitKey(Message, versions="0-1"):
    """Key of a committed offset."""

    group: string
    topic: string
    partition: int32


class OffsetCommitValue(Message, versions="0-4", flexible="4+"):
    """A committed offset.

    - v1: a time of expiry, in this version only
    - v3: leader epoch; the version written today
    - v4: flexible, readable but not written
    """

    offset: int64
    leader_epoch: int32 = field("3+", default=-1, ignorable=True)
    metadata: string
    commit_timestamp: int64
    expire_timestamp: int64 = field("1", default=-1, ignorable=True)


class GroupMetadataKey(Message, versions="2"):
    """Key of a group."""

    group: string


class GroupMetadataValue(Message, versions="0-4", flexible="4+"):
    """A generation of a classic group, as of its last rebalance.

    - v1: rebalance timeout
    - v2: time of the last change of state
    - v3: instance ids of static members; the version written today
    - v4: flexible, readable but not written
    """

    class MemberMetadata(Struct):
        """A member with its subscription and assignment."""

        member_id: string
        group_instance_id: nullable_string = field("3+", default=None, ignorable=True)
        client_id: string
        client_host: string
        rebalance_timeout: int32 = field("1+", default=-1, ignorable=True)
        session_timeout: int32
        subscription: bytes_
        assignment: bytes_

    protocol_type: string
    generation: int32
    protocol: nullable_string
    leader: nullable_string
    current_state_timestamp: int64 = field("2+", default=-1, ignorable=True)
    members: list[MemberMetadata]
