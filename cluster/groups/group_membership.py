"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup of one shard (Kafka's GroupCoordinator; KIP-345, 394, 800, 814)."""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from cluster.coordinators.results import Append, Appends, ClockReading, PendingResponse, Result, make_result
from cluster.groups.group import COMPLETING_REBALANCE, DEAD, EMPTY, PREPARING_REBALANCE, STABLE, Group, Member
from cluster.groups.group_table import GroupTable
from cluster.groups.membership_events import (
    UNKNOWN_MEMBER_ID,
    DepartingMember,
    JoiningMember,
    LeaveGroupResult,
    MemberRequest,
    Protocols,
    join_error,
    size_of,
    sync_error,
)
from cluster.groups.rebalance import NEW_MEMBER_JOIN_TIMEOUT_MS, Rebalancer, group_error, join_response, sync_response
from cluster.groups.records import GroupRecord
from protocol.errors import NO_ERROR, ApiError, ErrorCode
from protocol.messages.groups import JoinGroupResponse, SyncGroupResponse
from protocol.value import Value

PROTOCOLS_OF_A_GROUP: Final = 4
"""The record of a group has the metadata of one protocol only. Kafka Connect offers three, other clients one or two."""

logger = logging.getLogger("kafka.coordinator.group.GroupCoordinator")


class _StaticRejoin(Value):
    """A static member that rejoined under a new member id, and its former state."""

    group: Group
    member: Member
    reply: PendingResponse[JoinGroupResponse]
    skips_assignment: bool
    old_leader_id: str | None
    old_member_id: str
    before: tuple[Protocols, int, int]

    @property
    def is_superseded(self) -> bool:
        """Whether a rebalance has started since, which completes the request."""
        return self.group.state is not STABLE or self.member.awaiting_join is not self.reply


