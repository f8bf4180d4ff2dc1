"""Reads from and appends to the hosted replicas, and requests that wait for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from broker.logs.group_commit import GroupCommit
from broker.logs.log_maintenance import log_incremented_start
from broker.metadata.metadata_cache import MetadataCache
from broker.replication.alter_partition_manager import AlterPartitionManager
from broker.replication.delayed_fetch import Answer, CachedPartition, DelayedFetch
from broker.replication.delayed_operations import (
    Changes,
    DelayedDeleteRecords,
    DelayedOperation,
    DelayedProduce,
    LowWatermark,
    Purgatory,
)
from broker.replication.follower_fetch import FollowerFetch, SessionWatch
from broker.replication.hosted_partitions import HostedPartitions
from broker.replication.replication_quota import ReplicationQuota
from cluster.controller.commands import CommandFence
from cluster.metadata_image import BrokerImage, MetadataImage
from cluster.replication.isr import (
    DEFAULT_LAG_TIME_MAX_MS,
    NO_EPOCH,
    IsrRules,
    LeaderActions,
    check_lag,
    low_watermark,
    on_brokers_removed,
)
from cluster.replication.partition import ACKS_ALL, Partition
from cluster.replication.reads import FetchParams, RackAwareReplicaSelector
from environment.contract import Clock, Executor
from environment.slices import Slices, in_slices
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from protocol.uuids import Uuid
from protocol.value import Value
from storage.log.log_appender import LogAppendInfo
from storage.log.log_validator import AppendOrigin, NotOneBatchError, VerificationGuard
from storage.log.unified_log import UnifiedLog
from storage.log_config import LogConfig
from storage.log_manager import LogManager

logger = logging.getLogger("kafka.server.ReplicaManager")

T = TypeVar("T")

UNKNOWN_OFFSET = -1

_ANSWERED_WITHOUT_LOG_START = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.INVALID_REQUIRED_ACKS,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
"""Produce errors answered with log start offset -1; others carry the partition's (ReplicaManager.appendToLocalLog)."""


class LeaderHint(Value):
    """The leader of a partition and its epoch, -1 if unknown; `broker` if it is alive (KIP-951)."""

    leader_id: int = -1
    leader_epoch: int = -1
    broker: BrokerImage | None = None


