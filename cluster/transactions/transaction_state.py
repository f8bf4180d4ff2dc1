"""The states of a transactional id, and which may follow which (Kafka class `TransactionState`)."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Self


class TransactionState(IntEnum):
    """A state, with its number in the log; `label` is its name for administrators."""

    label: str

    def __new__(cls, number: int, label: str) -> Self:
        member = int.__new__(cls, number)
        member._value_ = number
        member.label = label
        return member

    EMPTY = 0, "Empty"
    """The producer has its id and epoch, and no transaction yet."""
    ONGOING = 1, "Ongoing"
    """Partitions were added."""
    PREPARE_COMMIT = 2, "PrepareCommit"
    """It is decided that the transaction is committed; markers are being written."""
    PREPARE_ABORT = 3, "PrepareAbort"
    COMPLETE_COMMIT = 4, "CompleteCommit"
    """All partitions have their markers."""
    COMPLETE_ABORT = 5, "CompleteAbort"
    DEAD = 6, "Dead"
    """The id is being forgotten. Never in the log, which has a tombstone then."""
    PREPARE_EPOCH_FENCE = 7, "PrepareEpochFence"
    """Kafka's name for the moment before PREPARE_ABORT in which an epoch is raised. Never in the log."""


_S: Final = TransactionState

NO_TRANSACTION: Final = frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT})
"""Nothing is open or being ended: a new producer may take over, and an old id may be forgotten."""

ENDING: Final = frozenset({_S.PREPARE_COMMIT, _S.PREPARE_ABORT})

_BEFORE: Final = {
    _S.EMPTY: NO_TRANSACTION,
    _S.ONGOING: NO_TRANSACTION | {_S.ONGOING},
    _S.PREPARE_COMMIT: frozenset({_S.ONGOING}),
    _S.PREPARE_ABORT: frozenset({_S.ONGOING}),
    _S.COMPLETE_COMMIT: frozenset({_S.PREPARE_COMMIT}),
    _S.COMPLETE_ABORT: frozenset({_S.PREPARE_ABORT}),
    _S.DEAD: NO_TRANSACTION,
    _S.PREPARE_EPOCH_FENCE: frozenset({_S.ONGOING}),
}
"""The states that each may follow."""


def may_follow(state: TransactionState, before: TransactionState) -> bool:
    """Whether `state` may come next when a transactional id is in `before`."""
    return before in _BEFORE[state]
