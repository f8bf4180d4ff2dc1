"""The state of a transactional producer, the requests to its coordinators, and the handling of their responses."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple, NoReturn

from client.batches import ProducerId
from client.errors import IllegalStateError, TransactionError
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
"""Abortable error codes of a coordinator; all others are fatal unless retriable."""
ABORTABLE_FOR_PRODUCER_ID: Final = frozenset(
    {
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
)
"""Abortable error codes of InitProducerId."""
FATAL_FOR_PARTITIONS: Final = frozenset(
    {*FENCED, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.INVALID_TXN_STATE}
)
"""Fatal error codes of AddPartitionsToTxn."""
FATAL_FOR_BATCHES: Final = frozenset(
    {
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
"""Fatal error codes of Produce."""


class ProducerIdentity(NamedTuple):
    """The identity of a transactional producer for its coordinator."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


def add_partitions(identity: ProducerIdentity, partitions: Sequence[TopicPartition]) -> AddPartitionsToTxnRequest:
    """The request that adds partitions; for versions up to `ADD_PARTITIONS_VERSION`."""
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
    """Raise the most severe error: a fatal one first, then a permanent one, then a retriable one."""
    refused = {
        TopicPartition(topic.name, each.partition_index): ErrorCode.of(each.partition_error_code)
        for topic in answer.results_by_topic_v3_and_below
        for each in topic.results_by_partition
        if each.partition_error_code
    }
    _raise_worst(refused, FATAL_FOR_PARTITIONS, "Could not add partitions to transaction due to errors")


def add_offsets(identity: ProducerIdentity, group: GroupMetadata) -> AddOffsetsToTxnRequest:
    """The request that adds the group whose offsets to commit."""
    return AddOffsetsToTxnRequest(
        transactional_id=identity.transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        group_id=group.group_id,
    )


def commit_offsets(
    identity: ProducerIdentity, group: GroupMetadata, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> TxnOffsetCommitRequest:
    """The request for offsets that take effect when the transaction commits."""
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
    """Remove accepted offsets from `offsets`, and raise the most severe error of the others."""
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


def end(identity: ProducerIdentity, *, commit: bool) -> EndTxnRequest:
    """The request that commits or aborts the transaction."""
    return EndTxnRequest(
        transactional_id=identity.transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        committed=commit,
    )


def _raise_worst(refused: Mapping[TopicPartition, ErrorCode], fatal: Iterable[ErrorCode], what: str) -> None:
    if refused:
        # OPERATION_NOT_ATTEMPTED only means that another partition failed.
        code = min(
            refused.values(),
            key=lambda each: (each not in fatal, each == ErrorCode.OPERATION_NOT_ATTEMPTED, each.retriable),
        )
        raise ApiError(code, f"{what}: {', '.join(f'{each}={code.name}' for each, code in refused.items())}")


logger = logging.getLogger("kafka.clients.Producer")


class State(Enum):
    """The states of a transactional producer, with Kafka's names."""

    UNINITIALIZED = "UNINITIALIZED"
    INITIALIZING = "INITIALIZING"
    READY = "READY"
    IN_TRANSACTION = "IN_TRANSACTION"
    COMMITTING = "COMMITTING_TRANSACTION"
    ABORTING = "ABORTING_TRANSACTION"
    ABORTABLE_ERROR = "ABORTABLE_ERROR"
    FATAL_ERROR = "FATAL_ERROR"


class TransactionManagerState:
    """The state of the producer of `transactional_id`."""

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.producer = ProducerId()
        self.state = State.UNINITIALIZED
        self.must_bump_epoch = False
        """Whether the producer needs another epoch before its next transaction."""
        self.error: TransactionError | None = None
        self.pending: asyncio.Task[None] | None = None
        """The pending call and its name, until a caller has seen its outcome."""

    def check(self, method: str, *sources: State, to: State) -> None:
        """Raises IllegalStateError or TransactionError unless the state is one of `sources`."""
        self.check_pending(method)
        self.raise_error()
        if self.state not in sources:
            raise IllegalStateError(
                f"TransactionalId {self.transactional_id}: Invalid transition attempted from state {self.state.value} "
                f"to state {to.value}"
            )

    def check_pending(self, method: str) -> None:
        """Raises IllegalStateError while a pending call must be repeated."""
        if self.pending is not None:
            raise IllegalStateError(
                f"Cannot attempt operation `{method}` because the previous call to `{self.pending.get_name()}` timed "
                "out and must be retried"
            )

    def refuse_partition(self, partition: TopicPartition) -> NoReturn:
        """Raises the reason why records may not be sent now."""
        self.check_pending("send")
        self.raise_error()
        if self.producer == ProducerId():
            raise IllegalStateError(
                f"Cannot add partition {partition} to transaction before completing a call to initTransactions"
            )
        raise IllegalStateError(f"Cannot add partition {partition} to transaction while in state  {self.state.value}")

    def raise_error(self) -> None:
        """Raises TransactionError in an error state."""
        if self.error is not None:
            cause = self.error.cause
            raise TransactionError(str(self.error), cause, is_fatal=self.error.is_fatal) from cause

    def fail(self, cause: Exception, *, is_fatal: bool) -> TransactionError:
        """Enter an error state; returns the error to raise. A fatal error is permanent."""
        if self.state is not State.FATAL_ERROR:
            message = f"Cannot execute transactional method because we are in an error state: {cause}"
            if isinstance(cause, ApiError) and cause.error_code == ErrorCode.PRODUCER_FENCED:
                message = (
                    f"Producer with transactionalId '{self.transactional_id}' and "
                    f"ProducerIdAndEpoch(producerId={self.producer.producer_id}, epoch={self.producer.epoch}) has been "
                    "fenced by another producer with the same transactionalId"
                )
            logger.info("Transaction of %s failed: %s", self.transactional_id, message)
            self.error = TransactionError(message, cause, is_fatal=is_fatal)
            self.state = State.FATAL_ERROR if is_fatal else State.ABORTABLE_ERROR
        assert self.error is not None
        return self.error

    def refused(self, error: ApiError, *, is_fatal: bool) -> TransactionError:
        """Apply a coordinator's permanent error to the state."""
        code = error.error_code
        if code in FENCED:
            error = ApiError(ErrorCode.PRODUCER_FENCED, error.message)
        self.must_bump_epoch |= code in LOST_IDENTITY
        return self.fail(error, is_fatal=is_fatal)
