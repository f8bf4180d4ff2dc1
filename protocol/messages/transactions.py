"""The APIs of transactions (KIP-98, KIP-447, KIP-890), listing and describing them (KIP-664, KIP-994), and the records
of `__transaction_state`.

Keys and values there are prefixed with an int16 version: see `encode_versioned`. A null value deletes the transactional
id in the key.
"""

from __future__ import annotations

from protocol.api_keys import ApiKey
from protocol.wire.schema import (
    Message,
    Request,
    Response,
    Struct,
    boolean,
    field,
    int8,
    int16,
    int32,
    int64,
    nullable_string,
    string,
)


class AddPartitionsToTxnRequest(Request, api_key=ApiKey.ADD_PARTITIONS_TO_TXN, versions="0-5"):
    """Partitions to add to a producer's transaction before it writes to them. Clients send up to v3, brokers later
    versions.

    - v2: PRODUCER_FENCED may be returned (KIP-588)
    - v3: flexible
    - v4: several transactions at once, and verification of partitions already added (KIP-890)
    - v5: TRANSACTION_ABORTABLE may be returned (KIP-890)
    """

    class AddPartitionsToTxnTopic(Struct):
        """The partitions of one topic."""

        name: string
        partitions: list[int32]

    class AddPartitionsToTxnTransaction(Struct):
        """One transaction; `verify_only` adds nothing."""

        transactional_id: string
        producer_id: int64
        producer_epoch: int16
        verify_only: boolean = False
        topics: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]

    transactions: list[AddPartitionsToTxnTransaction] = field("4+", default=[])
    v3_and_below_transactional_id: string = field("0-3", default="")
    v3_and_below_producer_id: int64 = field("0-3", default=0)
    v3_and_below_producer_epoch: int16 = field("0-3", default=0)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = field("0-3", default=[])


class AddPartitionsToTxnResponse(Response, api_key=ApiKey.ADD_PARTITIONS_TO_TXN, versions="0-5"):
    """The outcome per partition.

    - v3: flexible
    - v4: per transaction, with an error for all of them
    """

    class AddPartitionsToTxnPartitionResult(Struct):
        """The outcome for one partition."""

        partition_index: int32
        partition_error_code: int16

    class AddPartitionsToTxnTopicResult(Struct):
        """The partitions of one topic."""

        name: string
        results_by_partition: list[AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult]

    class AddPartitionsToTxnResult(Struct):
        """The outcome for one transaction."""

        transactional_id: string
        topic_results: list[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult]

    throttle_time_ms: int32
    error_code: int16 = field("4+", default=0, ignorable=True)
    results_by_transaction: list[AddPartitionsToTxnResult] = field("4+", default=[])
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = field("0-3", default=[])


class AddOffsetsToTxnRequest(Request, api_key=ApiKey.ADD_OFFSETS_TO_TXN, versions="0-4"):
    """A group to add to a producer's transaction before the producer commits its offsets.

    - v2: PRODUCER_FENCED may be returned (KIP-588)
    - v3: flexible
    - v4: TRANSACTION_ABORTABLE may be returned (KIP-890)
    """

    transactional_id: string
    producer_id: int64
    producer_epoch: int16
    group_id: string


class AddOffsetsToTxnResponse(Response, api_key=ApiKey.ADD_OFFSETS_TO_TXN, versions="0-4"):
    """The outcome.

    - v3: flexible
    """

    throttle_time_ms: int32
    error_code: int16


class EndTxnRequest(Request, api_key=ApiKey.END_TXN, versions="0-4"):
    """Commits a transaction, or aborts it.

    - v2: PRODUCER_FENCED may be returned (KIP-588)
    - v3: flexible
    - v4: TRANSACTION_ABORTABLE may be returned (KIP-890)
    """

    transactional_id: string
    producer_id: int64
    producer_epoch: int16
    committed: boolean


class EndTxnResponse(Response, api_key=ApiKey.END_TXN, versions="0-4"):
    """The outcome. Without an error the decision is durable; the markers follow.

    - v3: flexible
    """

    throttle_time_ms: int32
    error_code: int16


class WriteTxnMarkersRequest(Request, api_key=ApiKey.WRITE_TXN_MARKERS, versions="0-1"):
    """Markers that the partition leaders must write for a transaction coordinator.

    - v1: flexible
    """

    class WritableTxnMarkerTopic(Struct):
        """The partitions of one topic."""

        name: string
        partition_indexes: list[int32]

    class WritableTxnMarker(Struct):
        """The end of one transaction: a commit if `transaction_result`, otherwise an abort."""

        producer_id: int64
        producer_epoch: int16
        transaction_result: boolean
        topics: list[WriteTxnMarkersRequest.WritableTxnMarkerTopic]
        coordinator_epoch: int32

    markers: list[WritableTxnMarker]


