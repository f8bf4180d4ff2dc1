"""One replica of a partition on this broker: its role, the in-sync replicas, the leader epoch and the high watermark.

Source of the rules: Kafka's Partition class; KIP-101, KIP-320 (epoch checks). `UnifiedLog` owns the bytes of the log,
the controller picks the leader, and `isr` tracks the followers' progress. This class combines them into the high
watermark.
"""

from __future__ import annotations

from functools import partial

from cluster.metadata_image import PartitionImage
from cluster.replication.isr import ALL_ARE_ELIGIBLE, NO_EPOCH, InSyncReplicas, IsrRules
from cluster.replication.reads import (
    CONSUMER_REPLICA_ID,
    FetchParams,
    IsolationLevel,
    LogReadInfo,
    check_log,
    diverging_epoch,
    not_a_replica,
    other_epoch,
)
from cluster.znodes import NO_LEADER
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from protocol.uuids import Uuid
from storage.log.log_appender import LogAppendInfo
from storage.log.log_reader import AbortedTransactions
from storage.log.log_validator import AppendOrigin, VerificationGuard
from storage.log.truncation import TruncationTask
from storage.log.unified_log import UnifiedLog
from storage.log_config import UNLIMITED

"""The client does not check leader epochs (before Fetch 9, ListOffsets 4)."""
ACKS_ALL = -1
_CLIENT = AppendOrigin.CLIENT


