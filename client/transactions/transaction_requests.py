"""Requests to the coordinators of a transaction, and what their answers mean for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from client.groups import GroupMetadata, OffsetAndMetadata
from protocol.errors import ApiError, ErrorCode
from protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from protocol.topic_partition import TopicPartition, by_topic

ADD_PARTITIONS_VERSION: Final = 3
"""Later versions of AddPartitionsToTxn are for brokers (KIP-890)."""

FENCED: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})
LOST_IDENTITY: Final = frozenset({ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_ID_MAPPING})
"""The producer needs another epoch or id."""
ABORTABLE: Final = frozenset(
    {
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        *LOST_IDENTITY,
    }
)
"""Answers of a coordinator after which the producer may go on; all others are fatal, unless they pass."""
ABORTABLE_FOR_PRODUCER_ID: Final = frozenset(
    {
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
)
"""The same of InitProducerId."""
FATAL_FOR_PARTITIONS: Final = frozenset(
    {*FENCED, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.INVALID_TXN_STATE}
)
"""The fatal answers of AddPartitionsToTxn."""
FATAL_FOR_BATCHES: Final = frozenset(
    {
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
"""The fatal answers of Produce."""


class Identity(NamedTuple):
    """By which a coordinator knows a transactional producer."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


def add_partitions(identity: Identity, partitions: Sequence[TopicPartition]) -> AddPartitionsToTxnRequest:
    """Partitions that are to be written to; for versions up to `ADD_PARTITIONS_VERSION`."""
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=identity.transactional_id,
        v3_and_below_producer_id=identity.producer_id,
        v3_and_below_producer_epoch=identity.producer_epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=indexes)
            for name, indexes in by_topic(partitions).items()
        ],
    )


def raise_for_partitions(answer: AddPartitionsToTxnResponse) -> None:
    """Raise the error that counts most: one that is fatal, one that will not pass, one that passes."""
    refused = {
        TopicPartition(topic.name, each.partition_index): ErrorCode.of(each.partition_error_code)
        for topic in answer.results_by_topic_v3_and_below
        for each in topic.results_by_partition
        if each.partition_error_code
    }
    _raise_worst(refused, FATAL_FOR_PARTITIONS, "Could not add partitions to transaction due to errors")


def add_offsets(identity: Identity, group: GroupMetadata) -> AddOffsetsToTxnRequest:
    """The group whose offsets are to be committed."""
    return AddOffsetsToTxnRequest(
        transactional_id=identity.transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        group_id=group.group_id,
    )


def commit_offsets(
    identity: Identity, group: GroupMetadata, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> TxnOffsetCommitRequest:
    """Offsets that count once the transaction is committed."""
    topics: defaultdict[str, list[TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition]] = defaultdict(list)
    for (topic, partition), committed in sorted(offsets.items()):
        topics[topic].append(
            TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=committed.offset,
                committed_leader_epoch=committed.leader_epoch,
                committed_metadata=committed.metadata,
            )
        )
    return TxnOffsetCommitRequest(
        transactional_id=identity.transactional_id,
        group_id=group.group_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        generation_id=group.generation,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=[
            TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=name, partitions=each)
            for name, each in topics.items()
        ],
    )


def raise_for_offsets(
    answer: TxnOffsetCommitResponse, offsets: dict[TopicPartition, OffsetAndMetadata], group: GroupMetadata
) -> None:
    """Take what was accepted out of `offsets`; raise the error of another that counts most."""
    outcomes = {
        TopicPartition(topic.name, each.partition_index): ErrorCode.of(each.error_code)
        for topic in answer.topics
        for each in topic.partitions
    }
    for partition, code in outcomes.items():
        if code == ErrorCode.NONE:
            offsets.pop(partition, None)
    refused = {partition: code for partition, code in outcomes.items() if code != ErrorCode.NONE}
    _raise_worst(refused, FENCED, f"Could not commit offsets of group '{group.group_id}' in the transaction")


def end(identity: Identity, *, commit: bool) -> EndTxnRequest:
    """The decision about the transaction."""
    return EndTxnRequest(
        transactional_id=identity.transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        committed=commit,
    )


def _raise_worst(refused: Mapping[TopicPartition, ErrorCode], fatal: Iterable[ErrorCode], what: str) -> None:
    if refused:
        # OPERATION_NOT_ATTEMPTED only says that there is another one.
        code = min(
            refused.values(),
            key=lambda each: (each not in fatal, each == ErrorCode.OPERATION_NOT_ATTEMPTED, each.retriable),
        )
        raise ApiError(code, f"{what}: {', '.join(f'{each}={code.name}' for each, code in refused.items())}")
