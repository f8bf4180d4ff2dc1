"""Committed offsets of one shard: commit, fetch, delete, expire (Kafka's GroupCoordinator and GroupMetadataManager)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Final

from cluster.coordinator.durable_groups import DurableGroup
from cluster.coordinator.group import Group, GroupState
from cluster.coordinator.group_table import GroupTable, ignore, log_failure
from cluster.coordinator.rebalance import Rebalancer
from cluster.coordinator.records import NO_TIMESTAMP, CommittedOffset, CoordinatorRecord, GroupRecord, OffsetRecord
from cluster.coordinator.subscriptions import CONSUMER_PROTOCOL_TYPE
from cluster.coordinator.turn import Turn
from protocol.errors import ApiError, ErrorCode
from protocol.messages import OffsetCommitRequest
from protocol.topic_partition import TopicPartition

PartitionErrors = dict[TopicPartition, ErrorCode]

NO_OFFSET: Final = CommittedOffset(-1, -1, "", NO_TIMESTAMP)
"""What a fetch finds where nothing is committed."""

_LATEST_TIMESTAMP_MS: Final = 2**63 - 1
_MAX_TOMBSTONES: Final = 5000
"""Tombstones to a batch: far below what message.max.bytes allows."""

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

    # -- commit --------------------------------------------------------------------------------------------------------

    def commit(self, turn: Turn, request: OffsetCommitRequest, answer: Callable[[PartitionErrors], None]) -> None:
        """Commit the partitions of `request`, which exist. `answer` gets a code for each, when they are committed."""
        partitions = {
            TopicPartition(topic.name, partition.partition_index): partition
            for topic in request.topics
            for partition in topic.partitions
        }
        try:
            group = self._group_to_commit(turn, request)
        except ApiError as error:
            refused = dict.fromkeys(partitions, error.error_code)
            turn.replies.append(lambda: answer(refused))
            return
        too_large = {
            topic_partition: ErrorCode.OFFSET_METADATA_TOO_LARGE
            for topic_partition, partition in partitions.items()
            if metadata_length(partition.committed_metadata) > self._table.config.offset_metadata_max_bytes
        }
        expires_ms = NO_TIMESTAMP
        if request.retention_time_ms >= 0:
            expires_ms = min(turn.now_ms + request.retention_time_ms, _LATEST_TIMESTAMP_MS)
        records = [
            OffsetRecord(
                request.group_id,
                topic_partition,
                CommittedOffset(
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    partition.committed_metadata or "",
                    turn.now_ms if partition.commit_timestamp == NO_TIMESTAMP else partition.commit_timestamp,
                    expires_ms,
                ),
            )
            for topic_partition, partition in partitions.items()
            if topic_partition not in too_large
        ]
        if not records:
            turn.replies.append(lambda: answer(too_large))
            return
        group.pending_commits.update(record.topic_partition for record in records)
        finish = partial(self._finish_commit, group, records, too_large, answer)
        turn.append(
            records,
            lambda later: finish(later, ErrorCode.NONE),
            lambda later, error_code: finish(later, _COMMIT_ERRORS.get(error_code, error_code)),
        )

    def _finish_commit(
        self,
        group: Group,
        records: list[OffsetRecord],
        too_large: PartitionErrors,
        answer: Callable[[PartitionErrors], None],
        turn: Turn,
        error_code: ErrorCode,
    ) -> None:
        for record in records:
            group.pending_commits[record.topic_partition] -= 1
            if group.pending_commits[record.topic_partition] <= 0:
                del group.pending_commits[record.topic_partition]
        results = {record.topic_partition: error_code for record in records} | too_large
        turn.replies.append(lambda: answer(results))

    def _group_to_commit(self, turn: Turn, request: OffsetCommitRequest) -> Group:
        """The group that may commit; a member that commits lives."""
        generation_id, member_id = request.generation_id_or_member_epoch, request.member_id
        group = self._table.groups.get(request.group_id)
        if group is None:
            if generation_id >= 0:
                raise ApiError(ErrorCode.ILLEGAL_GENERATION, f"there is no group {request.group_id!r}")
            return self._table.create(request.group_id, turn)
        if group.state is GroupState.DEAD:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"group {request.group_id} is being removed")
        if group.state is GroupState.EMPTY and generation_id < 0:
            return group  # it uses Kafka for its offsets alone, or an administrator sets them
        member = group.check_member(member_id, request.group_instance_id)
        if generation_id != group.generation_id:
            raise ApiError(
                ErrorCode.ILLEGAL_GENERATION,
                f"generation {generation_id} of {request.group_id}, now {group.generation_id}",
            )
        if group.state is GroupState.COMPLETING_REBALANCE:
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS, f"group {request.group_id} waits for its assignment")
        self._rebalancer.renew_session(turn, group, member)
        return group

    # -- fetch ---------------------------------------------------------------------------------------------------------

    def fetch(
        self, group_id: str, partitions: Iterable[TopicPartition] | None, *, require_stable: bool
    ) -> dict[TopicPartition, CommittedOffset | ErrorCode]:
        """Offsets of `partitions` (None: all there are), or UNSTABLE_OFFSET_COMMIT where a commit is under way."""
        group = self._table.groups.get(group_id)
        durable = self._table.durable.get(group_id)
        if group is None or group.state is GroupState.DEAD:
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

    def delete(
        self,
        turn: Turn,
        group_id: str,
        partitions: Collection[TopicPartition],
        answer: Callable[[ErrorCode, PartitionErrors], None],
    ) -> None:
        """Delete offsets that nobody uses (KIP-496). `answer` gets the group's code, and each partition's with NONE."""
        group = self._table.groups.get(group_id)
        error_code, subscribed = ErrorCode.NONE, set[TopicPartition]()
        if group is None or group.state is GroupState.DEAD:
            error_code = ErrorCode.GROUP_ID_NOT_FOUND
        elif group.state is not GroupState.EMPTY:
            if group.protocol_type == CONSUMER_PROTOCOL_TYPE:
                topics = group.subscribed_topics
                subscribed = {each for each in partitions if topics is None or each.topic in topics}
            else:
                error_code = ErrorCode.NON_EMPTY_GROUP
        if group is None or error_code is not ErrorCode.NONE:
            turn.replies.append(lambda: answer(error_code, {}))
            return
        free = [each for each in partitions if each not in subscribed]
        results = dict.fromkeys(free, ErrorCode.NONE) | dict.fromkeys(subscribed, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
        self._clean_up(
            turn,
            group,
            free,
            lambda later: later.replies.append(lambda: answer(ErrorCode.NONE, results)),
            lambda later, failure: later.replies.append(lambda: answer(_COMMIT_ERRORS.get(failure, failure), {})),
        )

    def delete_group(self, turn: Turn, group_id: str, answer: Callable[[ErrorCode], None]) -> None:
        """Delete a group without members, and its offsets. `answer` gets the code when that is committed."""
        group = self._table.groups.get(group_id)
        if group is None or group.state is GroupState.DEAD:
            turn.replies.append(lambda: answer(ErrorCode.GROUP_ID_NOT_FOUND))
        elif group.state is not GroupState.EMPTY:
            turn.replies.append(lambda: answer(ErrorCode.NON_EMPTY_GROUP))
        else:
            self._clean_up(
                turn,
                group,
                (),
                lambda later: later.replies.append(lambda: answer(ErrorCode.NONE)),
                lambda later, failure: later.replies.append(lambda: answer(_COMMIT_ERRORS.get(failure, failure))),
                group_too=True,
            )

    def forget_topics(self, turn: Turn, topics: Collection[str]) -> None:
        """Topics are deleted: their offsets go, and groups that had nothing else."""
        for group in list(self._table.groups.values()):
            if group.state is not GroupState.DEAD:
                gone = [each for each in self._offsets_of(group) if each.topic in topics]
                if gone:
                    self._clean_up(turn, group, gone, ignore, log_failure(f"the end of offsets in {group.group_id}"))

    def expire(self, turn: Turn) -> None:
        """Remove what is past its retention (KIP-211), and groups that have neither members nor offsets."""
        for group in list(self._table.groups.values()):
            if group.state is not GroupState.DEAD:
                expired = list(self._expired(turn, group))
                if expired or (group.state is GroupState.EMPTY and not self._offsets_of(group)):
                    self._clean_up(turn, group, expired, ignore, log_failure(f"the expiry of {group.group_id}"))

    def _expired(self, turn: Turn, group: Group) -> Iterable[TopicPartition]:
        by_last_commit = group.protocol_type is None
        by_subscription = group.state is GroupState.STABLE and group.subscribed_topics is not None
        by_emptiness = group.protocol_type is not None and group.state is GroupState.EMPTY
        if not (by_last_commit or by_subscription or by_emptiness):
            return
        subscribed = (group.subscribed_topics if by_subscription else None) or frozenset[str]()
        since_ms = group.state_timestamp_ms if by_emptiness else None
        for topic_partition, offset in self._offsets_of(group).items():
            if topic_partition.topic in subscribed or topic_partition in group.pending_commits:
                continue
            if offset.expire_timestamp_ms != NO_TIMESTAMP:
                is_over = turn.now_ms >= offset.expire_timestamp_ms
            else:
                unused_since_ms = offset.commit_timestamp_ms if since_ms is None else since_ms
                is_over = turn.now_ms - unused_since_ms >= self._table.config.offsets_retention_ms
            if is_over:
                yield topic_partition

    def _offsets_of(self, group: Group) -> dict[TopicPartition, CommittedOffset]:
        durable = self._table.durable.get(group.group_id)
        return {} if durable is None else durable.offsets

    def _clean_up(
        self,
        turn: Turn,
        group: Group,
        partitions: Collection[TopicPartition],
        committed: Callable[[Turn], None],
        failed: Callable[[Turn, ErrorCode], None],
        *,
        group_too: bool = False,
    ) -> None:
        """Write tombstones for offsets, and for an empty group that has none left; `group_too`: for all that it has."""
        durable = self._table.durable.get(group.group_id) or DurableGroup()
        # A commit that is being written will be in the log before these tombstones.
        known = durable.offsets.keys() | group.pending_commits.keys()
        gone = known if group_too else known.intersection(partitions)
        records: list[CoordinatorRecord] = [OffsetRecord(group.group_id, each, None) for each in sorted(gone)]
        has_more = len(gone) < len(known) or bool(durable.pending)
        dies = group.state is GroupState.EMPTY and (group_too or not has_more)
        if dies and durable.metadata is not None:
            records.append(GroupRecord(group.group_id, None))
        if dies:
            group.state = GroupState.DEAD
        if not records:
            self._cleaned_up(group, dies, committed, turn)
            return
        for start in range(0, len(records), _MAX_TOMBSTONES):
            last = start + _MAX_TOMBSTONES >= len(records)
            turn.append(
                records[start : start + _MAX_TOMBSTONES],
                partial(self._cleaned_up, group, dies, committed) if last else ignore,
                partial(self._not_cleaned_up, group, dies, failed)
                if last
                else log_failure(f"tombstones of {group.group_id}"),
            )

    def _cleaned_up(self, group: Group, dies: bool, committed: Callable[[Turn], None], turn: Turn) -> None:
        if dies and self._table.groups.get(group.group_id) is group:
            for deadline in group.pending_members.values():
                deadline.clear()
            del self._table.groups[group.group_id]
        committed(turn)

    def _not_cleaned_up(
        self, group: Group, dies: bool, failed: Callable[[Turn, ErrorCode], None], turn: Turn, error_code: ErrorCode
    ) -> None:
        if dies:
            group.state = GroupState.EMPTY
        failed(turn, error_code)


def _is_unstable(group: Group, durable: DurableGroup | None, topic_partition: TopicPartition) -> bool:
    in_transaction = durable is not None and any(topic_partition in pending for pending in durable.pending.values())
    return in_transaction or topic_partition in group.pending_commits


def metadata_length(metadata: str | None) -> int:
    """What offset.metadata.max.bytes limits, which Kafka counts in Java characters."""
    if metadata is None:
        return 0
    return len(metadata) if metadata.isascii() else len(metadata.encode("utf-16-le", "surrogatepass")) // 2
