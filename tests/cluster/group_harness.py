"""A group shard with a clock that tests move and a log that tests can hold back, fail or replay."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Generic, TypeVar

from cluster.coordinator.durable_groups import DurableGroups
from cluster.coordinator.group import Group
from cluster.coordinator.group_table import GroupConfig
from cluster.coordinator.membership import JoiningClient
from cluster.coordinator.records import CommittedOffset
from cluster.coordinator.shard import GroupShard
from cluster.coordinator.turn import Append, Turn
from protocol.errors import ErrorCode
from protocol.messages import (
    DescribeGroupsResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    OffsetCommitRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from protocol.records import Record, RecordBatch, build_batch
from protocol.topic_partition import TopicPartition

R = TypeVar("R")

START_MS = 1_700_000_000_000
SESSION_MS = 10_000
REBALANCE_MS = 60_000


class Answer(Generic[R]):
    """Collects what a request is answered; more than one answer is a failure."""

    def __init__(self) -> None:
        self._values: list[R] = []

    def __call__(self, value: R) -> None:
        assert not self._values, f"answered twice: {self._values[0]} and {value}"
        self._values.append(value)

    @property
    def waits(self) -> bool:
        return not self._values

    @property
    def value(self) -> R:
        assert self._values, "not answered"
        return self._values[0]


class Harness:
    """`log` is what is committed: (key, value) pairs. With `hold`, appends wait for `commit_one` or `fail_one`."""

    def __init__(
        self,
        config: GroupConfig | None = None,
        log: list[tuple[bytes, bytes | None]] | None = None,
        now_ms: int = START_MS,
    ) -> None:
        self.config = config or GroupConfig(group_initial_rebalance_delay_ms=0)
        self.now_ms = now_ms
        self.wall_clock_skew_ms = 0
        self.log = [] if log is None else log
        self.hold = False
        self.fails_with: ErrorCode | None = None
        self.waiting: deque[Append] = deque()
        ids = count(len(self.log) * 1000 + 1)
        self.shard = GroupShard(self.config, lambda: f"id{next(ids)}", self.replayed())
        self.run(self.shard.start)

    def replayed(self) -> DurableGroups:
        """What a new leader would load from the log."""
        groups = DurableGroups()
        for offset, (key, value) in enumerate(self.log):
            batch = build_batch([Record(0, START_MS, key, value)], base_offset=offset)
            groups.replay_batch(RecordBatch(memoryview(batch)))
        return groups

    def restarted(self) -> Harness:
        """A new coordinator on the same log; what was not committed is gone."""
        return Harness(self.config, list(self.log), self.now_ms)

    def run(self, event: Callable[[Turn], R]) -> R:
        turn = Turn(self.now_ms + self.wall_clock_skew_ms, self.now_ms - START_MS)
        result = event(turn)
        self._carry_out(turn)
        return result

    def _carry_out(self, turn: Turn) -> None:
        for reply in turn.replies:
            reply()
        self.waiting.extend(turn.appends)
        while self.waiting and not self.hold:
            if self.fails_with is None:
                self.commit_one()
            else:
                self.fail_one(self.fails_with)

    def commit_one(self) -> None:
        append = self.waiting.popleft()
        base_offset = len(self.log)
        self.log.extend(record.encode() for record in append.records)
        self.run(lambda turn: self.shard.complete(append, base_offset, turn))

    def fail_one(self, error_code: ErrorCode) -> None:
        append = self.waiting.popleft()
        self.run(lambda turn: self.shard.fail(append, error_code, turn))

    def advance(self, milliseconds: int) -> None:
        """Let time pass, running what falls due at its own moment."""
        end_ms = self.now_ms + milliseconds
        while (next_ms := self.shard.next_deadline_ms()) is not None and next_ms + START_MS <= end_ms:
            self.now_ms = max(self.now_ms, next_ms + START_MS)
            self.run(self.shard.expire)
        self.now_ms = end_ms

    # -- requests ------------------------------------------------------------------------------------------------------

    def join(
        self,
        member_id: str = "",
        group_id: str = "g",
        *,
        instance: str | None = None,
        protocols: list[tuple[str, bytes]] | None = None,
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        version: int = 9,
        client_id: str = "c",
        protocol_type: str = "consumer",
        settle: bool = True,
    ) -> Answer[JoinGroupResponse]:
        request = JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[
                JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=metadata)
                for name, metadata in (protocols if protocols is not None else [("range", b"meta")])
            ],
        )
        client = JoiningClient(
            client_id, "/127.0.0.1", requires_known_member_id=version >= 4, skips_assignment=version >= 9
        )
        answer: Answer[JoinGroupResponse] = Answer()
        self.run(lambda turn: self.shard.membership.join(turn, request, client, answer))
        if settle:
            self.advance(0)
        return answer

    def sync(
        self,
        member_id: str,
        generation_id: int,
        assignments: dict[str, bytes] | None = None,
        group_id: str = "g",
        *,
        instance: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> Answer[SyncGroupResponse]:
        request = SyncGroupRequest(
            group_id=group_id,
            generation_id=generation_id,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=each, assignment=assignment)
                for each, assignment in (assignments or {}).items()
            ],
        )
        answer: Answer[SyncGroupResponse] = Answer()
        self.run(lambda turn: self.shard.membership.sync(turn, request, answer))
        return answer

    def heartbeat(
        self, member_id: str, generation_id: int, group_id: str = "g", *, instance: str | None = None
    ) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=group_id, generation_id=generation_id, member_id=member_id, group_instance_id=instance
        )
        return self.run(lambda turn: self.shard.membership.heartbeat(turn, request))

    def leave(self, *members: tuple[str, str | None], group_id: str = "g") -> list[ErrorCode]:
        request = LeaveGroupRequest(
            group_id=group_id,
            members=[
                LeaveGroupRequest.MemberIdentity(member_id=member_id, group_instance_id=instance)
                for member_id, instance in members
            ],
        )
        response = self.run(lambda turn: self.shard.membership.leave(turn, request))
        return [ErrorCode.of(each.error_code) for each in response.members]

    def commit(
        self,
        offsets: dict[TopicPartition, int],
        member_id: str = "",
        generation_id: int = -1,
        group_id: str = "g",
        *,
        instance: str | None = None,
        metadata: str | None = "",
        retention_ms: int = -1,
    ) -> Answer[dict[TopicPartition, ErrorCode]]:
        request = OffsetCommitRequest(
            group_id=group_id,
            generation_id_or_member_epoch=generation_id,
            member_id=member_id,
            group_instance_id=instance,
            retention_time_ms=retention_ms,
            topics=[
                OffsetCommitRequest.OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetCommitRequest.OffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=offset, committed_metadata=metadata
                        )
                    ],
                )
                for (topic, partition), offset in offsets.items()
            ],
        )
        answer: Answer[dict[TopicPartition, ErrorCode]] = Answer()
        self.run(lambda turn: self.shard.offsets.commit(turn, request, answer))
        return answer

    def fetch(
        self, *partitions: TopicPartition, group_id: str = "g", require_stable: bool = False
    ) -> dict[TopicPartition, int | ErrorCode]:
        found = self.shard.offsets.fetch(group_id, partitions or None, require_stable=require_stable)
        return {key: each.offset if isinstance(each, CommittedOffset) else each for key, each in found.items()}

    def delete_offsets(
        self, *partitions: TopicPartition, group_id: str = "g"
    ) -> Answer[tuple[ErrorCode, dict[TopicPartition, ErrorCode]]]:
        answer: Answer[tuple[ErrorCode, dict[TopicPartition, ErrorCode]]] = Answer()
        self.run(lambda turn: self.shard.offsets.delete(turn, group_id, partitions, lambda *outcome: answer(outcome)))
        return answer

    def delete_group(self, group_id: str = "g") -> Answer[ErrorCode]:
        answer: Answer[ErrorCode] = Answer()
        self.run(lambda turn: self.shard.offsets.delete_group(turn, group_id, answer))
        return answer

    def expire_offsets(self) -> None:
        self.run(self.shard.offsets.expire)

    def forget_topics(self, *topics: str) -> None:
        self.run(lambda turn: self.shard.offsets.forget_topics(turn, topics))

    # -- what there is -------------------------------------------------------------------------------------------------

    def pending_deadlines(self) -> int:
        """How many entries the heap has."""
        return len(self.shard._table.deadlines)

    def group(self, group_id: str = "g") -> Group:
        return self.shard.groups[group_id]

    def describe(self, group_id: str = "g") -> DescribeGroupsResponse.DescribedGroup:
        return self.shard.describe(group_id)

    def state(self, group_id: str = "g") -> str:
        return self.describe(group_id).group_state

    # -- whole stories -------------------------------------------------------------------------------------------------

    def member(self, group_id: str = "g", **how: object) -> str:
        """A new dynamic member's id, as JoinGroup gives it."""
        refused = self.join(group_id=group_id, **how).value  # type: ignore[arg-type]
        assert refused.error_code == ErrorCode.MEMBER_ID_REQUIRED
        return refused.member_id

    def stable(self, members: int = 1, group_id: str = "g", **how: object) -> tuple[list[str], int]:
        """A stable group of new dynamic members, the leader first: their ids, and the generation."""
        ids = [self.member(group_id, **how) for _ in range(members)]
        joins = [self.join(member_id, group_id, settle=False, **how) for member_id in ids]  # type: ignore[arg-type]
        self.advance(self.config.group_initial_rebalance_delay_ms)
        generation_id = joins[0].value.generation_id
        assignments = {member_id: member_id.encode() for member_id in ids}
        syncs = [self.sync(member_id, generation_id, assignments, group_id) for member_id in ids]
        assert [sync.value.assignment for sync in syncs] == list(assignments.values())
        return ids, generation_id
