"""One partition of __consumer_offsets, as its coordinator: where the parts come together."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from cluster.coordinators.results import Append, Appends, Moment
from cluster.groups.committed_offsets import CommittedOffsets
from cluster.groups.group import DEAD, STABLE, Group, GroupState
from cluster.groups.group_membership import Membership
from cluster.groups.group_table import DurableGroups, GroupConfig, GroupTable
from cluster.groups.membership_events import join_error, sync_error
from cluster.groups.rebalance import Rebalancer
from protocol.errors import ErrorCode
from protocol.value import Value, field


class DescribedMember(NamedTuple):
    """A member; its metadata and assignment are empty while the group is not stable."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class GroupDescription(Value, frozen=False):
    """A group as administrators see it."""

    state: GroupState
    protocol_type: str = ""
    protocol_name: str = ""
    members: list[DescribedMember] = field(default_factory=list)


class GroupShard:
    """The groups of one partition. Events go to `membership` and `offsets`; all of it belongs to one thread.

    `new_id()` gives unique text for member ids, `most_record_bytes()` the largest record that the log takes.

    Every event says when it happens and gives a `Result` (or `Appends` alone): the driver has to make the appends in
    order, and to report each with `complete` or `fail`, in the order of the log.
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
        """They say when `expire` is to be called next."""

    @property
    def durable(self) -> DurableGroups:
        """The groups as the log has them. To be read only."""
        return self._table.durable

    @property
    def groups(self) -> dict[str, Group]:
        """The groups by id. To be read only."""
        return self._table.groups

    def restore(self, now: Moment) -> None:
        """Create the groups from the loaded records. The shard is not in use yet, so this may run on any thread."""
        self._table.restore(now)
        self._restored_with_members = [group for group in self._table.groups.values() if group.members]

    def start(self, now: Moment) -> Appends:
        """Begin to serve the restored groups. Session timeouts of the members begin now."""
        appends: list[Append] = []
        groups, self._restored_with_members = self._restored_with_members, []  # of a million, few have members
        for group in groups:
            if len(group.members) > self._table.config.group_max_size:
                reason = "more members were loaded than group.max.size allows"
                appends += self._rebalancer.prepare(now, group, reason)
            for member in group.members.values():
                self._rebalancer.renew_session(now, group, member)
        return appends

    def complete(self, now: Moment, append: Append, base_offset: int) -> Appends:
        """`append` is committed, its first record at `base_offset` of the log: replay its records and go on."""
        producer_id = None if append.producer is None else append.producer.producer_id
        for position, record in enumerate(append.records):
            self._table.durable.replay(record, base_offset + position, producer_id)
        return append.settled(now, ErrorCode.NONE)

    def fail(self, now: Moment, append: Append, error_code: ErrorCode) -> Appends:
        """`append` was not committed, and leaves no trace."""
        return append.settled(now, error_code)

    def expire(self, now: Moment) -> Appends:
        """Time has passed: act on the deadlines that were reached."""
        return self._table.deadlines.expire(now)

    def resign(self, now: Moment) -> None:
        """Resign: another broker coordinates now. Waiting members are sent there."""
        for group in self._table.groups.values():
            group.transition_to(DEAD, now.now_ms)
            for member in group.members.values():
                group.answer_join(member, join_error(member.member_id, ErrorCode.NOT_COORDINATOR))
                group.answer_sync(member, sync_error(ErrorCode.NOT_COORDINATOR))
            group.clear_deadlines()
        self.offsets.close()

    def describe(self, group_id: str) -> GroupDescription:
        """A group as administrators see it; one that does not exist is dead."""
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
