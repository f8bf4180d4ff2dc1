"""The coordinator of one partition of __transaction_state; it combines the other modules."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from cluster.coordinators.results import Append, Appends, ClockReading, Result
from cluster.transactions.open_transactions import Markers, OpenTransactions
from cluster.transactions.producer_sessions import ProducerSessions
from cluster.transactions.transaction_records import (
    ENDING,
    NO_TRANSACTION,
    TransactionMetadata,
    TransactionRecord,
    TransactionState,
)
from cluster.transactions.transaction_table import Transaction, TransactionConfig, TransactionTable
from protocol.errors import ErrorCode


class TransactionShard:
    """The transactional ids of one partition. Events go to `producers`, `transactions` and here, all on one thread.

    It calls `send` with markers to write; report them with `transactions.marked`. Each event takes its time and returns
    a `Result` (or just `Appends`): the driver must make the appends in order, and report each with `complete` or
    `fail`, in log order.
    """

    def __init__(
        self,
        config: TransactionConfig,
        send: Callable[[Markers], None],
        durable: dict[str, TransactionMetadata] | None = None,
    ) -> None:
        self._table = TransactionTable(config, durable)
        self.transactions = OpenTransactions(self._table, send)
        self.producers = ProducerSessions(self._table, self.transactions)
        self.deadlines = self._table.deadlines
        """Their `next_ms` is the time for the next `expire`."""
        self._restored_while_ending = [
            each for each in self._table.transactions.values() if each.metadata.state in ENDING
        ]

    def ids(self) -> list[str]:
        """All transactional ids."""
        return list(self._table.transactions)

    def get(self, transactional_id: str) -> Transaction | None:
        """A transactional id that is in the log and not about to be removed. Read only."""
        transaction = self._table.transactions.get(transactional_id)
        if transaction is None or not transaction.is_durable or transaction.pending is TransactionState.DEAD:
            return None
        return transaction

    # -- what the driver does ------------------------------------------------------------------------------------------

    def start(self, now: ClockReading) -> Appends:
        """Start serving: write the markers of transactions with a decided end."""
        appends: list[Append] = []
        ending, self._restored_while_ending = self._restored_while_ending, []
        for transaction in ending:
            appends += self.transactions.resume(now, transaction)
        return appends

    def complete(self, now: ClockReading, append: Append, base_offset: int) -> Appends:  # noqa: ARG002
        """`append` is committed: replay its records and continue."""
        for record in append.records:
            assert isinstance(record, TransactionRecord)
            self._table.replay(record)
        return append.completed(now, ErrorCode.NONE)

    def fail(self, now: ClockReading, append: Append, error_code: ErrorCode) -> Appends:
        """`append` failed. It may still be committed later; the next write then supersedes it."""
        return append.completed(now, error_code)

    def expire(self, now: ClockReading) -> Appends:
        """Run the deadlines that have passed."""
        return self._table.deadlines.expire(now)

    def resign(self, now: ClockReading) -> None:
        """Another broker is the coordinator now. Waiting requests fail with their appends."""

    # -- expiration ----------------------------------------------------------------------------------------------------

    def abort_if_late(self, now: ClockReading, transactional_id: str) -> Result[None]:
        """Abort a transaction open for longer than its producer's timeout, and fence the producer."""
        transaction = self._table.transactions.get(transactional_id)
        if transaction is None or transaction.pending is not None:
            return Result(None)
        metadata = transaction.metadata
        if metadata.state is TransactionState.ONGOING and metadata.start_ms + metadata.timeout_ms < now.now_ms:
            return Result(None, [self.transactions.fence(now, transaction, _ignore)])
        return Result(None)

    def forget_unused(self, now: ClockReading, transactional_ids: Collection[str]) -> Result[None]:
        """Remove those ids that were unused for transactional.id.expiration.ms and are not in a transaction."""
        unused = []
        limit_ms = now.now_ms - self._table.config.transactional_id_expiration_ms
        for transactional_id in transactional_ids:
            transaction = self._table.transactions.get(transactional_id)
            if transaction is None or transaction.pending is not None or not transaction.is_durable:
                continue
            if transaction.metadata.state in NO_TRANSACTION and transaction.metadata.last_update_ms <= limit_ms:
                transaction.pending = TransactionState.DEAD
                unused.append(transaction)
        if not unused:
            return Result(None)
        records = [TransactionRecord(each.transactional_id, None) for each in unused]
        return Result(None, [Append(records, partial(_forgotten, unused))])


def _forgotten(unused: list[Transaction], _: ClockReading, error_code: ErrorCode) -> Appends:
    if error_code is not ErrorCode.NONE:
        for transaction in unused:
            transaction.pending = None
    return ()


def _ignore(_: ErrorCode) -> None:
    """For aborts without a waiting request."""
