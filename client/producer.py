"""A producer: records in, futures out (Kafka class `KafkaProducer`); `client.sender` sends them to the brokers.

Keys are hashed as Kafka's clients do (`Utils.murmur2`), so that every client sends a key to the same partition. Records
without a key stick to a random partition until it got `batch.size` bytes (KIP-794), which fills batches and still
spreads the load evenly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from client.batches import Batch, RecordMetadata, record_size
from client.environment import Random
from client.errors import ClientTimeoutError, IllegalStateError
from client.groups import GroupMetadata, OffsetAndMetadata
from client.kafka_client import KafkaClient
from client.metadata import TrackedMetadata
from client.sender import Sender
from client.settings import ProducerSettings
from client.transactions.transaction_manager import TransactionManager
from protocol.errors import ApiError, ErrorCode
from protocol.records.batch import HEADER_BYTES, Header, Record
from protocol.topic_partition import TopicPartition

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The hash of `data` as an unsigned 32-bit number (MurmurHash 2 by Austin Appleby, with Kafka's seed)."""
    length = len(data)
    result = (_SEED ^ length) & _MASK
    whole = length & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        word ^= word >> 24
        result = (result * _M & _MASK) ^ (word * _M & _MASK)
    if length > whole:
        result ^= int.from_bytes(data[whole:], "little")
        result = result * _M & _MASK
    result ^= result >> 13
    result = result * _M & _MASK
    return result ^ (result >> 15)


