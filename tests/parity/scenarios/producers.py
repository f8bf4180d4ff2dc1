"""DescribeProducers (KIP-664): the producers in a partition's state."""

from __future__ import annotations

from typing import Any

from protocol.messages.producer_ids import DescribeProducersRequest, DescribeProducersResponse
from tests.parity.subject import Subject, scenario


def describe(b: Subject, topic: str, *partitions: int, known: dict[int, str] | None = None) -> None:
    """DescribeProducers, ordered by producer id, with the names from `known`."""
    asked = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=list(partitions))
    response: DescribeProducersResponse = b.quietly(DescribeProducersRequest(topics=[asked]), 0)
    for each in response.topics:
        for partition in each.partitions:
            producers = sorted(partition.active_producers, key=lambda producer: producer.producer_id)
            described: list[Any] = [
                (
                    (known or {})[producer.producer_id],
                    producer.producer_epoch,
                    producer.last_sequence,
                    producer.last_timestamp,
                    producer.coordinator_epoch,
                    producer.current_txn_start_offset,
                )
                for producer in producers
            ]
            b.note(
                f"{each.name}-{partition.partition_index}",
                [partition.error_code, partition.error_message, described],
            )


@scenario
def of_partitions_with_and_without_producers(b: Subject) -> None:
    topic = b.topic(partitions=2)
    first, second = b.producer_id()[0], b.producer_id()[0]
    known = {first: "first", second: "second"}
    b.produce(topic, b"nobody's")
    describe(b, topic, 0, 1)
    b.produce(topic, b"1", b"2", producer_id=first, producer_epoch=0, base_sequence=0)
    b.produce(topic, b"3", producer_id=first, producer_epoch=0, base_sequence=2)
    b.produce(topic, b"4", producer_id=second, producer_epoch=3, base_sequence=7, base_timestamp=1_700_000_000_000)
    b.produce(topic, b"5", partition=1, producer_id=second, producer_epoch=3, base_sequence=0)
    describe(b, topic, 0, 1, known=known)
    b.produce(topic, b"6", producer_id=first, producer_epoch=1, base_sequence=0, base_timestamp=5)
    describe(b, topic, 0, known=known)


@scenario
def of_what_does_not_exist(b: Subject) -> None:
    topic = b.topic()
    describe(b, topic, 1, -1, 0)
    describe(b, b.name("nope"), 0)
    describe(b, "", 0)
    describe(b, "bad/name", 0)


@scenario
def of_nothing(b: Subject) -> None:
    b.ask(DescribeProducersRequest(topics=[]), 0)
    b.ask(
        DescribeProducersRequest(topics=[DescribeProducersRequest.TopicRequest(name=b.topic(), partition_indexes=[])]),
        0,
    )
