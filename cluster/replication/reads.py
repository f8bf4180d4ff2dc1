"""Reads of a partition: parameters, results, and which replica a consumer is sent to (KIP-392; Kafka:
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
"""Of a reader that is not a broker and asks about any replica, whoever leads."""


class IsolationLevel(IntEnum):
    """Isolation levels of a reader (KIP-98)."""

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


class FetchParams(Value):
    """Parameters of a read, for all its partitions together (Kafka class `FetchParams`).

    `reads_zstd` says whether the reader knows zstd. A broker that fetches as a follower tells its id, and the epoch of
    its registration if it knows it; both are -1 for a consumer. A follower reads up to the log end, and so does the
    tool that compares replicas (`DEBUGGING_REPLICA_ID`).

    `leader_only`: the reader is not served by a follower. A consumer that may be tells its rack ("" for none) and the
    listener by which it came (KIP-392).

    `min_one_message`: the first batch is read even if it is larger than all limits.
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
    """The result of reading one partition. The offsets are of one moment, so that they agree.

    `records` is None when there is nothing to read. `aborted` is None for a reader of uncommitted records. With a
    `diverging_epoch` the reader has to truncate its log: the largest epoch that both know, and where it ends.
    `cold` is set when the disk would have had to be waited for: to be called on another thread before the next try.
    With a `preferred_read_replica` nothing was read: the consumer shall ask that broker.
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
        """Bytes of records."""
        return 0 if self.records is None else self.records.size


def check_log(log: UnifiedLog, params: FetchParams, topic_id: Uuid) -> None:
    """Refuse a read of another topic than the reader means (INCONSISTENT_TOPIC_ID), or in a codec that it does not know
    (UNSUPPORTED_COMPRESSION_TYPE).
    """
    if log.topic_id is not None and topic_id not in (log.topic_id, ZERO_UUID):
        raise ApiError(ErrorCode.INCONSISTENT_TOPIC_ID, f"{log.topic_partition} has another topic id")
    if not params.reads_zstd and log.local.config.compression_type is CompressionType.ZSTD:
        text = f"{log.topic_partition} is kept in zstd, which the reader does not know"
        raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, text)


def not_a_replica(topic_partition: TopicPartition, params: FetchParams, *, knows_epoch: bool) -> ApiError:
    """The error for a broker that is not a follower. One that `knows_epoch`, which is the current one, may know of a
    reassignment before we do.
    """
    return ApiError(
        ErrorCode.UNKNOWN_LEADER_EPOCH if knows_epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER,
        f"broker {params.replica_id} is not a replica of {topic_partition}",
    )


def other_epoch(topic_partition: TopicPartition, requested: int, known: int) -> ApiError:
    """The error for a request in another leader epoch (KIP-320): the client is behind, or this replica is."""
    if requested < known:
        return ApiError(
            ErrorCode.FENCED_LEADER_EPOCH, f"leader epoch {requested} of {topic_partition} is older than {known}"
        )
    return ApiError(
        ErrorCode.UNKNOWN_LEADER_EPOCH, f"leader epoch {requested} of {topic_partition} is newer than {known}"
    )


def diverging_epoch(log: UnifiedLog, last_fetched_epoch: int, fetch_offset: int) -> EpochEntry | None:
    """The end of what `log` has in common with one that ends at `fetch_offset` in `last_fetched_epoch`; None when that
    is the whole of the other.

    Raises OFFSET_OUT_OF_RANGE where nothing is known of that epoch, or the offset lies before the log start.
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
"""The consumer goes on with the leader."""
LEADER_SELECTOR: Final = "org.apache.kafka.common.replica.LeaderSelector"
RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


class RackAwareReplicaSelector:
    """Sends a consumer to a replica in its own rack, where there is one that has what it asks for."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        """`image()` is the metadata of the moment: it knows the racks."""
        self._image = image

    def select(self, partition: Partition, params: FetchParams, fetch_offset: int) -> int:
        """The broker that the consumer shall ask from now on about a partition that is led here, or NO_PREFERENCE.

        It is in sync, has the offset, and has the listener by which the consumer came. Of several the one that is most
        caught up counts, then the highest id.
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
