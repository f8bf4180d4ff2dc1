"""Records that a producer has accepted and not delivered yet: batches by partition, in order, with sequence numbers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from client.settings import ProducerSettings
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

_FIXED_RECORD_BYTES = 7
"""Attributes, two bytes each for the deltas of timestamp and offset, header count, and the record's length."""


class RecordMetadata(NamedTuple):
    """Where a record is; `offset` -1 when that was not asked for (acks 0), `timestamp` in ms."""

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

    def fail(self, error: Exception) -> None:
        """Tell why the records were not delivered."""
        for future in self.futures:
            if not future.done():
                future.set_exception(error)


class PartitionQueue:
    """The batches of one partition that are not in flight, oldest first, and how many are."""

    __slots__ = ("batches", "in_flight", "is_retrying", "next_sequence", "not_before_s", "partition")

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.batches: deque[Batch] = deque()
        self.in_flight = 0
        self.is_retrying = False
        """Whether a batch failed, so that nothing leaves until all in flight are back in their places."""
        self.not_before_s = 0.0
        """When a failed batch may be sent again, by the loop's clock."""
        self.next_sequence = 0

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
        if not self.batches or (self.is_retrying and self.in_flight):
            return None
        batch = self.batches[0]
        if batch.attempts:
            return self.not_before_s
        return max(self.not_before_s, batch.created_s + (0 if batch.is_full else linger_s))

    def take(self, is_idempotent: bool) -> Batch:
        """The oldest batch, with its sequence number, counted as in flight."""
        batch = self.batches.popleft()
        batch.is_full = True
        if is_idempotent and batch.base_sequence == NO_SEQUENCE:
            batch.base_sequence = self.next_sequence
            self.next_sequence = increment_sequence(self.next_sequence, len(batch))
        batch.attempts += 1
        self.in_flight += 1
        return batch

    def put_back(self, batch: Batch, not_before_s: float) -> None:
        """Return a batch that was in flight and is to be sent again to its place: by age, which is by sequence."""
        self.is_retrying = True
        self.not_before_s = not_before_s
        place = 0
        while place < len(self.batches) and self.batches[place].attempts and self._is_older(self.batches[place], batch):
            place += 1
        self.batches.insert(place, batch)

    def settled(self) -> None:
        """One batch less is in flight; when it was the last, what failed may be sent again."""
        self.in_flight -= 1
        if not self.in_flight:
            self.is_retrying = False

    @staticmethod
    def _is_older(one: Batch, other: Batch) -> bool:
        if one.base_sequence == NO_SEQUENCE:
            return one.created_s <= other.created_s
        # Sequence numbers wrap; fewer than 2^30 are in question at once.
        return (other.base_sequence - one.base_sequence) % 2**31 < 2**30

    def forget_sequences(self) -> None:
        """Start again with sequence 0, for a new producer id."""
        self.next_sequence = 0
        for batch in self.batches:
            batch.base_sequence = NO_SEQUENCE


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
