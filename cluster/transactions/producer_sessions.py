"""InitProducerId: a producer takes over a transactional id and fences its predecessor (KIP-98, KIP-360)."""

from __future__ import annotations

import logging
from functools import partial
from typing import Final, NamedTuple

from cluster.coordinators.results import Appends, ClockReading, PendingResponse, Result
from cluster.transactions.open_transactions import OpenTransactions
from cluster.transactions.transaction_records import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TransactionMetadata,
    TransactionState,
)
from cluster.transactions.transaction_table import Transaction, TransactionTable, refuse_while_ending
from protocol.errors import ApiError, ErrorCode

logger = logging.getLogger("kafka.coordinator.transaction.TransactionCoordinator")

LAST_EPOCH: Final = 2**15 - 2
"""The last epoch that a producer may have. The next one is reserved for fencing it."""


class ProducerIdAndEpoch(NamedTuple):
    """The identity of a producer."""

    producer_id: int
    producer_epoch: int


class Initialized(NamedTuple):
    """The identity of a producer, or an error."""

    error_code: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


NEEDS_ID: Final = Initialized(ErrorCode.NONE)
"""The call changed nothing, and must be repeated with an unused producer id."""


class ProducerSessions:
    """The producers of the ids in `table`."""

    def __init__(self, table: TransactionTable, transactions: OpenTransactions) -> None:
        self._table = table
        self._transactions = transactions

    def init_producer_id(
        self,
        now: ClockReading,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None = None,
        fresh_id: int | None = None,
    ) -> Result[Initialized]:
        """Give a producer an identity with a higher epoch than any producer before it; or NEEDS_ID.

        `expected` is the current identity of a producer that asks to bump its epoch. If a transaction is open, it is
        aborted first: the producer gets CONCURRENT_TRANSACTIONS and retries. PRODUCER_FENCED: another one took over.
        """
        if not 0 < timeout_ms <= self._table.config.transaction_max_timeout_ms:
            return Result(Initialized(ErrorCode.INVALID_TRANSACTION_TIMEOUT))
        transaction = self._table.transactions.get(transactional_id)
        if transaction is None:
            if fresh_id is None:
                return Result(NEEDS_ID)
            transaction = self._create(now, transactional_id, timeout_ms, fresh_id)
        try:
            refuse_while_ending(transaction)
            if transaction.metadata.state is TransactionState.ONGOING:
                _check_identity(transaction.metadata, expected)
                return self._fence(now, transaction)
            next_metadata = _next_identity(transaction.metadata, expected, fresh_id)
        except ApiError as error:
            return Result(Initialized(error.error_code))
        if next_metadata is None:
            return Result(NEEDS_ID)
        initial = next_metadata.replace(
            state=TransactionState.EMPTY,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            last_update_ms=now.now_ms,
            start_ms=NO_TIMESTAMP,
        )
        reply: PendingResponse[Initialized] = PendingResponse()
        change = self._table.change(transaction, initial, partial(self._initialized, transaction, reply))
        return Result(reply, [change])

    def _create(self, now: ClockReading, transactional_id: str, timeout_ms: int, producer_id: int) -> Transaction:
        metadata = TransactionMetadata(
            producer_id,
            NO_PRODUCER_EPOCH,
            timeout_ms,
            TransactionState.EMPTY,
            frozenset(),
            now.now_ms,
            NO_TIMESTAMP,
        )
        transaction = self._table.transactions[transactional_id] = Transaction(transactional_id, metadata)
        return transaction

    def _fence(self, now: ClockReading, transaction: Transaction) -> Result[Initialized]:
        reply: PendingResponse[Initialized] = PendingResponse()

        def answer(error_code: ErrorCode) -> None:
            reply.set(Initialized(error_code or ErrorCode.CONCURRENT_TRANSACTIONS))

        return Result(reply, [self._transactions.fence(now, transaction, answer)])

    def _initialized(
        self, transaction: Transaction, reply: PendingResponse[Initialized], _: ClockReading, error_code: ErrorCode
    ) -> Appends:
        metadata, transactional_id = transaction.metadata, transaction.transactional_id
        if error_code is ErrorCode.NONE:
            logger.info(
                "Initialized transactionalId %s with producerId %d and producer epoch %d",
                transactional_id, metadata.producer_id, metadata.producer_epoch,
            )  # fmt: skip
            reply.set(Initialized(ErrorCode.NONE, metadata.producer_id, metadata.producer_epoch))
            return ()
        logger.info("Returning %s to client for %s's InitProducerId request", error_code.name, transactional_id)
        if not transaction.is_durable:
            del self._table.transactions[transactional_id]
        reply.set(Initialized(error_code))
        return ()


def _check_identity(metadata: TransactionMetadata, expected: ProducerIdAndEpoch | None) -> None:
    """Raise PRODUCER_FENCED unless the producer id is the current one, or the previous one with its epochs used up:
    that producer may not have learned its new id.
    """
    if expected is None or metadata.producer_epoch == NO_PRODUCER_EPOCH or expected.producer_id == metadata.producer_id:
        return
    if expected.producer_id == metadata.previous_producer_id and expected.producer_epoch >= LAST_EPOCH:
        return
    raise ApiError(ErrorCode.PRODUCER_FENCED, f"producer {expected.producer_id} has been replaced")


def _next_identity(
    metadata: TransactionMetadata, expected: ProducerIdAndEpoch | None, fresh_id: int | None
) -> TransactionMetadata | None:
    """`metadata` with the next identity, or None if that takes a `fresh_id`. Raises PRODUCER_FENCED."""
    _check_identity(metadata, expected)
    epoch = metadata.producer_epoch
    if expected is not None and epoch not in {NO_PRODUCER_EPOCH, expected.producer_epoch}:
        if expected.producer_epoch != metadata.last_producer_epoch:
            raise ApiError(ErrorCode.PRODUCER_FENCED, f"epoch {expected.producer_epoch} has been replaced by {epoch}")
        return metadata  # the first response was lost
    last_epoch = NO_PRODUCER_EPOCH if expected is None else epoch
    if epoch < LAST_EPOCH:
        return metadata.replace(producer_epoch=epoch + 1, last_producer_epoch=last_epoch)
    if fresh_id is None:
        return None
    return metadata.replace(
        producer_id=fresh_id,
        producer_epoch=0,
        last_producer_epoch=last_epoch,
        previous_producer_id=metadata.producer_id,
    )
