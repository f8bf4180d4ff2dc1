"""Creation of topics and partitions: validation, and the nodes to write (Kafka's ZkAdminManager and AdminZkClient)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from cluster.controller.context import ControllerContext, flat_name
from cluster.controller.elections import NO_STATE, initial_state, partition_image
from cluster.metadata_image import PartitionImage, TopicImage
from cluster.znodes import (
    PartitionState,
    TopicAssignment,
    config_path,
    delete_topic_path,
    encode_config,
    partition_path,
    partition_state_path,
    partitions_path,
    topic_path,
)
from protocol.errors import ApiError, ErrorCode
from protocol.replica_assignment import Assignment, assign_replicas, check_assignable
from protocol.topic_partition import validate_topic_name
from protocol.uuids import Uuid
from protocol.value import Value, field
from zookeeper.coordination import Create, Delete, Operation, SetData

USE_DEFAULT = -1
"""As a number of partitions or a replication factor: use the broker's default, or the manual assignment."""

MAX_NEW_PARTITIONS = 10_000
"""Per topic and request. Kafka's ZooKeeper controller runs out of memory instead; this limit, its error code and
message are the KRaft controller's (ReplicationControlManager.MAX_PARTITIONS_PER_BATCH).
"""

RandomBelow = Callable[[int], int]


class NewTopic(Value):
    """A requested topic. `assignment`, if not empty, lists the replicas of each partition by number."""

    name: str
    num_partitions: int = USE_DEFAULT
    replication_factor: int = USE_DEFAULT
    assignment: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    config: Mapping[str, str | None] = field(default_factory=dict)


class TopicDefaults(Value):
    """The broker's num.partitions and default.replication.factor."""

    num_partitions: int
    replication_factor: int


class TopicPlan(Value):
    """A valid topic to create."""

    name: str
    assignment: Assignment
    config: Mapping[str, str]


def plan_topic(
    topic: NewTopic,
    context: ControllerContext,
    planned: Mapping[str, str],
    defaults: TopicDefaults,
    validate_config: Callable[[Mapping[str, str]], None],
    random_below: RandomBelow,
) -> TopicPlan:
    """Validate one topic. Raises ApiError with Kafka's code and message, checked in Kafka's order.

    `planned` are the topics that will be created before this one, by `flat_name`: it must not collide with them either.
    """
    if topic.name in context.topics or topic.name in context.damaged_topics:
        raise _exists(topic.name)
    nulls = [key for key, value in topic.config.items() if value is None]
    if nulls:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(nulls)}")
    if topic.assignment and (topic.num_partitions != USE_DEFAULT or topic.replication_factor != USE_DEFAULT):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "Both numPartitions or replicationFactor and replicasAssignments were set. "
            "Both cannot be used at the same time.",
        )
    partitions = defaults.num_partitions if topic.num_partitions == USE_DEFAULT else topic.num_partitions
    factor = defaults.replication_factor if topic.replication_factor == USE_DEFAULT else topic.replication_factor
    racks = context.racks
    if not topic.assignment:
        _refuse_excess(partitions)
        check_assignable(racks, partitions, factor)
    validate_topic_name(topic.name)
    _refuse_collision(topic.name, context, planned)
    assignment = dict(topic.assignment)
    if assignment:
        _validate_assignment(assignment)
    else:
        assignment = dict(enumerate(_spread(racks, partitions, factor, random_below)))
    config = {key: value for key, value in topic.config.items() if value is not None}
    validate_config(config)
    return TopicPlan(topic.name, tuple(assignment[number] for number in range(len(assignment))), config)


def _spread(racks: Mapping[int, str | None], partitions: int, factor: int, random_below: RandomBelow) -> Assignment:
    count = max(len(racks), 1)
    return assign_replicas(
        racks, partitions, factor, start_index=random_below(count), replica_shift=random_below(count)
    )


def _refuse_excess(partitions: int) -> None:
    if partitions > MAX_NEW_PARTITIONS:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")


def _exists(name: str) -> ApiError:
    return ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")


def _refuse_collision(name: str, context: ControllerContext, planned: Mapping[str, str]) -> None:
    """Metric names replace '.' with '_', so two topics that differ only in these would share their metrics."""
    if "." not in name and "_" not in name:
        return
    colliding = [*context.names_like(name)]
    flat = flat_name(name)
    if flat in planned:
        colliding.append(planned[flat])
    if colliding:
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{name}' collides with existing topics: {', '.join(sorted(colliding))}",
        )


def _validate_assignment(assignment: Mapping[int, Sequence[int]]) -> None:
    if len({len(replicas) for replicas in assignment.values()}) != 1:
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "All partitions should have the same number of replicas")
    if not all(assignment.values()):
        # Kafka 3.9 creates such a topic, which can never have a leader; KRaft rejects it, and so do we.
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "The manual partition assignment includes an empty replica list."
        )
    if any(len(set(replicas)) != len(replicas) for replicas in assignment.values()):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Duplicate replica assignment found: {_scala_text(assignment)}"
        )
    if set(assignment) != set(range(len(assignment))):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions should be a consecutive 0-based integer sequence"
        )


def _scala_text(assignment: Mapping[int, Sequence[int]]) -> str:
    """The assignment in Kafka's message: Scala's representation of a map of buffers."""
    entries = (f"{number} -> ArrayBuffer({', '.join(map(str, assignment[number]))})" for number in sorted(assignment))
    return f"HashMap({', '.join(entries)})"


