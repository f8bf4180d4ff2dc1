"""Admits transactional batches to the logs led here only if the coordinator confirms that the transaction includes the
partition (KIP-890; Kafka class `AddPartitionsToTxnManager`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from broker.replication.replica_manager import ReplicaManager
from broker.transactions.transaction_coordinator_service import TransactionCoordinatorService
from cluster.metadata_image import MetadataImage
from environment.contract import Clock
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TRANSACTION_STATE, TopicPartition
from storage.log.log_validator import NOT_VERIFIED, ONGOING, VerificationGuard


class VerificationRequest(NamedTuple):
    """Are `partitions` in the open transaction of this producer?"""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Sequence[TopicPartition]


Verdict = Mapping[TopicPartition, ErrorCode]
"""NONE for each partition in the transaction, otherwise an error."""

AskBroker = Callable[[int, VerificationRequest], Awaitable[Verdict]]
"""Asks the coordinator on another broker."""


class TransactionVerifier:
    """Asks the coordinator: one on this broker directly, one on another through `ask_broker`."""

    def __init__(
        self,
        broker_id: int,
        service: TransactionCoordinatorService,
        image: Callable[[], MetadataImage],
        ask_broker: AskBroker | None,
    ) -> None:
        """`image` returns the metadata; `ask_broker` is None for a single broker."""
        self._broker_id = broker_id
        self._service = service
        self._image = image
        self._ask_broker = ask_broker

    def verify(self, verification: VerificationRequest) -> Verdict | Awaitable[Verdict]:
        """Return the verdict or an awaitable of it. Never raises: NETWORK_EXCEPTION and the coordinator's errors are
        verdicts.
        """
        partition = self._service.partition_of(verification.transactional_id)
        leader = self._image().leader_of(TopicPartition(TRANSACTION_STATE, partition))
        if leader < 0:
            return dict.fromkeys(verification.partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if leader == self._broker_id or self._ask_broker is None:
            return self.answer(verification)
        return self._ask_broker(leader, verification)

    def answer(self, verification: VerificationRequest) -> Verdict:
        """The verdict of this broker's coordinator; if it is not responsible, every partition gets its error."""
        transactional_id, producer_id, producer_epoch, partitions = verification
        try:
            shard = self._service.runtime_of(transactional_id).shard
        except ApiError as error:
            return dict.fromkeys(partitions, error.error_code)
        return shard.transactions.verify(transactional_id, producer_id, producer_epoch, partitions)


class Write(NamedTuple):
    """A batch that a transactional producer wants to append."""

    topic_partition: TopicPartition
    producer_id: int
    producer_epoch: int
    base_sequence: int


Guards = Mapping[TopicPartition, VerificationGuard | ApiError]
"""The guard for appending to each partition, or the error of those whose transaction does not include them."""


class VerificationGuards:
    """Verifies the first batch of a transaction in a partition. `is_enabled` returns
    transaction.partition.verification.enable; if false, batches are not verified.
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
        self, transactional_id: str, writes: Sequence[Write], *, supports_abortable: bool
    ) -> Guards | Awaitable[Guards]:
        """Return the guards for `writes`, at most one per partition, or an awaitable of them.

        Partitions led elsewhere are left out: their append will fail anyway. `supports_abortable`: the client knows
        TRANSACTION_ABORTABLE; others get INVALID_TXN_STATE.
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
            verdict = self._verifier.verify(
                VerificationRequest(transactional_id, producer_id, producer_epoch, partitions)
            )
            if isinstance(verdict, Mapping):
                _apply_verdict(guards, verdict, supports_abortable=supports_abortable)
            else:
                waiting.append(verdict)
        if waiting:
            return _apply_verdict_later(guards, waiting, supports_abortable=supports_abortable)
        return guards


async def _apply_verdict_later(
    guards: dict[TopicPartition, VerificationGuard | ApiError],
    waiting: Sequence[Awaitable[Verdict]],
    *,
    supports_abortable: bool,
) -> Guards:
    for verdict in await asyncio.gather(*waiting):
        _apply_verdict(guards, verdict, supports_abortable=supports_abortable)
    return guards


def _apply_verdict(
    guards: dict[TopicPartition, VerificationGuard | ApiError], verdict: Verdict, *, supports_abortable: bool
) -> None:
    for topic_partition, error_code in verdict.items():
        if error_code is ErrorCode.NONE:
            continue
        code = error_code
        if code is ErrorCode.PRODUCER_FENCED:
            code = ErrorCode.INVALID_PRODUCER_EPOCH  # the code that producers expect here
        elif code is ErrorCode.TRANSACTION_ABORTABLE and not supports_abortable:
            code = ErrorCode.INVALID_TXN_STATE
        guards[topic_partition] = ApiError(code, f"{topic_partition} was not added to the transaction")
