"""Asks transaction coordinators whether partitions are part of a transaction (KIP-890; Kafka class
`AddPartitionsToTxnManager`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from broker.transactions.transaction_coordinator_service import TransactionCoordinatorService
from cluster.metadata_image import MetadataImage
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TRANSACTION_STATE, TopicPartition


class Question(NamedTuple):
    """Are `partitions` in the open transaction of this producer?"""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Sequence[TopicPartition]


Verdict = Mapping[TopicPartition, ErrorCode]
"""NONE where the partition is part of the transaction."""

AskBroker = Callable[[int, Question], Awaitable[Verdict]]
"""Asks the coordinator on another broker."""


class TransactionVerifier:
    """Asks a coordinator here by a call, and one on another broker through `ask_broker`."""

    def __init__(
        self,
        broker_id: int,
        service: TransactionCoordinatorService,
        image: Callable[[], MetadataImage],
        ask_broker: AskBroker | None,
    ) -> None:
        """`image` gives the metadata; `ask_broker` is None for a broker that is alone."""
        self._broker_id = broker_id
        self._service = service
        self._image = image
        self._ask_broker = ask_broker

    def verify(self, question: Question) -> Verdict | Awaitable[Verdict]:
        """The verdict, or something to wait for it. Raises nothing: NETWORK_EXCEPTION and the coordinator's errors are
        verdicts.
        """
        partition = self._service.partition_of(question.transactional_id)
        leader = self._image().leader_of(TopicPartition(TRANSACTION_STATE, partition))
        if leader < 0:
            return dict.fromkeys(question.partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if leader == self._broker_id or self._ask_broker is None:
            return self.answer(question)
        return self._ask_broker(leader, question)

    def answer(self, question: Question) -> Verdict:
        """The verdict of the coordinator here, which has the error of all if it is not the one to ask."""
        transactional_id, producer_id, producer_epoch, partitions = question
        try:
            shard = self._service.runtime_of(transactional_id).shard
        except ApiError as error:
            return dict.fromkeys(partitions, error.error_code)
        return shard.transactions.verify(transactional_id, producer_id, producer_epoch, partitions)
