"""Any order of requests, slow and failing appends, passing time and crashes, against what must never happen.

- A request is answered once, and within bounded time.
- Within a generation every member gets its part of the first stored assignment, so no partition has two owners.
- A member never sees its generation fall, and no generation has two leaders.
- Fetches return an offset once its commit was acknowledged, also after a crash.
- A new coordinator loads the same state from the log that the old one held; a stable group's membership agrees.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cluster.groups.group import GroupState
from cluster.groups.group_config import GroupConfig
from protocol.errors import ErrorCode
from protocol.messages.groups import JoinGroupResponse, SyncGroupResponse
from protocol.topic_partition import TopicPartition
from tests.cluster.groups.group_harness import Answer, Harness

PARTITIONS = [TopicPartition("t", index) for index in range(3)]
GROUPS = ["g", "h"]
CLIENTS = range(5)
SESSION_MS, REBALANCE_MS = 5_000, 8_000
LOG_ERRORS = [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT]
GO_AWAY = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.GROUP_MAX_SIZE_REACHED,
    ErrorCode.FENCED_INSTANCE_ID,
)
PROTOCOLS = [[("range", b"1")], [("range", b"2")], [("sticky", b"1"), ("range", b"1")]]


@dataclass
class Client:
    """A client's state. Clients 3 and 4 are static members."""

    number: int
    group_id: str
    member_id: str = ""
    generation: int = -1
    leads: list[str] | None = None
    join: Answer[JoinGroupResponse] | None = None
    sync: Answer[SyncGroupResponse] | None = None

    @property
    def instance(self) -> str | None:
        return f"i{self.number}" if self.number >= 3 else None


@dataclass
class Observed:
    """One coordinator, from its start to its end."""

    leaders: dict[tuple[str, int], str] = field(default_factory=dict)
    assigned: dict[tuple[str, int], dict[str, bytes]] = field(default_factory=dict)


class GroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.harness = Harness()
        self.clients = {(group, number): Client(number, group) for group in GROUPS for number in CLIENTS}
        self.observed = Observed()
        self.committed: dict[tuple[str, TopicPartition], int] = {}
        self.commits: list[tuple[str, dict[TopicPartition, int], Answer[dict[TopicPartition, ErrorCode]]]] = []
        self.deletions: list[tuple[str, Answer[ErrorCode]]] = []
        self.next_offset = 0

    @initialize(delay_ms=st.sampled_from([0, 1000]), size=st.sampled_from([3, 100]))
    def start(self, delay_ms: int, size: int) -> None:
        self.harness = Harness(GroupConfig(group_initial_rebalance_delay_ms=delay_ms, group_max_size=size))

    # -- what happens --------------------------------------------------------------------------------------------------

    @rule(group=st.sampled_from(GROUPS), number=st.sampled_from(CLIENTS), protocols=st.sampled_from(PROTOCOLS))
    def join(self, group: str, number: int, protocols: list[tuple[str, bytes]]) -> None:
        client = self.clients[group, number]
        self.settle()
        if client.join is not None or client.sync is not None:
            return
        client.join = self.harness.join(
            client.member_id,
            group,
            instance=client.instance,
            protocols=protocols,
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
            settle=False,
        )
        self.settle()

    @rule(group=st.sampled_from(GROUPS), number=st.sampled_from(CLIENTS))
    def restart_client(self, group: str, number: int) -> None:
        """A client's process dies; the next one knows nothing."""
        self.settle()
        self.clients[group, number] = Client(number, group)

    @rule(group=st.sampled_from(GROUPS), number=st.sampled_from(CLIENTS), salt=st.integers(0, 2))
    def sync(self, group: str, number: int, salt: int) -> None:
        client = self.clients[group, number]
        self.settle()
        if client.generation < 0 or client.join is not None or client.sync is not None:
            return
        assignments = {
            member: f"{member}/{client.generation}/{salt}".encode() for member in client.leads or [] if member
        }
        client.sync = self.harness.sync(
            client.member_id, client.generation, assignments, group, instance=client.instance
        )
        self.settle()

    @rule(group=st.sampled_from(GROUPS), number=st.sampled_from(CLIENTS))
    def heartbeat(self, group: str, number: int) -> None:
        client = self.clients[group, number]
        if client.member_id:
            outcome = self.harness.heartbeat(client.member_id, client.generation, group, instance=client.instance)
            self.heard(client, outcome)

    @rule(group=st.sampled_from(GROUPS), number=st.sampled_from(CLIENTS))
    def leave(self, group: str, number: int) -> None:
        client = self.clients[group, number]
        if client.member_id or client.instance:
            self.harness.leave((client.member_id, client.instance), group_id=group)
            self.settle()
            self.clients[group, number] = Client(number, group)

    @rule(group=st.sampled_from(GROUPS), number=st.sampled_from(CLIENTS), partition=st.sampled_from(PARTITIONS))
    def commit(self, group: str, number: int, partition: TopicPartition) -> None:
        client = self.clients[group, number]
        self.next_offset += 1
        offsets = {partition: self.next_offset}
        answer = self.harness.commit(offsets, client.member_id, client.generation, group, instance=client.instance)
        self.commits.append((group, offsets, answer))
        self.settle()

    @rule(group=st.sampled_from(GROUPS), partition=st.sampled_from(PARTITIONS))
    def commit_alone(self, group: str, partition: TopicPartition) -> None:
        self.next_offset += 1
        offsets = {partition: self.next_offset}
        self.commits.append((group, offsets, self.harness.commit(offsets, group_id=group)))
        self.settle()

    @rule(group=st.sampled_from(GROUPS))
    def delete_group(self, group: str) -> None:
        self.flush()
        answer = self.harness.delete_group(group)
        assert not answer.waits
        if answer.value is ErrorCode.NONE:
            self.forget(group)

    @rule(group=st.sampled_from(GROUPS), partition=st.sampled_from(PARTITIONS))
    def delete_offset(self, group: str, partition: TopicPartition) -> None:
        self.flush()
        outcome = self.harness.delete_offsets(partition, group_id=group).value
        if outcome.error_code is ErrorCode.NONE and outcome.partitions[partition] is ErrorCode.NONE:
            self.committed.pop((group, partition), None)

    @rule(milliseconds=st.sampled_from([0, 1, 900, 1000, 2500, 5000, 9000]))
    def time_passes(self, milliseconds: int) -> None:
        self.harness.advance(milliseconds)
        self.settle()

    @rule()
    def offsets_expire(self) -> None:
        self.flush()
        self.harness.expire_offsets()

    @rule()
    def hold(self) -> None:
        self.harness.hold = True

    @rule(error=st.none() | st.sampled_from(LOG_ERRORS))
    def one_append_ends(self, error: ErrorCode | None) -> None:
        if self.harness.waiting:
            if error is None:
                self.harness.commit_one()
            else:
                self.harness.fail_one(error)
        self.settle()

    @rule()
    def release(self) -> None:
        self.flush()

    @rule()
    def crash(self) -> None:
        """The coordinator dies; uncommitted records are lost, and clients never learn of them."""
        self.settle()
        self.harness = self.harness.restarted()
        self.observed = Observed()
        self.commits.clear()
        for client in self.clients.values():
            client.join = client.sync = None

    # -- hearing answers -----------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Let the log catch up."""
        self.harness.hold = False
        while self.harness.waiting:
            self.harness.commit_one()
        self.settle()

    def forget(self, group: str) -> None:
        self.committed = {key: offset for key, offset in self.committed.items() if key[0] != group}

    def settle(self) -> None:
        """Let clients read their answers."""
        for client in self.clients.values():
            if client.join is not None and not client.join.waits:
                answer, client.join = client.join.value, None
                self.joined(client, answer)
            if client.sync is not None and not client.sync.waits:
                synced, client.sync = client.sync.value, None
                self.synced(client, synced)
        remaining = []
        for group, offsets, commit in self.commits:
            if commit.waits:
                remaining.append((group, offsets, commit))
                continue
            for partition, error_code in commit.value.items():
                if error_code is ErrorCode.NONE:
                    self.committed[group, partition] = offsets[partition]
        self.commits = remaining

    def joined(self, client: Client, answer: JoinGroupResponse) -> None:
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = answer.member_id
        elif answer.error_code != ErrorCode.NONE:
            self.heard(client, ErrorCode.of(answer.error_code))
        else:
            same_coordinator = (client.group_id, client.generation) in self.observed.leaders
            assert not same_coordinator or answer.generation_id >= client.generation
            client.member_id = answer.member_id
            client.generation = answer.generation_id
            client.leads = [each.member_id for each in answer.members] if answer.leader == answer.member_id else None
            assert client.leads is None or answer.member_id in client.leads
            if not answer.skip_assignment and client.instance is None:
                leader = self.observed.leaders.setdefault((client.group_id, client.generation), answer.leader)
                group = self.harness.shard.groups.get(client.group_id)
                replaced = group is not None and leader not in group.members
                assert leader == answer.leader or replaced

    def synced(self, client: Client, answer: SyncGroupResponse) -> None:
        if answer.error_code != ErrorCode.NONE:
            self.heard(client, ErrorCode.of(answer.error_code))
            return
        stored = self.observed.assigned.setdefault((client.group_id, client.generation), {})
        member = client.member_id if client.instance is None else f"instance {client.instance}"
        assert stored.setdefault(member, answer.assignment) == answer.assignment
        owners = [assignment for assignment in stored.values() if assignment]
        assert len(owners) == len(set(owners))

    def heard(self, client: Client, error_code: ErrorCode) -> None:
        if error_code in GO_AWAY:
            client.member_id, client.generation, client.leads = "", -1, None

    # -- what must hold ------------------------------------------------------------------------------------------------

    @invariant()
    def the_log_says_what_the_coordinator_holds(self) -> None:
        assert self.harness.replayed() == self.harness.shard.durable

    @invariant()
    def committed_offsets_are_there(self) -> None:
        for (group, partition), offset in self.committed.items():
            assert self.harness.fetch(partition, group_id=group) == {partition: offset}

    @invariant()
    def membership_agrees_with_the_log(self) -> None:
        shard = self.harness.shard
        assert shard.durable.groups.keys() <= shard.groups.keys()
        for group_id, group in shard.groups.items():
            assert set(group.static_members.values()) <= group.members.keys()
            assert (group.leader_id in group.members) if group.members else group.leader_id is None
            assert group.awaiting_join_count == sum(each.awaiting_join is not None for each in group.members.values())
            assert group.pending_sync.keys() <= group.members.keys()
            sizes = [each.size_in_bytes for each in group.members.values()]
            assert group.size_in_bytes == sum(sizes) + sum(map(len, group.pending_members))
            if group.state is GroupState.STABLE and not self.harness.waiting:
                durable: Any = shard.durable.groups[group_id].metadata
                assert durable.generation == group.generation_id
                assert {each.member_id: each.assignment for each in durable.members} == {
                    member_id: member.assignment for member_id, member in group.members.items()
                }

    def teardown(self) -> None:
        """Every pending request is answered once time passes and the log works."""
        self.flush()
        for _ in range(40):
            self.harness.advance(REBALANCE_MS)
            self.settle()
        waiting = [client for client in self.clients.values() if client.join is not None or client.sync is not None]
        assert not waiting
        assert not self.commits
        assert all(not group.members for group in self.harness.shard.groups.values())


TestGroups = GroupMachine.TestCase
TestGroups.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