def topic_operations(plan: TopicPlan, topic_id: Uuid, *, has_config: bool = False) -> list[Operation]:
    """Return the operations that create the topic without its partitions, in Kafka's order: configuration, then topic.

    With `has_config`, the tree still has a configuration of an earlier topic of that name. It is replaced, as in Kafka
    (AdminZkClient.writeTopicConfig).
    """
    path, config = config_path("topics", plan.name), encode_config(plan.config)
    return [
        SetData(path, config) if has_config else Create(path, config),
        Create(topic_path(plan.name), TopicAssignment(topic_id, dict(enumerate(plan.assignment))).encode()),
        Create(partitions_path(plan.name)),
    ]


def new_partitions(
    topic: str, assignment: Mapping[int, tuple[int, ...]], context: ControllerContext
) -> Iterator[tuple[Sequence[Operation], PartitionImage]]:
    """Create the nodes of new partitions, each with a leader if a replica is alive."""
    states: dict[tuple[int, ...], tuple[PartitionState | None, bytes]] = {}
    for number, replicas in assignment.items():
        known = states.get(replicas)
        if known is None:
            first = initial_state(replicas, context)
            known = states[replicas] = first, b"" if first is None else first.encode()
        state, encoded = known
        image = partition_image(number, replicas, state, partition_epoch=0)
        if state is None:
            yield (), image
        else:
            nodes = Create(partition_path(topic, number)), Create(partition_state_path(topic, number), encoded)
            yield nodes, image


def first_states(
    topic: str, partitions: Sequence[PartitionImage], context: ControllerContext
) -> Iterator[tuple[Sequence[Operation], PartitionImage]]:
    """As `new_partitions`, for partitions that are assigned but lack nodes."""
    made = new_partitions(topic, {each.partition: each.replicas for each in partitions}, context)
    for (operations, image), known in zip(made, partitions, strict=True):
        begun = image.replace(adding_replicas=known.adding_replicas, removing_replicas=known.removing_replicas)
        yield operations, begun


def expand_topic(
    topic: TopicImage,
    count: int,
    assignments: Sequence[tuple[int, ...]] | None,
    context: ControllerContext,
) -> dict[int, tuple[int, ...]]:
    """The replicas of the partitions to add for a total of `count`. Raises ApiError with Kafka's code and message."""
    if any(each.adding_replicas or each.removing_replicas for each in topic.partitions):
        raise ApiError(
            ErrorCode.REASSIGNMENT_IN_PROGRESS,
            f"A partition reassignment is in progress for the topic '{topic.name}'.",
        )
    existing = len(topic.partitions)
    added = count - existing
    if added < 0:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"Topic currently has {existing} partitions, which is higher than the requested {count}.",
        )
    if added == 0:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {existing} partitions.")
    if assignments is None:
        _refuse_excess(added)
        return dict(enumerate(_spread_further(topic, added, context), existing))
    if len(assignments) != added:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Increasing the number of partitions by {added} but {len(assignments)} assignments provided.",
        )
    _validate_added(topic, assignments, context)
    return dict(enumerate(assignments, existing))


def _spread_further(topic: TopicImage, added: int, context: ControllerContext) -> Assignment:
    """New partitions continue the round robin of the topic's first partition."""
    first_replicas = topic.partitions[0].replicas
    racks = context.racks
    brokers = sorted(racks)
    start = next((index for index, broker in enumerate(brokers) if broker >= first_replicas[0]), 0)
    return assign_replicas(
        racks,
        added,
        len(first_replicas),
        start_index=start,
        replica_shift=start,
        first_partition=len(topic.partitions),
    )


def _validate_added(topic: TopicImage, assignments: Sequence[tuple[int, ...]], context: ControllerContext) -> None:
    unknown = sorted({broker for replicas in assignments for broker in replicas} - set(context.live_brokers))
    if unknown:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Unknown broker(s) in replica assignment: {', '.join(map(str, unknown))}.",
        )
    factor = len(topic.partitions[0].replicas)
    for number, replicas in enumerate(assignments, len(topic.partitions)):
        if not replicas:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Cannot have replication factor of 0 for partition id {number}."
            )
        if len(set(replicas)) != len(replicas):
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Duplicate brokers not allowed in replica assignment: {', '.join(map(str, replicas))} "
                f"for partition id {number}.",
            )
        if len(replicas) != factor:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Inconsistent replication factor between partitions, partition 0 has {factor} while partitions "
                f"[{number}] have replication factors [{len(replicas)}], respectively.",
            )


def growth_operation(topic: TopicImage, added: Mapping[int, tuple[int, ...]]) -> Operation:
    """Return the operation that adds partitions to the topic's node."""
    assignment = {each.partition: each.replicas for each in topic.partitions} | dict(added)
    return SetData(topic_path(topic.name), TopicAssignment(topic.topic_id, assignment).encode())


def deletion_mark(topic: str) -> Operation:
    """The operation that marks a topic for deletion. A marked deletion is completed even after a restart."""
    return Create(delete_topic_path(topic))


def partition_removals(topic: str, partitions: Iterable[PartitionImage]) -> Iterator[Operation]:
    """Return the operations that delete the nodes of these partitions."""
    for each in partitions:
        if each.partition_epoch != NO_STATE:
            yield Delete(partition_state_path(topic, each.partition))
            yield Delete(partition_path(topic, each.partition))


def topic_removals(topic: str, *, has_config: bool) -> Iterator[Operation]:
    """Return the operations that delete the other nodes of a topic, its deletion mark last."""
    yield Delete(partitions_path(topic))
    yield Delete(topic_path(topic))
    if has_config:
        yield Delete(config_path("topics", topic))
    yield Delete(delete_topic_path(topic))
