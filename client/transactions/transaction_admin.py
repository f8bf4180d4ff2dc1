"""Administration of transactions: list, describe, and abort one that hangs in a partition (KIP-664).

Error messages are those of Kafka's class `KafkaAdminClient`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from client.admin import ask_leaders
from client.errors import UnsupportedVersionError
from client.kafka_client import CoordinatorType, KafkaClient
from protocol.errors import ApiError, ErrorCode, detached
from protocol.messages.producer_ids import DescribeProducersRequest, DescribeProducersResponse
from protocol.messages.transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from protocol.topic_partition import TopicPartition, by_topic

ListedTransaction = ListTransactionsResponse.TransactionState
ProducerState = DescribeProducersResponse.ProducerState
Producers = dict[TopicPartition, list[ProducerState] | ApiError]

_DURATION_VERSION = 1


class DescribedTransaction(NamedTuple):
    """A transactional id. `start_ms` is -1 without a transaction; `partitions` are those without a marker yet."""

    coordinator: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_ms: int
    partitions: list[TopicPartition]


class OpenTransaction(NamedTuple):
    """A transaction in the producer state of a partition's leader (Kafka class `AbortTransactionSpec`)."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int

    def __str__(self) -> str:
        return (
            f"AbortTransactionSpec(topicPartition={self.partition}, producerId={self.producer_id}, "
            f"producerEpoch={self.producer_epoch}, coordinatorEpoch={self.coordinator_epoch})"
        )


async def list_transactions(
    client: KafkaClient, *, producer_ids: Sequence[int] = (), duration_ms: int = -1
) -> dict[int, list[ListedTransaction]]:
    """The transactional ids by coordinating broker.

    Filtered by `producer_ids`, if given, and by transactions open for longer than `duration_ms`, unless negative.
    Raises ApiError, and UnsupportedVersionError if a broker does not support durations.
    """

    async def ask(node_id: int) -> list[ListedTransaction]:
        async def attempt() -> list[ListedTransaction]:
            connection = await client.node_connection(node_id)
            if duration_ms >= 0 and connection.version_of(ListTransactionsRequest) < _DURATION_VERSION:
                raise UnsupportedVersionError(
                    "Duration filter can be set only when using API version 1 or higher. If client is connected to an "
                    "older broker, do not specify duration filter or set duration filter to -1."
                )
            request = ListTransactionsRequest(
                state_filters=[], producer_id_filters=list(producer_ids), duration_filter=max(duration_ms, -1)
            )
            answer = await connection.ask(request, ListTransactionsResponse)
            if answer.error_code:
                code = ErrorCode.of(answer.error_code)
                raise ApiError(code, f"ListTransactions request sent to broker {node_id} failed: {code.name}")
            return answer.transaction_states

        return await client.retry("listTransactions", attempt)

    nodes = sorted((await client.describe_topics([])).nodes)
    return dict(zip(nodes, await asyncio.gather(*map(ask, nodes)), strict=True))


async def describe_transaction(client: KafkaClient, transactional_id: str) -> DescribedTransaction:
    """Describe a transactional id. Raises ApiError, such as TRANSACTIONAL_ID_NOT_FOUND."""

    async def attempt() -> DescribedTransaction:
        node_id = await client.find_coordinator(transactional_id, CoordinatorType.TRANSACTION)
        connection = await client.node_connection(node_id)
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        (found,) = (await connection.ask(request, DescribeTransactionsResponse)).transaction_states
        if found.error_code:
            code = ErrorCode.of(found.error_code)
            why = _DESCRIBE_REFUSALS.get(code, "due to unexpected error")
            raise ApiError(code, f"DescribeTransactions request for transactionalId `{transactional_id}` failed {why}")
        return DescribedTransaction(
            node_id,
            found.producer_id,
            found.producer_epoch,
            found.transaction_state,
            found.transaction_timeout_ms,
            found.transaction_start_time_ms,
            [TopicPartition(topic.topic, each) for topic in found.topics for each in topic.partitions],
        )

    return await client.retry("describeTransactions", attempt)


_DESCRIBE_REFUSALS = {
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "due to authorization failure",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "because the ID could not be found",
}


async def describe_producers(
    client: KafkaClient, partitions: Iterable[TopicPartition], broker_id: int | None = None
) -> Producers:
    """The producers in the state of each partition's leader, or of one broker's replicas."""
    wanted = list(partitions)

    async def ask(node_id: int, group: list[TopicPartition]) -> Producers:
        request = DescribeProducersRequest(
            topics=[
                DescribeProducersRequest.TopicRequest(name=name, partition_indexes=indexes)
                for name, indexes in by_topic(group).items()
            ]
        )
        answer = await (await client.node_connection(node_id)).ask(request, DescribeProducersResponse)
        return {
            (partition := TopicPartition(topic.name, each.partition_index)): _describe_refusal(
                partition, ErrorCode.of(each.error_code), broker_id
            )
            if each.error_code
            else each.active_producers
            for topic in answer.topics
            for each in topic.partitions
        }

    if broker_id is None:
        return await ask_leaders(client, "describeProducers", wanted, ask)
    return await client.retry("describeProducers", lambda: ask(broker_id, wanted))


def _describe_refusal(partition: TopicPartition, code: ErrorCode, broker_id: int | None) -> ApiError:
    what = f"Failed to describe active producers for partition {partition}"
    if code == ErrorCode.NOT_LEADER_OR_FOLLOWER and broker_id is not None:
        return ApiError(code, f"{what} on brokerId {broker_id}")
    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return ApiError(code, f"{what} due to authorization failure on topic `{partition.topic}`")
    return ApiError(code, "" if code.retriable else f"{what} due to unexpected error")


async def abort_transaction(client: KafkaClient, transaction: OpenTransaction) -> None:
    """Write an abort marker to one partition, without the transaction coordinator. Raises ApiError."""
    partition = transaction.partition
    request = WriteTxnMarkersRequest(
        markers=[
            WriteTxnMarkersRequest.WritableTxnMarker(
                producer_id=transaction.producer_id,
                producer_epoch=transaction.producer_epoch,
                transaction_result=False,
                topics=[
                    WriteTxnMarkersRequest.WritableTxnMarkerTopic(
                        name=partition.topic, partition_indexes=[partition.partition]
                    )
                ],
                coordinator_epoch=transaction.coordinator_epoch,
            )
        ]
    )

    async def ask(leader: int, _: list[TopicPartition]) -> dict[TopicPartition, ApiError | None]:
        answer = await (await client.node_connection(leader)).ask(request, WriteTxnMarkersResponse)
        code = ErrorCode.of(answer.markers[0].topics[0].partitions[0].error_code)
        return {partition: None if code == ErrorCode.NONE else _abort_refusal(transaction, code)}

    refused = (await ask_leaders(client, "abortTransaction", [partition], ask))[partition]
    if refused is not None:
        raise detached(refused)


def _abort_refusal(transaction: OpenTransaction, code: ErrorCode) -> ApiError:
    why = {
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "due to cluster authorization error",
        ErrorCode.INVALID_PRODUCER_EPOCH: "due an invalid producer epoch",
        ErrorCode.TRANSACTION_COORDINATOR_FENCED: (
            f"since the provided coordinator epoch {transaction.coordinator_epoch} has been fenced by the active "
            "coordinator"
        ),
    }
    return ApiError(code, f"WriteTxnMarkers request with {transaction} failed {why.get(code, f'due to {code.name}')}")
