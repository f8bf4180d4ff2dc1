"""Rebalances: a group's transition from one generation to the next (Kafka's GroupCoordinator, from prepareRebalance
on), and the responses to its members.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from cluster.coordinators.deadlines import Deadline
from cluster.coordinators.results import Append, Appends, ClockReading
from cluster.groups.group import COMPLETING_REBALANCE, DEAD, EMPTY, PREPARING_REBALANCE, STABLE, Group, Member
from cluster.groups.group_table import GroupTable, background_append
from cluster.groups.membership_events import UNKNOWN_MEMBER_ID, join_error, sync_error
from cluster.groups.records import GroupRecord
from protocol.errors import NO_ERROR, ErrorCode
from protocol.messages.groups import JoinGroupResponse, SyncGroupResponse
from protocol.value import maker

_make_join_response = maker(JoinGroupResponse)
_make_member = maker(JoinGroupResponse.JoinGroupResponseMember)
_make_sync_response = maker(SyncGroupResponse)


def join_response(group: Group, member_id: str, *, leader_id: str | None = None) -> JoinGroupResponse:
    """The current generation for a member. The leader's response includes the metadata of all members.

    `leader_id` replaces the real leader. An empty protocol name becomes null (Kafka class JoinGroupResponse).
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


logger = logging.getLogger("kafka.coordinator.group.GroupCoordinator")

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60 * 1000
"""A new member cannot send heartbeats before its first join completes, so its request may wait for so long."""
SHORTEST_JOIN_ROUND_MS: Final = 1000
"""Minimum duration of the next round after one without any joined member."""


