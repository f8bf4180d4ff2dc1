"""Reads of a partition: parameters, results, and the choice of a replica for a consumer (KIP-392; Kafka:
`ReplicaSelector`, `RackAwareReplicaSelector`, `ReplicaManager.findPreferredReadReplica`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from cluster.metadata_image import MetadataImage
from protocol.errors import ApiError, ErrorCode
from protocol.records.compression import CompressionType
from protocol.topic_partition import TopicPartition
from protocol.uuids import ZERO_UUID, Uuid
from protocol.value import Value
from storage.log.leader_epoch import EpochEntry
from storage.log.log_reader import FetchDataInfo
from storage.log.unified_log import UnifiedLog
from storage.segment.transaction_index import AbortedTxn

if TYPE_CHECKING:
    from cluster.replication.partition import Partition

CONSUMER_REPLICA_ID: Final = -1
DEBUGGING_REPLICA_ID: Final = -2
"""The replica id of debugging tools that read from any replica, leader or not."""


class IsolationLevel(IntEnum):
    """Isolation levels of a reader (KIP-98)."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1

    @staticmethod
    def of(value: int) -> IsolationLevel:
        """The level in a request. Raises INVALID_REQUEST for an unknown one."""
        if value == 0:
            return IsolationLevel.READ_UNCOMMITTED
        if value == 1:
            return IsolationLevel.READ_COMMITTED
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown isolation level {value}")


class FetchParams(Value):
    """Parameters of a read, common to all its partitions (Kafka class `FetchParams`).

    `reads_zstd` says whether the reader supports zstd. A following broker sends its id, and its broker epoch if known;
    both are -1 for a consumer. Followers read up to the log end, and so does the tool that compares replicas
    (`DEBUGGING_REPLICA_ID`).

    With `leader_only`, followers do not serve the reader. Other consumers have a rack ("" if unset) and the name of the
    listener they connected to (KIP-392).

    With `min_one_message`, the first batch is returned even if it exceeds all limits.
    """

    isolation: IsolationLevel
    reads_zstd: bool
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    replica_id: int = CONSUMER_REPLICA_ID
    replica_epoch: int = -1
    leader_only: bool = True
    client_rack: str = ""
    listener_name: str = ""
    min_one_message: bool = True


class LogReadInfo(Value, frozen=False):
    """The result of reading one partition. All offsets are from one point in time, so they are consistent.

    `records` is None if the read found none. `aborted` is None for read_uncommitted. With a `diverging_epoch`, the
    largest common epoch and its end, the reader has to truncate its log. `cold` is set if the read would have waited
    for the disk: call it on another thread and then try again. With a `preferred_read_replica` nothing was read: the
    consumer has to fetch from that broker.
    """

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records: FetchDataInfo | None = None
    aborted: Sequence[AbortedTxn] | None = None
    diverging_epoch: EpochEntry | None = None
    cold: Callable[[], object] | None = None
    preferred_read_replica: int = -1

    @property
    def size(self) -> int:
        """The records' size in bytes."""
        return 0 if self.records is None else self.records.size


def check_log(log: UnifiedLog, params: FetchParams, topic_id: Uuid) -> None:
    """Raise INCONSISTENT_TOPIC_ID if the reader means another topic of that name, and UNSUPPORTED_COMPRESSION_TYPE if
    it does not support the codec.
    """
    if log.topic_id is not None and topic_id not in (log.topic_id, ZERO_UUID):
        raise ApiError(ErrorCode.INCONSISTENT_TOPIC_ID, f"{log.topic_partition} has another topic id")
    if not params.reads_zstd and log.local.config.compression_type is CompressionType.ZSTD:
        text = f"{log.topic_partition} is kept in zstd, which the reader does not know"
        raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, text)


def not_a_replica(topic_partition: TopicPartition, params: FetchParams, *, has_epoch: bool) -> ApiError:
    """The error for a broker that is not a follower. If it `has_epoch`, the current one, it may have learned of a
    reassignment before we did.
    """
    return ApiError(
        ErrorCode.UNKNOWN_LEADER_EPOCH if has_epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER,
        f"broker {params.replica_id} is not a replica of {topic_partition}",
    )


def other_epoch(topic_partition: TopicPartition, requested: int, known: int) -> ApiError:
    """The error for a request with another leader epoch (KIP-320): either the client or this replica is behind."""
    if requested < known:
        return ApiError(
            ErrorCode.FENCED_LEADER_EPOCH, f"leader epoch {requested} of {topic_partition} is older than {known}"
        )
    return ApiError(
        ErrorCode.UNKNOWN_LEADER_EPOCH, f"leader epoch {requested} of {topic_partition} is newer than {known}"
    )


def diverging_epoch(log: UnifiedLog, last_fetched_epoch: int, fetch_offset: int) -> EpochEntry | None:
    """The divergence of `log` from a log that ends at `fetch_offset` in `last_fetched_epoch`: the largest common epoch
    and its end in `log`, or None if `log` contains all of the other one.

    Raises OFFSET_OUT_OF_RANGE if that epoch is unknown, or the offset lies before the log start.
    """
    epoch, end_offset = log.end_offset_for_epoch(last_fetched_epoch)
    if end_offset < 0:
        raise ApiError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"the end of epoch {last_fetched_epoch} of {log.topic_partition} is not known",
        )
    if fetch_offset < log.log_start_offset:
        raise ApiError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {fetch_offset} of {log.topic_partition} is below the log start {log.log_start_offset}",
        )
    is_common = epoch == last_fetched_epoch and end_offset >= fetch_offset
    return None if is_common else EpochEntry(epoch, end_offset)


NO_PREFERENCE: Final = -1
"""The consumer stays with the leader."""
RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


class RackAwareReplicaSelector:
    """Sends a consumer to a replica in its own rack that has the requested offset."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        """`image()` returns the current metadata, which contains the racks."""
        self._image = image

    def select(self, partition: Partition, params: FetchParams, fetch_offset: int) -> int:
        """The broker that the consumer should fetch a partition of this leader from, or NO_PREFERENCE.

        That broker is in sync, has the offset, and has the consumer's listener. Among several, the most caught-up wins,
        then the highest id.
        """
        in_sync, rack = partition.in_sync, params.client_rack
        if not rack or in_sync is None:
            return NO_PREFERENCE
        brokers, image = self._image().brokers, partition.image
        leader = brokers.get(image.leader)
        if leader is not None and leader.rack == rack:
            return NO_PREFERENCE
        best = None
        for broker_id, follower in in_sync.followers.items():
            broker = brokers.get(broker_id)
            if (
                broker_id in image.isr
                and broker is not None
                and broker.rack == rack
                and params.listener_name in broker.endpoints
                and follower.log_start_offset <= fetch_offset <= follower.log_end_offset
            ):
                view = follower.log_end_offset, follower.caught_up_ms, broker_id
                best = view if best is None else max(best, view)
        return NO_PREFERENCE if best is None else best[2]
