"""Produce within transactions: batches out of order, mixed batches, several partitions, markers from strangers."""

from __future__ import annotations

from typing import Any, NamedTuple

from protocol.messages.produce import ProduceRequest
from protocol.topic_partition import TopicPartition
from tests.kit.transactions.requests import produce_in_transaction, write_marker
from tests.parity.scenarios.producers import describe as describe_producers
from tests.parity.subject import Subject, batch, produce_request, scenario, scenario_for_each
from tests.parity.transactional_producer import Producer, coordinated, read


class Step(NamedTuple):
    """A batch of `count` records from a producer with this epoch (relative to its own); or an end."""

    sequence: int = 0
    count: int = 1
    epoch: int = 0
    is_transactional: bool = True
    ends: bool | None = None


COMMIT, ABORT = Step(ends=True), Step(ends=False)
PLAIN = Step(is_transactional=False)

SEQUENCES: dict[str, tuple[Step, ...]] = {
    "a_late_beginning": (Step(5), Step(6), Step(5)),
    "a_gap": (Step(0), Step(2), Step(1)),
    "again": (Step(0, 2), Step(0, 2), Step(0, 1), Step(1, 1), Step(2)),
    "again_behind_others": tuple(Step(each) for each in (*range(7), 6, 2, 1, 0)),
    "backwards": (Step(3), Step(2), Step(0)),
    "negative": (Step(-1), Step(-2), Step(0), Step(-1)),
    "the_highest_sequence": (Step(2**31 - 2, 3), Step(1), Step(2**31 - 1)),
    "again_behind_a_commit": (Step(0), COMMIT, Step(0), Step(1)),
    "again_behind_an_abort": (Step(0), ABORT, Step(0), Step(1)),
    "a_gap_behind_a_commit": (Step(0), COMMIT, Step(2), Step(1)),
    "a_higher_epoch": (Step(0, epoch=1), Step(1, epoch=1), Step(0)),
    "a_higher_epoch_amid_a_transaction": (Step(0), Step(1, epoch=1), Step(0, epoch=1), Step(1)),
    "a_lower_epoch": (Step(0), Step(0, epoch=-1), Step(1, epoch=-1), Step(1)),
    "a_plain_batch_amid": (Step(0), PLAIN._replace(sequence=1), Step(1)),
    "a_plain_batch_first": (PLAIN, Step(1), PLAIN._replace(sequence=1)),
    "a_plain_batch_behind_a_commit": (Step(0), COMMIT, PLAIN._replace(sequence=1), Step(2)),
    "a_plain_batch_of_a_higher_epoch": (Step(0), PLAIN._replace(epoch=1), Step(1)),
}


@scenario_for_each(SEQUENCES)
def sequences(b: Subject, steps: tuple[Step, ...]) -> None:
    topic, producer = b.topic(), Producer(b, coordinated(b)).begin().begin()
    at = TopicPartition(topic, 0)
    producer.add(at)
    for step in steps:
        if step.ends is not None:
            producer.end(commit=step.ends)
            producer.settle()
            producer.add(at)
            continue
        values = [b"%d" % each for each in range(step.count)]
        asked = produce_in_transaction(
            producer.id, producer.producer_id, producer.epoch + step.epoch, step.sequence, values, at,
            is_transactional=step.is_transactional,
        )  # fmt: skip
        b.ask(asked, 11)
    describe_producers(b, topic, 0, known={producer.producer_id: "producer"})
    read(b, topic)


@scenario
def nobodys_transactional_batch(b: Subject) -> None:
    topic, name = b.topic(), coordinated(b)
    b.ask(produce_in_transaction(name, -1, -1, -1, [b"v"], TopicPartition(topic, 0)), 11)


def _batches(producer: Producer, **options: Any) -> dict[str, bytes]:
    known = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch, "base_sequence": 0}
    return {
        "control": batch(b"\0\0\0\1", is_control=True, **known | options),
        "records": batch(b"v", **known | options),
    }


@scenario_for_each({"transactional": True, "plain": False})
def control_batches_of_clients(b: Subject, is_transactional: bool) -> None:
    topic, producer = b.topic(), Producer(b, coordinated(b)).begin()
    producer.add(TopicPartition(topic, 0))
    for name in (producer.id, None):
        for kind, records in _batches(producer, is_transactional=is_transactional).items():
            b.note(kind, b.quietly(produce_request(topic, records, transactional_id=name), 11))
    read(b, topic)


