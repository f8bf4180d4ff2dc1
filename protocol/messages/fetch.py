"""Fetch: read record batches, as a consumer or as a follower."""

from __future__ import annotations

from protocol.api_keys import ApiKey
from protocol.uuids import ZERO_UUID
from protocol.wire.schema import (
    Request,
    Response,
    Struct,
    field,
    int8,
    int16,
    int32,
    int64,
    nullable_records,
    nullable_string,
    string,
    uuid,
)


class FetchRequest(Request, api_key=ApiKey.FETCH, versions="0-17"):
    """Partitions and offsets to read from; `max_bytes` is used up in the order of the partitions.

    - v3: a limit for the whole response, which the first batch may exceed (KIP-74)
    - v4: isolation level: 0 read uncommitted, 1 read committed
    - v5: the follower's log start offset
    - v7: sessions, so that only changes are sent (KIP-227)
    - v9: the reader's leader epoch, for fencing (KIP-320)
    - v11: rack, so that the broker can choose a closer replica (KIP-392)
    - v12: flexible; the last fetched epoch, so that divergence is found at once (KIP-595)
    - v13: topic ids instead of names (KIP-516)
    - v15: replica state instead of replica id (KIP-903)
    - v17: the follower's log directory (KIP-853)
    """

    class ReplicaState(Struct):
        """Id and broker epoch of the follower; -1 for a consumer."""

        replica_id: int32 = -1
        replica_epoch: int64 = -1

    class FetchPartition(Struct):
        """One partition to read. An epoch of -1 is not checked."""

        partition: int32
        current_leader_epoch: int32 = field("9+", default=-1, ignorable=True)
        fetch_offset: int64
        last_fetched_epoch: int32 = field("12+", default=-1)
        log_start_offset: int64 = field("5+", default=-1, ignorable=True)
        partition_max_bytes: int32
        replica_directory_id: uuid = field("17+", tag=0, default=ZERO_UUID, ignorable=True)

    class FetchTopic(Struct):
        """The partitions of one topic."""

        topic: string = field("0-12", default="", ignorable=True)
        topic_id: uuid = field("13+", default=ZERO_UUID, ignorable=True)
        partitions: list[FetchRequest.FetchPartition]

    class ForgottenTopic(Struct):
        """Partitions to drop from the session."""

        topic: string = field("7-12", default="", ignorable=True)
        topic_id: uuid = field("13+", default=ZERO_UUID, ignorable=True)
        partitions: list[int32]

    cluster_id: nullable_string = field("12+", tag=0, default=None, ignorable=True)
    replica_id: int32 = field("0-14", default=-1)
    replica_state: ReplicaState | None = field("15+", tag=1, default=None)
    max_wait_ms: int32
    min_bytes: int32
    max_bytes: int32 = field("3+", default=0x7FFFFFFF, ignorable=True)
    isolation_level: int8 = field("4+", default=0, ignorable=True)
    session_id: int32 = field("7+", default=0, ignorable=True)
    session_epoch: int32 = field("7+", default=-1, ignorable=True)
    topics: list[FetchTopic]
    forgotten_topics_data: list[ForgottenTopic] = field("7+", default=[])
    rack_id: string = field("11+", default="", ignorable=True)


class FetchResponse(Response, api_key=ApiKey.FETCH, versions="0-17"):
    """Batches; the first one may begin before the requested offset.

    - v1: throttle time
    - v4: last stable offset and aborted transactions
    - v5: log start offset
    - v7: session id and an error for the whole request (KIP-227)
    - v11: the preferred replica for this consumer (KIP-392); -1 for none
    - v12: flexible; divergence, current leader and snapshot as tagged fields (KIP-595)
    - v13: topic ids instead of names (KIP-516)
    - v16: addresses of new leaders (KIP-951)
    """

    class EpochEndOffset(Struct):
        """Epoch and end offset of the divergence between leader and follower."""

        epoch: int32 = -1
        end_offset: int64 = -1

    class LeaderIdAndEpoch(Struct):
        """The leader known to the broker."""

        leader_id: int32 = -1
        leader_epoch: int32 = -1

    class SnapshotId(Struct):
        """A snapshot to load instead; KRaft only."""

        end_offset: int64 = -1
        epoch: int32 = -1

    class AbortedTransaction(Struct):
        """The consumer must skip records of `producer_id` from `first_offset` to its next ABORT marker."""

        producer_id: int64
        first_offset: int64

    class PartitionData(Struct):
        """The data read from one partition. `aborted_transactions` is null for read uncommitted."""

        partition_index: int32
        error_code: int16
        high_watermark: int64
        last_stable_offset: int64 = field("4+", default=-1, ignorable=True)
        log_start_offset: int64 = field("5+", default=-1, ignorable=True)
        diverging_epoch: FetchResponse.EpochEndOffset | None = field("12+", tag=0, default=None)
        current_leader: FetchResponse.LeaderIdAndEpoch | None = field("12+", tag=1, default=None)
        snapshot_id: FetchResponse.SnapshotId | None = field("12+", tag=2, default=None)
        aborted_transactions: list[FetchResponse.AbortedTransaction] | None = field("4+", default=[], ignorable=True)
        preferred_read_replica: int32 = field("11+", default=-1)
        records: nullable_records

    class FetchableTopicResponse(Struct):
        """The partitions of one topic."""

        topic: string = field("0-12", default="", ignorable=True)
        topic_id: uuid = field("13+", default=ZERO_UUID, ignorable=True)
        partitions: list[FetchResponse.PartitionData]

    class NodeEndpoint(Struct):
        """The address of a leader named in `current_leader`."""

        node_id: int32
        host: string
        port: int32
        rack: nullable_string = None

    throttle_time_ms: int32 = field("1+", default=0, ignorable=True)
    error_code: int16 = field("7+", default=0, ignorable=True)
    session_id: int32 = field("7+", default=0)
    responses: list[FetchableTopicResponse]
    node_endpoints: list[NodeEndpoint] = field("16+", tag=0, default=[])
