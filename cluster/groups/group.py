"""A group's current membership (Kafka's GroupMetadata, KIP-345 for static members). Bookkeeping, no decisions."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable
from enum import Enum
from typing import Final

from cluster.coordinators.deadlines import Deadline, Deadlines
from cluster.coordinators.results import PendingResponse, make_reply
from cluster.groups.membership_events import Protocols, join_error, size_of, sync_error
from protocol.errors import ApiError, ErrorCode
from protocol.messages.group_records import GroupMetadataValue
from protocol.messages.groups import JoinGroupResponse, SyncGroupResponse
from protocol.topic_partition import TopicPartition

CONSUMER_PROTOCOL_TYPE: Final = "consumer"

_HEAD: Final = struct.Struct(">hi")
_LENGTH: Final = struct.Struct(">h")


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """All topics in these subscriptions, or None if one of them is unreadable."""
    topics: set[str] = set()
    try:
        for subscription in subscriptions:
            topics.update(_topics(subscription))
    except (struct.error, ValueError):
        return None
    return frozenset(topics)


def _topics(subscription: bytes) -> Iterable[str]:
    version, count = _HEAD.unpack_from(subscription)
    if version < 0 or not 0 <= count <= len(subscription) // _LENGTH.size:
        raise ValueError(f"version {version} with {count} topics in {len(subscription)} bytes")
    position = _HEAD.size
    for _ in range(count):
        (size,) = _LENGTH.unpack_from(subscription, position)
        position += _LENGTH.size
        if not 0 <= size <= len(subscription) - position:
            raise ValueError(f"a topic name of {size} bytes at byte {position}")
        yield str(subscription[position : position + size], "utf-8")
        position += size


class GroupState(Enum):
    """The states of a classic group; the values are Kafka's names.

    EMPTY: no members, maybe offsets. PREPARING_REBALANCE: waits for members to join. COMPLETING_REBALANCE: waits for
    the leader's assignment. STABLE: every member may have its assignment. DEAD: being removed.
    """

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


EMPTY, PREPARING_REBALANCE, COMPLETING_REBALANCE, STABLE, DEAD = GroupState
"""The states as constants, for hot code: Python 3.11 takes 0.1 us to look one up as an attribute of its class."""


class Member:
    """One member. `awaiting_join` and `awaiting_sync` are its waiting requests, or None."""

    __slots__ = (
        "assignment",
        "awaiting_join",
        "awaiting_sync",
        "client_host",
        "client_id",
        "group_instance_id",
        "is_new",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session",
        "session_timeout_ms",
    )

    def __init__(
        self,
        member_id: str,
        group_instance_id: str | None,
        client_id: str,
        client_host: str,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocols: Protocols,
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.protocols = protocols
        self.assignment = b""
        self.awaiting_join: PendingResponse[JoinGroupResponse] | None = None
        self.awaiting_sync: PendingResponse[SyncGroupResponse] | None = None
        self.is_new = False
        """It has not completed a join yet, so only its own request shows that it is alive."""
        self.session: Deadline | None = None

    @property
    def is_static(self) -> bool:
        """Whether the member has a group instance id, and so survives a restart (KIP-345)."""
        return self.group_instance_id is not None

    @property
    def needs_no_heartbeat(self) -> bool:
        """Whether a waiting request makes heartbeats unnecessary."""
        return not self.is_new and (self.awaiting_join is not None or self.awaiting_sync is not None)

    @property
    def size_in_bytes(self) -> int:
        """Size of the fields with a length chosen by the client."""
        return len(self.client_id) + len(self.group_instance_id or "") + size_of(self.protocols)

    def metadata(self, protocol: str | None) -> bytes:
        """The member's metadata for a protocol; empty if it lacks that."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""


