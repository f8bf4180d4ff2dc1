"""Records that a producer has accepted and not delivered yet: batches by partition, in order, with sequence numbers."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from client.settings import ProducerSettings
from protocol.errors import detached
from protocol.records.batch import (
    HEADER_BYTES,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchOptions,
    Header,
    Record,
    build_batch,
    build_values_batch,
    increment_sequence,
)
from protocol.topic_partition import TopicPartition

logger = logging.getLogger("kafka.clients.Producer")

BATCHES_KEPT = 5
"""Of each producer in a partition a broker keeps the numbers of so many batches (Kafka's `ProducerStateEntry`)."""

_FIXED_RECORD_BYTES = 7
"""Attributes, two bytes each for the deltas of timestamp and offset, header count, and the record's length."""


class RecordMetadata(NamedTuple):
    """The position of a record. `offset` is -1 when it was not asked for (acks 0); `timestamp` is in ms."""

    topic_partition: TopicPartition
    offset: int
    timestamp: int


class ProducerId(NamedTuple):
    """Identity and epoch by which the broker recognizes duplicates; -1 without idempotence."""

    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_PRODUCER_EPOCH


def record_size(key: bytes | None, value: bytes | None, headers: Sequence[Header] = ()) -> int:
    """About how many bytes a record takes in a batch."""
    size = _FIXED_RECORD_BYTES
    for part in (key, value):
        size += 1 if part is None else len(part) + (1 if len(part) < 64 else 2 if len(part) < 8192 else 3)
    for name, content in headers:
        size += 4 + len(name) + len(content or b"")
    return size + (size >= 64)


class Batch:
    """Records of one partition that travel together. Either `rows`, or `values` with one timestamp for all."""

    __slots__ = (
        "_encoded",
        "_encoded_for",
        "attempts",
        "base_sequence",
        "created_s",
        "futures",
        "is_full",
        "number",
        "partition",
        "rows",
        "size_bytes",
        "timestamp",
        "values",
    )

    def __init__(self, partition: TopicPartition, created_s: float) -> None:
        self.partition = partition
        self.created_s = created_s
        """When the first record came, by the loop's clock."""
        self.rows: list[Record] = []
        self.values: Sequence[bytes] = ()
        self.timestamp = -1
        self.futures: list[asyncio.Future[RecordMetadata]] = []
        self.size_bytes = HEADER_BYTES
        self.is_full = False
        """Whether nothing more is to be added."""
        self.attempts = 0
        self.number = -1
        """Its place among the batches of the partition that were sent; -1 before the first attempt."""
        self.base_sequence = NO_SEQUENCE
        self._encoded = b""
        self._encoded_for: tuple[ProducerId, int] | None = None

    def __len__(self) -> int:
        return len(self.rows) or len(self.values)

    @property
    def payload_bytes(self) -> int:
        """About how many bytes the records take."""
        return self.size_bytes - HEADER_BYTES

    def encode(self, producer: ProducerId, settings: ProducerSettings) -> bytes:
        """The batch as bytes; sent again, it is the same bytes as long as producer and sequence are the same."""
        identity = (producer, self.base_sequence)
        if self._encoded_for != identity:
            options: BatchOptions = {
                "compression": settings.compression,
                "compression_level": settings.compression_level,
                "producer_id": producer.producer_id,
                "producer_epoch": producer.epoch,
                "base_sequence": self.base_sequence,
                "is_transactional": settings.transactional_id is not None,
            }
            if self.rows:
                self._encoded = build_batch(self.rows, **options)
            else:
                self._encoded = build_values_batch(self.values, self.timestamp, **options)
            self._encoded_for = identity
        return self._encoded

    def succeed(self, base_offset: int, log_append_time_ms: int) -> None:
        """Tell where the records are."""
        for index, future in enumerate(self.futures):
            if future.done():
                continue
            timestamp = log_append_time_ms
            if timestamp < 0:
                timestamp = self.rows[index].timestamp if self.rows else self.timestamp
            future.set_result(
                RecordMetadata(self.partition, base_offset + index if base_offset >= 0 else -1, timestamp)
            )

    def fail(self, error: Exception, *, is_told: bool = False) -> None:
        """Tell why the records were not delivered. If somebody `is_told` that anyway, nobody needs to look here."""
        for future in self.futures:
            if not future.done():
                future.set_exception(detached(error))
                if is_told:
                    future.exception()


class PartitionQueue:
    """The batches of one partition, oldest first: those that wait, and those in flight.

    With idempotence, batches are numbered under `producer`. What the broker has of them is in doubt once a batch was
    given up. Those that have a number keep it then, so that the broker still recognizes duplicates. The partition
    begins anew, with a higher epoch and sequence 0, when no batch is left with an old number, or the broker misses one.

    A broker takes any number for the first of a producer that it does not know, so the first batch that leaves for it
    travels alone, and only when none is in flight to another leader. It recognizes the last `BATCHES_KEPT` batches. No
    more than that leave while the outcome of one is open, which has to be recognized when it is sent again.
    """

    __slots__ = (
        "_is_in_doubt",
        "_is_known",
        "_leader",
        "_newest_delivered",
        "_next_sequence",
        "_sent",
        "batches",
        "has_gap",
        "in_flight",
        "is_retrying",
        "not_before_s",
        "partition",
        "producer",
    )

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.batches: deque[Batch] = deque()
        self.in_flight: list[Batch] = []
        self.is_retrying = False
        """Whether a batch failed, so that nothing leaves until all in flight are back in their places."""
        self.not_before_s = 0.0
        """When a failed batch may be sent again, by the loop's clock."""
        self.producer = ProducerId()
        """Under which the batches are numbered."""
        self._next_sequence = 0
        self._sent = 0
        self._newest_delivered = -1
        self.has_gap = False
        """Whether the broker misses a sequence number that it will never get."""
        self._is_in_doubt = False
        self._is_known = False
        self._leader = -1
        """The broker that batches left for last."""

    def append(
        self,
        record: Record,
        size: int,
        now_s: float,
        batch_size_bytes: int,
        future: asyncio.Future[RecordMetadata],
    ) -> bool:
        """Add a record of about `size` bytes to the newest batch, or to a new one; whether that made a batch full."""
        batch = self.batches[-1] if self.batches else None
        is_next = batch is not None and not batch.is_full and batch.size_bytes + size > batch_size_bytes
        if batch is None or batch.is_full or is_next:
            if batch is not None:
                batch.is_full = True
            batch = Batch(self.partition, now_s)
            self.batches.append(batch)
        batch.rows.append(record)
        batch.futures.append(future)
        batch.size_bytes += size
        batch.is_full = batch.size_bytes >= batch_size_bytes
        return batch.is_full or is_next

    def due_s(self, linger_s: float) -> float | None:
        """When the oldest batch should leave, by the loop's clock; None when nothing can say that yet."""
        if not self.batches or (self.in_flight and (self.is_retrying or self.begins_anew or self._has_to_wait)):
            return None
        batch = self.batches[0]
        if batch.attempts:
            # Alone: an older one may be refused, and the broker take this one for the first of a producer new to it.
            return None if self.in_flight else self.not_before_s
        return max(self.not_before_s, batch.created_s + (0 if batch.is_full else linger_s))

    def may_go_to(self, leader: int) -> bool:
        """Whether a batch may leave to `leader`: not before the outcome of those in flight to another one is known."""
        return not self.in_flight or self._leader == leader

    def go_to(self, leader: int) -> None:
        """Note where the next batch leaves for; a new leader may not know the producer."""
        if leader != self._leader:
            self._leader = leader
            self._is_known = False

    @property
    def _has_to_wait(self) -> bool:
        """Whether the broker could mistake another batch beside those in flight, which are in their order."""
        if self.producer.producer_id == NO_PRODUCER_ID:
            return False
        return not self._is_known or self._sent - self.in_flight[0].number >= BATCHES_KEPT

    @property
    def begins_anew(self) -> bool:
        """Whether the oldest batch is to be sent under a new epoch."""
        return self.has_gap or (self._is_in_doubt and self.batches[0].base_sequence == NO_SEQUENCE)

    def take(self, producer: ProducerId | None) -> Batch:
        """The oldest batch, counted as in flight. With idempotence it has a sequence number of `producer`, or of the
        producer that the partition has unless it `begins_anew`.
        """
        batch = self.batches[0]
        if producer is not None:
            if self.begins_anew or self.producer.producer_id == NO_PRODUCER_ID:
                self.begin_anew(producer)
            if batch.base_sequence == NO_SEQUENCE:
                batch.base_sequence = self._next_sequence
                self._next_sequence = increment_sequence(self._next_sequence, len(batch))
        self.batches.popleft()
        batch.is_full = True
        if not batch.attempts:
            batch.number = self._sent
            self._sent += 1
        batch.attempts += 1
        self.in_flight.append(batch)
        return batch

    def begin_anew(self, producer: ProducerId) -> None:
        """Number batches from 0 on, under another producer; nothing may be in flight."""
        self.producer = producer
        self._next_sequence = 0
        self.has_gap = self._is_in_doubt = self._is_known = False
        for batch in self.batches:
            batch.base_sequence = NO_SEQUENCE

    def refused(self, batch: Batch, *, is_transactional: bool) -> bool:
        """Whether to send `batch` again, which is in flight, and whose sequence number the broker has refused.

        An older batch that is still to be delivered explains that, and this one is sent again behind it. Otherwise the
        broker will never have what it misses, and the partition begins anew. A batch older than one that was delivered
        is not sent again: its records would be out of order. (Kafka's `TransactionManager.canRetry`, KIP-360.) A
        refused transactional batch proves no loss: a late copy from the previous transaction has the same effect.
        """
        if batch.base_sequence == NO_SEQUENCE or batch.number < self._newest_delivered:
            return False
        is_behind = self.batches and 0 <= self.batches[0].number < batch.number
        if not is_behind and all(each.number >= batch.number for each in self.in_flight):
            if not (self._is_in_doubt or is_transactional):
                logger.error("The broker has lost records of %s that it had acknowledged", self.partition)
            self.has_gap = True
        return True

    def delivered(self, batch: Batch) -> None:
        """The broker has acknowledged a batch."""
        self._newest_delivered = max(self._newest_delivered, batch.number)
        self._is_known = True

    def given_up(self, batch: Batch) -> None:
        """A batch is not sent again; the broker may have it or not."""
        if batch.base_sequence != NO_SEQUENCE:
            self._is_in_doubt = True

    def put_back(self, batch: Batch, not_before_s: float) -> None:
        """Return a batch that was in flight and is to be sent again to its place."""
        self.is_retrying = True
        self.not_before_s = not_before_s
        place = 0
        while place < len(self.batches) and 0 <= self.batches[place].number < batch.number:
            place += 1
        self.batches.insert(place, batch)

    def settled(self, batch: Batch) -> None:
        """`batch` is no longer in flight; when it was the last, what failed may be sent again."""
        self.in_flight.remove(batch)
        if not self.in_flight:
            self.is_retrying = False


class Queues:
    """The queues of all partitions."""

    def __init__(self) -> None:
        self._queues: dict[TopicPartition, PartitionQueue] = {}

    def __iter__(self) -> Iterator[PartitionQueue]:
        return iter(self._queues.values())

    def of(self, partition: TopicPartition) -> PartitionQueue:
        """The queue of a partition, made when there is none."""
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = PartitionQueue(partition)
        return queue

    @property
    def is_empty(self) -> bool:
        """Whether nothing is queued or in flight."""
        return not any(queue.batches or queue.in_flight for queue in self._queues.values())
