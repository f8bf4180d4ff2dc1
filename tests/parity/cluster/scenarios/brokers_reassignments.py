"""AlterPartitionReassignments and ListPartitionReassignments over three brokers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protocol.messages.reassignments import ListPartitionReassignmentsRequest
from tests.parity.cluster.subject import OTHER, ClusterSubject, Moves, cluster_scenario, reassignment

NOBODY = 77


def reassign(b: ClusterSubject, topic: str, moves: Moves) -> None:
    """AlterPartitionReassignments, into the transcript."""
    b.ask(reassignment({topic: moves}), 0)


def list_moves(b: ClusterSubject, topics: Mapping[str, Sequence[int]] | None) -> None:
    """ListPartitionReassignments, into the transcript."""
    request = ListPartitionReassignmentsRequest
    asked = None
    if topics is not None:
        asked = [
            request.ListPartitionReassignmentsTopics(name=name, partition_indexes=list(numbers))
            for name, numbers in topics.items()
        ]
    b.ask(request(timeout_ms=10_000, topics=asked), 0)


def placement(b: ClusterSubject, topic: str) -> None:
    """Replicas and leader into the transcript. The number of leader epochs of a move depends on timing."""
    [partition] = b.metadata(topic).topics[0].partitions
    b.note("replicas", list(partition.replica_nodes))
    b.note("in sync", sorted(partition.isr_nodes))
    b.note("leader", partition.leader_id)


@cluster_scenario
def a_partition_that_moves(b: ClusterSubject) -> None:
    topic = b.replicated("t", (0, 1))
    b.produce(topic, b"a", b"b")
    reassign(b, topic, {0: (1, 2)})
    b.await_partitions(topic, {0: (1, 2)})
    b.await_leader(topic, 1)
    placement(b, topic)
    list_moves(b, {topic: [0]})


@cluster_scenario
def a_partition_that_grows_and_shrinks(b: ClusterSubject) -> None:
    topic = b.replicated("t", (0,))
    for replicas in ((0, 1, 2), (0, 2), (0,)):
        reassign(b, topic, {0: replicas})
        b.await_partitions(topic, {0: replicas})
        b.until(lambda replicas=replicas: b.metadata(topic).topics[0].partitions[0].replica_nodes == list(replicas))  # type: ignore[misc]
        placement(b, topic)


@cluster_scenario
def another_order(b: ClusterSubject) -> None:
    topic = b.replicated("t", (0, 1, 2))
    reassign(b, topic, {0: (2, 1, 0)})
    b.until(lambda: b.metadata(topic).topics[0].partitions[0].replica_nodes == [2, 1, 0])
    b.describe(topic)


@cluster_scenario
def the_same_replicas(b: ClusterSubject) -> None:
    topic = b.replicated("t", (0, 1))
    reassign(b, topic, {0: (0, 1)})
    placement(b, topic)


@cluster_scenario
def replicas_that_cannot_be(b: ClusterSubject) -> None:
    topic = b.replicated("t", (0, 1))
    for replicas in ((0, NOBODY), (0, 0), (), (0, -1), (NOBODY,), (-1, -1)):
        reassign(b, topic, {0: replicas})
    b.describe(topic)


@cluster_scenario
def partitions_that_are_missing(b: ClusterSubject) -> None:
    topic = b.replicated("t", (0, 1))
    reassign(b, topic, {1: (0, 1)})
    reassign(b, topic, {-1: (0, 1)})
    reassign(b, b.name("missing"), {0: (0, 1)})
    reassign(b, topic, {})
    b.ask(reassignment({}), 0)
    b.ask(reassignment({topic: {0: (0, 1), 7: (0, 1)}, b.name("missing"): {0: (0,)}}), 0)


@cluster_scenario
def nothing_to_cancel(b: ClusterSubject) -> None:
    topic = b.replicated("t", (0, 1))
    reassign(b, topic, {0: None})
    reassign(b, topic, {5: None})
    reassign(b, b.name("missing"), {0: None})


@cluster_scenario
def moves_not_at_the_controller(b: ClusterSubject) -> None:
    topic = b.replicated("t", (0, 1))
    with b.at(OTHER):
        reassign(b, topic, {0: (1, 2)})
        reassign(b, b.name("missing"), {0: None})
        list_moves(b, None)
        list_moves(b, {topic: [0]})


@cluster_scenario
def nothing_that_moves(b: ClusterSubject) -> None:
    topic = b.replicated("t", (0, 1))
    list_moves(b, None)
    list_moves(b, {})
    list_moves(b, {topic: [0, 7]})
    list_moves(b, {b.name("missing"): [0]})
    list_moves(b, {topic: []})
