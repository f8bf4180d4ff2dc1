"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup of one shard (Kafka's GroupCoordinator; KIP-345, 394, 800, 814)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial

from cluster.coordinator.group import (
    UNKNOWN_MEMBER_ID,
    Group,
    GroupState,
    JoinAnswer,
    Member,
    Protocols,
    SyncAnswer,
    join_error,
    sync_error,
)
from cluster.coordinator.group_table import GroupTable
from cluster.coordinator.rebalance import NEW_MEMBER_JOIN_TIMEOUT_MS, Rebalancer, group_error
from cluster.coordinator.records import GroupRecord
from cluster.coordinator.turn import Turn
from protocol.errors import ApiError, ErrorCode
from protocol.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
)

logger = logging.getLogger("kafka.coordinator.group.GroupCoordinator")


@dataclass(frozen=True, slots=True)
class JoiningClient:
    """Who joins, and what its version of JoinGroup can express.

    `requires_known_member_id`: a new member is sent away with its id first (v4+, KIP-394). `skips_assignment`: a static
    leader can be told to leave the assignment as it is (v9+, KIP-814).
    """

    client_id: str
    client_host: str
    requires_known_member_id: bool = True
    skips_assignment: bool = True


@dataclass(slots=True)
class _Join:
    """A JoinGroup on its way."""

    turn: Turn
    group: Group
    request: JoinGroupRequest
    client: JoiningClient
    protocols: Protocols
    rebalance_timeout_ms: int
    answer: JoinAnswer

    def refuse(self, member_id: str, error_code: ErrorCode) -> None:
        self.turn.reply(self.answer, join_error(member_id, error_code))


