"""Records that a producer has accepted but not delivered yet: batches by partition, in order, with sequence numbers."""

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
"""The number of batches whose sequence numbers a broker keeps for a producer and partition (Kafka's
`ProducerStateEntry`).
"""

_FIXED_RECORD_BYTES = 7
"""Size of attributes, timestamp and offset deltas (two bytes each), header count, and the record's length."""


class RecordMetadata(NamedTuple):
    """The position of a record. `offset` is -1 with acks 0; `timestamp` is in ms."""

    topic_partition: TopicPartition
    offset: int
    timestamp: int


class ProducerId(NamedTuple):
    """Producer id and epoch, which let the broker recognize duplicates; -1 without idempotence."""

    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_PRODUCER_EPOCH


def record_size(key: bytes | None, value: bytes | None, headers: Sequence[Header] = ()) -> int:
    """The approximate size of a record in a batch, in bytes."""
    size = _FIXED_RECORD_BYTES
    for part in (key, value):
        size += 1 if part is None else len(part) + (1 if len(part) < 64 else 2 if len(part) < 8192 else 3)
    for name, content in headers:
        size += 4 + len(name) + len(content or b"")
    return size + (size >= 64)


class Batch:
    """Records of one partition that are sent together. Either `rows`, or `values` with one timestamp for all."""

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
        """Loop time when the first record was added."""
        self.rows: list[Record] = []
        self.values: Sequence[bytes] = ()
        self.timestamp = -1
        self.futures: list[asyncio.Future[RecordMetadata]] = []
        self.size_bytes = HEADER_BYTES
        self.is_full = False
        """Whether the batch is closed for more records."""
        self.attempts = 0
        self.number = -1
        """The sequential number of the batch among those sent to the partition; -1 before the first attempt."""
        self.base_sequence = NO_SEQUENCE
        self._encoded = b""
        self._encoded_for: tuple[ProducerId, int] | None = None

    def __len__(self) -> int:
        return len(self.rows) or len(self.values)

    @property
    def payload_bytes(self) -> int:
        """The approximate size of the records in bytes."""
        return self.size_bytes - HEADER_BYTES

    def encode(self, producer: ProducerId, settings: ProducerSettings) -> bytes:
        """The encoded batch; a retry gets the same bytes while producer and sequence are unchanged."""
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
        """Resolve the futures with the positions of the records."""
        for index, future in enumerate(self.futures):
            if future.done():
                continue
            timestamp = log_append_time_ms
            if timestamp < 0:
                timestamp = self.rows[index].timestamp if self.rows else self.timestamp
            future.set_result(
                RecordMetadata(self.partition, base_offset + index if base_offset >= 0 else -1, timestamp)
            )

    def fail(self, error: Exception, *, is_reported: bool = False) -> None:
        """Fail the futures with the reason. If another call reports it (`is_reported`), asyncio does not log
        unretrieved exceptions.
        """
        for future in self.futures:
            if not future.done():
                future.set_exception(detached(error))
                if is_reported:
                    future.exception()


