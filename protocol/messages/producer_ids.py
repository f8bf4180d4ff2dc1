"""Producers by their ids: InitProducerId assigns the id of an idempotent or transactional producer (KIP-98, KIP-360),
DescribeProducers lists the producers of a partition (KIP-664).
"""

from __future__ import annotations

from protocol.api_keys import ApiKey
from protocol.wire.schema import Request, Response, Struct, field, int16, int32, int64, nullable_string, string


class InitProducerIdRequest(Request, api_key=ApiKey.INIT_PRODUCER_ID, versions="0-5"):
    """Asks for a producer id and epoch; the transactional id is null for a producer that is only idempotent.

    - v2: flexible
    - v3: the current id and epoch, to continue with a higher epoch (KIP-360)
    - v4: PRODUCER_FENCED may be returned (KIP-588)
    - v5: TRANSACTION_ABORTABLE may be returned (KIP-890)
    """

    transactional_id: nullable_string
    transaction_timeout_ms: int32
    producer_id: int64 = field("3+", default=-1)
    producer_epoch: int16 = field("3+", default=-1)


class InitProducerIdResponse(Response, api_key=ApiKey.INIT_PRODUCER_ID, versions="0-5"):
    """The producer id and epoch; id -1 with an error.

    - v2: flexible
    """

    throttle_time_ms: int32
    error_code: int16
    producer_id: int64 = -1
    producer_epoch: int16


class DescribeProducersRequest(Request, api_key=ApiKey.DESCRIBE_PRODUCERS, versions="0"):
    """The partitions whose producers to describe."""

    class TopicRequest(Struct):
        """The partitions of one topic."""

        name: string
        partition_indexes: list[int32]

    topics: list[TopicRequest]


class DescribeProducersResponse(Response, api_key=ApiKey.DESCRIBE_PRODUCERS, versions="0"):
    """The producers in the state of this broker's replicas."""

    class ProducerState(Struct):
        """One producer; missing values are -1. `current_txn_start_offset` is the first offset of its open
        transaction.
        """

        producer_id: int64
        producer_epoch: int32
        last_sequence: int32 = field(default=-1)
        last_timestamp: int64 = field(default=-1)
        coordinator_epoch: int32
        current_txn_start_offset: int64 = field(default=-1)

    class PartitionResponse(Struct):
        """One partition."""

        partition_index: int32
        error_code: int16
        error_message: nullable_string = field(default=None)
        active_producers: list[DescribeProducersResponse.ProducerState]

    class TopicResponse(Struct):
        """The partitions of one topic."""

        name: string
        partitions: list[DescribeProducersResponse.PartitionResponse]

    throttle_time_ms: int32
    topics: list[TopicResponse]
