"""A group shard with a clock that tests advance and a log that tests can hold, fail or replay."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Concatenate, Generic, ParamSpec, TypeVar

from cluster.coordinators.results import Append, ClockReading, PendingResponse, Result, TransactionalProducer
from cluster.groups.group import Group
from cluster.groups.group_config import GroupConfig
from cluster.groups.group_table import DurableGroups
from cluster.groups.loader import GroupLoader
from cluster.groups.membership_events import DepartingMember, GroupMember, JoiningMember, distinct
from cluster.groups.offset_events import OffsetDeletion
from cluster.groups.records import NO_TIMESTAMP, CommittedOffset
from cluster.groups.shard import GroupDescription, GroupShard
from protocol.errors import ErrorCode
from protocol.messages.groups import JoinGroupResponse, SyncGroupResponse
from protocol.records.batch import Record, build_batch
from protocol.records.control_records import ControlRecordType, EndTxnMarker
from protocol.topic_partition import TopicPartition
from tests.cluster.shard_harness import START_MS, ShardHarness

R = TypeVar("R")
P = ParamSpec("P")

SESSION_MS = 10_000
REBALANCE_MS = 60_000
MOST_RECORD_BYTES = 10_000


class Answer(Generic[R]):
    """The response to an event, now or later."""

    def __init__(self, response: R | PendingResponse[R]) -> None:
        self._response = response

    @property
    def waits(self) -> bool:
        return isinstance(self._response, PendingResponse) and self._response.value is None

    @property
    def value(self) -> R:
        if not isinstance(self._response, PendingResponse):
            return self._response
        assert self._response.value is not None, "not answered"
        return self._response.value


class Harness(ShardHarness[GroupShard]):
    def __init__(
        self,
        config: GroupConfig | None = None,
        log: list[tuple[bytes, bytes | None]] | None = None,
        now_ms: int = START_MS,
        producers: dict[int, TransactionalProducer] | None = None,
    ) -> None:
        """`producers` are those of the transactional records, by offset."""
        self.config = config or GroupConfig(group_initial_rebalance_delay_ms=0)
        super().__init__(log, now_ms)
        self.producers = {} if producers is None else producers
        ids = count(len(self.log) * 1000 + 1)
        self.shard = GroupShard(self.config, lambda: f"id{next(ids)}", self.replayed(), lambda: MOST_RECORD_BYTES)
        self.shard.restore(self.now())
        self.make(self.shard.start(self.now()))

    def replayed(self) -> DurableGroups:
        """The state that a new leader would load from the log."""
        loader = GroupLoader()
        for offset, (key, value) in enumerate(self.log):
            producer = self.producers.get(offset)
            batch = build_batch(
                [Record(0, START_MS, key, value)],
                base_offset=offset,
                producer_id=-1 if producer is None else producer.producer_id,
                is_transactional=producer is not None,
                is_control=producer is not None and producer.ends,
            )
            loader.take(memoryview(batch))
        return loader.finish()

    def restarted(self) -> Harness:
        """A new coordinator on the same log; uncommitted records are lost."""
        return Harness(self.config, list(self.log), self.now_ms, dict(self.producers))

    def handle(
        self, event: Callable[Concatenate[ClockReading, P], Result[R]], *args: P.args, **kwargs: P.kwargs
    ) -> Answer[R]:
        result = event(self.now(), *args, **kwargs)
        self.make(result.appends)
        return Answer(result.response)

    def committed(self, append: Append, base_offset: int) -> None:
        if append.producer is not None:
            self.producers |= dict.fromkeys(range(base_offset, len(self.log)), append.producer)

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
        joining = JoiningMember(
            member_id,
            instance,
            client_id,
            "/127.0.0.1",
            session_ms,
            rebalance_ms,
            protocol_type,
            distinct(protocols if protocols is not None else [("range", b"meta")]),
            requires_known_member_id=version >= 4,
            skips_assignment=version >= 9,
        )
        answer = self.handle(self.shard.membership.join, group_id, joining)
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
        who = GroupMember(member_id, generation_id, instance)
        return self.handle(self.shard.membership.sync, group_id, who, protocol_type, protocol_name, assignments or {})

    def heartbeat(
        self, member_id: str, generation_id: int, group_id: str = "g", *, instance: str | None = None
    ) -> ErrorCode:
        who = GroupMember(member_id, generation_id, instance)
        return self.handle(self.shard.membership.heartbeat, group_id, who).value

    def leave(self, *members: tuple[str, str | None], group_id: str = "g") -> list[ErrorCode]:
        leaving = [DepartingMember(member_id, instance) for member_id, instance in members]
        return self.handle(self.shard.membership.leave, group_id, leaving).value.members

    def commit(
        self,
        offsets: dict[TopicPartition, int],
        member_id: str = "",
        generation_id: int = -1,
        group_id: str = "g",
        *,
        instance: str | None = None,
        metadata: str = "",
        retention_ms: int = -1,
        producer: TransactionalProducer | None = None,
    ) -> Answer[dict[TopicPartition, ErrorCode]]:
        who = GroupMember(member_id, generation_id, instance)
        committed = {each: CommittedOffset(offset, -1, metadata, NO_TIMESTAMP) for each, offset in offsets.items()}
        return self.handle(self.shard.offsets.commit, group_id, who, committed, retention_ms, producer)

    def end_transaction(self, producer_id: int, *, commit: bool) -> Answer[ErrorCode]:
        kind = ControlRecordType.COMMIT if commit else ControlRecordType.ABORT
        producer = TransactionalProducer(producer_id, 0, ends=True)
        return self.handle(self.shard.offsets.end_transaction, producer, EndTxnMarker(kind, 0))

    def fetch(
        self, *partitions: TopicPartition, group_id: str = "g", require_stable: bool = False
    ) -> dict[TopicPartition, int | ErrorCode]:
        found = self.shard.offsets.fetch(group_id, partitions or None, require_stable=require_stable)
        return {key: each.offset if isinstance(each, CommittedOffset) else each for key, each in found.items()}

    def delete_offsets(self, *partitions: TopicPartition, group_id: str = "g") -> Answer[OffsetDeletion]:
        return self.handle(self.shard.offsets.delete, group_id, partitions)

    def delete_group(self, group_id: str = "g") -> Answer[ErrorCode]:
        return self.handle(self.shard.offsets.delete_group, group_id)

    def expire_offsets(self) -> None:
        for group_id in list(self.shard.groups):
            self.handle(self.shard.offsets.expire, group_id)

    def forget_topics(self, *topics: str, first_kept: int | None = None) -> None:
        """Delete topics, now or at the time when `first_kept` was the number of the next commit."""
        number = self.shard.offsets.next_number if first_kept is None else first_kept
        for group_id in list(self.shard.groups):
            self.handle(self.shard.offsets.forget_topics, group_id, topics, number)

    # -- what there is -------------------------------------------------------------------------------------------------

    def pending_deadlines(self) -> int:
        """The size of the heap."""
        return len(self.shard._table.deadlines)

    def group(self, group_id: str = "g") -> Group:
        return self.shard.groups[group_id]

    def describe(self, group_id: str = "g") -> GroupDescription:
        return self.shard.describe(group_id)

    def state(self, group_id: str = "g") -> str:
        return self.describe(group_id).state.value

    # -- whole scenarios ----------------------------------------------------------------------------------------------

    def member(self, group_id: str = "g", **how: object) -> str:
        """A new dynamic member's id from JoinGroup."""
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
