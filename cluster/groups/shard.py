"""The coordinator of one partition of __consumer_offsets; it combines the other modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from cluster.coordinators.results import Append, Appends, ClockReading
from cluster.groups.committed_offsets import CommittedOffsets
from cluster.groups.group import DEAD, STABLE, Group, GroupState
from cluster.groups.group_config import GroupConfig
from cluster.groups.group_membership import Membership
from cluster.groups.group_table import DurableGroups, GroupTable
from cluster.groups.membership_events import join_error, sync_error
from cluster.groups.rebalance import Rebalancer
from protocol.errors import ErrorCode
from protocol.value import Value, field


class DescribedMember(NamedTuple):
    """A member; metadata and assignment are empty unless the group is stable."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class GroupDescription(Value, frozen=False):
    """A group in DescribeGroups."""

    state: GroupState
    protocol_type: str = ""
    protocol_name: str = ""
    members: list[DescribedMember] = field(default_factory=list)


class GroupShard:
    """The groups of one partition. Events go to `membership` and `offsets`, all on one thread.

    `new_id()` returns unique text for member ids, `most_record_bytes()` the maximum record size of the log.

    Each event takes its time and returns a `Result` (or just `Appends`): the driver must make the appends in order, and
    report each with `complete` or `fail`, in log order.
    """

    def __init__(
        self,
        config: GroupConfig,
        new_id: Callable[[], str],
        durable: DurableGroups | None,
        most_record_bytes: Callable[[], int],
    ) -> None:
        self._table = GroupTable(config, new_id, durable, most_record_bytes)
        self._rebalancer = Rebalancer(self._table)
        self.membership = Membership(self._table, self._rebalancer)
        self.offsets = CommittedOffsets(self._table, self._rebalancer)
        self._restored_with_members: list[Group] = []
        self.deadlines = self._table.deadlines
        """Their `next_ms` is the time for the next `expire`."""

    @property
    def durable(self) -> DurableGroups:
        """The groups according to the log. Read only."""
        return self._table.durable

    @property
    def groups(self) -> dict[str, Group]:
        """The groups by id. Read only."""
        return self._table.groups

    def restore(self, now: ClockReading) -> None:
        """Create the groups from the loaded records. The shard is not in use yet, so this may run on any thread."""
        self._table.restore(now)
        self._restored_with_members = [group for group in self._table.groups.values() if group.members]

    def start(self, now: ClockReading) -> Appends:
        """Start serving the restored groups. Session timeouts start now."""
        appends: list[Append] = []
        groups, self._restored_with_members = self._restored_with_members, []  # few of a million have members
        for group in groups:
            if len(group.members) > self._table.config.group_max_size:
                reason = "more members were loaded than group.max.size allows"
                appends += self._rebalancer.prepare(now, group, reason)
            for member in group.members.values():
                self._rebalancer.renew_session(now, group, member)
        return appends

    def complete(self, now: ClockReading, append: Append, base_offset: int) -> Appends:
        """`append` is committed, its first record at `base_offset` of the log: replay its records and continue."""
        producer_id = None if append.producer is None else append.producer.producer_id
        for position, record in enumerate(append.records):
            self._table.durable.replay(record, base_offset + position, producer_id)
        return append.completed(now, ErrorCode.NONE)

    def fail(self, now: ClockReading, append: Append, error_code: ErrorCode) -> Appends:
        """`append` failed, without any effect."""
        return append.completed(now, error_code)

    def expire(self, now: ClockReading) -> Appends:
        """Run the deadlines that have passed."""
        return self._table.deadlines.expire(now)

    def postpone_sessions(self, by_ms: int) -> None:
        """Expect the next heartbeats of all members later."""
        for group in self._table.groups.values():
            for member in group.members.values():
                if member.session is not None and member.session.due_ms is not None:
                    member.session.set(member.session.due_ms + by_ms)

    def resign(self, now: ClockReading) -> None:
        """Another broker is the coordinator now. Waiting members are redirected with an error."""
        for group in self._table.groups.values():
            group.transition_to(DEAD, now.now_ms)
            for member in group.members.values():
                group.answer_join(member, join_error(member.member_id, ErrorCode.NOT_COORDINATOR))
                group.answer_sync(member, sync_error(ErrorCode.NOT_COORDINATOR))
            group.clear_deadlines()
        self.offsets.close()

    def describe(self, group_id: str) -> GroupDescription:
        """Describe a group; a missing one is dead."""
        group = self._table.groups.get(group_id)
        if group is None:
            return GroupDescription(DEAD)
        stable = group.state is STABLE
        members = [
            DescribedMember(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                member.metadata(group.protocol_name) if stable else b"",
                member.assignment if stable else b"",
            )
            for member in group.members.values()
        ]
        protocol_name = (group.protocol_name or "") if stable else ""
        return GroupDescription(group.state, group.protocol_type or "", protocol_name, members)
