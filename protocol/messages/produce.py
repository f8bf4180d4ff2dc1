"""Produce: append record batches to partitions."""

from __future__ import annotations

from protocol.api_keys import ApiKey
from protocol.wire.schema import (
    Request,
    Response,
    Struct,
    field,
    int16,
    int32,
    int64,
    nullable_records,
    nullable_string,
    string,
)


class ProduceRequest(Request, api_key=ApiKey.PRODUCE, versions="0-11"):
    """Batches for partitions that this broker leads.

    - v3: transactional id; record format v2 is required from here on
    - v7: zstd is allowed (KIP-110)
    - v9: flexible
    - v11: the producer understands TRANSACTION_ABORTABLE (KIP-890)

    `acks` is 0 (send no response), 1 (leader only) or -1 (all in-sync replicas).
    """

    class PartitionProduceData(Struct):
        """Exactly one batch for one partition, from v3 on."""

        index: int32
        records: nullable_records

    class TopicProduceData(Struct):
        """The partitions of one topic."""

        name: string
        partition_data: list[ProduceRequest.PartitionProduceData]

    transactional_id: nullable_string = field("3+", default=None)
    acks: int16
    timeout_ms: int32
    topic_data: list[TopicProduceData]


class ProduceResponse(Response, api_key=ApiKey.PRODUCE, versions="0-11"):
    """The offsets of the batches, or errors.

    - v1: throttle time
    - v2: log append time, -1 unless the topic uses LogAppendTime
    - v5: log start offset
    - v8: the invalid records of a batch (KIP-467)
    - v9: flexible
    - v10: the new leader and its address along with NOT_LEADER_OR_FOLLOWER (KIP-951)
    """

    class BatchIndexAndErrorMessage(Struct):
        """An invalid record, by its index in the batch."""

        batch_index: int32
        batch_index_error_message: nullable_string = None

    class LeaderIdAndEpoch(Struct):
        """The leader known to the broker."""

        leader_id: int32 = -1
        leader_epoch: int32 = -1

    class PartitionProduceResponse(Struct):
        """The outcome for one partition; `base_offset` is -1 when nothing was appended."""

        index: int32
        error_code: int16
        base_offset: int64
        log_append_time_ms: int64 = field("2+", default=-1, ignorable=True)
        log_start_offset: int64 = field("5+", default=-1, ignorable=True)
        record_errors: list[ProduceResponse.BatchIndexAndErrorMessage] = field("8+", default=[], ignorable=True)
        error_message: nullable_string = field("8+", default=None, ignorable=True)
        current_leader: ProduceResponse.LeaderIdAndEpoch | None = field("10+", tag=0, default=None)

    class TopicProduceResponse(Struct):
        """The partitions of one topic."""

        name: string
        partition_responses: list[ProduceResponse.PartitionProduceResponse]

    class NodeEndpoint(Struct):
        """The address of a leader named in `current_leader`."""

        node_id: int32
        host: string
        port: int32
        rack: nullable_string = None

    responses: list[TopicProduceResponse]
    throttle_time_ms: int32 = field("1+", default=0, ignorable=True)
    node_endpoints: list[NodeEndpoint] = field("10+", tag=0, default=[])
