"""Creating, growing and deleting topics over three brokers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protocol.messages.topics import CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest
from protocol.uuids import ZERO_UUID
from tests.parity.cluster.subject import OTHER, ClusterSubject, cluster_scenario, created

NOBODY = 77


def create(
    b: ClusterSubject,
    suffix: str,
    *,
    partitions: int = -1,
    replication_factor: int = -1,
    assignment: Mapping[int, Sequence[int]] | None = None,
    validate_only: bool = False,
) -> None:
    """CreateTopics, into the transcript."""
    topic = CreateTopicsRequest.CreatableTopic(
        name=b.name(suffix),
        num_partitions=partitions,
        replication_factor=replication_factor,
        assignments=[
            CreateTopicsRequest.CreatableReplicaAssignment(partition_index=number, broker_ids=list(replicas))
            for number, replicas in (assignment or {}).items()
        ],
        configs=[],
    )
    b.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000, validate_only=validate_only), 7)


def grow(
    b: ClusterSubject,
    topic: str,
    count: int,
    *assignments: tuple[int, ...],
    validate_only: bool = False,
) -> None:
    """CreatePartitions, into the transcript."""
    given = [CreatePartitionsRequest.CreatePartitionsAssignment(broker_ids=list(each)) for each in assignments]
    asked = CreatePartitionsRequest.CreatePartitionsTopic(name=topic, count=count, assignments=given or None)
    b.ask(CreatePartitionsRequest(topics=[asked], timeout_ms=30_000, validate_only=validate_only), 3)


@cluster_scenario
def created_with_an_assignment(b: ClusterSubject) -> None:
    create(b, "t", assignment={0: (2, 0), 1: (0, 1), 2: (1, 2)})
    b.await_partitions(b.name("t"), {0: (0, 2), 1: (0, 1), 2: (1, 2)})
    b.describe(b.name("t"))


@cluster_scenario
def more_replicas_than_brokers(b: ClusterSubject) -> None:
    for replication_factor in (4, 100, 32_767):
        create(b, "t", partitions=1, replication_factor=replication_factor)
    create(b, "t", partitions=1, replication_factor=4, validate_only=True)


@cluster_scenario
def odd_numbers(b: ClusterSubject) -> None:
    create(b, "a", partitions=0, replication_factor=3)
    create(b, "b", partitions=1, replication_factor=0)
    create(b, "c", partitions=1, replication_factor=-2)
    create(b, "d", partitions=-2, replication_factor=3)


@cluster_scenario
def defaults_of_the_brokers(b: ClusterSubject) -> None:
    create(b, "t", validate_only=True)
    create(b, "u", partitions=2, validate_only=True)
    create(b, "v", replication_factor=2, validate_only=True)


@cluster_scenario
def a_replica_on_an_unknown_broker(b: ClusterSubject) -> None:
    create(b, "t", assignment={0: (0, NOBODY)}, validate_only=True)
    create(b, "u", assignment={0: (0, -1)}, validate_only=True)


@cluster_scenario
def replicas_twice_on_a_broker(b: ClusterSubject) -> None:
    create(b, "t", assignment={0: (0, 1, 0)})
    create(b, "t", assignment={0: (0, 1), 1: (2, 2)})


@cluster_scenario
def different_numbers_of_replicas(b: ClusterSubject) -> None:
    create(b, "t", assignment={0: (0, 1), 1: (2,)})


@cluster_scenario
def partitions_that_are_left_out(b: ClusterSubject) -> None:
    create(b, "t", assignment={0: (0, 1), 2: (1, 2)})
    create(b, "u", assignment={1: (0, 1)})


@cluster_scenario
def assignment_and_numbers_at_once(b: ClusterSubject) -> None:
    create(b, "t", partitions=1, assignment={0: (0, 1)})
    create(b, "u", replication_factor=2, assignment={0: (0, 1)})


@cluster_scenario
def a_topic_that_is_there(b: ClusterSubject) -> None:
    topic = b.replicated("t", (0, 1, 2))
    create(b, "t", partitions=3, replication_factor=3)
    b.ask(created(topic, (0,)), 7)


@cluster_scenario
def grown_with_an_assignment(b: ClusterSubject) -> None:
    topic = b.replicated("t", (0, 1))
    grow(b, topic, 3, (1, 2), (2, 0))
    b.await_partitions(topic, {0: (0, 1), 1: (1, 2), 2: (0, 2)})
    b.describe(topic)


@cluster_scenario
def grown_over_the_racks(b: ClusterSubject) -> None:
    """The new replicas follow from those of the first partition."""
    for number, replicas in enumerate(((0, 1), (1, 0), (2, 0), (0, 1, 2), (2,))):
        topic = b.replicated(f"t{number}", replicas)
        grow(b, topic, 5)
        b.until(lambda topic=topic: len(b.metadata(topic).topics[0].partitions) == 5)  # type: ignore[misc]
        partitions = b.metadata(topic).topics[0].partitions
        b.note("replicas", {str(each.partition_index): list(each.replica_nodes) for each in partitions})


@cluster_scenario
def grown_wrongly(b: ClusterSubject) -> None:
    topic = b.replicated("t", (0, 1), (1, 2))
    for assignments in (
        [(0, NOBODY)],
        [(0, 0)],
        [(0,)],
        [(0, 1, 2)],
        [()],
        [(0, 1), (1, 2)],
    ):
        grow(b, topic, 3, *assignments)
    for count in (2, 1, 0, -1):
        grow(b, topic, count)
    grow(b, b.name("missing"), 3)
    grow(b, topic, 3, (1, 0), validate_only=True)
    b.describe(topic)


@cluster_scenario
def not_at_the_controller(b: ClusterSubject) -> None:
    topic = b.replicated("t", (0, 1))
    with b.at(OTHER):
        create(b, "u", partitions=1, replication_factor=1)
        create(b, "u", partitions=1, replication_factor=9, validate_only=True)
        grow(b, topic, 4)
        for version in (1, 5, 6):
            by_name = version < 6
            request = DeleteTopicsRequest(
                topics=[] if by_name else [DeleteTopicsRequest.DeleteTopicState(name=topic, topic_id=ZERO_UUID)],
                topic_names=[topic] if by_name else [],
                timeout_ms=1000,
            )
            b.ask(request, version)
        for version in range(8):
            b.ask(
                CreateTopicsRequest(topics=created(b.name("w"), (0,)).topics, timeout_ms=1000, validate_only=False),
                version,
            )
    b.describe(topic)
