"""A transaction coordinator on an in-memory log: events in, answers and markers out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from cluster.coordinators.results import ClockReading, PendingResponse, Result
from cluster.transactions.open_transactions import Markers
from cluster.transactions.producer_sessions import NEEDS_ID, Initialized, ProducerIdAndEpoch
from cluster.transactions.transaction_records import TransactionLoader, TransactionMetadata
from cluster.transactions.transaction_shard import TransactionShard
from cluster.transactions.transaction_table import TransactionConfig
from protocol.errors import ErrorCode
from protocol.records.batch import Record, build_batch
from protocol.topic_partition import TopicPartition
from tests.cluster.shard_harness import START_MS, ShardHarness

R = TypeVar("R")
P = ParamSpec("P")

ID = "t"
A, B = TopicPartition("a", 0), TopicPartition("b", 1)


class Harness(ShardHarness[TransactionShard]):
    """`sent` are the markers to be written; `mark` reports them as written."""

    def __init__(self, log: list[tuple[bytes, bytes | None]] | None = None, now_ms: int = START_MS) -> None:
        super().__init__(log, now_ms)
        self.sent: deque[Markers] = deque()
        self.next_id = 1000 * (1 + len(self.log))
        self.shard = TransactionShard(TransactionConfig(), self.sent.append, self.replayed())
        self.make(self.shard.start(self.now()))

    def replayed(self) -> dict[str, TransactionMetadata]:
        """The state that a new leader would load from the log."""
        loader = TransactionLoader()
        for offset, (key, value) in enumerate(self.log):
            loader.take(memoryview(build_batch([Record(0, START_MS, key, value)], base_offset=offset)))
        return loader.finish()

    def restarted(self) -> Harness:
        """A new coordinator on the same log; uncommitted records are lost."""
        return Harness(list(self.log), self.now_ms)

    def handle(
        self, event: Callable[Concatenate[ClockReading, P], Result[R]], *args: P.args, **kwargs: P.kwargs
    ) -> R | None:
        """The answer to an event, or None if it is pending."""
        result = event(self.now(), *args, **kwargs)
        self.make(result.appends)
        response = result.response
        return response.value if isinstance(response, PendingResponse) else response

    # -- events --------------------------------------------------------------------------------------------------------

    def init(
        self, expected: tuple[int, int] | None = None, timeout_ms: int = 60_000, transactional_id: str = ID
    ) -> Initialized | None:
        identity = None if expected is None else ProducerIdAndEpoch(*expected)
        event = self.shard.producers.init_producer_id
        answer = self.handle(event, transactional_id, timeout_ms, identity)
        if answer is NEEDS_ID:
            self.next_id += 1
            answer = self.handle(event, transactional_id, timeout_ms, identity, self.next_id)
        return answer

    def producer(self, transactional_id: str = ID) -> tuple[int, int]:
        """The identity of a new producer."""
        initialized = self.init(transactional_id=transactional_id)
        assert initialized is not None
        assert initialized.error_code is ErrorCode.NONE
        return initialized.producer_id, initialized.producer_epoch

    def add(
        self, producer: tuple[int, int], *partitions: TopicPartition, transactional_id: str = ID
    ) -> ErrorCode | None:
        return self.handle(self.shard.transactions.add_partitions, transactional_id, *producer, partitions)

    def end(self, producer: tuple[int, int], *, commit: bool, transactional_id: str = ID) -> ErrorCode | None:
        return self.handle(self.shard.transactions.end, transactional_id, *producer, commit=commit)

    def mark(self, *partitions: TopicPartition) -> Markers:
        """Report the oldest markers as written for these partitions, by default for all. Returns the markers."""
        markers = self.sent[0]
        self.handle(self.shard.transactions.marked, markers, partitions or markers.partitions)
        if not partitions:
            self.sent.popleft()
        return markers

    def ended(self, producer: tuple[int, int], *, commit: bool) -> None:
        """End a transaction, and write its markers."""
        assert self.end(producer, commit=commit) is ErrorCode.NONE
        self.mark()

    @property
    def metadata(self) -> TransactionMetadata:
        transaction = self.shard.get(ID)
        assert transaction is not None
        return transaction.metadata

    @property
    def state(self) -> str:
        return self.metadata.state.label