class Group:
    """Members, their protocols and waiting requests. Methods keep the counters and indexes consistent."""

    def __init__(self, group_id: str, deadlines: Deadlines, now_ms: int) -> None:
        self.group_id = group_id
        self.state = EMPTY
        self.state_timestamp_ms: int | None = now_ms
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        self.pending_members: dict[str, Deadline] = {}
        """Ids handed out with MEMBER_ID_REQUIRED that were not used to join yet (KIP-394)."""
        self.pending_sync: dict[str, None] = {}
        """Members that have not requested their assignments yet, as keys."""
        self.awaiting_join_count = 0
        self.new_member_added = False
        self.initial_join_remaining_ms: int | None = None
        """How much longer a previously empty group may wait for members, or None if it is not waiting."""
        self.join_round = Deadline(deadlines)
        self.sync_round = Deadline(deadlines)
        self.subscribed_topics: frozenset[str] | None = None
        self.storing_generation: int | None = None
        """The generation whose assignment is being written."""
        self.pending_commits: Counter[TopicPartition] = Counter()
        """Partitions with commits that are being written."""
        self.size_in_bytes = 0
        """Bytes of the members and pending member ids that clients choose."""
        self._supported: Counter[str] = Counter()

    @classmethod
    def restored(cls, group_id: str, value: GroupMetadataValue, deadlines: Deadlines, now_ms: int) -> Group:
        """The group in a record: stable, or empty without members (Kafka's GroupMetadata.loadGroup)."""
        group = cls(group_id, deadlines, now_ms)
        group.generation_id = value.generation
        group.protocol_name = value.protocol
        group.leader_id = value.leader
        for stored in value.members:
            # Records from before rebalance timeouts existed (value v0) use the session timeout.
            rebalance_timeout_ms = stored.rebalance_timeout if stored.rebalance_timeout >= 0 else stored.session_timeout
            member = Member(
                stored.member_id,
                stored.group_instance_id,
                stored.client_id,
                stored.client_host,
                stored.session_timeout,
                rebalance_timeout_ms,
                [(value.protocol or "", bytes(stored.subscription))],
            )
            member.assignment = bytes(stored.assignment)
            group.add(member, value.protocol_type)
        group.protocol_type = value.protocol_type or None
        group.state = STABLE if group.members else EMPTY
        group.state_timestamp_ms = value.current_state_timestamp if value.current_state_timestamp >= 0 else None
        group.subscribed_topics = group.compute_subscribed_topics()
        return group

    def transition_to(self, state: GroupState, now_ms: int) -> None:
        """Enter `state` at `now_ms` (wall clock)."""
        self.state = state
        self.state_timestamp_ms = now_ms

    # -- members -------------------------------------------------------------------------------------------------------

    def add(self, member: Member, protocol_type: str) -> None:
        """Add a member; the first one becomes the leader and determines the protocol type."""
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self.size_in_bytes += member.size_in_bytes
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        self._supported.update(name for name, _ in member.protocols)
        if member.awaiting_join is not None:
            self.awaiting_join_count += 1
        self.forget_pending(member.member_id)

    def remove(self, member_id: str) -> None:
        """Remove a member, or a pending one. If it led, the eldest of the others becomes the leader."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self.size_in_bytes -= member.size_in_bytes
            self._forget_support(member)
            if member.awaiting_join is not None:
                self.awaiting_join_count -= 1
            if member.group_instance_id is not None:
                del self.static_members[member.group_instance_id]
            if member.session is not None:
                member.session.clear()
                member.session = None
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        self.forget_pending(member_id)
        self.pending_sync.pop(member_id, None)

    def update(self, member: Member, protocols: Protocols, session_timeout_ms: int, rebalance_timeout_ms: int) -> None:
        """Replace the fields of a member's JoinGroup."""
        if protocols != member.protocols:
            self._forget_support(member)
            self.size_in_bytes += size_of(protocols) - size_of(member.protocols)
            member.protocols = protocols
            self._supported.update(name for name, _ in protocols)
        member.session_timeout_ms = session_timeout_ms
        member.rebalance_timeout_ms = rebalance_timeout_ms

    def _forget_support(self, member: Member) -> None:
        """Remove a member's votes for its protocols, and names without votes."""
        for name, _ in member.protocols:
            self._supported[name] -= 1
            if not self._supported[name]:
                del self._supported[name]

    def replace_static(self, old_member_id: str, new_member_id: str) -> Member:
        """Give a static member a new member id and change nothing else. Waiting requests of the old id are fenced."""
        member = self.members[old_member_id]
        self.answer_join(member, join_error(old_member_id, ErrorCode.FENCED_INSTANCE_ID))
        self.answer_sync(member, sync_error(ErrorCode.FENCED_INSTANCE_ID))
        member.member_id = new_member_id
        # Members are kept in the order of joining, so rename the entry in its position.
        self.members = {each.member_id: each for each in self.members.values()}
        if self.leader_id == old_member_id:
            self.leader_id = new_member_id
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = new_member_id
        return member

    def clear_deadlines(self) -> None:
        """Clear all deadlines of a group that is not coordinated here any more. This also breaks reference cycles."""
        for deadline in (self.join_round, self.sync_round, *self.pending_members.values()):
            deadline.clear()
        for member in self.members.values():
            if member.session is not None:
                member.session.clear()

    def forget_pending(self, member_id: str) -> None:
        """Remove a pending member id."""
        deadline = self.pending_members.pop(member_id, None)
        if deadline is not None:
            self.size_in_bytes -= len(member_id)
            deadline.clear()

    def add_pending(self, member_id: str, deadline: Deadline) -> None:
        """Expect a join with this member id until `deadline`."""
        self.size_in_bytes += len(member_id)
        self.pending_members[member_id] = deadline

    def check_member(self, member_id: str, group_instance_id: str | None) -> Member:
        """The member of a request.

        Raises FENCED_INSTANCE_ID if the instance id belongs to another member id by now, and UNKNOWN_MEMBER_ID for an
        unknown instance or member.
        """
        if group_instance_id is not None:
            current = self.static_members.get(group_instance_id)
            if current is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"{self.group_id} has no instance {group_instance_id!r}")
            if current != member_id:
                raise ApiError(
                    ErrorCode.FENCED_INSTANCE_ID,
                    f"instance {group_instance_id!r} of {self.group_id} is {current!r} now, not {member_id!r}",
                )
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"{self.group_id} has no member {member_id!r}")
        return member

    def check_generation(self, generation_id: int) -> None:
        """Raise ILLEGAL_GENERATION unless the group is in generation `generation_id`."""
        if generation_id != self.generation_id:
            raise ApiError(
                ErrorCode.ILLEGAL_GENERATION,
                f"generation {generation_id} of {self.group_id}, now {self.generation_id}",
            )

    # -- waiting requests ----------------------------------------------------------------------------------------------

    def await_join(self, member: Member) -> PendingResponse[JoinGroupResponse]:
        """Let a member's JoinGroup wait; an earlier waiting one gets an error and has to rejoin."""
        if member.awaiting_join is None:
            self.awaiting_join_count += 1
        else:
            member.awaiting_join.set(join_error(member.member_id, ErrorCode.REBALANCE_IN_PROGRESS))
        member.awaiting_join = make_reply()
        return member.awaiting_join

    def await_sync(self, member: Member) -> PendingResponse[SyncGroupResponse]:
        """Let a member's SyncGroup wait; an earlier waiting one gets an error and has to rejoin."""
        if member.awaiting_sync is not None:
            member.awaiting_sync.set(sync_error(ErrorCode.REBALANCE_IN_PROGRESS))
        member.awaiting_sync = make_reply()
        return member.awaiting_sync

    def answer_join(self, member: Member, response: JoinGroupResponse) -> None:
        """Complete a member's waiting JoinGroup, if any."""
        if member.awaiting_join is not None:
            member.awaiting_join.set(response)
            member.awaiting_join = None
            self.awaiting_join_count -= 1

    def answer_sync(self, member: Member, response: SyncGroupResponse) -> bool:
        """Complete a member's waiting SyncGroup; whether one waited."""
        if member.awaiting_sync is None:
            return False
        member.awaiting_sync.set(response)
        member.awaiting_sync = None
        return True

    @property
    def all_members_joined(self) -> bool:
        """Whether all members of the next generation have joined."""
        return len(self.members) == self.awaiting_join_count and not self.pending_members

    @property
    def rebalance_timeout_ms(self) -> int:
        """The highest rebalance timeout of all members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # -- protocols -----------------------------------------------------------------------------------------------------

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with this type and these protocols is compatible with the present members."""
        if self.state is EMPTY:
            return bool(protocol_type) and bool(protocols)
        if self.protocol_type != protocol_type:
            return False
        supported, everybody = self._supported, len(self.members)
        for name, _ in protocols:  # noqa: SIM110  called for each member in each rebalance
            if supported[name] == everybody:
                return True
        return False

    def select_protocol(self) -> str:
        """The protocol with the most votes among those that all members support; each votes for its most preferred
        one.
        """
        candidates = {name for name, supporters in self._supported.items() if supporters == len(self.members)}
        if len(candidates) == 1:
            return candidates.pop()
        votes = Counter(
            next(name for name, _ in member.protocols if name in candidates) for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def start_next_generation(self, now_ms: int) -> None:
        """Start a generation with the present members."""
        self.generation_id += 1
        self.protocol_name = self.select_protocol() if self.members else None
        self.subscribed_topics = self.compute_subscribed_topics()
        self.transition_to(COMPLETING_REBALANCE if self.members else EMPTY, now_ms)
        self.pending_sync.clear()

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader has joined; False if no member has."""
        if self.leader_id is None:
            return False
        if self.members[self.leader_id].awaiting_join is None:
            joined = next((member for member in self.members.values() if member.awaiting_join is not None), None)
            if joined is None:
                return False
            self.leader_id = joined.member_id
        return True

    def compute_subscribed_topics(self) -> frozenset[str] | None:
        """Topics that the members of a consumer group subscribe to, or None if unknown."""
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        if not self.members:
            return frozenset()
        if self.protocol_name is None:
            return None
        # Most members have the same subscription.
        return subscribed_topics({member.metadata(self.protocol_name) for member in self.members.values()})

    # -- views ---------------------------------------------------------------------------------------------------------

    def to_value(self, assignments: dict[str, bytes]) -> GroupMetadataValue:
        """The record of this generation with its members' `assignments`, by member id."""
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation_id,
            protocol=self.protocol_name,
            leader=self.leader_id,
            current_state_timestamp=-1 if self.state_timestamp_ms is None else self.state_timestamp_ms,
            members=[
                GroupMetadataValue.MemberMetadata(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout=member.rebalance_timeout_ms,
                    session_timeout=member.session_timeout_ms,
                    subscription=member.metadata(self.protocol_name),
                    assignment=assignments[member.member_id],
                )
                for member in self.members.values()
            ],
        )
