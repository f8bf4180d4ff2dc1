"""Transactions, request by request: the answers in each state, which producers are fenced, and what is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protocol.messages.coordinators import FindCoordinatorRequest
from protocol.messages.transactions import (
    DescribeTransactionsRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)
from protocol.topic_partition import CONSUMER_OFFSETS, TRANSACTION_STATE, TopicPartition
from tests.kit.transactions.requests import commit_offsets, fetch_offset, init, produce_in_transaction
from tests.parity.subject import Subject, scenario
from tests.parity.transactional_producer import Producer, coordinated, read


@scenario
def commit_and_abort(b: Subject) -> None:
    topic, producer = b.topic(), Producer(b, coordinated(b))
    producer.init()
    sequence = 0
    for commit in (True, False):
        producer.add(TopicPartition(topic, 0))
        producer.describe()
        producer.write(topic, sequence, b"1", b"2")
        sequence += 2
        read(b, topic)
        producer.end(commit=commit)
        producer.settle()
        read(b, topic)


@scenario
def every_version(b: Subject) -> None:
    topic, producer = b.topic(), Producer(b, coordinated(b))
    for version in range(6):
        producer.init(version)
    for version in range(4):
        producer.begin().add(TopicPartition(topic, 0), version=version)
    for version in range(5):
        producer.begin().add_offsets("a", version)
    for version in range(5):
        producer.begin().add_offsets("a")
        producer.commit_offset("a", topic, 5, version)
    for version in range(5):
        producer.begin().add(TopicPartition(topic, 0))
        producer.end(commit=True, version=version)


@scenario
def coordinators(b: Subject) -> None:
    name = coordinated(b)
    b.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=[name, ""]), 4)
    b.ask(FindCoordinatorRequest(key_type=1, key=name), 3)
    b.ask(FindCoordinatorRequest(key_type=1, key=name), 1)


@scenario
def the_end_again(b: Subject) -> None:
    topic, producer = b.topic(), Producer(b, coordinated(b))
    producer.init()
    for commit in (True, False):
        producer.end(commit=commit)
    for commit in (True, False):
        producer.begin().add(TopicPartition(topic, 0))
        producer.end(commit=commit)
        producer.settle()
        producer.end(commit=commit)
        producer.end(commit=not commit)


@scenario
def strangers(b: Subject) -> None:
    topic, producer = b.topic(), Producer(b, coordinated(b))
    producer.init()
    at = TopicPartition(topic, 0)

    def ask(versions: Sequence[int] = (0, 1, 2, 3)) -> None:
        for version in versions:
            producer.add(at, version=version)
            producer.add_offsets("a", version)
            producer.end(commit=True, version=version)
        for version in (4, 5):
            producer.verify(at, version=version)

    producer.producer_id += 1
    ask()
    producer.producer_id -= 1
    for difference in (1, -1):
        producer.epoch += difference
        ask()
        producer.epoch -= difference
    producer.id = b.name("unknown")
    ask()
    producer.id = ""
    ask()
    producer.describe()
    producer.init()


@scenario
def a_new_producer_fences_the_old_one(b: Subject) -> None:
    topic, zombie = b.topic(), Producer(b, coordinated(b))
    zombie.init()
    zombie.add(TopicPartition(topic, 0))
    zombie.write(topic, 0, b"zombie")
    successor = Producer(b, zombie.id)
    successor.init()
    successor.begin().describe()
    b.note("tells a start", successor.described().transaction_start_time_ms > 0)
    zombie.add(TopicPartition(topic, 0))
    zombie.write(topic, 1, b"late")
    zombie.commit_offset("a", topic, 5)
    zombie.end(commit=True)
    zombie.init(goes_on=True)
    for version in (3, 4):
        zombie.init(version, goes_on=True)
    read(b, topic)
    successor.add(TopicPartition(topic, 0))
    successor.write(topic, 0, b"new")
    successor.end(commit=True)
    successor.settle()
    read(b, topic)


@scenario
def going_on(b: Subject) -> None:
    producer = Producer(b, coordinated(b))
    producer.init()
    known = producer.producer_id, producer.epoch
    producer.init(goes_on=True)
    producer.producer_id, producer.epoch = known
    producer.init(goes_on=True)
    producer.epoch += 5
    producer.init(goes_on=True)
    producer.epoch = known[1]
    producer.producer_id += 1
    producer.init(goes_on=True)
    producer.init()


@scenario
def going_on_amid_a_transaction(b: Subject) -> None:
    topic, producer = b.topic(), Producer(b, coordinated(b))
    producer.init()
    producer.add(TopicPartition(topic, 0))
    producer.write(topic, 0, b"1")
    producer.init(goes_on=True)
    producer.settle()
    producer.init(goes_on=True)
    read(b, topic)


@scenario
def timeouts(b: Subject) -> None:
    producer = Producer(b, coordinated(b))
    for timeout_ms in (0, -1, 1, 900_000, 900_001, 2**31 - 1):
        producer.init(timeout_ms=timeout_ms)
    producer.describe()


@scenario
def half_an_identity(b: Subject) -> None:
    name = coordinated(b)
    b.ask(init(name, producer_id=5), 5)
    b.ask(init(name, producer_epoch=5), 5)
    b.ask(init(name, producer_id=5), 3)


@scenario
def a_stranger_goes_on_with_a_new_id(b: Subject) -> None:
    producer = Producer(b, coordinated(b))
    producer.producer_id, producer.epoch = 4_000_000_000, 7
    producer.init(goes_on=True)


@scenario
def partitions_that_cannot_be_added(b: Subject) -> None:
    topic, producer = b.topic(), Producer(b, coordinated(b))
    producer.init()
    at, missing = TopicPartition(topic, 0), TopicPartition(topic, 7)
    producer.add(at, missing, TopicPartition(b.name("nope"), 0))
    producer.add(TopicPartition(CONSUMER_OFFSETS, 0), at)
    producer.add(TopicPartition(TRANSACTION_STATE, 0))
    producer.verify(at, missing)
    producer.add()
    producer.describe()


@scenario
def verification(b: Subject) -> None:
    topic, producer = b.topic(partitions=2), Producer(b, coordinated(b))
    producer.init()
    at, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    for version in (4, 5):
        producer.verify(at, version=version)
    producer.add(at)
    for version in (4, 5):
        producer.verify(at, other, version=version)
    producer.end(commit=True)
    producer.settle()
    producer.verify(at)


@scenario
def writing_what_was_not_added(b: Subject) -> None:
    topic, producer = b.topic(), Producer(b, coordinated(b))
    producer.init()
    for version in (3, 9, 10, 11):
        producer.write(topic, 0, b"1", version=version)
    producer.producer_id += 1
    producer.write(topic, 0, b"1")
    producer.producer_id -= 1
    producer.epoch += 1
    producer.write(topic, 0, b"1")
    producer.id = b.name("unknown")
    producer.write(topic, 0, b"1")
    read(b, topic)


@scenario
def writing_behind_the_end(b: Subject) -> None:
    topic, producer = b.topic(), Producer(b, coordinated(b))
    producer.init()
    producer.add(TopicPartition(topic, 0))
    producer.write(topic, 0, b"1")
    producer.end(commit=True)
    producer.settle()
    producer.write(topic, 1, b"late")
    producer.write(topic, 0, b"1")  # again
    producer.add(TopicPartition(topic, 0))
    producer.write(topic, 1, b"2")
    producer.write(topic, 5, b"out of order")
    read(b, topic)


@scenario
def plain_batches_amid_a_transaction(b: Subject) -> None:
    topic, producer = b.topic(), Producer(b, coordinated(b))
    producer.init()
    producer.add(TopicPartition(topic, 0))
    producer.write(topic, 0, b"1")
    at = TopicPartition(topic, 0)
    for transactional_id in (None, producer.id):
        request = produce_in_transaction(
            transactional_id, producer.producer_id, producer.epoch, 1, [b"2"], at, is_transactional=False
        )
        b.ask(request, 11)
    b.ask(produce_in_transaction(None, producer.producer_id, producer.epoch, 1, [b"2"], at), 11)
    b.produce(topic, b"of another")
    read(b, topic)


@scenario
def offsets(b: Subject) -> None:
    topic, group = b.topic(), b.coordinator(b.name("g"))
    producer = Producer(b, coordinated(b))
    producer.init()
    at = TopicPartition(topic, 0)
    for commit in (True, False):
        for version in (3, 4):
            producer.commit_offset(group, topic, 7, version)
        producer.add_offsets(group)
        producer.describe()
        producer.commit_offset(group, topic, 7 if commit else 9)
        producer.commit_offset(group, b.name("nope"), 7)
        for require_stable in (False, True):
            b.ask(fetch_offset(group, at, require_stable=require_stable), 8)
        producer.end(commit=commit)
        producer.settle()
        b.until(lambda: not stable_error(b, group, at))
        b.ask(fetch_offset(group, at, require_stable=True), 8)


def stable_error(b: Subject, group: str, at: TopicPartition) -> int:
    response = b.quietly(fetch_offset(group, at, require_stable=True), 8)
    return int(response.groups[0].topics[0].partitions[0].error_code)


@scenario
def offsets_of_members_that_there_are_not(b: Subject) -> None:
    topic, group = b.topic(), b.coordinator(b.name("g"))
    producer = Producer(b, coordinated(b)).begin()
    producer.add_offsets(group)

    def commit(**who: Any) -> None:
        request: TxnOffsetCommitRequest = commit_offsets(*producer.identity, group, TopicPartition(topic, 0), 7)
        for name, value in who.items():
            setattr(request, name, value)
        b.ask(request, 4)

    commit(member_id="nobody")
    commit(generation_id=0)
    commit(generation_id=5, member_id="nobody")
    commit(group_instance_id="nobody")
    commit(group_id="")
    producer.add_offsets("")


@scenario
def lists(b: Subject) -> None:
    topic, producer = b.topic(), Producer(b, coordinated(b))
    producer.begin()

    def seen(version: int = 1, **filters: Any) -> list[Any]:
        request = ListTransactionsRequest(**({"state_filters": [], "producer_id_filters": []} | filters))
        response = b.quietly(request, version)
        mine = [each.transaction_state for each in response.transaction_states if each.transactional_id == producer.id]
        return [response.error_code, response.unknown_state_filters, mine]

    def listed(version: int = 1, **filters: Any) -> None:
        b.note("ListTransactions", seen(version, **filters))

    own = {"producer_id_filters": [producer.producer_id]}
    for filters in ({}, own, own | {"state_filters": ["Empty"]}, {"state_filters": ["Ongoing"]}):
        listed(**filters)
        listed(0, **filters)
    listed(state_filters=["empty", "Nowhere", "Dead", "PrepareEpochFence"])
    listed(state_filters=["Nowhere", "Empty"])
    producer.add(TopicPartition(topic, 0))
    listed(state_filters=["Ongoing"])
    b.until(lambda: seen(duration_filter=0, state_filters=["Ongoing"])[2])  # once it is older than a millisecond
    listed(duration_filter=3_600_000)
    b.ask(DescribeTransactionsRequest(transactional_ids=[b.name("nope"), ""]), 0)
    b.ask(DescribeTransactionsRequest(transactional_ids=[]), 0)


@scenario
def markers(b: Subject) -> None:
    topic = b.topic()

    def mark(coordinator_epoch: int, *partitions: int, epoch: int = 0, name: str = topic, version: int = 1) -> None:
        marked = WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=name, partition_indexes=list(partitions))
        marker = WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=5_000_000, producer_epoch=epoch, transaction_result=False, topics=[marked],
            coordinator_epoch=coordinator_epoch,
        )  # fmt: skip
        b.ask(WriteTxnMarkersRequest(markers=[marker]), version)

    mark(3, 0, version=0)
    mark(2, 0)
    mark(3, 0, 1, epoch=1)
    mark(4, 0, epoch=0)
    mark(4, 0, name=b.name("nope"))
    mark(0)
    b.ask(WriteTxnMarkersRequest(markers=[]), 1)
    read(b, topic)
