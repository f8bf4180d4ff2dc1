"""The transactional ids of one shard, and the only way to change them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from cluster.coordinators.deadlines import Deadlines
from cluster.coordinators.results import Append, Appends, ClockReading
from cluster.transactions.transaction_records import (
    ENDING,
    TransactionMetadata,
    TransactionRecord,
    TransactionState,
    may_follow,
)
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from protocol.value import Value

Then = Callable[[ClockReading, ErrorCode], Appends]
"""Called when a change is committed (NONE) or has failed (the error for the client)."""

_APPEND_ERRORS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""As in Kafka (TransactionStateManager.appendTransactionToLog)."""


class TransactionConfig(Value):
    """Kafka's transaction settings."""

    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000


class Transaction:
    """A transactional id. Only replay changes `metadata`.

    `pending` is the next state while a change is in progress; it is always set while a transaction ends. `unmarked` are
    the partitions of an ending transaction that still lack a marker.
    """

    __slots__ = ("metadata", "pending", "transactional_id", "unmarked")

    def __init__(self, transactional_id: str, metadata: TransactionMetadata) -> None:
        self.transactional_id = transactional_id
        self.metadata = metadata
        self.pending: TransactionState | None = None
        self.unmarked: dict[TopicPartition, None] = {}

    @property
    def outstanding(self) -> Collection[TopicPartition]:
        """The partitions of the transaction; while it ends, those that still lack a marker."""
        return list(self.unmarked) if self.metadata.state in ENDING else sorted(self.metadata.partitions)

    @property
    def is_durable(self) -> bool:
        """Whether the id is in the log; before its first record it lacks an epoch."""
        return self.metadata.producer_epoch >= 0


class TransactionTable:
    """The transactional ids of one partition of __transaction_state."""

    def __init__(self, config: TransactionConfig, durable: dict[str, TransactionMetadata] | None = None) -> None:
        self.config = config
        self.deadlines = Deadlines()
        self.transactions = {
            transactional_id: Transaction(transactional_id, metadata)
            for transactional_id, metadata in sorted((durable or {}).items())
        }

    def transaction_of(self, transactional_id: str, producer_id: int, producer_epoch: int) -> Transaction:
        """The transaction of that id and producer. Raises INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED."""
        transaction = self.transactions.get(transactional_id)
        if transaction is None or transaction.metadata.producer_id != producer_id:
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"{transactional_id!r} is not the id of producer {producer_id}"
            )
        if transaction.metadata.producer_epoch != producer_epoch:
            raise ApiError(
                ErrorCode.PRODUCER_FENCED,
                f"epoch {producer_epoch} of producer {producer_id} of {transactional_id!r} is not the current one, "
                f"{transaction.metadata.producer_epoch}",
            )
        return transaction

    def change(self, transaction: Transaction, metadata: TransactionMetadata, then: Then) -> Append:
        """An append that makes `metadata` the state of a transactional id without another pending change."""
        if transaction.pending is not None or not may_follow(metadata.state, transaction.metadata.state):
            raise RuntimeError(
                f"{transaction.transactional_id!r} cannot become {metadata.state.name}: it is "
                f"{transaction.metadata.state.name}, and about to be {transaction.pending}"
            )
        return self._append(transaction, metadata, then)

    def write_again(self, transaction: Transaction, then: Then) -> Append:
        """An append that writes the current state of a transactional id again, without another pending change."""
        return self._append(transaction, transaction.metadata, then)

    def _append(self, transaction: Transaction, metadata: TransactionMetadata, then: Then) -> Append:
        transaction.pending = metadata.state
        record = TransactionRecord(transaction.transactional_id, metadata)
        return Append([record], partial(self._changed, transaction, then))

    def _changed(self, transaction: Transaction, then: Then, now: ClockReading, error_code: ErrorCode) -> Appends:
        transaction.pending = None
        return then(now, client_error(error_code))

    def replay(self, record: TransactionRecord) -> None:
        """Apply one committed record."""
        transaction = self.transactions.get(record.transactional_id)
        if record.value is None:
            self.transactions.pop(record.transactional_id, None)
        elif transaction is None:
            self.transactions[record.transactional_id] = Transaction(record.transactional_id, record.value)
        else:
            transaction.metadata = record.value


def client_error(error_code: ErrorCode) -> ErrorCode:
    """The client's error code for an error of the log."""
    return _APPEND_ERRORS.get(error_code, error_code)


def refuse_while_ending(transaction: Transaction) -> None:
    """Raise CONCURRENT_TRANSACTIONS, which clients retry, while a change is pending or the transaction ends."""
    if transaction.pending is not None or transaction.metadata.state in ENDING:
        raise ApiError(
            ErrorCode.CONCURRENT_TRANSACTIONS, f"{transaction.transactional_id!r} is being changed by another request"
        )
