"""Deliberate bugs in transactions. The seeds of clusters with transactional clients must find each of them.

Like `tests.simulation.mutants`. "M17" and the like name a bug that other implementations had.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import wraps
from typing import Any
from unittest.mock import patch

from broker.transactions.marker_sender import MarkerSender
from broker.transactions.marker_writer import MarkerWriter
from broker.transactions.transaction_coordinator_service import TransactionCoordinatorService
from broker.transactions.transaction_guards import TransactionVerifier, VerificationGuards
from cluster.groups import committed_offsets
from cluster.groups.committed_offsets import CommittedOffsets
from cluster.groups.group_table import DurableGroups
from cluster.transactions import producer_sessions
from cluster.transactions.open_transactions import OpenTransactions
from cluster.transactions.producer_sessions import ProducerSessions
from cluster.transactions.transaction_records import TransactionLoader, TransactionState
from cluster.transactions.transaction_shard import TransactionShard
from protocol.errors import ApiError, ErrorCode
from storage.log.log_reader import AbortedTransactions
from storage.log.log_validator import TransactionVerification
from storage.log.producer_state import ProducerStateManager
from storage.log.unified_log import UnifiedLog
from storage.segment.transaction_index import TransactionIndex
from tests.simulation.mutants import Mutant, registered, replaced

TRANSACTION_MUTANTS: dict[str, Mutant] = {}

_mutant = registered(TRANSACTION_MUTANTS)


@_mutant
def _transactions_ended_in_any_epoch() -> Iterator[None]:
    """M17: a coordinator does not look at the epoch of whoever ends a transaction."""
    original = OpenTransactions.end

    @wraps(original)
    def end(self: OpenTransactions, now: Any, name: str, producer_id: int, epoch: int, *, commit: bool) -> Any:
        known = self._table.transactions.get(name)
        return original(
            self, now, name, producer_id, epoch if known is None else known.metadata.producer_epoch, commit=commit
        )

    with replaced(OpenTransactions, "end", end):
        yield


@_mutant
def _epochs_not_raised_for_new_producers() -> Iterator[None]:
    """A producer that takes over a transactional id gets the epoch of the one before it."""
    original = producer_sessions._next_identity

    def next_identity(metadata: Any, expected: Any, fresh_id: Any) -> Any:
        found = original(metadata, expected, fresh_id)
        return found if found is None else found.replace(producer_epoch=max(metadata.producer_epoch, 0))

    with replaced(producer_sessions, "_next_identity", next_identity):
        yield


@_mutant
def _open_transactions_left_to_new_producers() -> Iterator[None]:
    """A new producer continues the open transaction of its predecessor."""

    def fence(self: ProducerSessions, now: Any, transaction: Any) -> Any:
        metadata = transaction.metadata
        transaction.metadata = metadata.replace(state=TransactionState.EMPTY)
        return self.init_producer_id(now, transaction.transactional_id, metadata.timeout_ms)

    with replaced(ProducerSessions, "_fence", fence):
        yield


@_mutant
def _readers_not_told_of_aborted_transactions() -> Iterator[None]:
    """M18: a fetch has no list of aborted transactions."""
    with replaced(AbortedTransactions, "between", lambda _self, _log, _start, _end: []):
        yield


@_mutant
def _last_stable_offset_not_respected() -> Iterator[None]:
    """M14: readers of committed records are given all that is below the high watermark."""
    with replaced(UnifiedLog, "last_stable_offset", lambda _self, high_watermark: high_watermark):
        yield


@_mutant
def _transactions_end_before_their_markers_are_replicated() -> Iterator[None]:
    """The last stable offset passes a transaction when its marker is in the leader's log."""

    def first_unstable_offset(self: ProducerStateManager) -> int | None:
        return next(iter(self._ongoing.values())) if self._ongoing else None

    with patch.object(ProducerStateManager, "first_unstable_offset", property(first_unstable_offset)):
        yield


@_mutant
def _offsets_of_aborted_transactions_count() -> Iterator[None]:
    """M19: the offsets of a transaction count however it ends."""
    original = DurableGroups._end

    def end(self: DurableGroups, producer_id: int, *, commit: bool) -> None:
        original(self, producer_id, commit=True)

    with replaced(DurableGroups, "_end", end):
        yield


@_mutant
def _unstable_offsets_told() -> Iterator[None]:
    """M19: who wants stable offsets gets those from before a transaction that is being ended."""
    with replaced(committed_offsets, "_is_unstable", lambda _group, _durable, _partition: False):
        yield


@_mutant
def _transactions_of_fenced_members_taken() -> Iterator[None]:
    """M19: a group takes offsets of a transaction from a member of any generation, or of none (KIP-447)."""
    original = CommittedOffsets._group_of_transaction

    def group_of_transaction(self: CommittedOffsets, now: Any, group_id: str, who: Any) -> Any:
        try:
            return original(self, now, group_id, who)
        except ApiError:
            return self._table.groups[group_id]

    with replaced(CommittedOffsets, "_group_of_transaction", group_of_transaction):
        yield


