"""Groups as the log of one __consumer_offsets partition has them. Only replaying records changes them."""

from __future__ import annotations

from cluster.groups.records import CommittedOffset, CoordinatorRecord, OffsetRecord
from protocol.messages import GroupMetadataValue
from protocol.topic_partition import TopicPartition
from protocol.value import Value, field


class DurableGroup(Value, frozen=False):
    """One group. `pending` holds offsets of open transactions by producer id (KIP-98); they count once committed."""

    metadata: GroupMetadataValue | None = None
    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    pending: dict[int, dict[TopicPartition, CommittedOffset]] = field(default_factory=dict)

    def is_void(self) -> bool:
        """Whether the group has no state left."""
        return self.metadata is None and not self.offsets and not self.pending


class DurableGroups:
    """The groups of one partition by group id."""

    def __init__(self) -> None:
        self.groups: dict[str, DurableGroup] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DurableGroups) and self.groups == other.groups

    __hash__ = None  # type: ignore[assignment]  # mutable

    def get(self, group_id: str) -> DurableGroup | None:
        """The group, or None when the log knows nothing of it."""
        return self.groups.get(group_id)

    def replay(self, record: CoordinatorRecord, log_offset: int) -> None:
        """Apply one committed record that stands at `log_offset`. Records come in the order of the log."""
        if isinstance(record, OffsetRecord):
            if record.value is not None:
                record.value.log_offset = log_offset
            self.replay_offset(record.group_id, record.topic_partition, record.value)
            return
        group = self._group(record.group_id)
        group.metadata = record.value
        self._drop_void(record.group_id, group)

    def replay_offset(
        self,
        group_id: str,
        topic_partition: TopicPartition,
        offset: CommittedOffset | None,
        transactional_producer: int | None = None,
    ) -> None:
        """Apply one offset, whose place in the log it knows; None removes it."""
        group = self._group(group_id)
        offsets = group.offsets
        if transactional_producer is not None:
            offsets = group.pending.setdefault(transactional_producer, {})
        if offset is not None:
            offsets[topic_partition] = offset
        else:
            offsets.pop(topic_partition, None)
            self._drop_void(group_id, group)

    def _group(self, group_id: str) -> DurableGroup:
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = DurableGroup()
        return group

    def _drop_void(self, group_id: str, group: DurableGroup) -> None:
        if group.is_void():
            del self.groups[group_id]
