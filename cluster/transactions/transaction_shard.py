"""One partition of __transaction_state, as its coordinator: where the parts come together."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from cluster.coordinators.results import Append, Appends, Moment, Result
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
    """The transactional ids of one partition. Events go to `producers`, `transactions` and here; all of it belongs to
    one thread.

    `send` is told of markers to be written, which then have to be reported to `transactions.marked`. Every event says
    when it happens and gives a `Result` (or `Appends` alone): the driver has to make the appends in order, and to
    report each with `complete` or `fail`, in the order of the log.
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
        """They say when `expire` is to be called next."""
        self._restored_amid_the_end = [
            each for each in self._table.transactions.values() if each.metadata.state in ENDING
        ]

    def ids(self) -> list[str]:
        """All transactional ids."""
        return list(self._table.transactions)

    def get(self, transactional_id: str) -> Transaction | None:
        """A transactional id that the log knows and is not about to forget. To be read only."""
        transaction = self._table.transactions.get(transactional_id)
        if transaction is None or not transaction.is_durable or transaction.pending is TransactionState.DEAD:
            return None
        return transaction

    # -- what the driver does ------------------------------------------------------------------------------------------

    def start(self, now: Moment) -> Appends:
        """Begin to serve: have the markers written of transactions whose end was decided."""
        appends: list[Append] = []
        ending, self._restored_amid_the_end = self._restored_amid_the_end, []
        for transaction in ending:
            appends += self.transactions.resume(now, transaction)
        return appends

    def complete(self, now: Moment, append: Append, base_offset: int) -> Appends:  # noqa: ARG002
        """`append` is committed: replay its records and go on."""
        for record in append.records:
            assert isinstance(record, TransactionRecord)
            self._table.replay(record)
        return append.settled(now, ErrorCode.NONE)

    def fail(self, now: Moment, append: Append, error_code: ErrorCode) -> Appends:
        """`append` was not committed. It may be nevertheless, later: what is written next then replaces it."""
        return append.settled(now, error_code)

    def expire(self, now: Moment) -> Appends:
        """Time has passed: act on the deadlines that were reached."""
        return self._table.deadlines.expire(now)

    def resign(self, now: Moment) -> None:
        """Resign: another broker coordinates now. Who waits gets the error of the append that it waits for."""

    # -- the passing of time -------------------------------------------------------------------------------------------

    def abort_if_late(self, now: Moment, transactional_id: str) -> Result[None]:
        """Abort a transaction that has been open for longer than its producer asked for, and fence the producer."""
        transaction = self._table.transactions.get(transactional_id)
        if transaction is None or transaction.pending is not None:
            return Result(None)
        metadata = transaction.metadata
        if metadata.state is TransactionState.ONGOING and metadata.start_ms + metadata.timeout_ms < now.now_ms:
            return Result(None, [self.transactions.fence(now, transaction, _ignore)])
        return Result(None)

    def forget_unused(self, now: Moment, transactional_ids: Collection[str]) -> Result[None]:
        """Forget those of the ids that were not used for transactional.id.expiration.ms and have nothing open."""
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


def _forgotten(unused: list[Transaction], _: Moment, error_code: ErrorCode) -> Appends:
    if error_code is not ErrorCode.NONE:
        for transaction in unused:
            transaction.pending = None
    return ()


def _ignore(_: ErrorCode) -> None:
    """Nobody waits for it."""