class ReplicaManager:
    """Appends to and reads from the hosted replicas (`hosted`), and keeps the requests that wait for them."""

    def __init__(
        self,
        broker_id: int,
        log_manager: LogManager,
        clock: Clock,
        executor: Executor,
        metadata: MetadataCache,
        fence: CommandFence,
        log_config_of: Callable[[str], LogConfig],
        lag_time_max_ms: int = DEFAULT_LAG_TIME_MAX_MS,
        quota: ReplicationQuota | None = None,
        selector: RackAwareReplicaSelector | None = None,
    ) -> None:
        """See `HostedPartitions` for `fence` and `log_config_of`; `lag_time_max_ms` is replica.lag.time.max.ms. `quota`
        limits this broker as leader. Without a `selector`, consumers read from the leader.
        """
        self._quota = quota
        self._selector = selector
        self._clock = clock
        self._executor = executor
        self._metadata = metadata
        self.delayed_fetches = Purgatory("Fetch")
        self.follower_fetches = Purgatory("Fetch")
        """Separate from consumers' fetches, which wait for the high watermark, not for the log end."""
        self.delayed_produces = Purgatory("Produce")
        self.delayed_deletions = Purgatory("DeleteRecords")
        self.group_commit = GroupCommit(executor, clock, self._log_flushed, self._flush_failed)
        self.hosted = HostedPartitions(
            broker_id,
            log_manager,
            clock,
            fence,
            log_config_of,
            changed=self._changed,
            flush=self.group_commit.request,
            rules=IsrRules(lag_time_max_ms, self._is_eligible),
            is_known=lambda topic_partition: metadata.image.partition(topic_partition) is not None,
        )
        self._partitions = self.hosted.partitions
        self.isr_changes = AlterPartitionManager(
            broker_id,
            lambda: fence.broker_epoch,
            self._partitions.get,
            self.high_watermark_moved,
            self.group_commit.request,
        )

    # -- look-up -------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._partitions.values())

    def __len__(self) -> int:
        return len(self._partitions)

    def topic_name(self, topic_id: Uuid) -> str | None:
        """The name for a topic id, or None. A replica may exist here before the metadata has its topic."""
        return self._metadata.image.topic_names.get(topic_id) or self.hosted.topic_names.get(topic_id)

    def partition(self, topic_partition: TopicPartition) -> Partition:
        """See `HostedPartitions.partition`."""
        return self.hosted.partition(topic_partition)

    def leader_hint(self, topic_partition: TopicPartition) -> LeaderHint:
        """The leader of the partition, as far as this broker knows: it learns of changes to its own replicas first."""
        partition = self._partitions.get(topic_partition)
        image = self._metadata.image.partition(topic_partition) if partition is None else partition.image
        if image is None:
            return LeaderHint()
        return LeaderHint(image.leader, image.leader_epoch, self._metadata.image.brokers.get(image.leader))

    def leader_of(self, topic_partition: TopicPartition, current_leader_epoch: int = NO_EPOCH) -> Partition:
        """The hosted replica, which must lead. Raises the errors of `partition` and `Partition.check_leader`."""
        partition = self.partition(topic_partition)
        partition.check_leader(current_leader_epoch)
        return partition

    # -- data ----------------------------------------------------------------------------------------------------------

    def append(
        self,
        topic_partition: TopicPartition,
        records: memoryview,
        *,
        required_acks: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        guard: VerificationGuard | None = None,
    ) -> LogAppendInfo:
        """Append one batch to a partition led here, and wake the requests that wait for it. See `LogAppender` for
        `guard`.

        If the result is not `is_acknowledged`, the producer is answered after `when_acknowledged`.
        """
        partition = self._partitions.get(topic_partition)
        if partition is None:
            partition = self.partition(topic_partition)
        before = partition.high_watermark
        info = partition.append_as_leader(
            records, required_acks=required_acks, now_ms=self._clock.now_ms(), origin=origin, guard=guard
        )
        if partition.high_watermark != before and (self.delayed_fetches.size or self.delayed_produces.size):
            self.high_watermark_moved(topic_partition)
        if partition.in_sync is not None:
            self.follower_fetches.wake(topic_partition)
        if not info.is_acknowledged:
            self._flush_for(partition, info.last_offset)
        return info

    def high_watermark_moved(self, topic_partition: TopicPartition) -> None:
        """Wake the consumers and producers that wait for the partition, and followers that serve consumers."""
        self.delayed_fetches.wake(topic_partition)
        self.delayed_produces.wake(topic_partition)
        if self._selector is not None:
            self.follower_fetches.wake(topic_partition)

    def _changed(self, topic_partition: TopicPartition) -> None:
        """Wake all requests that wait for the partition, because its role has changed."""
        self.high_watermark_moved(topic_partition)
        self.follower_fetches.wake(topic_partition)
        self.delayed_deletions.wake(topic_partition)

    def _flush_for(self, partition: Partition, last_offset: int) -> None:
        """Request the flush that flush.messages requires before the record at `last_offset` may be acknowledged."""
        log = partition.log
        if last_offset >= log.local.flush_limit_offset:
            self.group_commit.request(log, urgent=True)

    def _flush_failed(self, log: UnifiedLog, error: ApiError) -> None:
        partition = self._partitions.get(log.topic_partition)
        if partition is None or partition.log is log:
            self.delayed_produces.wake(log.topic_partition, error)

    def _log_flushed(self, log: UnifiedLog) -> None:
        partition = self._partitions.get(log.topic_partition)
        if partition is None or partition.log is not log or not partition.is_leader:
            return
        if partition.advance_high_watermark():
            self.delayed_fetches.wake(partition.topic_partition)
        self.delayed_produces.wake(partition.topic_partition)

    def when_acknowledged(
        self,
        appends: Sequence[tuple[TopicPartition, int]],
        answer: Callable[[Sequence[ApiError | None]], T],
        *,
        required_acks: int,
        timeout_ms: int,
    ) -> asyncio.Future[T]:
        """Done when each of `appends`, given as partition and last offset, is acknowledged or has failed. The result is
        `answer` of the list of errors (see `DelayedProduce`).
        """
        delayed = DelayedProduce(self.partition, required_acks, appends, answer)
        limit_ms = timeout_ms if required_acks == ACKS_ALL else None
        return self.delayed_produces.watch(delayed.keys(), limit_ms, delayed.attempt)

    def log_start_offset_after(self, error: ApiError, topic_partition: TopicPartition) -> int:
        """The log start offset in Kafka's answer to a failed produce."""
        if error.error_code in _ANSWERED_WITHOUT_LOG_START or isinstance(error, NotOneBatchError):
            return UNKNOWN_OFFSET
        partition = self._partitions.get(topic_partition)
        return UNKNOWN_OFFSET if partition is None else partition.log.log_start_offset

    def fetch(
        self,
        params: FetchParams,
        wanted: Sequence[CachedPartition],
        answer: Answer[T],
        slices: Slices,
        watch: SessionWatch | None = None,
    ) -> T | asyncio.Future[T]:
        """Read the `wanted` partitions, and those that `watch` names, and return `answer` of the results: now, or once
        enough records have arrived (see `delayed_fetch`). The future may be cancelled at any time.
        """
        if params.replica_id >= 0 or watch is not None:
            return self._fetch_for_follower(params, wanted, answer, slices, watch)
        prefer = self._selector.select if self._selector is not None and params.client_rack else None
        fetch = DelayedFetch(self.partition, params, wanted, answer, prefer)
        return self._fetch(fetch, self.delayed_fetches, slices)

    def _fetch_for_follower(
        self,
        params: FetchParams,
        wanted: Sequence[CachedPartition],
        answer: Answer[T],
        slices: Slices,
        watch: SessionWatch | None,
    ) -> T | asyncio.Future[T]:
        monotonic_ms = int(self._clock.monotonic_s() * 1000)
        if watch is not None:
            wanted = watch.begin(self.follower_fetches, params.replica_id, params.replica_epoch, monotonic_ms)
        fetch = FollowerFetch(
            self.partition,
            params,
            wanted,
            answer,
            monotonic_ms,
            self._perform,
            watch,
            self._quota,
            reports_high_watermark=self._selector is not None,
        )
        return self._fetch(fetch, watch or self.follower_fetches, slices)

    def _fetch(self, fetch: DelayedFetch[T], changes: Changes, slices: Slices) -> T | asyncio.Future[T]:
        if fetch.read_some(slices.should_yield) and not fetch.cold:
            if fetch.is_satisfied:
                return fetch.respond()
            return DelayedOperation(changes, fetch.keys(), fetch.attempt).wait(fetch.params.max_wait_ms)
        # The operation watches for changes from now on, so that none is missed between two slices.
        operation = DelayedOperation(changes, fetch.keys(), fetch.when_ready)
        answer = asyncio.ensure_future(self._continue_fetch(fetch, operation, slices))
        answer.add_done_callback(lambda _: operation.leave())
        return answer

    async def _continue_fetch(
        self, fetch: DelayedFetch[T], operation: DelayedOperation[DelayedFetch[T]], slices: Slices
    ) -> T:
        """Complete a fetch that takes some time."""
        await slices.pause()
        await fetch.finish_reading(self._executor, slices)
        if not (fetch.is_satisfied or fetch.cold):
            await operation.wait(fetch.params.max_wait_ms)
            slices = Slices(self._clock)
        return await fetch.respond_in_slices(slices)

    # -- deletions -----------------------------------------------------------------------------------------------------

    def delete_records_before(self, topic_partition: TopicPartition, offset: int) -> int:
        """Move the log start offset of a partition led here up to `offset` (-1: the high watermark), and notify the
        followers. Returns the offset that the low watermark must reach. Raises the errors of
        `Partition.delete_records_before`.
        """
        partition = self.partition(topic_partition)
        before = partition.log.log_start_offset
        log_start_offset = partition.delete_records_before(offset)
        if log_start_offset > before:
            self.log_start_moved(partition.log, "client delete records request")
        return log_start_offset if offset < 0 else offset

    def log_start_moved(self, log: UnifiedLog, cause: str) -> None:
        """Log an incremented log start offset, and notify followers through their waiting fetches."""
        log_incremented_start(log, cause)
        self.follower_fetches.wake(log.topic_partition)

    def low_watermark(self, topic_partition: TopicPartition) -> int:
        """See `isr_maintenance.low_watermark`. Raises ApiError for a partition that is not led here."""
        return low_watermark(self.partition(topic_partition), self._is_alive)

    def when_deleted(
        self, deletions: Sequence[tuple[TopicPartition, int]], timeout_ms: int
    ) -> asyncio.Future[Sequence[LowWatermark]]:
        """Done when the low watermarks of these partitions have reached these offsets, or the time is over (see
        `DelayedDeleteRecords`).
        """
        delayed = DelayedDeleteRecords(self.low_watermark, deletions)
        keys = list(delayed.keys())
        operation = DelayedOperation(self.delayed_deletions, keys, delayed.attempt)
        answer = operation.wait(timeout_ms)
        for key in keys:  # it may have been reached since the caller checked
            operation.wake(key, None)
        return answer

    # -- in-sync replicas ----------------------------------------------------------------------------------------------

    def _is_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether a broker may be in sync: it is alive, and the epochs are equal if both are known."""
        broker = self._metadata.image.brokers.get(broker_id)
        return broker is not None and (broker_epoch < 0 or broker.epoch < 0 or broker.epoch == broker_epoch)

    def _is_alive(self, broker_id: int) -> bool:
        return broker_id in self._metadata.image.brokers

    def _perform(self, partition: Partition, outcome: LeaderActions) -> None:
        if outcome.low_watermark_moved:
            self.delayed_deletions.wake(partition.topic_partition)
        if outcome.advanced:
            self.high_watermark_moved(partition.topic_partition)
        if outcome.change is not None:
            self.isr_changes.submit(outcome.change)

    def metadata_changed(self, old: MetadataImage, new: MetadataImage) -> None:
        """Apply a new metadata image: do not wait for replicas of brokers that have left."""
        gone = {
            broker_id
            for broker_id, broker in old.brokers.items()
            if (now := new.brokers.get(broker_id)) is None or now.epoch != broker.epoch
        }
        if gone:
            for partition in self._partitions.values():
                self._perform(partition, on_brokers_removed(partition, gone))

    async def check_lag(self) -> None:
        """Remove followers that are behind for too long from the ISR. Call it at least every half of
        replica.lag.time.max.ms.
        """
        led = [partition for partition in self._partitions.values() if partition.in_sync is not None]
        async for partition in in_slices(led, self._clock):
            self._perform(partition, check_lag(partition, int(self._clock.monotonic_s() * 1000)))

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """Every partition's high watermark, as the checkpoints will hold them."""
        return {topic_partition: partition.high_watermark for topic_partition, partition in self._partitions.items()}