class Partition:
    """This broker's replica of `topic_partition`.

    Invariants: log_start_offset <= high_watermark <= log_end_offset. Within a leader epoch the high watermark never
    falls, unless the log is truncated. It does not pass the log's `flush_limit_offset`: call `advance_high_watermark`
    after each flush.
    """

    __slots__ = (
        "_is_leader",
        "_rules",
        "aborted_transactions",
        "bytes_in",
        "bytes_out",
        "high_watermark",
        "image",
        "in_sync",
        "leader_epoch_start_offset",
        "log",
        "messages_in",
        "topic_partition",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        log: UnifiedLog,
        high_watermark: int,
        image: PartitionImage,
        rules: IsrRules = ALL_ARE_ELIGIBLE,
    ) -> None:
        self.topic_partition = topic_partition
        self.log = log
        self.high_watermark = min(max(high_watermark, log.log_start_offset), log.log_end_offset)
        self.image = image
        self.messages_in = self.bytes_in = self.bytes_out = 0
        """Since this broker has had the replica."""
        self.aborted_transactions = AbortedTransactions()
        self.leader_epoch_start_offset = 0
        self.in_sync: InSyncReplicas | None = None
        """The followers, while this replica leads and has any."""
        self._is_leader = False
        self._rules = rules

    @property
    def leader_epoch(self) -> int:
        """The current leader epoch of this replica."""
        return self.image.leader_epoch

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads the partition."""
        return self._is_leader

    def become_leader(self, image: PartitionImage, monotonic_ms: int = 0) -> None:
        """Become the leader from `image.leader_epoch` on.

        The (epoch, log end) pair is persisted before the first append can happen (KIP-101).
        """
        if not self._is_leader or image.leader_epoch != self.image.leader_epoch:
            self.leader_epoch_start_offset = self.log.log_end_offset
        if len(image.replicas) > 1:
            if self.in_sync is None:
                self.in_sync = InSyncReplicas(self._rules)
            self.in_sync.begin_epoch(image, self.log.log_end_offset, monotonic_ms)
        else:
            self.in_sync = None
        self.image = image
        self.log.assign_epoch_start_offset(image.leader_epoch)
        self._is_leader = True
        self.advance_high_watermark()

    def resign(self, image: PartitionImage) -> None:
        """Stop leading; `image` names the new leader, if any.

        The high watermark and the log stay unchanged: only a leader knows where to truncate (KIP-101).
        """
        self.image = image
        self._is_leader = False
        self.in_sync = None

    def check_leader(self, requested_epoch: int) -> None:
        """Raise an error for a request that this replica must not answer.

        Raises FENCED_LEADER_EPOCH (the client is behind), UNKNOWN_LEADER_EPOCH (we are) or NOT_LEADER_OR_FOLLOWER.
        """
        self.check_epoch(requested_epoch)
        if not self._is_leader:
            raise self._does_not_lead()

    def check_epoch(self, requested_epoch: int) -> None:
        """As `check_leader`, but followers pass if they have a leader. Without one, their logs may be truncated below
        the high watermark.
        """
        if requested_epoch not in (NO_EPOCH, self.image.leader_epoch):
            raise other_epoch(self.topic_partition, requested_epoch, self.image.leader_epoch)
        if self.image.leader == NO_LEADER:
            raise self._does_not_lead()

    def _does_not_lead(self) -> ApiError:
        return ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker does not lead {self.topic_partition}")

    def read(
        self,
        params: FetchParams,
        fetch_offset: int,
        max_bytes: int,
        *,
        min_one_message: bool,
        topic_id: Uuid,
        current_leader_epoch: int = NO_EPOCH,
        last_fetched_epoch: int = NO_EPOCH,
    ) -> LogReadInfo:
        """Find the records from `fetch_offset` that this reader may see; never waits for the disk.

        `topic_id` is zero if unknown to the reader. `last_fetched_epoch` is the leader epoch of the reader's last
        record, for a reader that asks whether its log diverges from this one (KIP-595).

        Raises the errors of `check_leader`, INCONSISTENT_TOPIC_ID, UNSUPPORTED_COMPRESSION_TYPE, UNKNOWN_LEADER_EPOCH
        or NOT_LEADER_OR_FOLLOWER for a broker that is not a replica, and the errors of `UnifiedLog.read`.
        """
        (self.check_leader if params.leader_only else self.check_epoch)(current_leader_epoch)
        log = self.log
        check_log(log, params, topic_id)
        if params.replica_id >= 0:
            self._check_follower(params, current_leader_epoch)
        info = LogReadInfo(self.high_watermark, self.last_stable_offset, log.local.log_start_offset)
        if params.isolation is IsolationLevel.READ_COMMITTED:
            info.aborted = ()
        if last_fetched_epoch >= 0:
            info.diverging_epoch = diverging_epoch(log, last_fetched_epoch, fetch_offset)
            if info.diverging_epoch is not None:
                return info
        if params.replica_id != CONSUMER_REPLICA_ID:
            end = log.local.log_end_offset
        else:
            end = info.high_watermark if info.aborted is None else info.last_stable_offset
        found = log.try_read(fetch_offset, max_bytes, end, min_one_message)
        if found is None:
            info.cold = partial(log.read, fetch_offset, max_bytes, end, min_one_message)
        elif found.size:
            if info.aborted is None:
                info.records = found
            elif self.aborted_transactions.are_loaded(log):
                info.records = found
                info.aborted = self.aborted_transactions.between(log, fetch_offset, end)
            else:
                info.cold = partial(self.aborted_transactions.load, log)
        return info

    def redirect_to(self, broker_id: int, current_leader_epoch: int) -> LogReadInfo:
        """As `read`, for a consumer to be sent to another replica."""
        self.check_epoch(current_leader_epoch)
        return LogReadInfo(
            self.high_watermark,
            self.last_stable_offset,
            self.log.local.log_start_offset,
            preferred_read_replica=broker_id,
        )

    def _check_follower(self, params: FetchParams, leader_epoch: int) -> None:
        in_sync = self.in_sync
        if in_sync is None or in_sync.follower(params.replica_id, params.replica_epoch) is None:
            raise not_a_replica(self.topic_partition, params, has_epoch=leader_epoch != NO_EPOCH)

    def append_as_leader(
        self,
        records: memoryview,
        *,
        required_acks: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        guard: VerificationGuard | None = None,
    ) -> LogAppendInfo:
        """Append one batch, and advance the high watermark as far as the in-sync replicas allow.

        Raises NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS (acks=all below min.insync.replicas, except for a duplicate,
        which Kafka rejects too) and the errors of `LogAppender.append_as_leader`.
        """
        log = self.log
        if not self._is_leader:
            raise self._does_not_lead()
        if required_acks == ACKS_ALL and self.is_under_min_isr:
            self._refuse_unless_stored(records, origin)
        info = log.appender.append_as_leader(
            records, leader_epoch=self.leader_epoch, now_ms=now_ms, origin=origin, guard=guard
        )
        self.messages_in += info.last_offset - info.first_offset + 1
        self.bytes_in += len(records)
        self.advance_high_watermark()
        if origin is not _CLIENT:
            log.on_high_watermark(self.high_watermark)  # it may have been a transaction's marker
        if info.last_offset >= self.high_watermark:
            info.is_acknowledged = self.is_acknowledged(info.last_offset, required_acks)
        return info

    @property
    def effective_min_isr(self) -> int:
        """`min.insync.replicas`, or the number of replicas if that is smaller."""
        return min(self.log.local.config.min_insync_replicas, len(self.image.replicas))

    @property
    def is_under_min_isr(self) -> bool:
        """Whether commits have stopped (KIP-966): too few replicas are in sync, or the controller still says so."""
        in_sync, is_frozen = len(self.image.isr), self.image.eligible is not None
        return is_frozen or (in_sync < self.log.local.config.min_insync_replicas and in_sync < self.effective_min_isr)

    def _refuse_unless_stored(self, records: memoryview, origin: AppendOrigin) -> None:
        """Raise NOT_ENOUGH_REPLICAS, unless the batch is a client's retry of one already stored."""
        if origin is not _CLIENT or not self.log.appender.has_batch(records):
            code, size = ErrorCode.NOT_ENOUGH_REPLICAS, len(self.image.isr)
            text = f"The size of the current ISR {size} is insufficient to satisfy the min.isr requirement of "
            raise ApiError(code, f"{text}{self.effective_min_isr} for partition {self.topic_partition}")

    def is_acknowledged(self, last_offset: int, required_acks: int) -> bool:
        """Whether the record at `last_offset` may be acknowledged: with acks=all once the high watermark is above it,
        otherwise once flush.messages allows it.

        Raises NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR if it never can be, and NOT_ENOUGH_REPLICAS_AFTER_APPEND if
        fewer replicas than min.insync.replicas have it under acks=all.
        """
        log = self.log
        if not self._is_leader:
            raise self._does_not_lead()
        if last_offset < (self.high_watermark if required_acks == ACKS_ALL else log.local.flush_limit_offset):
            if required_acks == ACKS_ALL and self.in_sync is not None:
                self._check_maximal_isr(self.in_sync)
            return True
        if log.directory.failure is not None:
            raise log.directory.offline_error()
        return False

    def _check_maximal_isr(self, in_sync: InSyncReplicas) -> None:
        size = in_sync.size_of_maximal_isr(self.image)
        if size < self.effective_min_isr:
            raise ApiError(
                ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
                f"{size} replicas of {self.topic_partition} are in sync, fewer than {self.effective_min_isr}",
            )

    def advance_high_watermark(self) -> bool:
        """Recompute a leader's high watermark from the in-sync replicas; whether it moved.

        It stands still while fewer than min.insync.replicas are in sync (KIP-966).
        """
        log = self.log.local
        end_offset = log.log_end_offset if log.config.flush_messages == UNLIMITED else log.flush_limit_offset
        if self.in_sync is not None:
            if self.is_under_min_isr:
                return False
            end_offset = self.in_sync.committed_end(self.image, end_offset)
        if end_offset > self.high_watermark:
            self.high_watermark = end_offset
            return True
        return False

    def append_as_follower(
        self,
        records: memoryview,
        *,
        leader_epoch: int,
        leader_high_watermark: int,
        leader_log_start_offset: int,
        now_ms: int,
    ) -> int:
        """Append the records from the leader of `leader_epoch`, and adopt its high watermark and log start offset, as
        far as this log reaches. Returns the growth of the log end.

        Call it only for a response without a diverging epoch: only then is the whole log valid. Raises
        NOT_LEADER_OR_FOLLOWER if this replica leads or is in another epoch by now, and the errors of
        `LogAppender.append_as_follower`.
        """
        if self._is_leader or leader_epoch != self.image.leader_epoch:
            raise ApiError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.topic_partition} no longer follows in epoch {leader_epoch}"
            )
        log = self.log
        before = log.log_end_offset
        if len(records):
            log.append_as_follower(records, now_ms=now_ms, leader_epoch=leader_epoch)
        local = log.local
        end_offset = local.log_end_offset if local.config.flush_messages == UNLIMITED else local.flush_limit_offset
        self.high_watermark = max(self.high_watermark, min(leader_high_watermark, end_offset))
        log.on_high_watermark(self.high_watermark)
        log_start_offset = min(leader_log_start_offset, self.high_watermark)
        if log_start_offset > local.log_start_offset:
            log.delete_records_before(log_start_offset, self.high_watermark)
        return local.log_end_offset - before

    def begin_truncation(self, offset: int, now_ms: int) -> TruncationTask:
        """Start dropping the records from `offset` on, for a follower whose log has diverged from its leader's. Run the
        task on another thread, then call `end_truncation`.

        Appends are not allowed in between. Raises INVALID_REQUEST if this replica leads, and KAFKA_STORAGE_ERROR.
        """
        self._refuse_to_truncate_as_leader()
        task = self.log.prepare_truncation(offset, now_ms)
        self._bound_high_watermark()
        return task

    def begin_full_truncation(self, offset: int, now_ms: int) -> TruncationTask:
        """As `begin_truncation`, but drop everything and start at `offset`: for a follower whose log ends below its
        leader's log start.
        """
        self._refuse_to_truncate_as_leader()
        task = self.log.prepare_full_truncation(offset, now_ms)
        self._bound_high_watermark()
        return task

    def _refuse_to_truncate_as_leader(self) -> None:
        if self._is_leader:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{self.topic_partition} is led here; its log is not truncated")

    def end_truncation(self, task: TruncationTask) -> None:
        """The truncation task has run. Raises KAFKA_STORAGE_ERROR if it failed."""
        task.complete()
        self._bound_high_watermark()

    def _bound_high_watermark(self) -> None:
        """Lower the high watermark to the log end, which may be below the requested offset since truncations end at a
        batch. A restarted log may begin above its old high watermark (KAFKA-9491).
        """
        local = self.log.local
        self.high_watermark = max(min(self.high_watermark, local.log_end_offset), local.log_start_offset)

    def delete_records_before(self, offset: int) -> int:
        """Raise the log start offset to `offset` (-1: the high watermark) and return the new one.

        Raises OFFSET_OUT_OF_RANGE above the high watermark, and POLICY_VIOLATION unless the topic's cleanup.policy
        includes delete.
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
        """Where a read_committed reader must stop: the start of the first transaction that is open, or that ends at or
        above the high watermark; without any, the high watermark.
        """
        return self.log.last_stable_offset(self.high_watermark)

    @property
    def has_known_high_watermark(self) -> bool:
        """Whether the high watermark has reached the start of this leader epoch. Until then, offsets that were visible
        under the last leader may seem to be missing (KIP-207).
        """
        return self.high_watermark >= self.leader_epoch_start_offset

    def readable_end(self, isolation: IsolationLevel) -> int:
        """The first offset a consumer may not read."""
        return self.last_stable_offset if isolation is IsolationLevel.READ_COMMITTED else self.high_watermark
