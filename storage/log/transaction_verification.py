"""Which transactional batches a log may take: those of transactions that have this partition (KIP-890; Kafka classes
`VerificationGuard`, `VerificationStateEntry`).

Before the first batch of a transaction the transaction's coordinator is asked whether the partition is part of it. A
guard stands for the question, from before it is asked until a batch or a marker of the producer is appended. So an
answer that comes after the marker, which ended the transaction meanwhile, lets nothing pass.
"""

from __future__ import annotations

from typing import Final

from protocol.errors import ApiError, ErrorCode
from protocol.records.batch import RecordBatch
from protocol.value import Value


class VerificationGuard:
    """One question to a coordinator; only its identity counts."""

    __slots__ = ()


NOT_VERIFIED: Final = VerificationGuard()
"""Lets everything pass: verification is switched off."""

ONGOING: Final = VerificationGuard()
"""The log had the transaction when it was looked at, so nobody was asked: lets pass what it still has."""


class _Question(Value, frozen=False):
    guard: VerificationGuard
    producer_epoch: int
    lowest_sequence: int
    asked_ms: int


class TransactionVerification:
    """The questions of one log that no append has settled yet, by producer id."""

    __slots__ = ("questions",)

    def __init__(self) -> None:
        self.questions: dict[int, _Question] = {}

    def begin(self, producer_id: int, producer_epoch: int, sequence: int, now_ms: int) -> VerificationGuard:
        """The guard for a batch that begins with `sequence`. All batches of a producer that wait have the same."""
        question = self.questions.get(producer_id)
        if question is None:
            question = _Question(VerificationGuard(), producer_epoch, sequence, now_ms)
            self.questions[producer_id] = question
        elif producer_epoch > question.producer_epoch:
            question.producer_epoch, question.lowest_sequence = producer_epoch, sequence
        elif producer_epoch == question.producer_epoch and sequence < question.lowest_sequence:
            question.lowest_sequence = sequence
        return question.guard

    def check(self, batch: RecordBatch, guard: VerificationGuard, name: str) -> None:
        """Raise ApiError INVALID_TXN_STATE unless `guard` lets `batch` pass, which is about to begin a transaction in
        partition `name`.
        """
        question = self.questions.get(batch.producer_id)
        if guard is not NOT_VERIFIED and (question is None or question.guard is not guard):
            raise ApiError(
                ErrorCode.INVALID_TXN_STATE,
                f"The batch of producer {batch.producer_id} for {name} was not part of an ongoing transaction",
            )

    def check_sequence(self, batch: RecordBatch, offset: int, name: str) -> None:
        """Raise ApiError OUT_OF_ORDER_SEQUENCE_NUMBER for a batch when one before it was refused while it waited: the
        producer will send that one again.

        A late copy of a batch from the previous transaction has the same effect: the next transaction is refused, and
        its producer aborts it and goes on under its next epoch. Kafka's brokers do the same.
        """
        question = self.questions.get(batch.producer_id)
        if question is not None and batch.base_sequence > question.lowest_sequence:
            raise ApiError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Out of order sequence number for producer {batch.producer_id} at offset {offset} in partition "
                f"{name}: {batch.base_sequence} (incoming seq. number), "
                f"{question.lowest_sequence} (earliest seen sequence)",
            )

    def end(self, producer_id: int) -> None:
        """A batch or a marker of the producer was appended: no guard from before lets anything pass."""
        self.questions.pop(producer_id, None)

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget questions that are older than `expiration_ms`."""
        for producer_id, question in list(self.questions.items()):
            if now_ms - question.asked_ms >= expiration_ms:
                del self.questions[producer_id]

    def clear(self) -> None:
        """Forget all."""
        self.questions.clear()
