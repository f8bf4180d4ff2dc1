"""Reads of a partition: parameters and results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum

from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from protocol.value import Value
from storage.log.leader_epoch import EpochEntry
from storage.log.log_reader import FetchDataInfo
from storage.segment.transaction_index import AbortedTxn


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
    its registration if it knows it; both are -1 for a consumer. A follower reads up to the log end.
    """

    isolation: IsolationLevel
    reads_zstd: bool
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    replica_id: int = -1
    replica_epoch: int = -1


class LogReadInfo(Value, frozen=False):
    """The result of reading one partition. The offsets are of one moment, so that they agree.

    `records` is None when there is nothing to read. `aborted` is None for a reader of uncommitted records. With a
    `diverging_epoch` the reader has to truncate its log: the largest epoch that both know, and where it ends.
    `cold` is set when the disk would have had to be waited for: to be called on another thread before the next try.
    """

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records: FetchDataInfo | None = None
    aborted: Sequence[AbortedTxn] | None = None
    diverging_epoch: EpochEntry | None = None
    cold: Callable[[], object] | None = None

    @property
    def size(self) -> int:
        """Bytes of records."""
        return 0 if self.records is None else self.records.size


def other_epoch(topic_partition: TopicPartition, requested: int, known: int) -> ApiError:
    """The error for a request in another leader epoch (KIP-320): the client is behind, or this replica is."""
    if requested < known:
        return ApiError(
            ErrorCode.FENCED_LEADER_EPOCH, f"leader epoch {requested} of {topic_partition} is older than {known}"
        )
    return ApiError(
        ErrorCode.UNKNOWN_LEADER_EPOCH, f"leader epoch {requested} of {topic_partition} is newer than {known}"
    )
