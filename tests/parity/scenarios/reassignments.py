"""Refused AlterPartitionReassignments: unknown brokers, bad lists, missing partitions."""

from __future__ import annotations

from protocol.messages.reassignments import AlterPartitionReassignmentsRequest, ListPartitionReassignmentsRequest
from tests.parity.subject import Subject, scenario

ME, STRANGER = 0, 99


def reassign(b: Subject, topic: str, *targets: tuple[int, list[int] | None]) -> None:
    """Request to move partitions, each to a list of brokers or, with None, nowhere: that cancels a move."""
    message = AlterPartitionReassignmentsRequest
    partitions = [message.ReassignablePartition(partition_index=at, replicas=to) for at, to in targets]
    b.ask(message(topics=[message.ReassignableTopic(name=topic, partitions=partitions)]), 0)


@scenario
def to_unknown_brokers(b: Subject) -> None:
    topic = b.topic()
    for replicas in ([STRANGER], [ME, STRANGER], [STRANGER, 98]):
        reassign(b, topic, (0, replicas))
    b.ask(ListPartitionReassignmentsRequest(topics=None), 0)


@scenario
def to_lists_that_are_none(b: Subject) -> None:
    topic = b.topic()
    for replicas in ([], [ME, ME], [-1], [ME, -1], [ME, STRANGER, STRANGER]):
        reassign(b, topic, (0, replicas))


@scenario
def of_partitions_that_are_not_there(b: Subject) -> None:
    topic = b.topic()
    for replicas in ([ME], [STRANGER], None):
        reassign(b, topic, (7, replicas))
        reassign(b, topic, (-1, replicas))
        reassign(b, b.name("missing"), (0, replicas))


@scenario
def cancelled_when_nothing_moves(b: Subject) -> None:
    reassign(b, b.topic(), (0, None))


@scenario
def where_it_is(b: Subject) -> None:
    reassign(b, b.topic(), (0, [ME]))


@scenario
def some_of_several(b: Subject) -> None:
    topic = b.topic(partitions=2)
    reassign(b, topic, (0, [STRANGER]), (1, [ME]), (2, [ME]))


@scenario
def of_nothing(b: Subject) -> None:
    b.ask(AlterPartitionReassignmentsRequest(topics=[]), 0)
    reassign(b, b.topic())
