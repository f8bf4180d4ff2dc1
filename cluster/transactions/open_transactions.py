"""Transactions from their first partition to their last marker (Kafka class `TransactionCoordinator`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from functools import partial
from typing import Final, NamedTuple

from cluster.coordinators.deadlines import Deadline
from cluster.coordinators.results import Append, Appends, ClockReading, PendingResponse, Result
from cluster.transactions.transaction_records import (
    ENDING,
    NO_PRODUCER_EPOCH,
    NO_TRANSACTION,
    TransactionRecord,
    TransactionState,
)
from cluster.transactions.transaction_table import Transaction, TransactionTable, refuse_while_ending
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition

logger = logging.getLogger("kafka.coordinator.transaction.TransactionCoordinator")

RETRY_MS: Final = 100
"""The delay before retrying to write that a transaction is complete."""


class Markers(NamedTuple):
    """The decided end of a transaction, to be written to its partitions."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_commit: bool
    partitions: tuple[TopicPartition, ...]


class OpenTransactions:
    """The transactions of the ids in `table`. It calls `send` with markers to write now; the caller must report written
    ones with `marked`.
    """

    def __init__(self, table: TransactionTable, send: Callable[[Markers], None]) -> None:
        self._table = table
        self._send = send

    # -- partitions ----------------------------------------------------------------------------------------------------

    def add_partitions(
        self,
        now: ClockReading,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
    ) -> Result[ErrorCode]:
        """Add partitions to the transaction, and start it if needed. Answered once that is committed.

        A repeated request is answered as by `end`.
        """
        try:
            transaction = self._table.transaction_of(transactional_id, producer_id, producer_epoch)
            refuse_while_ending(transaction)
        except ApiError as error:
            return Result(error.error_code)
        metadata = transaction.metadata
        is_open = metadata.state is TransactionState.ONGOING
        if is_open and metadata.partitions.issuperset(partitions):
            return self._answer_again(transaction)
        reply: PendingResponse[ErrorCode] = PendingResponse()
        extended = metadata.replace(
            state=TransactionState.ONGOING,
            partitions=metadata.partitions.union(partitions),
            last_update_ms=now.now_ms,
            start_ms=metadata.start_ms if is_open else now.now_ms,
        )
        return Result(reply, [self._table.change(transaction, extended, partial(_answer, reply))])

    def verify(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Check that partitions belong to the open transaction (KIP-890): NONE, or else TRANSACTION_ABORTABLE. An error
        of the transaction itself applies to all partitions. Changes nothing.
        """
        try:
            transaction = self._table.transaction_of(transactional_id, producer_id, producer_epoch)
        except ApiError as error:
            return dict.fromkeys(partitions, error.error_code)
        metadata = transaction.metadata
        if metadata.state in ENDING:
            return dict.fromkeys(partitions, ErrorCode.CONCURRENT_TRANSACTIONS)
        return {
            each: ErrorCode.NONE if each in metadata.partitions else ErrorCode.TRANSACTION_ABORTABLE
            for each in partitions
        }

    # -- the end -------------------------------------------------------------------------------------------------------

    def end(
        self, now: ClockReading, transactional_id: str, producer_id: int, producer_epoch: int, *, commit: bool
    ) -> Result[ErrorCode]:
        """Commit or abort a transaction. Answered once the decision is committed; markers are written afterwards.

        A repeated request gets the same response once the state has been written again.
        """
        try:
            transaction = self._table.transaction_of(transactional_id, producer_id, producer_epoch)
            refuse_while_ending(transaction)
        except ApiError as error:
            return Result(error.error_code)
        state = transaction.metadata.state
        if state in NO_TRANSACTION:
            done = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
            if state is done:
                return self._answer_again(transaction)
            logger.warning(
                "TransactionalId: %s's state is %s, but received transaction marker result to send: %s",
                transactional_id, state.label, "COMMIT" if commit else "ABORT",
            )  # fmt: skip
            return Result(ErrorCode.INVALID_TXN_STATE)
        reply: PendingResponse[ErrorCode] = PendingResponse()
        return Result(reply, [self.prepare(now, transaction, reply.set, commit=commit)])

    def _answer_again(self, transaction: Transaction) -> Result[ErrorCode]:
        """Respond NONE to a repeated request once the state has been written again. The write fails on a replaced
        coordinator, which may see an older transaction of the same producer and epoch. Apache Kafka responds at once.
        """
        reply: PendingResponse[ErrorCode] = PendingResponse()
        return Result(reply, [self._table.write_again(transaction, partial(_answer, reply))])

    def fence(self, now: ClockReading, transaction: Transaction, answer: Callable[[ErrorCode], None]) -> Append:
        """Abort an open transaction and fence its producer.

        The raised epoch is not given to any producer. If the append fails, the old producer stays valid.
        """
        return self.prepare(now, transaction, answer, commit=False, fences=True)

    def prepare(
        self,
        now: ClockReading,
        transaction: Transaction,
        answer: Callable[[ErrorCode], None],
        *,
        commit: bool,
        fences: bool = False,
    ) -> Append:
        """An append that decides the end of an open transaction. `answer` is called before markers are written."""
        metadata = transaction.metadata
        decided = metadata.replace(
            state=TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT,
            last_update_ms=now.now_ms,
        )
        if fences:
            decided = decided.replace(producer_epoch=metadata.producer_epoch + 1, last_producer_epoch=NO_PRODUCER_EPOCH)
        return self._table.change(transaction, decided, partial(self._decided, transaction, answer))

    def _decided(
        self, transaction: Transaction, answer: Callable[[ErrorCode], None], now: ClockReading, error_code: ErrorCode
    ) -> Appends:
        answer(error_code)
        return self.resume(now, transaction) if error_code is ErrorCode.NONE else ()

    def resume(self, now: ClockReading, transaction: Transaction) -> Appends:
        """Start writing the markers of a transaction in PREPARE_COMMIT or PREPARE_ABORT."""
        metadata = transaction.metadata
        is_commit = metadata.state is TransactionState.PREPARE_COMMIT
        transaction.pending = TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT
        partitions = tuple(sorted(metadata.partitions))
        transaction.unmarked = dict.fromkeys(partitions)
        if not partitions:
            return [self._completion(now, transaction)]
        self._send(
            Markers(transaction.transactional_id, metadata.producer_id, metadata.producer_epoch, is_commit, partitions)
        )
        return ()

    def marked(self, now: ClockReading, markers: Markers, partitions: Collection[TopicPartition]) -> Result[None]:
        """These partitions have their markers, or no longer exist. The last ones complete the transaction."""
        transaction = self._table.transactions.get(markers.transactional_id)
        if transaction is None or not _is_of(transaction, markers) or not transaction.unmarked:
            return Result(None)
        for each in partitions:
            transaction.unmarked.pop(each, None)
        return Result(None, () if transaction.unmarked else [self._completion(now, transaction)])

    def _completion(self, now: ClockReading, transaction: Transaction) -> Append:
        assert transaction.pending is not None
        complete = transaction.metadata.replace(
            state=transaction.pending, partitions=frozenset(), last_update_ms=now.now_ms
        )
        return Append(
            [TransactionRecord(transaction.transactional_id, complete)], partial(self._completed, transaction)
        )

    def _completed(self, transaction: Transaction, now: ClockReading, error_code: ErrorCode) -> Appends:
        """Retry a failed completion until it succeeds or another broker coordinates."""
        if error_code is ErrorCode.NONE:
            transaction.pending = None
            return ()
        logger.info(
            "That the transaction of %s is complete will be written again: %s",
            transaction.transactional_id, error_code.name,
        )  # fmt: skip
        again = Deadline(self._table.deadlines, lambda later: [self._completion(later, transaction)])
        again.set(now.monotonic_ms + RETRY_MS)
        return ()


def _is_of(transaction: Transaction, markers: Markers) -> bool:
    metadata = transaction.metadata
    return metadata.state in ENDING and (metadata.producer_id, metadata.producer_epoch) == markers[1:3]


def _answer(reply: PendingResponse[ErrorCode], _: ClockReading, error_code: ErrorCode) -> Appends:
    reply.set(error_code)
    return ()
