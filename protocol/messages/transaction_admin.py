"""DescribeTransactions and ListTransactions: what the transaction coordinators know (KIP-664, KIP-994)."""

from __future__ import annotations

from protocol.api_keys import ApiKey
from protocol.wire.schema import Request, Response, Struct, field, int16, int32, int64, string


class DescribeTransactionsRequest(Request, api_key=ApiKey.DESCRIBE_TRANSACTIONS, versions="0", flexible="0+"):
    """The transactional ids to describe."""

    transactional_ids: list[string]


class DescribeTransactionsResponse(Response, api_key=ApiKey.DESCRIBE_TRANSACTIONS, versions="0", flexible="0+"):
    """The transactional ids, each with its own error."""

    class TopicData(Struct):
        """The partitions of one topic."""

        topic: string
        partitions: list[int32]

    class TransactionState(Struct):
        """One transactional id. `topics` are those of the open transaction; while it ends, those without a marker."""

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


class ListTransactionsRequest(Request, api_key=ApiKey.LIST_TRANSACTIONS, versions="0-1", flexible="0+"):
    """Which transactional ids to list; an empty filter lets all pass.

    - v1: only transactions that have been open for longer than so many milliseconds (KIP-994)
    """

    state_filters: list[string]
    producer_id_filters: list[int64]
    duration_filter: int64 = field("1+", default=-1)


class ListTransactionsResponse(Response, api_key=ApiKey.LIST_TRANSACTIONS, versions="0-1", flexible="0+"):
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