class WriteTxnMarkersResponse(Response, api_key=ApiKey.WRITE_TXN_MARKERS, versions="0-1"):
    """The outcome for each producer and partition.

    - v1: flexible
    """

    class WritableTxnMarkerPartitionResult(Struct):
        """The outcome for one partition."""

        partition_index: int32
        error_code: int16

    class WritableTxnMarkerTopicResult(Struct):
        """The partitions of one topic."""

        name: string
        partitions: list[WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult]

    class WritableTxnMarkerResult(Struct):
        """The outcome for one producer."""

        producer_id: int64
        topics: list[WriteTxnMarkersResponse.WritableTxnMarkerTopicResult]

    markers: list[WritableTxnMarkerResult]


class TxnOffsetCommitRequest(Request, api_key=ApiKey.TXN_OFFSET_COMMIT, versions="0-4"):
    """Offsets of a group that take effect when the producer's transaction commits.

    - v2: leader epochs (KIP-320)
    - v3: flexible; the member of the group, so that a zombie is fenced (KIP-447)
    - v4: TRANSACTION_ABORTABLE may be returned (KIP-890)
    """

    class TxnOffsetCommitRequestPartition(Struct):
        """The offset of the next record to read, and the client's metadata."""

        partition_index: int32
        committed_offset: int64
        committed_leader_epoch: int32 = field("2+", default=-1, ignorable=True)
        committed_metadata: nullable_string

    class TxnOffsetCommitRequestTopic(Struct):
        """The partitions of one topic."""

        name: string
        partitions: list[TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition]

    transactional_id: string
    group_id: string
    producer_id: int64
    producer_epoch: int16
    generation_id: int32 = field("3+", default=-1)
    member_id: string = field("3+", default="")
    group_instance_id: nullable_string = field("3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic]


class TxnOffsetCommitResponse(Response, api_key=ApiKey.TXN_OFFSET_COMMIT, versions="0-4"):
    """The outcome per partition.

    - v3: flexible; ILLEGAL_GENERATION, FENCED_INSTANCE_ID and UNKNOWN_MEMBER_ID may be returned
    """

    class TxnOffsetCommitResponsePartition(Struct):
        """The outcome for one partition."""

        partition_index: int32
        error_code: int16

    class TxnOffsetCommitResponseTopic(Struct):
        """The partitions of one topic."""

        name: string
        partitions: list[TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition]

    throttle_time_ms: int32
    topics: list[TxnOffsetCommitResponseTopic]


class DescribeTransactionsRequest(Request, api_key=ApiKey.DESCRIBE_TRANSACTIONS, versions="0"):
    """The transactional ids to describe."""

    transactional_ids: list[string]


class DescribeTransactionsResponse(Response, api_key=ApiKey.DESCRIBE_TRANSACTIONS, versions="0"):
    """The transactional ids, each with its own error."""

    class TopicData(Struct):
        """The partitions of one topic."""

        topic: string
        partitions: list[int32]

    class TransactionState(Struct):
        """One transactional id. `topics` are those of the open transaction; while it completes, those still without a
        marker.
        """

        error_code: int16
        transactional_id: string
        transaction_state: string
        transaction_timeout_ms: int32
        transaction_start_time_ms: int64
        producer_id: int64
        producer_epoch: int16
        topics: list[DescribeTransactionsResponse.TopicData]

    throttle_time_ms: int32
    transaction_states: list[TransactionState]


class ListTransactionsRequest(Request, api_key=ApiKey.LIST_TRANSACTIONS, versions="0-1"):
    """Filters for transactional ids; an empty filter matches all.

    - v1: only transactions open for longer than this many milliseconds (KIP-994)
    """

    state_filters: list[string]
    producer_id_filters: list[int64]
    duration_filter: int64 = field("1+", default=-1)


class ListTransactionsResponse(Response, api_key=ApiKey.LIST_TRANSACTIONS, versions="0-1"):
    """The transactional ids that this broker coordinates."""

    class TransactionState(Struct):
        """One transactional id."""

        transactional_id: string
        producer_id: int64
        transaction_state: string

    throttle_time_ms: int32
    error_code: int16
    unknown_state_filters: list[string]
    transaction_states: list[TransactionState]


class TransactionLogKey(Message, versions="0"):
    """The transactional id of the value."""

    transactional_id: string


class TransactionLogValue(Message, versions="0-1", flexible="1+"):
    """Producer and state of a transactional id; v1, flexible, is written only with transactions v2 (KIP-890)."""

    class PartitionsSchema(Struct):
        """Partitions of one topic that take part in the transaction."""

        topic: string
        partition_ids: list[int32]

    producer_id: int64
    producer_epoch: int16
    transaction_timeout_ms: int32
    transaction_status: int8
    transaction_partitions: list[PartitionsSchema] | None = None
    transaction_last_update_timestamp_ms: int64
    transaction_start_timestamp_ms: int64