class PartitionQueue:
    """The batches of one partition, oldest first: queued and in flight.

    With idempotence, batches get sequence numbers under `producer`. Once a batch was given up, it is unknown whether
    the broker has it. Batches that already have a number keep it then, so that the broker still recognizes duplicates.
    The partition restarts with a higher epoch and sequence 0 when all batches with old numbers are settled, or when the
    broker is missing one.

    A broker accepts any first sequence number from a producer that it does not know, so the first batch for a broker is
    sent alone, and only when all batches to another leader are settled. A broker recognizes the last `BATCHES_KEPT`
    batches, so at most that many are sent while the outcome of one is open, because a retry must be recognized.
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
        """Whether a batch failed: sending pauses until all batches in flight are settled or back in the queue."""
        self.not_before_s = 0.0
        """Loop time when a failed batch may be retried."""
        self.producer = ProducerId()
        """The producer id and epoch of the sequence numbers."""
        self._next_sequence = 0
        self._sent = 0
        self._newest_delivered = -1
        self.has_gap = False
        """Whether the broker is missing a sequence number that it will never get."""
        self._is_in_doubt = False
        self._is_known = False
        self._leader = -1
        """The broker that got the last batch."""

    def append(
        self,
        record: Record,
        size: int,
        now_s: float,
        batch_size_bytes: int,
        future: asyncio.Future[RecordMetadata],
    ) -> bool:
        """Add a record of about `size` bytes to the newest batch, or to a new one; returns whether a batch became
        full.
        """
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
        """Loop time when the oldest batch should be sent, or None if that is not known yet."""
        if not self.batches or (self.in_flight and (self.is_retrying or self.needs_new_epoch or self._has_to_wait)):
            return None
        batch = self.batches[0]
        if batch.attempts:
            # Retry it alone: if an older batch were refused, the broker could accept this one as the first of an
            # unknown producer.
            return None if self.in_flight else self.not_before_s
        return max(self.not_before_s, batch.created_s + (0 if batch.is_full else linger_s))

    def may_send_to(self, leader: int) -> bool:
        """Whether a batch may be sent to `leader`: only when all batches in flight to another leader are settled."""
        return not self.in_flight or self._leader == leader

    def set_leader(self, leader: int) -> None:
        """Set the leader of the next batch; a new leader may not know the producer."""
        if leader != self._leader:
            self._leader = leader
            self._is_known = False

    @property
    def _has_to_wait(self) -> bool:
        """Whether another batch in flight could confuse the broker's duplicate detection."""
        if self.producer.producer_id == NO_PRODUCER_ID:
            return False
        return not self._is_known or self._sent - self.in_flight[0].number >= BATCHES_KEPT

    @property
    def needs_new_epoch(self) -> bool:
        """Whether the oldest batch needs a new epoch."""
        return self.has_gap or (self._is_in_doubt and self.batches[0].base_sequence == NO_SEQUENCE)

    def take(self, producer: ProducerId | None) -> Batch:
        """Move the oldest batch to those in flight and return it. With idempotence it has a sequence number under the
        partition's producer, or under `producer` if the partition has none or `needs_new_epoch`.
        """
        batch = self.batches[0]
        if producer is not None:
            if self.needs_new_epoch or self.producer.producer_id == NO_PRODUCER_ID:
                self.restart_sequence(producer)
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

    def restart_sequence(self, producer: ProducerId) -> None:
        """Restart the sequence numbers at 0 under another producer; no batch may be in flight."""
        self.producer = producer
        self._next_sequence = 0
        self.has_gap = self._is_in_doubt = self._is_known = False
        for batch in self.batches:
            batch.base_sequence = NO_SEQUENCE

    def refused(self, batch: Batch, *, is_transactional: bool) -> bool:
        """Handle a refused sequence number of `batch`, which is in flight; returns whether to retry the batch.

        If an older batch is still undelivered, that explains the refusal, and this one is retried after it. Otherwise
        the broker will never get the missing batch, and the partition restarts. A batch older than a delivered one is
        not retried: its records would be out of order. (Kafka's `TransactionManager.canRetry`, KIP-360.) A refused
        transactional batch does not prove a loss: a late copy from the previous transaction has the same effect.
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
        """Note that the broker has acknowledged a batch."""
        self._newest_delivered = max(self._newest_delivered, batch.number)
        self._is_known = True

    def abandoned(self, batch: Batch) -> None:
        """Note that a batch will not be retried; the broker may or may not have it."""
        if batch.base_sequence != NO_SEQUENCE:
            self._is_in_doubt = True

    def put_back(self, batch: Batch, not_before_s: float) -> None:
        """Put a batch in flight back into its place in the queue, for a retry."""
        self.is_retrying = True
        self.not_before_s = not_before_s
        place = 0
        while place < len(self.batches) and 0 <= self.batches[place].number < batch.number:
            place += 1
        self.batches.insert(place, batch)

    def completed(self, batch: Batch) -> None:
        """Remove `batch` from those in flight; after the last one, failed batches may be retried."""
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
        """The queue of a partition, created if missing."""
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = PartitionQueue(partition)
        return queue

    @property
    def is_empty(self) -> bool:
        """Whether no batch is queued or in flight."""
        return not any(queue.batches or queue.in_flight for queue in self._queues.values())
