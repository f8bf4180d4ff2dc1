"""Committed offsets of one shard: commit, fetch, delete, expire (Kafka's GroupCoordinator and GroupMetadataManager)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Final

from cluster.coordinators.results import Append, Appends, ClockReading, PendingResponse, Result, TransactionalProducer
from cluster.groups.deleted_topics import DeletedTopics, OnCompleted
from cluster.groups.group import COMPLETING_REBALANCE, CONSUMER_PROTOCOL_TYPE, DEAD, EMPTY, STABLE, Group
from cluster.groups.group_table import DurableGroup, GroupTable, background_append
from cluster.groups.membership_events import MemberRequest
from cluster.groups.offset_events import NO_OFFSET, OffsetDeletion, Offsets, PartitionErrors
from cluster.groups.rebalance import Rebalancer
from cluster.groups.records import (
    NO_TIMESTAMP,
    CommittedOffset,
    CoordinatorRecord,
    EndTxnRecord,
    GroupRecord,
    OffsetRecord,
)
from protocol.errors import ApiError, ErrorCode
from protocol.records.control_records import EndTxnMarker
from protocol.topic_partition import TopicPartition

logger = logging.getLogger("kafka.coordinator.group.GroupCoordinator")

_LATEST_TIMESTAMP_MS: Final = 2**63 - 1
_MAX_TOMBSTONES: Final = 500
"""Tombstones per batch: far below message.max.bytes, and quick to append."""

_COMMIT_ERRORS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
}


class CommittedOffsets:
    """The offsets of the groups of `table`."""

    def __init__(self, table: GroupTable, rebalancer: Rebalancer) -> None:
        self._table = table
        self._rebalancer = rebalancer
        self._deleted = DeletedTopics(table, self._clean_up)
        self.next_number = 0
        """The number of the next commit; see `CommittedOffset`."""

    def close(self) -> None:
        """Another broker is the coordinator now."""
        self._deleted.close()

    # -- commit --------------------------------------------------------------------------------------------------------

    def commit(
        self,
        now: ClockReading,
        group_id: str,
        sender: MemberRequest,
        offsets: Offsets,
        retention_ms: int = -1,
        producer: TransactionalProducer | None = None,
    ) -> Result[PartitionErrors]:
        """Commit `offsets` of existing partitions. Returns a code for each once they are committed. Transactional ones,
        with a `producer`, are unstable until the transaction is committed (`end_transaction`).

        Missing timestamps default to the current time. `retention_ms` is the client's, -1 if not given.
        """
        try:
            if producer is None:
                group = self._group_to_commit(now, group_id, sender)
            else:
                group = self._group_of_transaction(now, group_id, sender)
        except ApiError as error:
            return Result(dict.fromkeys(offsets, error.error_code))
        limit = self._table.config.offset_metadata_max_bytes
        outcome: PartitionErrors = {}
        records: list[OffsetRecord] = []
        pending = group.pending_commits
        for topic_partition, offset in offsets.items():
            if offset.metadata and _metadata_length(offset.metadata) > limit:
                outcome[topic_partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            if offset.commit_timestamp_ms == NO_TIMESTAMP:
                offset.commit_timestamp_ms = now.now_ms
            if retention_ms >= 0:
                offset.expire_timestamp_ms = min(now.now_ms + retention_ms, _LATEST_TIMESTAMP_MS)
            offset.number = self.next_number
            records.append(OffsetRecord(group_id, topic_partition, offset))
            pending[topic_partition] = pending.get(topic_partition, 0) + 1
        if not records:
            return Result(outcome)
        self.next_number += 1
        reply: PendingResponse[PartitionErrors] = PendingResponse()
        completed = partial(self._commit_completed, group, records, outcome, reply)
        return Result(reply, [Append(records, completed, producer)])

    def _commit_completed(
        self,
        group: Group,
        records: list[OffsetRecord],
        outcome: PartitionErrors,
        reply: PendingResponse[PartitionErrors],
        now: ClockReading,
        error_code: ErrorCode,
    ) -> Appends:
        client_error = _COMMIT_ERRORS.get(error_code, error_code)
        pending = group.pending_commits
        for _, topic_partition, _ in records:
            others = pending[topic_partition] - 1
            if others:
                pending[topic_partition] = others
            else:
                del pending[topic_partition]
            outcome[topic_partition] = client_error
        reply.set(outcome)
        return self._deleted.write_tombstones(now, group.group_id)

    def _group_to_commit(self, now: ClockReading, group_id: str, sender: MemberRequest) -> Group:
        """The group, if the caller may commit; a commit keeps its member alive."""
        group = self._table.groups.get(group_id)
        if group is None:
            if sender.generation_id >= 0:
                raise ApiError(ErrorCode.ILLEGAL_GENERATION, f"there is no group {group_id!r}")
            return self._table.create(group_id, now)
        if group.state is DEAD:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"group {group_id} is being removed")
        if group.state is EMPTY and sender.generation_id < 0:
            return group  # it uses Kafka only for its offsets, or an administrator sets them
        member = group.check_member(sender.member_id, sender.group_instance_id)
        group.check_generation(sender.generation_id)
        if group.state is COMPLETING_REBALANCE:
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS, f"group {group_id} waits for its assignment")
        self._rebalancer.renew_session(now, group, member)
        return group

    def _group_of_transaction(self, now: ClockReading, group_id: str, sender: MemberRequest) -> Group:
        """The group that a transaction commits offsets of. Producers before KIP-447 do not send member fields."""
        group = self._table.groups.get(group_id)
        if group is None:
            group = self._table.create(group_id, now)
        if group.state is DEAD:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"group {group_id} is being removed")
        if group.state is EMPTY and sender.generation_id < 0:
            return group
        if sender.generation_id >= 0 or sender.member_id or sender.group_instance_id is not None:
            group.check_member(sender.member_id, sender.group_instance_id)
            group.check_generation(sender.generation_id)
        return group

    # -- transactions --------------------------------------------------------------------------------------------------

    def end_transaction(
        self, _: ClockReading, producer: TransactionalProducer, marker: EndTxnMarker
    ) -> Result[ErrorCode]:
        """Write the end marker of a producer's transaction. Answered with the log's error, or with NONE once its
        offsets are committed or dropped.
        """
        reply: PendingResponse[ErrorCode] = PendingResponse()
        groups = self._table.durable.groups_of(producer.producer_id)
        completed = partial(self._transaction_ended, groups, reply)
        return Result(reply, [Append([EndTxnRecord(marker)], completed, producer)])

    def _transaction_ended(
        self, group_ids: Sequence[str], reply: PendingResponse[ErrorCode], now: ClockReading, error_code: ErrorCode
    ) -> Appends:
        for group_id in group_ids:
            if self._table.durable.get(group_id) is not None and group_id not in self._table.groups:
                self._table.create(group_id, now)  # it was deleted during the transaction
        reply.set(error_code)
        return ()

    # -- fetch ---------------------------------------------------------------------------------------------------------

    def fetch(
        self, group_id: str, partitions: Iterable[TopicPartition] | None, *, require_stable: bool
    ) -> dict[TopicPartition, CommittedOffset | ErrorCode]:
        """Offsets of `partitions` (None: all committed ones), or UNSTABLE_OFFSET_COMMIT while a commit is pending."""
        group = self._table.groups.get(group_id)
        durable = self._table.durable.get(group_id)
        if group is None or group.state is DEAD:
            durable = None
        offsets = durable.offsets if durable is not None else {}
        found: dict[TopicPartition, CommittedOffset | ErrorCode] = {}
        for topic_partition in offsets if partitions is None else partitions:
            if require_stable and group is not None and _is_unstable(group, durable, topic_partition):
                found[topic_partition] = ErrorCode.UNSTABLE_OFFSET_COMMIT
            else:
                found[topic_partition] = offsets.get(topic_partition, NO_OFFSET)
        return found

    # -- removal -------------------------------------------------------------------------------------------------------

    def delete(self, _: ClockReading, group_id: str, partitions: Collection[TopicPartition]) -> Result[OffsetDeletion]:
        """Delete offsets without subscribers (KIP-496). Answered once that is committed."""
        group = self._table.groups.get(group_id)
        if group is None or group.state is DEAD:
            return Result(OffsetDeletion(ErrorCode.GROUP_ID_NOT_FOUND))
        outcome = OffsetDeletion(ErrorCode.NONE, dict.fromkeys(partitions, ErrorCode.NONE))
        if group.state is not EMPTY:
            if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
                return Result(OffsetDeletion(ErrorCode.NON_EMPTY_GROUP))
            topics = group.subscribed_topics
            for each in partitions:
                if topics is None or each.topic in topics:
                    outcome.partitions[each] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        reply: PendingResponse[OffsetDeletion] = PendingResponse()

        def completed(error_code: ErrorCode) -> None:
            reply.set(OffsetDeletion(_COMMIT_ERRORS.get(error_code, error_code)) if error_code else outcome)

        free = [each for each, error_code in outcome.partitions.items() if error_code is ErrorCode.NONE]
        return Result(reply, self._clean_up(group, free, completed))

    def delete_group(self, _: ClockReading, group_id: str) -> Result[ErrorCode]:
        """Delete a group without members, and its offsets. Answered once that is committed."""
        group = self._table.groups.get(group_id)
        if group is None or group.state is DEAD:
            return Result(ErrorCode.GROUP_ID_NOT_FOUND)
        if group.state is not EMPTY:
            return Result(ErrorCode.NON_EMPTY_GROUP)
        reply: PendingResponse[ErrorCode] = PendingResponse()

        def completed(error_code: ErrorCode) -> None:
            reply.set(_COMMIT_ERRORS.get(error_code, error_code))

        return Result(reply, self._clean_up(group, (), completed, group_too=True))

    def forget_topics(self, now: ClockReading, group_id: str, topics: Collection[str], first_kept: int) -> Result[None]:
        """Topics were deleted when `next_number` was `first_kept`: remove the group's earlier commits to them, and the
        group if it then is empty.
        """
        return Result(None, self._deleted.forget(now, group_id, topics, first_kept))

    def expire(self, now: ClockReading, group_id: str) -> Result[None]:
        """Remove the group's offsets past their retention (KIP-211), and the group itself once it has neither members
        nor offsets.
        """
        group = self._table.groups.get(group_id)
        if group is None or group.state is DEAD:
            return Result(None)
        expired = list(self._expired(now, group))
        if expired or (group.state is EMPTY and not self._offsets_of(group)):
            return Result(None, self._clean_up(group, expired, _log_failure("the expiry", group)))
        return Result(None)

    def _expired(self, now: ClockReading, group: Group) -> Iterable[TopicPartition]:
        by_last_commit = group.protocol_type is None
        by_subscription = group.state is STABLE and group.subscribed_topics is not None
        by_emptiness = group.protocol_type is not None and group.state is EMPTY
        if not (by_last_commit or by_subscription or by_emptiness):
            return
        subscribed = (group.subscribed_topics if by_subscription else None) or frozenset[str]()
        since_ms = group.state_timestamp_ms if by_emptiness else None
        for topic_partition, offset in self._offsets_of(group).items():
            if topic_partition.topic in subscribed or topic_partition in group.pending_commits:
                continue
            if offset.expire_timestamp_ms != NO_TIMESTAMP:
                is_expired = now.now_ms >= offset.expire_timestamp_ms
            else:
                unused_since_ms = offset.commit_timestamp_ms if since_ms is None else since_ms
                is_expired = now.now_ms - unused_since_ms >= self._table.config.offsets_retention_ms
            if is_expired:
                yield topic_partition

    def _offsets_of(self, group: Group) -> dict[TopicPartition, CommittedOffset]:
        durable = self._table.durable.get(group.group_id)
        return {} if durable is None else durable.offsets

    def _clean_up(
        self, group: Group, partitions: Collection[TopicPartition], completed: OnCompleted, *, group_too: bool = False
    ) -> Appends:
        """Write tombstones for offsets, and for the group once it is empty without any left; with `group_too`, for all
        of it.

        `completed` is called once the last of them is committed or has failed; at once if there are none.
        """
        durable = self._table.durable.get(group.group_id) or DurableGroup()
        # A commit in progress will precede these tombstones in the log.
        known = durable.offsets | group.pending_commits
        gone = known if group_too else [each for each in dict.fromkeys(partitions) if each in known]
        records: list[CoordinatorRecord] = [OffsetRecord(group.group_id, each, None) for each in gone]
        has_more = len(gone) < len(known) or bool(durable.pending)
        dies = group.state is EMPTY and (group_too or not has_more)
        if dies and durable.metadata is not None:
            records.append(GroupRecord(group.group_id, None))
        if dies:
            group.state = DEAD
        finish = partial(self._cleaned_up, group, dies, completed)
        if not records:
            finish(None, ErrorCode.NONE)
            return ()
        batches = [records[start : start + _MAX_TOMBSTONES] for start in range(0, len(records), _MAX_TOMBSTONES)]
        appends = [background_append(batch, f"tombstones of {group.group_id}") for batch in batches]
        appends[-1].completed = finish
        return appends

    def _cleaned_up(
        self, group: Group, dies: bool, completed: OnCompleted, _: ClockReading | None, error_code: ErrorCode
    ) -> Appends:
        if dies and error_code is not ErrorCode.NONE:
            group.state = EMPTY
        elif dies and self._table.groups.get(group.group_id) is group:
            group.clear_deadlines()
            del self._table.groups[group.group_id]
        completed(error_code)
        return ()


def _log_failure(what: str, group: Group) -> OnCompleted:
    def completed(error_code: ErrorCode) -> None:
        if error_code is not ErrorCode.NONE:
            logger.warning("Failed to write %s in %s: %s", what, group.group_id, error_code.name)

    return completed


def _is_unstable(group: Group, durable: DurableGroup | None, topic_partition: TopicPartition) -> bool:
    in_transaction = durable is not None and any(topic_partition in pending for pending in durable.pending.values())
    return in_transaction or topic_partition in group.pending_commits


def _metadata_length(metadata: str) -> int:
    """Length of the metadata in Java characters, the unit of offset.metadata.max.bytes."""
    return len(metadata) if metadata.isascii() else len(metadata.encode("utf-16-le", "surrogatepass")) // 2
