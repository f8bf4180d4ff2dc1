"""One partition of __consumer_offsets, as its coordinator: where the parts come together."""

from __future__ import annotations

import logging
from collections.abc import Callable

from cluster.coordinator.committed_offsets import CommittedOffsets
from cluster.coordinator.durable_groups import DurableGroups
from cluster.coordinator.group import Group, GroupState, join_error, sync_error
from cluster.coordinator.group_table import GroupConfig, GroupTable
from cluster.coordinator.membership import Membership
from cluster.coordinator.rebalance import Rebalancer
from cluster.coordinator.turn import Append, Turn
from protocol.errors import ErrorCode
from protocol.messages import DescribeGroupsResponse, ListGroupsResponse

logger = logging.getLogger("kafka.coordinator.group.GroupCoordinator")

CLASSIC_GROUP_TYPE = "classic"


class GroupShard:
    """The groups of one partition. Requests go to `membership` and `offsets`; all of it belongs to one thread.

    `new_id()` gives unique text for member ids. Effects of every call are in the `Turn` it was given; the driver has to
    carry them out in order, and to report each append with `complete` or `fail`, in the order of the log.
    """

    def __init__(self, config: GroupConfig, new_id: Callable[[], str], durable: DurableGroups | None = None) -> None:
        self._table = GroupTable(config, new_id, durable)
        self._rebalancer = Rebalancer(self._table)
        self.membership = Membership(self._table, self._rebalancer)
        self.offsets = CommittedOffsets(self._table, self._rebalancer)

    @property
    def durable(self) -> DurableGroups:
        """What the log says. To be read only."""
        return self._table.durable

    @property
    def groups(self) -> dict[str, Group]:
        """The groups by id. To be read only."""
        return self._table.groups

    def start(self, turn: Turn) -> None:
        """Begin to serve what was loaded: members have a session timeout from now to be heard of."""
        self._table.restore(turn)
        for group in self._table.groups.values():
            if len(group.members) > self._table.config.group_max_size:
                self._rebalancer.prepare(turn, group, "more members were loaded than group.max.size allows")
            for member in group.members.values():
                self._rebalancer.renew_session(turn, group, member)

    def complete(self, append: Append, base_offset: int, turn: Turn) -> None:
        """`append` is committed, its first record at `base_offset`."""
        self._table.complete(append, base_offset, turn)

    def fail(self, append: Append, error_code: ErrorCode, turn: Turn) -> None:
        """`append` was not committed."""
        append.failed(turn, error_code)

    def next_deadline_ms(self) -> int | None:
        """When `expire` is to be called next (monotonic milliseconds); None: no time matters now."""
        return self._table.deadlines.next_ms()

    def expire(self, turn: Turn) -> None:
        """Time has passed: act on the deadlines that were reached."""
        self._table.deadlines.expire(turn)

    def resign(self, turn: Turn) -> None:
        """Another broker coordinates from now on: send everybody there who waits."""
        for group in self._table.groups.values():
            group.transition_to(GroupState.DEAD, turn.now_ms)
            for member in group.members.values():
                group.answer_join(turn, member, join_error(member.member_id, ErrorCode.NOT_COORDINATOR))
                group.answer_sync(turn, member, sync_error(ErrorCode.NOT_COORDINATOR))

    # -- views ---------------------------------------------------------------------------------------------------------

    def describe(self, group_id: str) -> DescribeGroupsResponse.DescribedGroup:
        """A group as DescribeGroups shows it; one that does not exist is Dead."""
        group = self._table.groups.get(group_id)
        if group is None:
            return described(group_id, ErrorCode.NONE, GroupState.DEAD.value)
        stable = group.state is GroupState.STABLE
        result = described(group_id, ErrorCode.NONE, group.state.value)
        result.protocol_type = group.protocol_type or ""
        result.protocol_data = (group.protocol_name or "") if stable else ""
        result.members = [
            DescribeGroupsResponse.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(group.protocol_name) if stable else b"",
                member_assignment=member.assignment if stable else b"",
            )
            for member in group.members.values()
        ]
        return result

    def list_groups(self, states: set[str], types: set[str]) -> list[ListGroupsResponse.ListedGroup]:
        """Groups in one of `states` and of one of `types` (in lower case; an empty set lets all pass; KIP-518)."""
        if types and CLASSIC_GROUP_TYPE not in types:
            return []
        return [
            ListGroupsResponse.ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
                group_type=CLASSIC_GROUP_TYPE,
            )
            for group in self._table.groups.values()
            if not states or group.state.value.lower() in states
        ]


def described(group_id: str, error_code: ErrorCode, group_state: str = "") -> DescribeGroupsResponse.DescribedGroup:
    """A DescribeGroups entry with nothing in it yet."""
    return DescribeGroupsResponse.DescribedGroup(
        error_code=error_code,
        group_id=group_id,
        group_state=group_state,
        protocol_type="",
        protocol_data="",
        members=[],
    )
