"""ListOffsets and OffsetForLeaderEpoch: finding offsets by timestamp or by leader epoch."""

from __future__ import annotations

from protocol.api_keys import ApiKey
from protocol.wire.schema import Request, Response, Struct, field, int8, int16, int32, int64, string


class ListOffsetsRequest(Request, api_key=ApiKey.LIST_OFFSETS, versions="0-9"):
    """Asks for offsets by timestamp.

    Negative timestamps stand for: -1 the end, -2 the start, -3 the largest timestamp (v7, KIP-734), -4 the local start
    (v8, KIP-405), -5 the last tiered offset (v9, KIP-1005).

    - v1: one offset per partition instead of a list
    - v2: isolation level
    - v4: the reader's leader epoch, for fencing (KIP-320)
    - v6: flexible
    """

    class ListOffsetsPartition(Struct):
        """One partition, and the timestamp in ms to look for."""

        partition_index: int32
        current_leader_epoch: int32 = field("4+", default=-1, ignorable=True)
        timestamp: int64
        max_num_offsets: int32 = field("0", default=1)

    class ListOffsetsTopic(Struct):
        """The partitions of one topic."""

        name: string
        partitions: list[ListOffsetsRequest.ListOffsetsPartition]

    replica_id: int32
    isolation_level: int8 = field("2+", default=0)
    topics: list[ListOffsetsTopic]


class ListOffsetsResponse(Response, api_key=ApiKey.LIST_OFFSETS, versions="0-9"):
    """The first offset at or after each timestamp, or -1.

    - v1: one offset, with its timestamp, instead of a list
    - v2: throttle time
    - v4: the offset's leader epoch
    - v5: OFFSET_NOT_AVAILABLE may be returned
    - v6: flexible
    """

    class ListOffsetsPartitionResponse(Struct):
        """The offset found in one partition."""

        partition_index: int32
        error_code: int16
        old_style_offsets: list[int64] = field("0", default=[])
        timestamp: int64 = field("1+", default=-1)
        offset: int64 = field("1+", default=-1)
        leader_epoch: int32 = field("4+", default=-1)

    class ListOffsetsTopicResponse(Struct):
        """The partitions of one topic."""

        name: string
        partitions: list[ListOffsetsResponse.ListOffsetsPartitionResponse]

    throttle_time_ms: int32 = field("2+", default=0, ignorable=True)
    topics: list[ListOffsetsTopicResponse]


class OffsetForLeaderEpochRequest(Request, api_key=ApiKey.OFFSET_FOR_LEADER_EPOCH, versions="0-4"):
    """Leader epochs to look up the end of (KIP-101, KIP-279).

    - v2: the reader's leader epoch, for fencing (KIP-320)
    - v3: the requester: a follower's id, -1 a consumer, -2 a reader that may see beyond the high watermark
    - v4: flexible
    """

    class OffsetForLeaderPartition(Struct):
        """One partition and the epoch to look up."""

        partition: int32
        current_leader_epoch: int32 = field("2+", default=-1, ignorable=True)
        leader_epoch: int32

    class OffsetForLeaderTopic(Struct):
        """The partitions of one topic."""

        topic: string
        partitions: list[OffsetForLeaderEpochRequest.OffsetForLeaderPartition]

    replica_id: int32 = field("3+", default=-2, ignorable=True)
    topics: list[OffsetForLeaderTopic]


class OffsetForLeaderEpochResponse(Response, api_key=ApiKey.OFFSET_FOR_LEADER_EPOCH, versions="0-4"):
    """The end offsets of the epochs.

    - v1: the epoch that was found
    - v2: throttle time
    - v4: flexible
    """

    class EpochEndOffset(Struct):
        """The largest epoch not above the requested one, and its end offset; -1 and -1 if unknown."""

        error_code: int16
        partition: int32
        leader_epoch: int32 = field("1+", default=-1, ignorable=True)
        end_offset: int64 = -1

    class OffsetForLeaderTopicResult(Struct):
        """The partitions of one topic."""

        topic: string
        partitions: list[OffsetForLeaderEpochResponse.EpochEndOffset]

    throttle_time_ms: int32 = field("2+", default=0, ignorable=True)
    topics: list[OffsetForLeaderTopicResult]
