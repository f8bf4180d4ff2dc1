"""A transactional producer, request by request, and the records that consumers get."""

from __future__ import annotations

from typing import Any, Protocol

from protocol.errors import ErrorCode
from protocol.messages.fetch import FetchRequest
from protocol.messages.transactions import DescribeTransactionsRequest
from protocol.records.batch import read_batches
from protocol.records.control_records import ControlRecordType, decode_end_txn_marker
from protocol.topic_partition import TopicPartition
from protocol.wire.schema import Request
from tests.kit.transactions.requests import add_partitions, end, init, produce_in_transaction
from tests.kit.waiting import eventually_async

CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS


class Asks(Protocol):
    """A connection to a broker."""

    async def ask(self, request: Request, version: int) -> Any: ...


class TransactionalProducer:
    """A producer connected to its coordinator, and to the leaders in `leaders`; the coordinator leads the rest."""

    def __init__(self, wire: Asks, transactional_id: str) -> None:
        self.wire = wire
        self.leaders: dict[TopicPartition, Asks] = {}
        self.transactional_id = transactional_id
        self.producer_id = self.epoch = -1
        self.sequences: dict[TopicPartition, int] = {}

    @property
    def identity(self) -> tuple[str, int, int]:
        return self.transactional_id, self.producer_id, self.epoch

    async def ask(self, request: Any, version: int) -> Any:
        return await self.wire.ask(request, version)

    async def init(self, timeout_ms: int = 60_000, *, goes_on: bool = False) -> int:
        """Begin a session; `goes_on`: with the current identity (KIP-360)."""
        identity = (self.producer_id, self.epoch) if goes_on else (-1, -1)
        request = init(self.transactional_id, timeout_ms, *identity)
        response = await eventually_async(
            "another producer", lambda: self.ask(request, 5), lambda answer: answer.error_code != CONCURRENT
        )
        if not response.error_code:
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
            self.sequences.clear()
        return int(response.error_code)

    async def add(self, *partitions: TopicPartition, version: int = 3) -> list[int]:
        async def add() -> list[int]:
            response = await self.ask(add_partitions(*self.identity, *partitions), version)
            return [
                each.partition_error_code
                for topic in response.results_by_topic_v3_and_below
                for each in topic.results_by_partition
            ]

        return await eventually_async("the end of the last one", add, lambda codes: CONCURRENT not in codes)

    async def write(self, *values: bytes, at: TopicPartition, version: int = 11) -> int:
        sequence = self.sequences.get(at, 0)
        request = produce_in_transaction(*self.identity, sequence, values, at)
        response = await self.leaders.get(at, self.wire).ask(request, version)
        code = int(response.responses[0].partition_responses[0].error_code)
        if not code:
            self.sequences[at] = sequence + len(values)
        return code

    async def end(self, *, commit: bool, version: int = 4) -> int:
        return int((await self.ask(end(*self.identity, commit=commit), version)).error_code)

    async def state(self) -> Any:
        response = await self.ask(DescribeTransactionsRequest(transactional_ids=[self.transactional_id]), 0)
        return response.transaction_states[0]

    async def settled(self) -> str:
        """The state once the transaction has ended and no markers are outstanding."""

        async def state() -> str:
            return str((await self.state()).transaction_state)

        return await eventually_async(
            "the markers", state, lambda name: name != "Ongoing" and not name.startswith("Prepare")
        )


async def read(wire: Asks, at: TopicPartition, *, committed: bool = True) -> list[bytes]:
    """The values that a consumer gets: if it wants `committed` ones, without those of aborted transactions.

    Raises AssertionError if the partition cannot be read.
    """
    values: list[bytes] = []
    skipped: set[int] = set()
    offset = 0
    while True:
        data = await _fetch(wire, at, offset, committed)
        aborted = sorted((each.first_offset, each.producer_id) for each in data.aborted_transactions or ())
        for batch in read_batches(memoryview(data.records or b"")):
            offset = batch.next_offset
            while aborted and aborted[0][0] <= batch.last_offset:
                skipped.add(aborted.pop(0)[1])
            if batch.is_control:
                (marker,) = batch.records()
                if decode_end_txn_marker(marker).control_type is ControlRecordType.ABORT:
                    skipped.discard(batch.producer_id)
            elif not (batch.is_transactional and batch.producer_id in skipped):
                values += [record.value or b"" for record in batch.records()]
        if offset >= (data.last_stable_offset if committed else data.high_watermark):
            return values


async def _fetch(wire: Asks, at: TopicPartition, offset: int, committed: bool) -> Any:
    """Fetch at most one segment."""
    partition = FetchRequest.FetchPartition(
        partition=at.partition, fetch_offset=offset, partition_max_bytes=1_000_000, current_leader_epoch=-1
    )
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1_000_000,
        isolation_level=int(committed),
        topics=[FetchRequest.FetchTopic(topic=at.topic, partitions=[partition])],
    )
    response = await wire.ask(request, 11)
    data = response.responses[0].partitions[0]
    assert data.error_code == ErrorCode.NONE, ErrorCode(data.error_code).name
    return data
