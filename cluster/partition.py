"""One replica of a partition on this broker: its role, the in-sync replicas, the leader epoch and the high watermark.

Source of the rules: Kafka's Partition class; KIP-101, KIP-320 (epoch checks). The log's bytes belong to `UnifiedLog`;
which broker leads belongs to the controller. This class owns only what follows from both: the high watermark.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from cluster.metadata_image import PartitionImage
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from storage.aborted_transactions import AbortedTransactions
from storage.appendable_log import LogAppendInfo
from storage.log_config import UNLIMITED
from storage.producer_state import AppendOrigin
from storage.unified_log import UnifiedLog

NO_EPOCH = -1
"""A client that sends it does not check leader epochs (before Fetch 9, ListOffsets 4)."""


class IsolationLevel(IntEnum):
    """What a reader may see (KIP-98)."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1

    @staticmethod
    def of(value: int) -> IsolationLevel:
        """The level a request names. Raises INVALID_REQUEST for one that does not exist."""
        if value == 0:
            return IsolationLevel.READ_UNCOMMITTED
        if value == 1:
            return IsolationLevel.READ_COMMITTED
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown isolation level {value}")


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """The offsets a reader is told, taken together so that they agree."""

    log_start_offset: int
    high_watermark: int
    last_stable_offset: int


@dataclass(slots=True)
class PartitionStatistics:
    """Counters of one partition since this broker took it up."""

    messages_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class Partition:
    """This broker's replica of `topic_partition`.

    Invariants: log_start_offset <= high_watermark <= log_end_offset. The high watermark never falls while the leader
    epoch stays the same. It does not pass the log's `flush_bound`: whoever completes a flush calls
    `advance_high_watermark`.
    """

    __slots__ = (
        "_is_leader",
        "aborted_transactions",
        "high_watermark",
        "image",
        "is_settled",
        "leader_epoch_start_offset",
        "log",
        "statistics",
        "topic_partition",
    )

    def __init__(
        self, topic_partition: TopicPartition, log: UnifiedLog, high_watermark: int, image: PartitionImage
    ) -> None:
        self.topic_partition = topic_partition
        self.log = log
        self.high_watermark = min(max(high_watermark, log.log_start_offset), log.log_end_offset)
        self.image = image
        self.statistics = PartitionStatistics()
        self.aborted_transactions = AbortedTransactions()
        self.leader_epoch_start_offset = 0
        self._is_leader = False
        self.is_settled = False
        """Whether a role was ever taken up; a replica that is only being made answers as one that does not lead."""

    @property
    def leader_epoch(self) -> int:
        """The epoch this replica knows."""
        return self.image.leader_epoch

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads the partition."""
        return self._is_leader

    def become_leader(self, image: PartitionImage) -> None:
        """Lead from `image.leader_epoch` on.

        The (epoch, log end) pair is persisted before the first append can happen (KIP-101).
        """
        if not self._is_leader or image.leader_epoch != self.image.leader_epoch:
            self.leader_epoch_start_offset = self.log.log_end_offset
        self.image = image
        self.log.assign_epoch_start_offset(image.leader_epoch)
        self._is_leader = True
        self.is_settled = True
        self.advance_high_watermark()

    def resign(self, image: PartitionImage) -> None:
        """Stop leading; `image` names the leader, if there is one."""
        self.image = image
        self._is_leader = False
        self.is_settled = True

    def check_leader(self, requested_epoch: int) -> None:
        """Refuse a request that this replica must not answer.

        Raises NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH (the client is behind) or UNKNOWN_LEADER_EPOCH (we are).
        """
        if not self._is_leader:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker does not lead {self.topic_partition}")
        if requested_epoch in (NO_EPOCH, self.image.leader_epoch):
            return
        if requested_epoch < self.image.leader_epoch:
            raise ApiError(
                ErrorCode.FENCED_LEADER_EPOCH,
                f"leader epoch {requested_epoch} of {self.topic_partition} is older than {self.image.leader_epoch}",
            )
        raise ApiError(
            ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"leader epoch {requested_epoch} of {self.topic_partition} is newer than {self.image.leader_epoch}",
        )

    def append_as_leader(
        self, records: memoryview, *, required_acks: int, now_ms: int, origin: AppendOrigin = AppendOrigin.CLIENT
    ) -> LogAppendInfo:
        """Append one batch and move the high watermark as far as the in-sync replicas allow.

        Raises NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS (acks=all below min.insync.replicas) and what
        `UnifiedLog.append_as_leader` raises.
        """
        image = self.image
        if not self._is_leader:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker does not lead {self.topic_partition}")
        # A topic with fewer replicas than min.insync.replicas asks for all it has (Kafka's `effectiveMinIsr`).
        min_isr = min(self.log.config.min_insync_replicas, len(image.replicas))
        if required_acks == -1 and len(image.isr) < min_isr:
            raise ApiError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"The size of the current ISR {len(image.isr)} is insufficient to satisfy the min.isr requirement of "
                f"{min_isr} for partition {self.topic_partition}",
            )
        info = self.log.append_as_leader(records, leader_epoch=image.leader_epoch, now_ms=now_ms, origin=origin)
        statistics = self.statistics
        statistics.messages_in += info.last_offset - info.first_offset + 1
        statistics.bytes_in += len(records)
        self.advance_high_watermark()
        return info

    def advance_high_watermark(self) -> bool:
        """Recompute the high watermark from the in-sync replicas; whether it moved."""
        log = self.log
        end_offset = log.log_end_offset if log.config.flush_messages == UNLIMITED else log.flush_bound
        if len(self.image.isr) == 1 and end_offset > self.high_watermark:
            self.high_watermark = end_offset
            return True
        return False

    def delete_records_before(self, offset: int) -> int:
        """Move the log start offset up to `offset` (-1: the high watermark); the new log start offset.

        Raises OFFSET_OUT_OF_RANGE above the high watermark, and POLICY_VIOLATION where the topic is not deleted from.
        """
        self.check_leader(NO_EPOCH)
        target = self.high_watermark if offset == -1 else offset
        if not 0 <= target <= self.high_watermark:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {self.topic_partition} is above the high watermark {self.high_watermark}",
            )
        if "delete" not in self.log.config.cleanup_policy:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION, f"records of {self.topic_partition} cannot be deleted: it is only compacted"
            )
        return self.log.delete_records_before(target, self.high_watermark)

    @property
    def last_stable_offset(self) -> int:
        """Where a read_committed reader must stop: the first open transaction, or the high watermark."""
        return min(self.log.last_stable_offset, self.high_watermark)

    def offsets(self) -> PartitionOffsets:
        """The offsets of this moment."""
        return PartitionOffsets(self.log.log_start_offset, self.high_watermark, self.last_stable_offset)

    @property
    def knows_high_watermark(self) -> bool:
        """Whether the high watermark has reached what there was when this broker became leader. Before that, offsets
        that were visible under the last leader may seem not to be there (KIP-207).
        """
        return self.high_watermark >= self.leader_epoch_start_offset

    def readable_end(self, isolation: IsolationLevel) -> int:
        """The first offset a consumer may not read."""
        return self.last_stable_offset if isolation is IsolationLevel.READ_COMMITTED else self.high_watermark
