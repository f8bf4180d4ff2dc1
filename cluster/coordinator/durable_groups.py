"""What the log of one __consumer_offsets partition says about its groups. Only replaying records changes it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from cluster.coordinator.records import CommittedOffset, CoordinatorRecord, GroupRecord, decode_record
from protocol.control_records import ControlRecordType, control_type
from protocol.errors import ApiError, DecodeError
from protocol.messages import GroupMetadataValue
from protocol.records import RecordBatch
from protocol.topic_partition import TopicPartition

logger = logging.getLogger("kafka.coordinator.group.GroupMetadataManager")


@dataclass(slots=True)
class DurableGroup:
    """One group. `pending` holds offsets of open transactions by producer id (KIP-98); they count once committed."""

    metadata: GroupMetadataValue | None = None
    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    pending: dict[int, dict[TopicPartition, CommittedOffset]] = field(default_factory=dict)

    def is_void(self) -> bool:
        """Whether nothing is known of the group any more."""
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

    def replay(self, record: CoordinatorRecord, log_offset: int, transactional_producer: int | None = None) -> None:
        """Apply one committed record that stands at `log_offset`. Records come in the order of the log."""
        group = self.groups.get(record.group_id)
        if group is None:
            group = self.groups[record.group_id] = DurableGroup()
        if isinstance(record, GroupRecord):
            group.metadata = record.value
        else:
            offsets = group.offsets
            if transactional_producer is not None:
                offsets = group.pending.setdefault(transactional_producer, {})
            if record.value is None:
                offsets.pop(record.topic_partition, None)
            else:
                record.value.log_offset = log_offset
                offsets[record.topic_partition] = record.value
        if group.is_void():
            del self.groups[record.group_id]

    def complete_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Apply the end of a producer's transaction: its offsets count now, unless a later commit stands after them."""
        for group_id, group in list(self.groups.items()):
            pending = group.pending.pop(producer_id, None)
            if pending is not None and committed:
                for topic_partition, offset in pending.items():
                    current = group.offsets.get(topic_partition)
                    if current is None or current.log_offset < offset.log_offset:
                        group.offsets[topic_partition] = offset
            if group.is_void():
                del self.groups[group_id]

    def replay_batch(self, batch: RecordBatch) -> None:
        """Apply one batch of the log, control batches included. A record that cannot be read is logged and left out.

        Touches nothing else, so it may run on any thread.
        """
        if batch.is_control:
            for marker in batch.records():
                is_committed = control_type(marker) is ControlRecordType.COMMIT
                self.complete_transaction(batch.producer_id, committed=is_committed)
            return
        producer_id = batch.producer_id if batch.is_transactional else None
        for raw in batch.records():
            try:
                record = decode_record(raw.key, raw.value)
            except (DecodeError, ApiError) as error:
                logger.error("The group record at offset %d cannot be read and is left out: %s", raw.offset, error)
                continue
            if record is not None:
                self.replay(record, raw.offset, producer_id)
