"""A transactional producer in a scenario: its requests are noted."""

from __future__ import annotations

from typing import Any

from protocol.errors import ErrorCode
from protocol.messages.transactions import DescribeTransactionsRequest
from protocol.records.batch import RecordBatch, read_batches
from protocol.topic_partition import TopicPartition
from tests.kit.transactions.requests import (
    add_offsets,
    add_partitions,
    commit_offsets,
    end,
    find_coordinator,
    init,
    produce_in_transaction,
    verify,
)
from tests.kit.wire_requests import fetch
from tests.parity.subject import Subject

PARTITIONS = 4
"""Partitions of __transaction_state."""

NOT_YET = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}


def coordinated(b: Subject, name: str = "tx") -> str:
    """Wait until transactional ids are served; returns a unique one for this scenario."""
    b.producer_id()
    b.until(lambda: not b.quietly(find_coordinator(b.name(name)), 4).coordinators[0].error_code)
    probes = [b.name(f"probe{number}") for number in range(4 * PARTITIONS)]

    def served() -> bool:
        response = b.quietly(DescribeTransactionsRequest(transactional_ids=probes), 0)
        return all(each.error_code not in NOT_YET for each in response.transaction_states)

    b.until(served)
    return b.name(name)


class Producer:
    """A producer of one transactional id. It notes the error codes of its requests only, since ids differ."""

    def __init__(self, b: Subject, transactional_id: str) -> None:
        self.b = b
        self.id = transactional_id
        self.producer_id = self.epoch = -1

    @property
    def identity(self) -> tuple[str, int, int]:
        return self.id, self.producer_id, self.epoch

    def init(self, version: int = 5, *, goes_on: bool = False, timeout_ms: int = 60_000) -> None:
        """Begin a session; notes the epoch, and whether the producer id has changed."""
        known = (self.producer_id, self.epoch) if goes_on else (-1, -1)
        response = self.b.quietly(init(self.id, timeout_ms, *known), version)
        is_new = response.producer_id not in {self.producer_id, -1}
        self.b.note(f"InitProducerId v{version}", [response.error_code, response.producer_epoch, is_new])
        if not response.error_code:
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch

    def begin(self) -> Producer:
        """Start a new session without noting it, once the last transaction is complete."""

        def initialized() -> bool:
            response = self.b.quietly(init(self.id), 5)
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
            return response.error_code not in NOT_YET

        self.b.until(initialized)
        return self

    def add(self, *partitions: TopicPartition, version: int = 3) -> None:
        response = self.b.quietly(add_partitions(*self.identity, *partitions), version)
        self.b.note(f"AddPartitionsToTxn v{version}", response)

    def verify(self, *partitions: TopicPartition, version: int = 5) -> None:
        self.b.note(f"AddPartitionsToTxn v{version}", self.b.quietly(verify(*self.identity, *partitions), version))

    def write(self, topic: str, sequence: int, *values: bytes, version: int = 11, partition: int = 0) -> None:
        at = TopicPartition(topic, partition)
        response = self.b.quietly(produce_in_transaction(*self.identity, sequence, values, at), version)
        self.b.note(f"Produce v{version}", response)

    def end(self, *, commit: bool, version: int = 4) -> None:
        self.b.note(f"EndTxn v{version}", self.b.quietly(end(*self.identity, commit=commit), version))

    def add_offsets(self, group: str, version: int = 4) -> None:
        self.b.note(f"AddOffsetsToTxn v{version}", self.b.quietly(add_offsets(*self.identity, group), version))

    def commit_offset(self, group: str, topic: str, offset: int, version: int = 4) -> None:
        at = TopicPartition(topic, 0)
        response = self.b.quietly(commit_offsets(*self.identity, group, at, offset), version)
        self.b.note(f"TxnOffsetCommit v{version}", response)

    def described(self) -> Any:
        response = self.b.quietly(DescribeTransactionsRequest(transactional_ids=[self.id]), 0)
        return response.transaction_states[0]

    def settle(self) -> None:
        """Wait until the markers are written, and note the state."""
        self.await_markers()
        self.describe()

    def await_markers(self) -> None:
        """Wait until the end of the transaction is complete."""
        self.b.until(lambda: not self.described().transaction_state.startswith("Prepare"))

    def describe(self) -> None:
        """Note the state, without ids and times, and whether it includes the start time of the transaction."""
        state = self.described()
        is_empty = state.transaction_state == "Empty"  # see `transactions.a_new_producer_fences_the_old_one`
        topics = sorted((each.topic, sorted(each.partitions)) for each in state.topics)
        self.b.note(
            "state",
            [
                state.error_code, state.transaction_state, state.transaction_timeout_ms, state.producer_epoch,
                None if is_empty else state.transaction_start_time_ms > 0, topics,
            ],
        )  # fmt: skip


def read(b: Subject, topic: str, *, isolation_level: int = 1) -> None:
    """Note the batches of partition 0, segment by segment, and the listed aborted transactions."""
    batches: list[RecordBatch] = []
    aborted: set[int] = set()
    while True:
        request = fetch(topic, batches[-1].next_offset if batches else 0)
        request.isolation_level = isolation_level
        (answer,) = b.quietly(request, 12).responses
        (data,) = answer.partitions
        aborted.update(each.first_offset for each in data.aborted_transactions or ())
        if not data.records:
            break
        batches.extend(read_batches(memoryview(data.records)))
    read = [
        (each.base_offset, each.is_transactional, each.is_control, [(it.key, it.value) for it in each.records()])
        for each in batches
    ]
    b.note("Fetch", [data.error_code, data.high_watermark, data.last_stable_offset, sorted(aborted), read])