@scenario_for_each({"null": None, "empty": "", "strange": "näme/…", "long": "x" * 300})
def names(b: Subject, name: str | None) -> None:
    topic, producer = b.topic(), Producer(b, coordinated(b)).begin()
    producer.add(TopicPartition(topic, 0))
    for is_transactional in (True, False):
        (_, records) = _batches(producer, is_transactional=is_transactional).values()
        b.ask(produce_request(topic, records, transactional_id=name), 11)


@scenario_for_each({"acks_0": 0, "acks_1": 1, "acks_2": 2})
def without_the_acks_of_all(b: Subject, acks: int) -> None:
    topic, producer = b.topic(), Producer(b, coordinated(b)).begin()
    producer.add(TopicPartition(topic, 0))
    (_, records) = _batches(producer, is_transactional=True).values()
    asked = produce_request(topic, records, acks=acks, transactional_id=producer.id)
    if acks:
        b.ask(asked, 11)
    else:
        b.connection.send(asked, 11)
    read(b, topic)


@scenario
def some_partitions_are_not_in_it(b: Subject) -> None:
    topic, producer = b.topic(partitions=3), Producer(b, coordinated(b)).begin()
    producer.add(TopicPartition(topic, 0), TopicPartition(topic, 2))
    (_, records) = _batches(producer, is_transactional=True).values()
    asked = produce_request(topic, records, transactional_id=producer.id)
    part = ProduceRequest.PartitionProduceData
    asked.topic_data[0].partition_data = [part(index=index, records=records) for index in (0, 1, 2, 7)]
    for version in (9, 11):
        b.ask(asked, version)


@scenario
def two_producers_in_one_request(b: Subject) -> None:
    topic, name = b.topic(partitions=2), coordinated(b)
    first, second = Producer(b, name).begin(), Producer(b, b.name("other")).begin()
    part = ProduceRequest.PartitionProduceData
    asked = produce_request(topic, None, transactional_id=name)
    asked.topic_data[0].partition_data = [
        part(index=index, records=_batches(producer, is_transactional=True)["records"])
        for index, producer in enumerate((first, second))
    ]
    for producer in (first, second):
        producer.add(TopicPartition(topic, 0), TopicPartition(topic, 1))
        b.ask(asked, 11)


@scenario
def a_transaction_over_many_partitions(b: Subject) -> None:
    topics = [b.topic(f"t{number}", partitions=20) for number in range(3)]
    producer = Producer(b, coordinated(b)).begin()
    partitions = [TopicPartition(topic, index) for topic in topics for index in range(20)]
    producer.add(*partitions)
    for at in partitions[::7]:
        producer.write(at.topic, 0, b"v", partition=at.partition)
    producer.describe()
    producer.end(commit=True)
    producer.settle()
    for topic in topics:
        read(b, topic)


@scenario_for_each({"below": -1, "same": 0, "above": 1})
def a_marker_of_a_stranger_with_an_epoch(b: Subject, difference: int) -> None:
    """A marker that its coordinator has not sent still ends the transaction in the partition."""
    topic, producer = b.topic(), Producer(b, coordinated(b)).begin().begin()
    at = TopicPartition(topic, 0)
    producer.add(at)
    producer.write(topic, 0, b"1")
    b.note("WriteTxnMarkers", b.quietly(write_marker(producer.producer_id, producer.epoch + difference, at), 1))
    producer.write(topic, 1, b"2")
    producer.end(commit=True)
    if difference <= 0:  # otherwise the log refuses the producer's own marker forever
        producer.settle()
    describe_producers(b, topic, 0, known={producer.producer_id: "producer"})
    read(b, topic)


@scenario_for_each({"a_deposed_coordinator": (5, 4), "the_same_coordinator": (5, 5), "a_new_coordinator": (5, 6, 5)})
def markers_of(b: Subject, coordinator_epochs: tuple[int, ...]) -> None:
    topic = b.topic()
    (producer_id, epoch), at = b.producer_id(), TopicPartition(topic, 0)
    for coordinator_epoch in coordinator_epochs:
        asked = write_marker(producer_id, epoch, at, coordinator_epoch=coordinator_epoch, commit=True)
        b.note("WriteTxnMarkers", b.quietly(asked, 1))
    describe_producers(b, topic, 0, known={producer_id: "producer"})
    read(b, topic)