def partition_for_key(key: bytes, partition_count: int) -> int:
    """The partition of all records with `key`, as long as the topic's number of partitions does not change."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class StickyPartition:
    """The current partition of one topic for records without a key."""

    def __init__(self, batch_size_bytes: int, rng: Random) -> None:
        self._batch_size_bytes = max(batch_size_bytes, 1)
        self._rng = rng
        self._partition = -1
        self._bytes = 0

    def choose(self, partitions: Sequence[int], size_bytes: int) -> int:
        """The partition for the next `size_bytes`, one of `partitions`."""
        if self._partition not in partitions or self._bytes >= self._batch_size_bytes:
            others = [each for each in partitions if each != self._partition]
            self._partition = self._rng.choice(others or partitions)
            self._bytes = 0
        self._bytes += size_bytes
        return self._partition


class Producer:
    """Sends records through a client, which it does not close. Use as an async context manager: leaving it flushes.

    Records are queued by partition, chosen by key or, without one, by `StickyPartition`. Records of a partition keep
    their order.
    """

    def __init__(self, client: KafkaClient, settings: ProducerSettings, now_ms: Callable[[], int]) -> None:
        self.settings = settings
        self._client = client
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._metadata = TrackedMetadata(client, allow_auto_topic_creation=True)
        self._transactions = (
            None
            if settings.transactional_id is None
            else TransactionManager(client, settings, settings.transactional_id)
        )
        self._sender = Sender(client, settings, self._metadata, self._transactions)
        self._sticky: dict[str, StickyPartition] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Delivery of accepted records continues even if the task is cancelled.
        closing = asyncio.create_task(self.close())
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await closing
            raise

    async def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        *,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Queue a record; waits for room (`buffer.memory`) and for the topic's metadata, both up to `max.block.ms`.

        The future returns the position of the record, or raises ApiError or ClientError. This method raises ApiError at
        once: MESSAGE_TOO_LARGE for a record above `max.request.size`, or the permanent error of a topic;
        ClientTimeoutError if waiting took too long. With a transactional id, raises IllegalStateError outside of a
        transaction, and TransactionError in one that has failed.
        """
        record = Record(0, self._now_ms() if timestamp is None else timestamp, key, value, headers)
        size = self._checked(record_size(key, value, headers))
        target = await self._choose(topic, key, size, partition)
        await self._wait_for_room(size)
        if self._transactions is not None:
            self._transactions.add(target)
        future: asyncio.Future[RecordMetadata] = self._loop.create_future()
        queue = self._sender.queues.of(target)
        is_batch_full = queue.append(record, size, self._loop.time(), self.settings.batch_size_bytes, future)
        self._sender.added(size)
        if is_batch_full:
            await asyncio.sleep(0)  # otherwise a caller that never waits would starve the sender
        return future

    async def send_batch(
        self, topic: str, values: Sequence[bytes], *, partition: int | None = None
    ) -> asyncio.Future[RecordMetadata]:
        """Queue records without keys as a separate batch, the fastest way to send; see `send`.

        The future returns the position of the first record.
        """
        size = self._checked(HEADER_BYTES + sum(map(len, values)) + len(values) * record_size(None, b""))
        target = await self._choose(topic, None, self.settings.batch_size_bytes, partition)
        await self._wait_for_room(size)
        if self._transactions is not None:
            self._transactions.add(target)
        batch = Batch(target, self._loop.time())
        batch.values = values
        batch.timestamp = self._now_ms()
        batch.size_bytes = size
        batch.is_full = True
        future: asyncio.Future[RecordMetadata] = self._loop.create_future()
        batch.futures.append(future)
        self._sender.queues.of(target).batches.append(batch)
        self._sender.added(batch.payload_bytes)
        await asyncio.sleep(0)
        return future

    async def flush(self) -> None:
        """Send queued records without lingering, and wait until all are delivered or have failed."""
        await self._sender.flush()

    async def close(self, *, flush: bool = True) -> None:
        """Flush (unless `flush` is false), abort an open transaction, and stop. Undelivered records fail.

        Without `flush`, an open transaction is left to its timeout.
        """
        if flush:
            await self._sender.flush()
            if self._transactions is not None:
                await self._transactions.close(self._sender.flush)
        if self._transactions is not None:
            await self._transactions.stop()
        await self._sender.close()

    # -- transactions --------------------------------------------------------------------------------------------------

    async def init_transactions(self) -> None:
        """Become the producer of `transactional.id`: fence its predecessors, and complete their open transactions.

        This and the other methods for transactions raise TransactionError for a failure (then abort, or close if
        `is_fatal`), IllegalStateError for a call in the wrong state, and ClientTimeoutError after `max.block.ms`: the
        work then continues, and calling the method again waits for it.
        """
        await self._transactional.init()

    def begin_transaction(self) -> None:
        """Begin a transaction, which covers all records sent from now on."""
        self._transactional.begin()

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata
    ) -> None:
        """Commit offsets of a group with the transaction. A zombie of the group fails the transaction (KIP-447)."""
        await self._transactional.send_offsets(offsets, group)

    async def commit_transaction(self) -> None:
        """Flush, and commit: consumers will see all records and offsets of the transaction."""
        await self._transactional.commit(self._sender.flush)

    async def abort_transaction(self) -> None:
        """Drop unsent records, and abort: read_committed consumers will not see the transaction."""
        await self._transactional.abort(self._sender.flush)

    @property
    def _transactional(self) -> TransactionManager:
        if self._transactions is None:
            raise IllegalStateError(
                "Cannot use transactional methods without enabling transactions by setting the transactional.id "
                "configuration property"
            )
        return self._transactions

    # -- accepting records ---------------------------------------------------------------------------------------------

    def _checked(self, size: int) -> int:
        if size > self.settings.max_request_bytes:
            raise ApiError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"The message is {size} bytes when serialized which is larger than {self.settings.max_request_bytes}, "
                "which is the value of the max.request.size configuration.",
            )
        return size

    async def _choose(self, topic: str, key: bytes | None, size: int, partition: int | None) -> TopicPartition:
        known = self._metadata.current.topics.get(topic)
        if known is None or not known.partitions:
            known = await self._metadata.await_topic(topic, self.settings.max_block_ms)
        if partition is None:
            if key is not None:
                partition = partition_for_key(key, len(known.partitions))
            else:
                sticky = self._sticky.get(topic)
                if sticky is None:
                    sticky = self._sticky[topic] = StickyPartition(self.settings.batch_size_bytes, self._client.rng)
                partition = sticky.choose(range(len(known.partitions)), size)
        return TopicPartition(topic, partition)

    async def _wait_for_room(self, size: int) -> None:
        if self._sender.has_room(size):
            return
        try:
            async with asyncio.timeout(self.settings.max_block_ms / 1000):
                await self._sender.wait_for_room(size)
        except TimeoutError:
            raise ClientTimeoutError(
                f"Failed to allocate {size} bytes within the configured max blocking time "
                f"{self.settings.max_block_ms} ms."
            ) from None