class Membership:
    """The membership of the groups of `table`."""

    def __init__(self, table: GroupTable, rebalancer: Rebalancer) -> None:
        self._table = table
        self._rebalancer = rebalancer

    # -- JoinGroup -----------------------------------------------------------------------------------------------------

    def join(self, now: ClockReading, group_id: str, joining: JoiningMember) -> Result[JoinGroupResponse]:
        """Add or rejoin a member. Answered when its generation begins, or with an error."""
        config, member_id = self._table.config, joining.member_id
        group = self._table.groups.get(group_id)
        if not (
            config.group_min_session_timeout_ms <= joining.session_timeout_ms <= config.group_max_session_timeout_ms
        ):
            return Result(join_error(member_id, ErrorCode.INVALID_SESSION_TIMEOUT))
        if group is None:
            if member_id != UNKNOWN_MEMBER_ID:
                return Result(join_error(member_id, ErrorCode.UNKNOWN_MEMBER_ID))
            group = self._table.create(group_id, now)
        result = self._join(now, group, joining)
        more = self._rebalancer.try_complete_join(now, group)
        return Result(result.response, [*result.appends, *more]) if more else result

    def _join(self, now: ClockReading, group: Group, joining: JoiningMember) -> Result[JoinGroupResponse]:
        member_id = joining.member_id
        if not self._has_room(group, member_id):
            group.remove(member_id)
            return Result(join_error(UNKNOWN_MEMBER_ID, ErrorCode.GROUP_MAX_SIZE_REACHED))
        if group.state is DEAD:
            return Result(join_error(member_id, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        if not group.supports(joining.protocol_type, joining.protocols):
            return Result(join_error(member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        if not self._fits(group, joining):
            return Result(join_error(member_id, ErrorCode.GROUP_MAX_SIZE_REACHED))
        if member_id == UNKNOWN_MEMBER_ID:
            return self._join_new(now, group, joining)
        if member_id in group.pending_members:
            if joining.group_instance_id is not None:
                # Only dynamic members can be pending; Kafka fails here with an IllegalStateException.
                return Result(join_error(member_id, ErrorCode.UNKNOWN_SERVER_ERROR))
            return self._add(now, group, joining, member_id)
        return self._join_known(now, group, joining)

    def _has_room(self, group: Group, member_id: str) -> bool:
        """group.max.size: during a rebalance the first to rejoin stay; at other times the present members do."""
        limit = self._table.config.group_max_size
        member = group.members.get(member_id)
        if group.state is PREPARING_REBALANCE:
            waits_already = member is not None and member.awaiting_join is not None
            return waits_already or group.awaiting_join_count < limit
        if group.state in (COMPLETING_REBALANCE, STABLE):
            return member is not None or len(group.members) < limit
        return True

    def _fits(self, group: Group, joining: JoiningMember) -> bool:
        """Whether the group's record would still fit with this member, for members that offer few protocols."""
        instance_id, member_id = joining.group_instance_id, joining.member_id
        known_id = member_id if instance_id is None else group.static_members.get(instance_id, member_id)
        known = group.members.get(known_id)
        size = len(joining.client_id) + len(instance_id or "") + size_of(joining.protocols)
        others = group.size_in_bytes - (0 if known is None else known.size_in_bytes)
        return others + size <= PROTOCOLS_OF_A_GROUP * self._table.most_record_bytes()

    def _join_new(self, now: ClockReading, group: Group, joining: JoiningMember) -> Result[JoinGroupResponse]:
        instance_id = joining.group_instance_id
        prefix = joining.client_id if instance_id is None else instance_id
        member_id = f"{prefix}-{self._table.new_id()}"
        if instance_id is not None and instance_id in group.static_members:
            return self._rejoin_static(now, group, joining, member_id, group.static_members[instance_id])
        if instance_id is None and joining.requires_known_member_id:
            self._rebalancer.add_pending(now, group, member_id, joining.session_timeout_ms)
            return Result(join_error(member_id, ErrorCode.MEMBER_ID_REQUIRED))
        return self._add(now, group, joining, member_id)

    def _add(
        self, now: ClockReading, group: Group, joining: JoiningMember, member_id: str
    ) -> Result[JoinGroupResponse]:
        member = Member(
            member_id,
            joining.group_instance_id,
            joining.client_id,
            joining.client_host,
            joining.session_timeout_ms,
            joining.rebalance_timeout_ms,
            joining.protocols,
        )
        member.is_new = True
        if group.state is PREPARING_REBALANCE and group.generation_id == 0:
            group.new_member_added = True
        reply: PendingResponse[JoinGroupResponse] = PendingResponse()
        member.awaiting_join = reply
        group.add(member, joining.protocol_type)
        self._rebalancer.renew_session(now, group, member, NEW_MEMBER_JOIN_TIMEOUT_MS)
        reason = f"new member {member_id}, client reason: {joining.reason or 'not provided'}"
        return Result(reply, self._rebalancer.maybe_prepare(now, group, reason))

    def _join_known(self, now: ClockReading, group: Group, joining: JoiningMember) -> Result[JoinGroupResponse]:
        try:
            member = group.check_member(joining.member_id, joining.group_instance_id)
        except ApiError as error:
            return Result(join_error(joining.member_id, error.error_code))
        if group.state is PREPARING_REBALANCE:
            return self._rejoin(now, group, joining, member)
        if group.state is EMPTY:
            return Result(join_error(joining.member_id, ErrorCode.UNKNOWN_MEMBER_ID))
        changed = member.protocols != joining.protocols
        leads = group.leader_id == member.member_id
        if changed or (leads and group.state is STABLE):
            # A rejoining leader always triggers a rebalance: its topics may have changed with the same metadata.
            return self._rejoin(now, group, joining, member)
        # A repeated request: the response was lost, or the follower rejoined without need.
        return Result(join_response(group, member.member_id))

    def _rejoin(
        self, now: ClockReading, group: Group, joining: JoiningMember, member: Member
    ) -> Result[JoinGroupResponse]:
        group.update(member, joining.protocols, joining.session_timeout_ms, joining.rebalance_timeout_ms)
        reply = group.await_join(member)
        if group.state is PREPARING_REBALANCE:
            return make_result(reply)
        reason = f"member {member.member_id} joins again, client reason: {joining.reason or 'not provided'}"
        return Result(reply, self._rebalancer.maybe_prepare(now, group, reason))

    # -- static members ------------------------------------------------------------------------------------------------

    def _rejoin_static(
        self, now: ClockReading, group: Group, joining: JoiningMember, new_member_id: str, old_member_id: str
    ) -> Result[JoinGroupResponse]:
        """A static member rejoins under a new member id. A stable group keeps its generation if it selects the same
        protocol.
        """
        old_leader_id = group.leader_id
        member = group.replace_static(old_member_id, new_member_id)
        self._rebalancer.renew_session(now, group, member)
        before = (member.protocols, member.session_timeout_ms, member.rebalance_timeout_ms)
        group.update(member, joining.protocols, joining.session_timeout_ms, joining.rebalance_timeout_ms)
        reply = group.await_join(member)
        came_back = f"instance {joining.group_instance_id} came back"
        appends: Appends = ()
        if group.state is COMPLETING_REBALANCE:
            # The leader may already have assigned to the old member id.
            appends = self._rebalancer.prepare(now, group, f"{came_back} as {new_member_id}")
        elif group.state is STABLE and group.select_protocol() != group.protocol_name:
            appends = self._rebalancer.prepare(now, group, f"{came_back} with other protocols")
        elif group.state is STABLE:
            assignments = {each.member_id: each.assignment for each in group.members.values()}
            rejoin = _StaticRejoin(group, member, reply, joining.skips_assignment, old_leader_id, old_member_id, before)
            record = GroupRecord(group.group_id, group.to_value(assignments))
            appends = [Append([record], partial(self._static_rejoin_stored, rejoin))]
        return Result(reply, appends)

    def _static_rejoin_stored(self, rejoin: _StaticRejoin, now: ClockReading, error_code: ErrorCode) -> Appends:
        group, member = rejoin.group, rejoin.member
        if error_code is not ErrorCode.NONE:
            self._undo(rejoin, now, error_code)
        elif rejoin.is_superseded:
            pass
        elif rejoin.skips_assignment:
            response = join_response(group, member.member_id)
            response.skip_assignment = group.leader_id == member.member_id
            group.answer_join(member, response)
        else:
            # Name the old leader id, so that the client does not compute an assignment, which a stable group would
            # ignore.
            group.answer_join(member, join_response(group, member.member_id, leader_id=rejoin.old_leader_id))
        return ()

    def _undo(self, rejoin: _StaticRejoin, now: ClockReading, error_code: ErrorCode) -> None:
        group, member = rejoin.group, rejoin.member
        logger.warning(
            "The new id of %s in %s could not be stored: %s", rejoin.old_member_id, group.group_id, error_code.name
        )
        if rejoin.is_superseded:
            return
        response = join_response(group, UNKNOWN_MEMBER_ID)
        response.error_code = group_error(error_code)
        group.answer_join(member, response)
        group.update(member, *rejoin.before)
        group.replace_static(member.member_id, rejoin.old_member_id)
        self._rebalancer.renew_session(now, group, member)

    # -- SyncGroup -----------------------------------------------------------------------------------------------------

    def sync(
        self,
        now: ClockReading,
        group_id: str,
        sender: MemberRequest,
        protocol_type: str | None,
        protocol_name: str | None,
        assignments: dict[str, bytes],
    ) -> Result[SyncGroupResponse]:
        """Respond with the member's assignment once it is committed; the leader sends the assignments of all
        members.
        """
        try:
            group, member = self._check_generation(group_id, sender)
            if protocol_type is not None and protocol_type != group.protocol_type:
                raise _inconsistent(protocol_type, group.protocol_type)
            if protocol_name is not None and protocol_name != group.protocol_name:
                raise _inconsistent(protocol_name, group.protocol_name)
            if group.state is PREPARING_REBALANCE:
                raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS, f"group {group_id} waits for members to join")
            if group.state is EMPTY:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group_id} has no members")
        except ApiError as error:
            return Result(sync_error(error.error_code))
        self._rebalancer.synced(group, member.member_id)
        if group.state is STABLE:
            self._rebalancer.renew_session(now, group, member)
            return make_result(sync_response(group, member))
        reply = group.await_sync(member)
        if group.leader_id != member.member_id or group.storing_generation == group.generation_id:
            return make_result(reply)
        of_members = {each: assignments.get(each, b"") for each in group.members}
        return Result(reply, [self._rebalancer.store_assignment(group, of_members)])

    # -- Heartbeat -----------------------------------------------------------------------------------------------------

    def heartbeat(self, now: ClockReading, group_id: str, sender: MemberRequest) -> Result[ErrorCode]:
        """Keep a member alive. REBALANCE_IN_PROGRESS tells it to rejoin."""
        try:
            group, member = self._check_generation(group_id, sender)
        except ApiError as error:
            return Result(error.error_code)
        if group.state is EMPTY:
            return Result(ErrorCode.UNKNOWN_MEMBER_ID)
        self._rebalancer.renew_session(now, group, member)
        if group.state is PREPARING_REBALANCE:
            return make_result(ErrorCode.REBALANCE_IN_PROGRESS)
        return make_result(NO_ERROR)

    def _check_generation(self, group_id: str, sender: MemberRequest) -> tuple[Group, Member]:
        group = self._table.groups.get(group_id)
        if group is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no group {group_id!r}")
        if group.state is DEAD:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"group {group_id} is being removed")
        member = group.check_member(sender.member_id, sender.group_instance_id)
        group.check_generation(sender.generation_id)
        return group, member

    # -- LeaveGroup ----------------------------------------------------------------------------------------------------

    def leave(self, now: ClockReading, group_id: str, members: list[DepartingMember]) -> Result[LeaveGroupResult]:
        """Remove members that leave, or that an administrator names by instance id only (KIP-345)."""
        group = self._table.groups.get(group_id)
        if group is None:
            return Result(LeaveGroupResult(ErrorCode.NONE, [ErrorCode.UNKNOWN_MEMBER_ID] * len(members)))
        if group.state is DEAD:
            return Result(LeaveGroupResult(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        left = LeaveGroupResult(ErrorCode.NONE)
        appends: list[Append] = []
        for leaving in members:
            try:
                appends += self._leave_one(now, group, leaving)
                left.members.append(ErrorCode.NONE)
            except ApiError as error:
                left.members.append(error.error_code)
        return Result(left, appends)

    def _leave_one(self, now: ClockReading, group: Group, leaving: DepartingMember) -> Appends:
        member_id = leaving.member_id
        if member_id == UNKNOWN_MEMBER_ID:
            current = group.static_members.get(leaving.group_instance_id or "")
            if leaving.group_instance_id is None or current is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, "neither a member nor a known instance is named")
            member_id = current
        elif member_id in group.pending_members:
            return self._rebalancer.remove_pending(now, group, member_id)
        member = group.check_member(member_id, leaving.group_instance_id)
        reason = f"LeaveGroup, client reason: {leaving.reason or 'not provided'}"
        return self._rebalancer.remove_member(now, group, member, reason)


def _inconsistent(asked: str, actual: str | None) -> ApiError:
    return ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"{asked!r} is not the group's {actual!r}")
