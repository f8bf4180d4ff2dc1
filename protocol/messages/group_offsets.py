"""OffsetCommit, OffsetFetch and OffsetDelete: the committed offsets of a group."""

from __future__ import annotations

from protocol.api_keys import ApiKey
from protocol.wire.schema import Request, Response, Struct, boolean, field, int16, int32, int64, nullable_string, string


class OffsetCommitRequest(Request, api_key=ApiKey.OFFSET_COMMIT, versions="0-9"):
    """Offsets to commit for a group.

    - v1: generation and member, and a time per partition that v2 dropped again
    - v2: how long to keep the offsets, until v4
    - v6: leader epochs (KIP-320)
    - v7: static members (KIP-345)
    - v8: flexible
    - v9: member epochs of the consumer protocol instead of generations (KIP-848)
    """

    class OffsetCommitRequestPartition(Struct):
        """The offset of the next record to read, and the client's metadata."""

        partition_index: int32
        committed_offset: int64
        committed_leader_epoch: int32 = field("6+", default=-1, ignorable=True)
        commit_timestamp: int64 = field("1", default=-1)
        committed_metadata: nullable_string

    class OffsetCommitRequestTopic(Struct):
        """The partitions of one topic."""

        name: string
        partitions: list[OffsetCommitRequest.OffsetCommitRequestPartition]

    group_id: string
    generation_id_or_member_epoch: int32 = field("1+", default=-1, ignorable=True)
    member_id: string = field("1+", default="", ignorable=True)
    group_instance_id: nullable_string = field("7+", default=None)
    retention_time_ms: int64 = field("2-4", default=-1, ignorable=True)
    topics: list[OffsetCommitRequestTopic]


class OffsetCommitResponse(Response, api_key=ApiKey.OFFSET_COMMIT, versions="0-9"):
    """The outcome per partition.

    - v3: throttle time
    - v8: flexible
    - v9: STALE_MEMBER_EPOCH and GROUP_ID_NOT_FOUND may be returned (KIP-848)
    """

    class OffsetCommitResponsePartition(Struct):
        """The outcome for one partition."""

        partition_index: int32
        error_code: int16

    class OffsetCommitResponseTopic(Struct):
        """The partitions of one topic."""

        name: string
        partitions: list[OffsetCommitResponse.OffsetCommitResponsePartition]

    throttle_time_ms: int32 = field("3+", default=0, ignorable=True)
    topics: list[OffsetCommitResponseTopic]


class OffsetFetchRequest(Request, api_key=ApiKey.OFFSET_FETCH, versions="0-9"):
    """Asks for committed offsets; null topics mean all offsets of the group.

    - v2: null topics
    - v6: flexible
    - v7: whether to wait for pending transactions (KIP-447)
    - v8: several groups at once (KIP-709)
    - v9: member and epoch of the consumer protocol (KIP-848)
    """

    class OffsetFetchRequestTopic(Struct):
        """The partitions of one topic, up to v7."""

        name: string
        partition_indexes: list[int32]

    class OffsetFetchRequestTopics(Struct):
        """The partitions of one topic, from v8 on."""

        name: string
        partition_indexes: list[int32]

    class OffsetFetchRequestGroup(Struct):
        """One group."""

        group_id: string
        member_id: nullable_string = field("9+", default=None, ignorable=True)
        member_epoch: int32 = field("9+", default=-1, ignorable=True)
        topics: list[OffsetFetchRequest.OffsetFetchRequestTopics] | None

    group_id: string = field("0-7", default="")
    topics: list[OffsetFetchRequestTopic] | None = field("0-7", nullable="2-7", default=[])
    groups: list[OffsetFetchRequestGroup] = field("8+", default=[])
    require_stable: boolean = field("7+", default=False)


class OffsetFetchResponse(Response, api_key=ApiKey.OFFSET_FETCH, versions="0-9"):
    """Committed offsets; -1 without an error if the partition has none.

    - v2: an error for the whole group
    - v3: throttle time
    - v5: leader epochs (KIP-320)
    - v6: flexible
    - v7: UNSTABLE_OFFSET_COMMIT may be returned (KIP-447)
    - v8: several groups (KIP-709)
    """

    class OffsetFetchResponsePartition(Struct):
        """One partition, up to v7."""

        partition_index: int32
        committed_offset: int64
        committed_leader_epoch: int32 = field("5-7", default=-1, ignorable=True)
        metadata: nullable_string
        error_code: int16

    class OffsetFetchResponseTopic(Struct):
        """The partitions of one topic, up to v7."""

        name: string
        partitions: list[OffsetFetchResponse.OffsetFetchResponsePartition]

    class OffsetFetchResponsePartitions(Struct):
        """One partition, from v8 on."""

        partition_index: int32
        committed_offset: int64
        committed_leader_epoch: int32 = -1
        metadata: nullable_string
        error_code: int16

    class OffsetFetchResponseTopics(Struct):
        """The partitions of one topic, from v8 on."""

        name: string
        partitions: list[OffsetFetchResponse.OffsetFetchResponsePartitions]

    class OffsetFetchResponseGroup(Struct):
        """One group."""

        group_id: string
        topics: list[OffsetFetchResponse.OffsetFetchResponseTopics]
        error_code: int16 = 0

    throttle_time_ms: int32 = field("3+", default=0, ignorable=True)
    topics: list[OffsetFetchResponseTopic] = field("0-7", default=[])
    error_code: int16 = field("2-7", default=0, ignorable=True)
    groups: list[OffsetFetchResponseGroup] = field("8+", default=[])


class OffsetDeleteRequest(Request, api_key=ApiKey.OFFSET_DELETE, versions="0"):
    """Committed offsets to delete (KIP-496)."""

    class OffsetDeleteRequestPartition(Struct):
        """One partition."""

        partition_index: int32

    class OffsetDeleteRequestTopic(Struct):
        """The partitions of one topic."""

        name: string
        partitions: list[OffsetDeleteRequest.OffsetDeleteRequestPartition]

    group_id: string
    topics: list[OffsetDeleteRequestTopic]


class OffsetDeleteResponse(Response, api_key=ApiKey.OFFSET_DELETE, versions="0"):
    """The outcome per partition; GROUP_SUBSCRIBED_TO_TOPIC while the group reads the topic."""

    class OffsetDeleteResponsePartition(Struct):
        """The outcome for one partition."""

        partition_index: int32
        error_code: int16

    class OffsetDeleteResponseTopic(Struct):
        """The partitions of one topic."""

        name: string
        partitions: list[OffsetDeleteResponse.OffsetDeleteResponsePartition]

    error_code: int16
    throttle_time_ms: int32
    topics: list[OffsetDeleteResponseTopic]