@_mutant
def _partitions_not_verified() -> Iterator[None]:
    """M17: a leader takes a transactional batch without asking its coordinator (KIP-890)."""
    original = VerificationGuards.begin

    @wraps(original)
    def begin(self: VerificationGuards, name: str, writes: Any, *, supports_abortable: bool) -> Any:
        self._is_enabled = lambda: False
        return original(self, name, writes, supports_abortable=supports_abortable)

    with replaced(VerificationGuards, "begin", begin):
        yield


@_mutant
def _all_partitions_verified() -> Iterator[None]:
    """M17: a coordinator says of any partition that it is part of the transaction."""

    def answer(_self: TransactionVerifier, question: Any) -> Any:
        return dict.fromkeys(question.partitions, ErrorCode.NONE)

    with replaced(TransactionVerifier, "answer", answer):
        yield


@_mutant
def _guards_outlive_markers() -> Iterator[None]:
    """M17: what a coordinator has said before a transaction ended lets a batch pass afterwards."""
    with replaced(TransactionVerification, "end", lambda _self, _producer_id: None):
        yield


@_mutant
def _markers_of_deposed_coordinators_taken() -> Iterator[None]:
    """M17: a leader does not look at the epoch of the coordinator that a marker comes from."""
    original = ProducerStateManager._check_transaction

    def check_transaction(self: ProducerStateManager, entry: Any, batch: Any) -> None:
        if not batch.is_control:
            original(self, entry, batch)

    with replaced(ProducerStateManager, "_check_transaction", check_transaction):
        yield


@_mutant
def _completed_before_its_markers_are_written() -> Iterator[None]:
    """A transaction is over once its markers were sent: the next may begin before they come."""
    original = OpenTransactions.resume

    def resume(self: OpenTransactions, now: Any, transaction: Any) -> Any:
        appends = original(self, now, transaction)
        if appends:
            return appends
        transaction.unmarked = {}
        return [self._completion(now, transaction)]

    with replaced(OpenTransactions, "resume", resume):
        yield


@_mutant
def _decisions_answered_before_they_are_written() -> Iterator[None]:
    """EndTxn is answered before it is in the log how the transaction ends."""
    original = OpenTransactions.prepare

    @wraps(original)
    def prepare(
        self: OpenTransactions, now: Any, transaction: Any, answer: Any, *, commit: bool, fences: bool = False
    ) -> Any:
        answer(ErrorCode.NONE)
        return original(self, now, transaction, lambda _code: None, commit=commit, fences=fences)

    with replaced(OpenTransactions, "prepare", prepare):
        yield


@_mutant
def _markers_not_sent_by_new_coordinators() -> Iterator[None]:
    """M17: a new coordinator does not have the markers written of transactions whose end was decided before it."""
    with replaced(TransactionShard, "start", lambda _self, _now: []):
        yield


@_mutant
def _markers_not_sent_again() -> Iterator[None]:
    """M17: a marker that a leader did not take counts as written."""
    original = MarkerSender._handle_result

    def settle(self: MarkerSender, work: Any, partitions: Sequence[Any], _outcome: Any) -> None:
        written = {(work.markers.producer_id, each): ErrorCode.NONE for each in partitions}
        original(self, work, partitions, written)

    with replaced(MarkerSender, "_handle_result", settle):
        yield


@_mutant
def _markers_answered_before_they_are_replicated() -> Iterator[None]:
    """M17: a leader says that a marker is written when it is in its own log."""
    original = MarkerWriter._append

    def append(self: MarkerWriter, topic_partition: Any, marker: Any) -> None:
        original(self, topic_partition, marker)

    with replaced(MarkerWriter, "_append", append):
        yield


@_mutant
def _transactional_ids_not_loaded() -> Iterator[None]:
    """A new coordinator begins without any transactional ids."""
    with replaced(TransactionLoader, "finish", lambda _self: {}):
        yield


@_mutant
def _late_transactions_not_aborted() -> Iterator[None]:
    """M17: nobody ends a transaction whose producer has gone."""

    async def abort_nothing(_self: TransactionCoordinatorService) -> None:
        return None

    with replaced(TransactionCoordinatorService, "abort_late_transactions", abort_nothing):
        yield


@_mutant
def _commits_of_aborted_transactions_acknowledged() -> Iterator[None]:
    """A commit is answered with success though the transaction was aborted before, of the same producer or another."""
    original = OpenTransactions.end

    @wraps(original)
    def end(self: OpenTransactions, now: Any, name: str, producer_id: int, epoch: int, *, commit: bool) -> Any:
        result = original(self, now, name, producer_id, epoch, commit=commit)
        refused = {ErrorCode.INVALID_TXN_STATE, ErrorCode.PRODUCER_FENCED}
        if result.response in refused:
            result.response = ErrorCode.NONE
        return result

    with replaced(OpenTransactions, "end", end):
        yield


@_mutant
def _aborted_transactions_not_indexed() -> Iterator[None]:
    """M18: an aborted transaction is known to readers until the leader changes, or is started again."""
    original = TransactionIndex.append

    def append(self: TransactionIndex, entry: Any) -> bool:
        told = original(self, entry)
        if self._file is not None:
            self._file.truncate(self._file.size - 34)
        return told

    with replaced(TransactionIndex, "append", append):
        yield
