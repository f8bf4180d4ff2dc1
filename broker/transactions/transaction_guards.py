"""Lets transactional batches into the logs led here only when their transactions have the partition (KIP-890; Kafka:
`ReplicaManager.maybeStartTransactionVerificationForPartitions`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from broker.environment.contract import Clock
from broker.replication.replica_manager import ReplicaManager
from broker.transactions.transaction_verifier import Question, TransactionVerifier, Verdict
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from storage.log.transaction_verification import NOT_VERIFIED, ONGOING, VerificationGuard


class Write(NamedTuple):
    """A batch that a transactional producer wants to write."""

    topic_partition: TopicPartition
    producer_id: int
    producer_epoch: int
    base_sequence: int


Guards = Mapping[TopicPartition, VerificationGuard | ApiError]
"""With which guard a partition's batch may be appended, or why it may not."""


class TransactionGuards:
    """Asks before the first batch of a transaction in a partition; not at all unless `is_enabled`, which tells
    transaction.partition.verification.enable.
    """

    def __init__(
        self,
        replica_manager: ReplicaManager,
        verifier: TransactionVerifier,
        clock: Clock,
        is_enabled: Callable[[], bool],
    ) -> None:
        self._replica_manager = replica_manager
        self._verifier = verifier
        self._clock = clock
        self._is_enabled = is_enabled

    def begin(
        self, transactional_id: str, writes: Sequence[Write], *, knows_abortable: bool
    ) -> Guards | Awaitable[Guards]:
        """The guards for `writes`, at most one a partition, or something to wait for them.

        A partition that is not led here has no guard: the append will say so. `knows_abortable`: the client knows
        TRANSACTION_ABORTABLE, others get INVALID_TXN_STATE.
        """
        guards: dict[TopicPartition, VerificationGuard | ApiError] = {}
        asked: dict[tuple[int, int], list[TopicPartition]] = {}
        is_enabled, now_ms = self._is_enabled(), self._clock.now_ms()
        for topic_partition, *producer, sequence in writes:
            try:
                state = self._replica_manager.leader_of(topic_partition).log.producer_state
            except ApiError:
                continue
            if not is_enabled:
                guards[topic_partition] = NOT_VERIFIED
                continue
            producer_id, producer_epoch = producer
            guard = guards[topic_partition] = state.begin_verification(producer_id, producer_epoch, sequence, now_ms)
            if guard is not ONGOING:
                asked.setdefault((producer_id, producer_epoch), []).append(topic_partition)
        waiting = []
        for (producer_id, producer_epoch), partitions in asked.items():
            verdict = self._verifier.verify(Question(transactional_id, producer_id, producer_epoch, partitions))
            if isinstance(verdict, Mapping):
                _judge(guards, verdict, knows_abortable=knows_abortable)
            else:
                waiting.append(verdict)
        if waiting:
            return _judge_later(guards, waiting, knows_abortable=knows_abortable)
        return guards


async def _judge_later(
    guards: dict[TopicPartition, VerificationGuard | ApiError],
    waiting: Sequence[Awaitable[Verdict]],
    *,
    knows_abortable: bool,
) -> Guards:
    for verdict in await asyncio.gather(*waiting):
        _judge(guards, verdict, knows_abortable=knows_abortable)
    return guards


def _judge(
    guards: dict[TopicPartition, VerificationGuard | ApiError], verdict: Verdict, *, knows_abortable: bool
) -> None:
    for topic_partition, error_code in verdict.items():
        if error_code is ErrorCode.NONE:
            continue
        told = error_code
        if told is ErrorCode.PRODUCER_FENCED:
            told = ErrorCode.INVALID_PRODUCER_EPOCH  # the one that producers expect here
        elif told is ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
            told = ErrorCode.INVALID_TXN_STATE
        guards[topic_partition] = ApiError(told, f"{topic_partition} was not added to the transaction")