class Membership:
    """Who belongs to the groups of `table`."""

    def __init__(self, table: GroupTable, rebalancer: Rebalancer) -> None:
        self._table = table
        self._rebalancer = rebalancer

    # -- JoinGroup -----------------------------------------------------------------------------------------------------

    def join(self, turn: Turn, request: JoinGroupRequest, client: JoiningClient, answer: JoinAnswer) -> None:
        """A member joins, or joins again. Answered when the generation it belongs to begins, or with an error."""
        config, member_id = self._table.config, request.member_id
        in_bounds = (
            config.group_min_session_timeout_ms <= request.session_timeout_ms <= config.group_max_session_timeout_ms
        )
        group = self._table.groups.get(request.group_id)
        if not in_bounds:
            turn.reply(answer, join_error(member_id, ErrorCode.INVALID_SESSION_TIMEOUT))
            return
        if group is None:
            if member_id != UNKNOWN_MEMBER_ID:
                turn.reply(answer, join_error(member_id, ErrorCode.UNKNOWN_MEMBER_ID))
                return
            group = self._table.create(request.group_id, turn)
        protocols: dict[str, bytes] = {}
        for protocol in request.protocols:
            protocols.setdefault(protocol.name, bytes(protocol.metadata))
        # JoinGroup v0 has no rebalance timeout and means the session's.
        timeout_ms = request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else request.session_timeout_ms
        join = _Join(turn, group, request, client, list(protocols.items()), timeout_ms, answer)
        if not self._has_room(group, member_id):
            group.remove(member_id)
            join.refuse(UNKNOWN_MEMBER_ID, ErrorCode.GROUP_MAX_SIZE_REACHED)
        elif group.state is GroupState.DEAD:
            join.refuse(member_id, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif not group.supports(request.protocol_type, set(protocols)):
            join.refuse(member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif member_id == UNKNOWN_MEMBER_ID:
            self._join_new(join)
        elif member_id in group.pending_members:
            self._join_pending(join)
        else:
            self._join_known(join)
        self._rebalancer.try_complete_join(turn, group)

    def _has_room(self, group: Group, member_id: str) -> bool:
        """group.max.size: while members gather, those who came first stay; later, those who are in."""
        limit = self._table.config.group_max_size
        member = group.members.get(member_id)
        if group.state is GroupState.PREPARING_REBALANCE:
            waits_already = member is not None and member.awaiting_join is not None
            return waits_already or group.awaiting_join_count < limit
        if group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            return member is not None or len(group.members) < limit
        return True

    def _join_new(self, join: _Join) -> None:
        group, instance_id = join.group, join.request.group_instance_id
        prefix = join.client.client_id if instance_id is None else instance_id
        member_id = f"{prefix}-{self._table.new_id()}"
        if instance_id is not None and instance_id in group.static_members:
            self._replace_static(join, member_id, group.static_members[instance_id])
        elif instance_id is None and join.client.requires_known_member_id:
            self._rebalancer.add_pending(join.turn, group, member_id, join.request.session_timeout_ms)
            join.refuse(member_id, ErrorCode.MEMBER_ID_REQUIRED)
        else:
            self._add(join, member_id, instance_id)

    def _join_pending(self, join: _Join) -> None:
        if join.request.group_instance_id is not None:
            # Ids are pending for dynamic members only; Kafka fails here with an IllegalStateException.
            join.refuse(join.request.member_id, ErrorCode.UNKNOWN_SERVER_ERROR)
        else:
            self._add(join, join.request.member_id, None)

    def _add(self, join: _Join, member_id: str, instance_id: str | None) -> None:
        turn, group = join.turn, join.group
        member = Member(
            member_id,
            instance_id,
            join.client.client_id,
            join.client.client_host,
            join.request.session_timeout_ms,
            join.rebalance_timeout_ms,
            join.protocols,
        )
        member.is_new = True
        if group.state is GroupState.PREPARING_REBALANCE and group.generation_id == 0:
            group.new_member_added = True
        member.awaiting_join = join.answer
        group.add(member, join.request.protocol_type)
        self._rebalancer.renew_session(turn, group, member, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalancer.maybe_prepare(turn, group, f"new member {member_id}, client reason: {_reason(join.request)}")

    def _join_known(self, join: _Join) -> None:
        turn, group, request = join.turn, join.group, join.request
        try:
            member = group.check_member(request.member_id, request.group_instance_id)
        except ApiError as error:
            join.refuse(request.member_id, error.error_code)
            return
        changed = member.protocols != join.protocols
        leads = group.leader_id == member.member_id
        if group.state is GroupState.PREPARING_REBALANCE:
            self._rejoin(join, member)
        elif group.state is GroupState.EMPTY:
            join.refuse(request.member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        elif changed or (leads and group.state is GroupState.STABLE):
            # The leader's wish is enough: what it assigns may have changed (topics) while no metadata has.
            self._rejoin(join, member)
        else:
            # Nothing changed: the reply got lost, or a follower asks again before its heartbeat told it more.
            turn.reply(join.answer, group.join_response(member.member_id))

    def _rejoin(self, join: _Join, member: Member) -> None:
        join.group.update(member, join.protocols, join.request.session_timeout_ms, join.rebalance_timeout_ms)
        join.group.await_join(join.turn, member, join.answer)
        reason = f"member {member.member_id} joins again, client reason: {_reason(join.request)}"
        self._rebalancer.maybe_prepare(join.turn, join.group, reason)

    # -- static members ------------------------------------------------------------------------------------------------

    def _replace_static(self, join: _Join, new_member_id: str, old_member_id: str) -> None:
        """An instance comes back under a new member id: nothing moves if the group is stable and stays so."""
        turn, group, instance_id = join.turn, join.group, join.request.group_instance_id
        old_leader_id = group.leader_id
        member = group.replace_static(turn, old_member_id, new_member_id)
        self._rebalancer.renew_session(turn, group, member)
        before = (member.protocols, member.session_timeout_ms, member.rebalance_timeout_ms)
        group.update(member, join.protocols, join.request.session_timeout_ms, join.rebalance_timeout_ms)
        group.await_join(turn, member, join.answer)
        if group.state is GroupState.COMPLETING_REBALANCE:
            # The leader assigns to the old member id already.
            self._rebalancer.prepare(turn, group, f"instance {instance_id} came back as {new_member_id}")
        elif group.state is GroupState.STABLE and group.select_protocol() != group.protocol_name:
            self._rebalancer.prepare(turn, group, f"instance {instance_id} came back with other protocols")
        elif group.state is GroupState.STABLE:
            assignments = {each.member_id: each.assignment for each in group.members.values()}
            undo = partial(self._restore_static, join, member, old_member_id, before)
            turn.append(
                [GroupRecord(group.group_id, group.to_value(assignments))],
                partial(self._static_replaced, join, member, old_leader_id),
                undo,
            )

    def _static_replaced(self, join: _Join, member: Member, old_leader_id: str | None, turn: Turn) -> None:
        group = join.group
        if group.state is not GroupState.STABLE or member.awaiting_join is not join.answer:
            return  # a rebalance began meanwhile, and answers
        if join.client.skips_assignment:
            response = group.join_response(member.member_id)
            response.skip_assignment = group.leader_id == member.member_id
        else:
            # Under the old leader's name nobody runs the assignment again, which a stable group would not use.
            response = group.join_response(member.member_id, leader_id=old_leader_id)
        group.answer_join(turn, member, response)

    def _restore_static(
        self,
        join: _Join,
        member: Member,
        old_member_id: str,
        before: tuple[Protocols, int, int],
        turn: Turn,
        error_code: ErrorCode,
    ) -> None:
        group = join.group
        logger.warning("The new id of %s in %s could not be stored: %s", old_member_id, group.group_id, error_code.name)
        if group.state is not GroupState.STABLE or member.awaiting_join is not join.answer:
            return
        response = group.join_response(UNKNOWN_MEMBER_ID)
        response.error_code = group_error(error_code)
        group.answer_join(turn, member, response)
        group.update(member, *before)
        group.replace_static(turn, member.member_id, old_member_id)
        self._rebalancer.renew_session(turn, group, member)

    # -- SyncGroup -----------------------------------------------------------------------------------------------------

    def sync(self, turn: Turn, request: SyncGroupRequest, answer: SyncAnswer) -> None:
        """A member asks for its assignment; the leader brings everybody's. Answered when they are committed."""
        try:
            group, member = self._check_generation(
                request.group_id, request.generation_id, request.member_id, request.group_instance_id
            )
            for asked, actual in (
                (request.protocol_type, group.protocol_type),
                (request.protocol_name, group.protocol_name),
            ):
                if asked is not None and asked != actual:
                    raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"{asked!r} is not the group's {actual!r}")
            if group.state is GroupState.PREPARING_REBALANCE:
                raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS, f"group {group.group_id} waits for members to join")
            if group.state is GroupState.EMPTY:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group.group_id} has no members")
        except ApiError as error:
            turn.reply(answer, sync_error(error.error_code))
            return
        self._rebalancer.synced(group, member.member_id)
        if group.state is GroupState.STABLE:
            turn.reply(answer, self._rebalancer.sync_response(group, member))
            self._rebalancer.renew_session(turn, group, member)
            return
        group.answer_sync(turn, member, sync_error(ErrorCode.REBALANCE_IN_PROGRESS))
        member.awaiting_sync = answer
        if group.leader_id == member.member_id and group.storing_generation != group.generation_id:
            given = {assignment.member_id: bytes(assignment.assignment) for assignment in request.assignments}
            assignments = {member_id: given.get(member_id, b"") for member_id in group.members}
            self._rebalancer.store_assignment(turn, group, assignments)

    # -- Heartbeat -----------------------------------------------------------------------------------------------------

    def heartbeat(self, turn: Turn, request: HeartbeatRequest) -> ErrorCode:
        """A member lives. REBALANCE_IN_PROGRESS tells it to join again."""
        try:
            group, member = self._check_generation(
                request.group_id, request.generation_id, request.member_id, request.group_instance_id
            )
        except ApiError as error:
            return error.error_code
        if group.state is GroupState.EMPTY:
            return ErrorCode.UNKNOWN_MEMBER_ID
        self._rebalancer.renew_session(turn, group, member)
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _check_generation(
        self, group_id: str, generation_id: int, member_id: str, group_instance_id: str | None
    ) -> tuple[Group, Member]:
        group = self._table.groups.get(group_id)
        if group is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no group {group_id!r}")
        if group.state is GroupState.DEAD:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"group {group_id} is being removed")
        member = group.check_member(member_id, group_instance_id)
        if generation_id != group.generation_id:
            raise ApiError(
                ErrorCode.ILLEGAL_GENERATION, f"generation {generation_id} of {group_id}, now {group.generation_id}"
            )
        return group, member

    # -- LeaveGroup ----------------------------------------------------------------------------------------------------

    def leave(self, turn: Turn, request: LeaveGroupRequest) -> LeaveGroupResponse:
        """Members leave, or are removed by an administrator who names their instance ids only (KIP-345)."""
        group = self._table.groups.get(request.group_id)
        if group is not None and group.state is GroupState.DEAD:
            return LeaveGroupResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        response = LeaveGroupResponse(error_code=ErrorCode.NONE)
        for leaving in request.members:
            error_code = ErrorCode.UNKNOWN_MEMBER_ID if group is None else self._leave_one(turn, group, leaving)
            response.members.append(
                LeaveGroupResponse.MemberResponse(
                    member_id=leaving.member_id, group_instance_id=leaving.group_instance_id, error_code=error_code
                )
            )
        return response

    def _leave_one(self, turn: Turn, group: Group, leaving: LeaveGroupRequest.MemberIdentity) -> ErrorCode:
        member_id = leaving.member_id
        if member_id == UNKNOWN_MEMBER_ID:
            current = group.static_members.get(leaving.group_instance_id or "")
            if leaving.group_instance_id is None or current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = current
        elif member_id in group.pending_members:
            self._rebalancer.remove_pending(turn, group, member_id)
            return ErrorCode.NONE
        try:
            member = group.check_member(member_id, leaving.group_instance_id)
        except ApiError as error:
            return error.error_code
        reason = f"LeaveGroup, client reason: {leaving.reason or 'not provided'}"
        self._rebalancer.remove_member(turn, group, member, reason)
        return ErrorCode.NONE


def _reason(request: JoinGroupRequest) -> str:
    return request.reason or "not provided"
