"""Appends of one turn of the event loop: one batch, split if it is too large, with a separate answer for each
append.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from broker.coordinators.coordinator_runtime import RECORDS_PER_BATCH
from cluster.coordinators.results import PendingResponse, TransactionalProducer
from cluster.groups.membership_events import GroupMember
from cluster.groups.offset_events import PartitionErrors
from cluster.groups.records import CommittedOffset, decode_record
from protocol.errors import ApiError, ErrorCode
from protocol.records.batch import Record, read_batches
from protocol.records.control_records import ControlRecordType, EndTxnMarker
from protocol.topic_partition import TopicPartition
from tests.broker.groups.group_fixture import OFFSETS_PARTITIONS
from tests.broker.groups.local_place import Local, MemoryLog

NOBODY = GroupMember("", -1, None)
PARTITION = TopicPartition("t", 0)
MAX_BYTES = 300
"""The limit of a batch: enough for three commits."""


class SmallLog(MemoryLog):
    """Refuses batches of more than `max_bytes`, as a topic's max.message.bytes does. With `is_silent` it appends
    without answering. It records the producer of each batch.
    """

    def __init__(self) -> None:
        super().__init__()
        self.max_bytes = 1_000_000
        self.is_silent = False
        self.producers: list[TransactionalProducer | None] = []

    def append(
        self, partition: int, records: Sequence[Record], producer: TransactionalProducer | None = None
    ) -> asyncio.Future[int]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if sum(len(each.key or b"") + len(each.value or b"") for each in records) > self.max_bytes:
            future.set_exception(ApiError(ErrorCode.MESSAGE_TOO_LARGE, "too large"))
            return future
        self.producers.append(producer)
        written = super().append(partition, records)
        return future if self.is_silent else written


@pytest.fixture
def log() -> SmallLog:
    return SmallLog()


@pytest.fixture
def place(log: SmallLog) -> Iterator[Local]:
    local = Local(log=log)
    local.create_topic("t", 2)
    yield local
    local.close()


Commits = list[tuple[str, int, str]]
"""Groups, offsets, metadata."""


def commit_at_once(place: Local, commits: Commits) -> list[PartitionErrors | PendingResponse[PartitionErrors]]:
    """Commit in one turn of the event loop; returns the outcomes, complete in the same turn or pending."""

    def commit_all() -> list[PartitionErrors | PendingResponse[PartitionErrors]]:
        runtimes = [place.service.runtime_of(group) for group, _, _ in commits]
        return [
            runtime.handle(
                runtime.shard.offsets.commit, group, NOBODY, {PARTITION: CommittedOffset(offset, -1, metadata, -1)}
            )
            for runtime, (group, offset, metadata) in zip(runtimes, commits, strict=True)
        ]

    return place.run(commit_all)


def codes(outcomes: Sequence[PartitionErrors | PendingResponse[PartitionErrors]]) -> list[ErrorCode | None]:
    """The codes of the commits, with None for a pending one."""
    values = [outcome.value if isinstance(outcome, PendingResponse) else outcome for outcome in outcomes]
    return [None if value is None else value[PARTITION] for value in values]


def committed(place: Local, group: str) -> int | ErrorCode:
    """The committed offset, unless a commit is pending."""
    found = place.service.runtime_of(group).shard.offsets.fetch(group, [PARTITION], require_stable=True)[PARTITION]
    return found if isinstance(found, ErrorCode) else found.offset


def in_one_partition(place: Local, count: int) -> list[str]:
    """This many groups of the first partition."""
    names = (f"g{number}" for number in range(count * 100))
    return [name for name in names if place.service.partition_of(name) == 0][:count]


def batches(log: MemoryLog) -> list[list[tuple[str, int]]]:
    """Groups and offsets in the first partition, batch by batch."""
    found = []
    for data in log.partitions[0]:
        (batch,) = read_batches(memoryview(data))
        records = [decode_record(each.key, each.value) for each in batch.records()]
        found.append([(each.group_id, each.value.offset) for each in records if each is not None and each.value])  # type: ignore[union-attr]
    return found


def test_the_first_append_of_a_turn_is_made_at_once_and_the_others_together(place: Local, log: SmallLog) -> None:
    groups = in_one_partition(place, 5)
    outcomes = commit_at_once(place, [(group, number, "") for number, group in enumerate(groups)])
    assert [isinstance(outcome, PendingResponse) for outcome in outcomes] == [False, True, True, True, True]
    place.sleep(1)
    assert codes(outcomes) == [ErrorCode.NONE] * 5
    assert batches(log) == [[(groups[0], 0)], [(group, number) for number, group in enumerate(groups) if number]]
    assert [committed(place, group) for group in groups] == list(range(5))
    place.sleep(1)
    (outcome,) = commit_at_once(place, [(groups[0], 9, "")])
    assert outcome == {PARTITION: ErrorCode.NONE}, "there is nothing to wait for"


def test_partitions_are_written_apart(place: Local, log: SmallLog) -> None:
    outcomes = commit_at_once(place, [(f"g{number}", number, "") for number in range(40)])
    place.sleep(1)
    assert set(codes(outcomes)) == {ErrorCode.NONE}
    assert [committed(place, f"g{number}") for number in range(40)] == list(range(40))
    assert [len(log.partitions[index]) for index in range(OFFSETS_PARTITIONS)] == [2] * OFFSETS_PARTITIONS


def test_the_last_of_many_commits_of_a_group_counts(place: Local, log: SmallLog) -> None:
    (group,) = in_one_partition(place, 1)
    commit_at_once(place, [(group, number, "") for number in range(RECORDS_PER_BATCH + 10)])
    place.sleep(1)
    assert committed(place, group) == RECORDS_PER_BATCH + 9
    assert [len(batch) for batch in batches(log)] == [1, RECORDS_PER_BATCH, 9]


def test_only_what_is_too_large_by_itself_is_refused(place: Local, log: SmallLog) -> None:
    log.max_bytes = MAX_BYTES
    groups = in_one_partition(place, 12)
    commits = [(group, number, "x" * MAX_BYTES if number == 5 else "") for number, group in enumerate(groups)]
    outcomes = commit_at_once(place, commits)
    place.sleep(1)
    refused = {5: ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
    assert codes(outcomes) == [refused.get(number, ErrorCode.NONE) for number in range(12)]
    assert [committed(place, group) for group in groups] == [-1 if number == 5 else number for number in range(12)]
    written = batches(log)
    assert [offset for batch in written for _, offset in batch] == [*range(5), *range(6, 12)], "order is kept"
    assert len(written) < 12, "what fits is together"


def test_only_the_record_that_cannot_be_encoded_is_refused(place: Local) -> None:
    name = "\udc00"  # no UTF-8
    groups = in_one_partition(place, 6)
    commits = [(group, number, name if number == 3 else "") for number, group in enumerate(groups)]
    outcomes = commit_at_once(place, commits)
    place.sleep(1)
    assert [number for number, code in enumerate(codes(outcomes)) if code is not ErrorCode.NONE] == [3]
    assert [committed(place, group) for group in groups] == [-1 if number == 3 else number for number in range(6)]


def test_a_batch_that_fails_leaves_no_trace(place: Local, log: SmallLog) -> None:
    groups = in_one_partition(place, 4)
    log.failures.extend([None, ErrorCode.NOT_ENOUGH_REPLICAS])
    outcomes = commit_at_once(place, [(group, 1, "") for group in groups])
    place.sleep(1)
    assert codes(outcomes) == [ErrorCode.NONE] + [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 3
    assert [committed(place, group) for group in groups] == [1, -1, -1, -1]
    assert len(batches(log)) == 1
    outcomes = commit_at_once(place, [(group, 2, "") for group in groups])
    place.sleep(1)
    assert codes(outcomes) == [ErrorCode.NONE] * 4
    assert [committed(place, group) for group in groups] == [2] * 4


def test_nothing_is_acknowledged_before_it_is_committed(place: Local, log: SmallLog) -> None:
    log.held = []
    groups = in_one_partition(place, 4)
    outcomes = commit_at_once(place, [(group, 1, "") for group in groups])
    place.sleep(1)
    assert codes(outcomes) == [None] * 4
    assert [committed(place, group) for group in groups] == [ErrorCode.UNSTABLE_OFFSET_COMMIT] * 4
    place.run(log.release)
    place.sleep(1)
    assert codes(outcomes) == [ErrorCode.NONE] * 4


def test_a_crash_between_append_and_answer(place: Local, log: SmallLog) -> None:
    """Records in the log are committed, though the answers are missing; a batch is committed as a whole."""
    groups = in_one_partition(place, 6)
    commit_at_once(place, [(group, 1, "") for group in groups])
    place.sleep(1)
    log.is_silent = True
    outcomes = commit_at_once(place, [(group, 2, "") for group in groups])
    place.sleep(1)
    assert codes(outcomes) == [None] * 6
    log.is_silent = False
    place.run(lambda: place.service.elected(0))  # as a broker does after a failover or a restart
    place.sleep(1)
    assert [committed(place, group) for group in groups] == [2] * 6
    assert codes(outcomes) == [None] * 6


def test_appends_that_wait_when_the_coordinator_resigns_are_made(place: Local) -> None:
    groups = in_one_partition(place, 3)

    def commit_and_resign() -> list[PartitionErrors | PendingResponse[PartitionErrors]]:
        runtime = place.service.runtime_of(groups[0])
        outcomes = [
            runtime.handle(runtime.shard.offsets.commit, group, NOBODY, {PARTITION: CommittedOffset(1, -1, "", -1)})
            for group in groups
        ]
        place.service.resigned(0)
        return outcomes

    assert codes(place.run(commit_and_resign)) == [ErrorCode.NONE] * 3


def test_a_producers_records_and_marker_are_batches_of_their_own_in_order(place: Local, log: SmallLog) -> None:
    groups = in_one_partition(place, 4)
    producer, ending = TransactionalProducer(7, 0), TransactionalProducer(7, 0, ends=True)

    def commit_all() -> None:
        runtime = place.service.runtime_of(groups[0])
        offsets = runtime.shard.offsets
        for number, group in enumerate(groups):
            runtime.handle(offsets.commit, group, NOBODY, {PARTITION: CommittedOffset(number, -1, "", -1)})
        runtime.handle(offsets.commit, groups[0], NOBODY, {PARTITION: CommittedOffset(9, -1, "", -1)}, -1, producer)
        runtime.handle(offsets.end_transaction, ending, EndTxnMarker(ControlRecordType.COMMIT, 0))
        for group in groups[1:]:
            runtime.handle(offsets.commit, group, NOBODY, {PARTITION: CommittedOffset(10, -1, "", -1)})

    place.run(commit_all)
    place.sleep(1)
    assert log.producers == [None, None, producer, ending, None]
    assert [committed(place, group) for group in groups] == [9, 10, 10, 10]