class Rebalancer:
    """Runs the rebalances of the groups in `table`."""

    def __init__(self, table: GroupTable) -> None:
        self._table = table

    # -- sessions ------------------------------------------------------------------------------------------------------

    def renew_session(self, now: ClockReading, group: Group, member: Member, timeout_ms: int | None = None) -> None:
        """Restart the member's session timeout (or `timeout_ms`) from now."""
        if member.session is None:
            member.session = Deadline(self._table.deadlines, partial(self._session_expired, group, member))
        member.session.set(now.monotonic_ms + (member.session_timeout_ms if timeout_ms is None else timeout_ms))

    def _session_expired(self, group: Group, member: Member, now: ClockReading) -> Appends:
        if group.state is DEAD or member.needs_no_heartbeat:
            return ()
        logger.info("Member %s in group %s has failed, removing it from the group", member.member_id, group.group_id)
        return self.remove_member(now, group, member, "its session expired")

    def add_pending(self, now: ClockReading, group: Group, member_id: str, timeout_ms: int) -> None:
        """Expect a rejoin with the new member id."""
        deadline = Deadline(self._table.deadlines, partial(self._pending_expired, group, member_id))
        group.add_pending(member_id, deadline)
        deadline.set(now.monotonic_ms + timeout_ms)

    def _pending_expired(self, group: Group, member_id: str, now: ClockReading) -> Appends:
        if group.state is DEAD:
            return ()
        logger.info("Pending member %s in group %s did not come back in time", member_id, group.group_id)
        return self.remove_pending(now, group, member_id)

    def remove_pending(self, now: ClockReading, group: Group, member_id: str) -> Appends:
        """Stop expecting a pending member."""
        group.remove(member_id)
        return self.try_complete_join(now, group)

    def remove_member(self, now: ClockReading, group: Group, member: Member, reason: str) -> Appends:
        """Remove a member and rebalance the others."""
        group.answer_join(member, join_error(UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID))
        group.answer_sync(member, sync_error(ErrorCode.UNKNOWN_MEMBER_ID))
        group.remove(member.member_id)
        if group.state in (STABLE, COMPLETING_REBALANCE):
            return self.prepare(now, group, f"member {member.member_id} left: {reason}")
        return self.try_complete_join(now, group)

    # -- joining -------------------------------------------------------------------------------------------------------

    def maybe_prepare(self, now: ClockReading, group: Group, reason: str) -> Appends:
        """Start a rebalance unless one is already gathering members."""
        if group.state in (STABLE, COMPLETING_REBALANCE, EMPTY):
            return self.prepare(now, group, reason)
        return ()

    def prepare(self, now: ClockReading, group: Group, reason: str) -> Appends:
        """Start a rebalance: from now on members join.

        A previously empty group waits group.initial.rebalance.delay.ms, and again while more members arrive, up to the
        rebalance timeout; other groups continue once all members have joined.
        """
        if group.state is COMPLETING_REBALANCE:
            for member in group.members.values():
                member.assignment = b""
            self._propagate(now, group, ErrorCode.REBALANCE_IN_PROGRESS)
        group.sync_round.clear()
        group.join_round.action = partial(self._join_round_over, group)
        if group.state is EMPTY:
            delay_ms = self._table.config.group_initial_rebalance_delay_ms
            group.initial_join_remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        else:
            delay_ms = group.rebalance_timeout_ms
            group.initial_join_remaining_ms = None
        group.join_round.set(now.monotonic_ms + delay_ms)
        group.transition_to(PREPARING_REBALANCE, now.now_ms)
        logger.info(
            "Preparing to rebalance group %s with old generation %d: %s", group.group_id, group.generation_id, reason
        )
        return self.try_complete_join(now, group)

    def try_complete_join(self, now: ClockReading, group: Group) -> Appends:
        """Start the next generation if all members have joined."""
        waits = group.state is PREPARING_REBALANCE and group.initial_join_remaining_ms is None
        if waits and group.all_members_joined:
            return self._complete_join(now, group)
        return ()

    def _join_round_over(self, group: Group, now: ClockReading) -> Appends:
        if group.state is not PREPARING_REBALANCE:
            return ()
        remaining_ms = group.initial_join_remaining_ms
        if remaining_ms and group.new_member_added:
            delay_ms = min(self._table.config.group_initial_rebalance_delay_ms, remaining_ms)
            group.new_member_added = False
            group.initial_join_remaining_ms = remaining_ms - delay_ms
            group.join_round.set(now.monotonic_ms + delay_ms)
            return ()
        return self._complete_join(now, group)

    def _complete_join(self, now: ClockReading, group: Group) -> Appends:
        group.initial_join_remaining_ms = None
        missing = [each for each in group.members.values() if each.awaiting_join is None and not each.is_static]
        for member in missing:
            logger.info("Group %s continues without %s, which did not join", group.group_id, member.member_id)
            group.remove(member.member_id)
        if not group.elect_joined_leader() and group.members:
            # Only absent static members are left; their session timeouts will remove them.
            logger.error("Group %s could not complete its rebalance because no member joined", group.group_id)
            group.join_round.set(now.monotonic_ms + max(group.rebalance_timeout_ms, SHORTEST_JOIN_ROUND_MS))
            return ()
        group.join_round.clear()
        group.start_next_generation(now.now_ms)
        if group.state is EMPTY:
            logger.info("Group %s with generation %d is now empty", group.group_id, group.generation_id)
            record = GroupRecord(group.group_id, group.to_value({}))
            return [background_append([record], f"that group {group.group_id} is empty")]
        logger.info(
            "Stabilized group %s generation %d with %d members",
            group.group_id,
            group.generation_id,
            len(group.members),
        )
        for member in group.members.values():
            group.answer_join(member, join_response(group, member.member_id))
            self.renew_session(now, group, member)
            member.is_new = False
            group.pending_sync[member.member_id] = None
        group.sync_round.action = partial(self._sync_round_over, group, group.generation_id)
        group.sync_round.set(now.monotonic_ms + group.rebalance_timeout_ms)
        return ()

    # -- syncing -------------------------------------------------------------------------------------------------------

    def synced(self, group: Group, member_id: str) -> None:
        """The member has requested its assignment."""
        group.pending_sync.pop(member_id, None)
        if not group.pending_sync:
            group.sync_round.clear()

    def _sync_round_over(self, group: Group, generation_id: int, now: ClockReading) -> Appends:
        in_generation = group.state in (COMPLETING_REBALANCE, STABLE)
        if not in_generation or group.generation_id != generation_id or not group.pending_sync:
            return ()
        silent = sorted(group.pending_sync)
        for member_id in silent:
            group.remove(member_id)
        return self.prepare(now, group, f"members {silent} did not ask for their assignments in time")

    def store_assignment(self, group: Group, assignments: dict[str, bytes]) -> Append:
        """Write the generation with its assignments; once committed, members get them."""
        group.storing_generation = group.generation_id
        return Append(
            [GroupRecord(group.group_id, group.to_value(assignments))],
            partial(self._assignment_stored, group, group.generation_id, assignments),
        )

    def _assignment_stored(
        self, group: Group, generation_id: int, assignments: dict[str, bytes], now: ClockReading, error_code: ErrorCode
    ) -> Appends:
        group.storing_generation = None
        if group.state is not COMPLETING_REBALANCE or group.generation_id != generation_id:
            return ()
        is_stored = error_code is NO_ERROR
        for member in group.members.values():
            member.assignment = assignments[member.member_id] if is_stored else b""
        self._propagate(now, group, group_error(error_code))
        if not is_stored:
            return self.maybe_prepare(now, group, f"the assignment could not be stored: {error_code.name}")
        group.transition_to(STABLE, now.now_ms)
        return ()

    def _propagate(self, now: ClockReading, group: Group, error_code: ErrorCode) -> None:
        is_stored = error_code is NO_ERROR
        for member in group.members.values():
            response = sync_response(group, member) if is_stored else sync_error(error_code)
            if group.answer_sync(member, response):
                # The member did not have to send heartbeats while it waited.
                self.renew_session(now, group, member)


_GROUP_ERRORS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def group_error(log_error: ErrorCode) -> ErrorCode:
    """The error for members if a group record could not be written (GroupMetadataManager.storeGroup)."""
    return _GROUP_ERRORS.get(log_error, log_error)
