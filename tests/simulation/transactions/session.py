"""A transactional producer, request by request: it can send what a well-behaved client never would, and hold requests
back while others flow.

Where a late request could be mistaken for one of a later transaction, it continues with a higher epoch (KIP-360).
Brokers do that for new clients from Kafka 4.0 on; those of Kafka 3.9 leave it to the client (KIP-890).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from client.broker_connection import BrokerConnection
from client.errors import ClientError
from client.groups import GroupMetadata
from client.kafka_client import KafkaClient
from client.metadata import Metadata
from protocol.errors import ApiError, ErrorCode
from protocol.messages.coordinators import FindCoordinatorResponse
from protocol.messages.group_offsets import OffsetFetchResponse
from protocol.messages.produce import ProduceResponse
from protocol.messages.producer_ids import InitProducerIdResponse
from protocol.messages.transactions import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnResponse,
    EndTxnResponse,
    TxnOffsetCommitResponse,
)
from protocol.topic_partition import TopicPartition
from tests.kit.transactions.requests import (
    add_offsets,
    add_partitions,
    commit_offsets,
    end,
    fetch_offset,
    find_coordinator,
    init,
    produce_in_transaction,
)

_RETRY_S: Final = 0.1
_FENCED: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING})
_ABORTABLE: Final = frozenset(
    {
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
    }
)
_PASSING: Final = frozenset({ErrorCode.NETWORK_EXCEPTION, ErrorCode.KAFKA_STORAGE_ERROR})

Ask = Callable[[BrokerConnection], Awaitable[Iterable[int]]]
"""Sends a request; returns the error codes of the answer."""


class FencedError(Exception):
    """Another producer has taken over the transactional id, or the transaction took too long."""


class AbortError(Exception):
    """The transaction cannot be committed any more."""


class UnexpectedCodeError(Exception):
    """A code that no producer is prepared for."""


def hold(connection: BrokerConnection) -> Callable[[], None]:
    """Hold back everything sent on a connection, until the returned function is called."""
    endpoint = connection._transport
    assert endpoint is not None
    endpoint.held = True  # type: ignore[attr-defined]

    def release() -> None:
        endpoint.held = False  # type: ignore[attr-defined]
        endpoint.send_stalled()  # type: ignore[attr-defined]

    return release


class Session:
    """One producer of a transactional id. Methods raise FencedError, AbortError, UnexpectedCodeError."""

    def __init__(self, client: KafkaClient, transactional_id: str, timeout_ms: int, give_up_s: float) -> None:
        """A request is retried for `give_up_s` at most, those that begin and end something forever."""
        self.transactional_id = transactional_id
        self.producer_id = self.epoch = -1
        self.needs_new_epoch = False
        """Whether an earlier request may still arrive."""
        self._client = client
        self._timeout_ms = timeout_ms
        self._give_up_s = give_up_s
        self._sequences: dict[TopicPartition, int] = {}
        self._metadata: Metadata | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def identity(self) -> tuple[str, int, int]:
        """The identity in requests."""
        return self.transactional_id, self.producer_id, self.epoch

    # -- asking --------------------------------------------------------------------------------------------------------

    async def _retry(
        self, find: Callable[[], Awaitable[BrokerConnection]], ask: Ask, *, for_ever: bool = False
    ) -> bool:
        """Retry until an answer has no retriable error. Returns whether each request was answered. Raises like
        `_judge`.
        """
        deadline = self._loop.time() + self._give_up_s
        answered = True
        while for_ever or self._loop.time() < deadline:
            try:
                codes = [ErrorCode.of(each) for each in await ask(await find())]
            except (ClientError, ApiError):
                answered = False
            else:
                if not any(_passes(each) for each in codes):
                    self._judge(codes)
                    return answered
            await asyncio.sleep(_RETRY_S * (0.5 + self._client.rng.random()))
        self.needs_new_epoch = True
        raise AbortError("not answered in time")

    @staticmethod
    def _judge(codes: Iterable[ErrorCode]) -> None:
        for code in codes:
            if code in _FENCED:
                raise FencedError(code.name)
            if code in _ABORTABLE:
                raise AbortError(code.name)
            if code is not ErrorCode.NONE:
                raise UnexpectedCodeError(code.name)

    async def _coordinator(self) -> BrokerConnection:
        connection = await self._client.any_connection()
        answer = await connection.ask(find_coordinator(self.transactional_id), FindCoordinatorResponse, 4)
        found = answer.coordinators[0]
        if found.error_code:
            raise ApiError(ErrorCode.of(found.error_code), "no coordinator")
        return await self._client.node_connection(found.node_id)

    async def leader(self, partition: TopicPartition) -> BrokerConnection:
        """A connection to the leader, separate from the coordinator's."""
        found = await self._client.fetch_metadata([partition.topic])
        self._metadata = found if self._metadata is None else self._metadata.update(found)
        known = self._metadata.partition(*partition)
        if known is None or known.leader < 0:
            raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, str(partition))
        return await self._client.node_connection(known.leader, "produce")

    async def _group_coordinator(self, group: str) -> BrokerConnection:
        return await self._client.node_connection(await self._client.find_coordinator(group))

    # -- its life ------------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Become the producer of the transactional id; if it already is, bump the epoch."""

        async def ask(connection: BrokerConnection) -> Iterable[int]:
            request = init(self.transactional_id, self._timeout_ms, self.producer_id, self.epoch)
            answer = await connection.ask(request, InitProducerIdResponse, 5)
            if not answer.error_code:
                self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            return [answer.error_code]

        await self._retry(self._coordinator, ask, for_ever=True)
        self._sequences.clear()
        self.needs_new_epoch = False

    async def add(self, partitions: Sequence[TopicPartition]) -> None:
        """Add partitions to the transaction."""

        async def ask(connection: BrokerConnection) -> Iterable[int]:
            answer = await connection.ask(add_partitions(*self.identity, *partitions), AddPartitionsToTxnResponse, 3)
            topics = answer.results_by_topic_v3_and_below
            return [each.partition_error_code for topic in topics for each in topic.results_by_partition]

        await self._retry(self._coordinator, ask)

    async def write(self, partition: TopicPartition, values: Sequence[bytes]) -> list[int]:
        """Write values in one batch; returns their offsets."""
        offset = -1

        async def ask(connection: BrokerConnection) -> Iterable[int]:
            nonlocal offset
            request = produce_in_transaction(*self.identity, self._sequences.get(partition, 0), values, partition)
            answer = (await connection.ask(request, ProduceResponse, 11)).responses[0].partition_responses[0]
            offset = answer.base_offset
            return [answer.error_code]

        await self._retry(lambda: self.leader(partition), ask)
        self._sequences[partition] = self._sequences.get(partition, 0) + len(values)
        return list(range(offset, offset + len(values)))

    def write_once(self, connection: BrokerConnection, partition: TopicPartition, values: Sequence[bytes]) -> None:
        """Send a batch, and ignore its fate."""
        request = produce_in_transaction(*self.identity, self._sequences.get(partition, 0), values, partition)
        self.needs_new_epoch = True
        connection.send(request, ProduceResponse, 11).add_done_callback(_forget)

    async def commit_offsets(self, metadata: GroupMetadata, offsets: dict[TopicPartition, int]) -> None:
        """Add offsets of a group to the transaction."""
        group = metadata.group_id

        async def add(connection: BrokerConnection) -> Iterable[int]:
            return [(await connection.ask(add_offsets(*self.identity, group), AddOffsetsToTxnResponse, 4)).error_code]

        await self._retry(self._coordinator, add)
        for partition, offset in offsets.items():

            async def commit(
                connection: BrokerConnection, partition: TopicPartition = partition, offset: int = offset
            ) -> Iterable[int]:
                request = commit_offsets(*self.identity, metadata, partition, offset)
                answer = await connection.ask(request, TxnOffsetCommitResponse, 4)
                return [answer.topics[0].partitions[0].error_code]

            self.needs_new_epoch |= not await self._retry(lambda: self._group_coordinator(group), commit)

    async def end(self, *, commit: bool) -> None:
        """End the transaction."""

        async def ask(connection: BrokerConnection) -> Iterable[int]:
            self.was_asked_to_end += 1
            return [(await connection.ask(end(*self.identity, commit=commit), EndTxnResponse, 4)).error_code]

        self.was_asked_to_end = 0
        self.needs_new_epoch |= not await self._retry(self._coordinator, ask, for_ever=True)

    was_asked_to_end = 0
    """How many requests the last `end` sent."""

    async def stable_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The committed offsets of a group; waits for the end of transactions with pending ones."""
        found = {each: await self._stable_offset(group, each) for each in partitions}
        return {partition: offset for partition, offset in found.items() if offset >= 0}

    async def _stable_offset(self, group: str, partition: TopicPartition) -> int:
        offset = -1

        async def ask(connection: BrokerConnection) -> Iterable[int]:
            nonlocal offset
            request = fetch_offset(group, partition, require_stable=True)
            found = (await connection.ask(request, OffsetFetchResponse, 9)).groups[0]
            if found.error_code:
                return [found.error_code]
            answer = found.topics[0].partitions[0]
            offset = answer.committed_offset
            return [answer.error_code]

        await self._retry(lambda: self._group_coordinator(group), ask, for_ever=True)
        return offset

    async def close(self) -> None:
        """Close it, and leave its transaction open."""


def _passes(code: ErrorCode) -> bool:
    return code.retriable or code in _PASSING


def _forget(answer: asyncio.Future[ProduceResponse]) -> None:
    if not answer.cancelled():
        answer.exception()
