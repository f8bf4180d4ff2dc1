"""The groups of one shard: their state in the log of __consumer_offsets, changed only by replaying records; their live
membership; and their configuration.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from cluster.coordinators.deadlines import Deadlines
from cluster.coordinators.results import Append, Appends, ClockReading
from cluster.groups.group import Group
from cluster.groups.group_config import GroupConfig
from cluster.groups.records import CommittedOffset, CoordinatorRecord, EndTxnRecord, OffsetRecord
from protocol.errors import ErrorCode
from protocol.messages.group_records import GroupMetadataValue
from protocol.records.control_records import ControlRecordType
from protocol.topic_partition import TopicPartition
from protocol.value import Value, field


class DurableGroup(Value, frozen=False):
    """One group. `pending` are offsets of open transactions by producer id (KIP-98), which apply once committed."""

    metadata: GroupMetadataValue | None = None
    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    pending: dict[int, dict[TopicPartition, CommittedOffset]] = field(default_factory=dict)

    def is_empty(self) -> bool:
        """Whether the group is completely empty."""
        return self.metadata is None and not self.offsets and not self.pending


class DurableGroups:
    """The groups of one partition by group id."""

    def __init__(self) -> None:
        self.groups: dict[str, DurableGroup] = {}
        self._in_transactions: dict[int, dict[str, None]] = {}
        """Groups with pending offsets, by the transaction's producer id."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DurableGroups) and self.groups == other.groups

    __hash__ = None  # type: ignore[assignment]  # mutable

    def get(self, group_id: str) -> DurableGroup | None:
        """The group, or None if the log does not contain it."""
        return self.groups.get(group_id)

    def groups_of(self, producer_id: int) -> list[str]:
        """The groups with offsets in a producer's open transaction."""
        return list(self._in_transactions.get(producer_id, ()))

    def replay(self, record: CoordinatorRecord, log_offset: int, transactional_producer: int | None = None) -> None:
        """Apply one committed record at `log_offset`, in a producer's transaction if given. Call it in log order."""
        if isinstance(record, EndTxnRecord):
            if transactional_producer is not None:
                self._end(transactional_producer, commit=record.marker.control_type is ControlRecordType.COMMIT)
            return
        if isinstance(record, OffsetRecord):
            if record.value is not None:
                record.value.log_offset = log_offset
            self.replay_offset(record.group_id, record.topic_partition, record.value, transactional_producer)
            return
        group = self._group(record.group_id)
        group.metadata = record.value
        self._drop_empty(record.group_id, group)

    def replay_offset(
        self,
        group_id: str,
        topic_partition: TopicPartition,
        offset: CommittedOffset | None,
        transactional_producer: int | None = None,
    ) -> None:
        """Apply one offset with its `log_offset` set, or remove it if None."""
        group = self._group(group_id)
        offsets = group.offsets
        if transactional_producer is not None:
            offsets = group.pending.setdefault(transactional_producer, {})
            self._in_transactions.setdefault(transactional_producer, {})[group_id] = None
        if offset is not None:
            offsets[topic_partition] = offset
        else:
            offsets.pop(topic_partition, None)
            self._drop_empty(group_id, group)

    def _end(self, producer_id: int, *, commit: bool) -> None:
        """Apply or drop the offsets of a transaction. Offsets older than a later plain commit are dropped."""
        for group_id in self._in_transactions.pop(producer_id, ()):
            group = self.groups.get(group_id)
            if group is None:
                continue
            for topic_partition, offset in group.pending.pop(producer_id, {}).items():
                standing = group.offsets.get(topic_partition)
                if commit and (standing is None or standing.log_offset < offset.log_offset):
                    group.offsets[topic_partition] = offset
            self._drop_empty(group_id, group)

    def _group(self, group_id: str) -> DurableGroup:
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = DurableGroup()
        return group

    def _drop_empty(self, group_id: str, group: DurableGroup) -> None:
        if group.is_empty():
            del self.groups[group_id]


logger = logging.getLogger("kafka.coordinator.group.GroupCoordinator")


class GroupTable:
    """`durable` changes only by replay; `groups` holds the membership of these groups, and of some without records.

    `new_id()` returns the random part of a member id, `most_record_bytes()` the maximum record size of the log.
    """

    def __init__(
        self,
        config: GroupConfig,
        new_id: Callable[[], str],
        durable: DurableGroups | None,
        most_record_bytes: Callable[[], int],
    ) -> None:
        self.config = config
        self.new_id = new_id
        self.most_record_bytes = most_record_bytes
        self.durable = DurableGroups() if durable is None else durable
        self.deadlines = Deadlines()
        self.groups: dict[str, Group] = {}

    def create(self, group_id: str, now: ClockReading) -> Group:
        """Create an empty group."""
        group = self.groups[group_id] = Group(group_id, self.deadlines, now.now_ms)
        return group

    def restore(self, now: ClockReading) -> None:
        """Build the live groups after loading."""
        for group_id, durable in self.durable.groups.items():
            if durable.metadata is None:
                self.create(group_id, now)
            else:
                self.groups[group_id] = Group.restored(group_id, durable.metadata, self.deadlines, now.now_ms)


def background_append(records: Sequence[CoordinatorRecord], what: str) -> Append:
    """An append without a waiting client. If it fails, a log message says that `what` was not written."""
    return Append(records, partial(_log_failure, what))


def _log_failure(what: str, _: ClockReading, error_code: ErrorCode) -> Appends:
    if error_code is not ErrorCode.NONE:
        logger.warning("Failed to write %s: %s", what, error_code.name)
    return ()
