"""Our own client's producer, for the requests that `session` sends itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

from client.errors import ClientError, ClientTimeoutError, TransactionError
from client.groups import GroupMetadata, OffsetAndMetadata, fetch_offsets
from client.kafka_client import KafkaClient
from client.producer import Producer
from client.settings import ProducerSettings
from protocol.errors import ApiError
from protocol.topic_partition import TopicPartition
from tests.simulation.transactions.session import AbortError, FencedError


class ClientSession:
    """Like `Session`. A late request could end the next transaction, or commit older offsets with it (KIP-890, where it
    needs the clients of Kafka 4.0). If one may be in flight, a new producer takes over.
    """

    was_asked_to_end = 2
    """The client does not reveal how often it has asked."""

    def __init__(
        self,
        client: KafkaClient,
        transactional_id: str,
        timeout_ms: int,
        give_up_s: float,
        request_timeout_ms: int,
        now_ms: Callable[[], int],
    ) -> None:
        """See `Session`."""
        self.transactional_id = transactional_id
        self.needs_new_epoch = False
        self._client = client
        self._now_ms = now_ms
        self._producer: Producer | None = None
        self._is_open = False
        self._request_timeout_s = request_timeout_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._settings = {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": str(timeout_ms),
            "request.timeout.ms": str(request_timeout_ms),
            "delivery.timeout.ms": str(max(int(give_up_s * 1000), request_timeout_ms)),
            "max.block.ms": "5000",
        }

    @property
    def epoch(self) -> int:
        """The producer's epoch when it began: it bumps it on its own if necessary."""
        assert self._producer is not None
        transactions = self._producer._transactions
        assert transactions is not None
        return transactions.producer.epoch

    async def _call(self, call: Callable[[], Awaitable[None]]) -> None:
        """Repeat calls that time out. Raises FencedError and AbortError."""
        began_s = self._loop.time()
        while True:
            try:
                await call()
            except ClientTimeoutError:
                continue
            except TransactionError as error:
                raise _told(error) from error
            finally:
                self.needs_new_epoch |= self._loop.time() - began_s >= 0.9 * self._request_timeout_s
            return

    async def begin(self) -> None:
        """Become the producer of the transactional id."""
        await self.close()
        self._producer = Producer(self._client, ProducerSettings.parse(self._settings), self._now_ms)
        await self._call(self._producer.init_transactions)
        self.needs_new_epoch = False

    async def close(self) -> None:
        """Close the producer, and leave its transaction open."""
        if self._producer is not None:
            await self._producer.close(flush=False)
        self._is_open = False

    def _opened(self) -> Producer:
        producer = self._producer
        assert producer is not None
        if not self._is_open:
            try:
                producer.begin_transaction()
            except TransactionError as error:
                raise _told(error) from error
            self._is_open = True
        return producer

    async def add(self, partitions: Sequence[TopicPartition]) -> None:
        """Do nothing: the client adds partitions with the first record."""

    async def write(self, partition: TopicPartition, values: Sequence[bytes]) -> list[int]:
        """Write values; returns their offsets."""
        producer = self._opened()
        sent = []
        try:
            for value in values:
                sent.append(await producer.send(partition.topic, value, partition=partition.partition))
            return [each.offset for each in await asyncio.gather(*sent)]
        except TransactionError as error:
            raise _told(error) from error
        except (ApiError, ClientError) as error:
            raise AbortError(str(error)) from error
        finally:
            await asyncio.gather(*sent, return_exceptions=True)

    async def commit_offsets(self, group: GroupMetadata, offsets: dict[TopicPartition, int]) -> None:
        """Add offsets of a group to the transaction."""
        producer = self._opened()
        given = {partition: OffsetAndMetadata(offset) for partition, offset in offsets.items()}
        await self._call(lambda: producer.send_offsets_to_transaction(given, group))

    async def end(self, *, commit: bool) -> None:
        """End the transaction."""
        producer = self._opened()
        self._is_open = False
        if not commit:
            await self._call(producer.abort_transaction)
            return
        try:
            await self._call(producer.commit_transaction)
        except AbortError:
            await self._call(producer.abort_transaction)
            raise

    async def stable_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The committed offsets of a group; waits for the end of transactions with pending ones."""
        while True:
            try:
                found = await fetch_offsets(self._client, group, partitions, require_stable=True)
            except (ApiError, ClientError):
                await asyncio.sleep(0.1)
                continue
            return {partition: each.offset for partition, each in found.items()}


def _told(error: TransactionError) -> FencedError | AbortError:
    return FencedError(str(error)) if error.is_fatal else AbortError(str(error))
