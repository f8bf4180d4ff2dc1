"""Reassignment of partitions to other replicas (KIP-455; Kafka's `ReplicaAssignment` and `KafkaController`).

During a reassignment, the replicas are the union of the old and the target ones: the old ones are all but
`adding_replicas`, the target ones all but `removing_replicas`. Once all target replicas are in the ISR, one of them is
elected leader, and the others are removed. All of this is in the topic's node, so that the next controller can
continue.

Odradek is stricter than Kafka 3.9 in one case, with KRaft's error: it keeps a replica that is the only one with every
committed record.
"""

from __future__ import annotations

from collections.abc import Mapping

from cluster.controller.context import ControllerContext
from cluster.controller.elections import after, next_state, write
from cluster.metadata_image import PartitionImage, TopicImage
from cluster.znodes import NO_LEADER, PartitionState, TopicAssignment, topic_path
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from protocol.uuids import Uuid
from zookeeper.coordination import Operation, SetData


def is_being_reassigned(partition: PartitionImage) -> bool:
    """Whether the partition is being reassigned."""
    return bool(partition.adding_replicas or partition.removing_replicas)


def origin_replicas(partition: PartitionImage) -> tuple[int, ...]:
    """The replicas before the reassignment, which a cancellation restores."""
    return tuple(each for each in partition.replicas if each not in partition.adding_replicas)


def target_replicas(partition: PartitionImage) -> tuple[int, ...]:
    """The replicas after the reassignment, the preferred leader first."""
    return tuple(each for each in partition.replicas if each not in partition.removing_replicas)


def reassigned(partition: PartitionImage, target: tuple[int, ...]) -> PartitionImage:
    """The partition during a reassignment to `target`. Replicas added by an earlier reassignment, but not in `target`,
    are gone.
    """
    origin = origin_replicas(partition)
    replicas = tuple(dict.fromkeys((*target, *origin)))
    return partition.replace(
        replicas=replicas,
        adding_replicas=tuple(each for each in replicas if each not in origin),
        removing_replicas=tuple(each for each in replicas if each not in target),
    )


def plan(
    topic_partition: TopicPartition,
    target: tuple[int, ...] | None,
    context: ControllerContext,
    *,
    waits_for_brokers: bool = False,
) -> PartitionImage:
    """The partition after the start of its reassignment. Without a `target`, cancel the current one.

    Raises ApiError with Kafka's codes and messages, checked in Kafka's order. With `waits_for_brokers`, the target may
    include brokers that are down.
    """
    partition = context.partition(topic_partition)
    if target is not None:
        _check_target(partition, target, context, waits_for_brokers=waits_for_brokers)
    elif partition is None or not is_being_reassigned(partition):
        raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
    if partition is None or topic_partition.topic in context.topics_to_be_deleted:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
    wanted = reassigned(partition, origin_replicas(partition) if target is None else target)
    if partition.partition_epoch >= 0:
        leader, isr = _among(wanted.replicas, partition, context)
        if not isr or (leader == NO_LEADER and partition.leader != NO_LEADER):
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Unable to revert partition assignment for {topic_partition} because it would require an unclean "
                "leader election.",
            )
    return wanted


def _check_target(
    partition: PartitionImage | None, target: tuple[int, ...], context: ControllerContext, *, waits_for_brokers: bool
) -> None:
    reason = ""
    origin = () if partition is None else origin_replicas(partition)
    adding = [each for each in target if each not in origin]
    if not target:
        reason = "Empty replica list specified in partition reassignment."
    elif len(set(target)) != len(target):
        reason = f"Duplicate replica ids in partition reassignment replica list: {_scala_list(target)}"
    elif any(each < 0 for each in target):
        reason = f"Invalid broker id in replica list: {_scala_list(target)}"
    elif not waits_for_brokers and any(each not in context.live_brokers for each in adding):
        reason = (
            "Replica assignment has brokers that are not alive. Replica list: "
            f"{_scala_list(adding)}, live broker list: Set({', '.join(map(str, context.live_brokers))})"
        )
    if reason:
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)


def _scala_list(numbers: tuple[int, ...] | list[int]) -> str:
    return f"ArrayBuffer({', '.join(map(str, numbers))})"


def _among(
    replicas: tuple[int, ...], partition: PartitionImage, context: ControllerContext
) -> tuple[int, tuple[int, ...]]:
    """Leader and ISR after a restriction to these replicas. A usable leader stays."""
    isr = tuple(each for each in partition.isr if each in replicas)
    if partition.leader in isr and context.is_online(partition.leader, partition):
        return partition.leader, isr
    usable = (each for each in replicas if each in isr and context.may_lead(each, partition))
    return next(usable, NO_LEADER), isr


def begun(
    topic: TopicImage, wanted: Mapping[int, PartitionImage], context: ControllerContext
) -> tuple[list[Operation], list[PartitionImage]]:
    """Return the operations that turn partitions of `topic` into those that `plan` returned, and the results.

    States are written first, so that a crash never leaves a leader or an ISR member that is not a replica. Each state
    has a new leader epoch, so that all replicas learn of it.
    """
    operations: list[Operation] = []
    partitions: list[PartitionImage] = []
    for number, image in wanted.items():
        before = topic.partitions[number]
        if before.partition_epoch < 0:
            partitions.append(image)
            continue
        state = next_state(topic.name, image, *_among(image.replicas, before, context), context)
        operations.append(write(topic.name, before, state))
        partitions.append(after(image, state))
    operations.append(assignment_operation(topic.with_partitions(partitions)))
    return operations, partitions


def completion(topic: str, partition: PartitionImage, context: ControllerContext) -> PartitionState | None:
    """The state without the removed replicas, or None while a target replica is out of sync or none of them can
    lead.
    """
    target = target_replicas(partition)
    if not is_being_reassigned(partition) or not all(each in partition.isr for each in target):
        return None
    leader, isr = _among(target, partition, context)
    return None if leader == NO_LEADER else next_state(topic, partition.replace(replicas=target), leader, isr, context)


def completed(partition: PartitionImage, state: PartitionState) -> PartitionImage:
    """The partition after writing `state`, its completion."""
    return after(partition, state).replace(
        replicas=target_replicas(partition), adding_replicas=(), removing_replicas=()
    )


def assignment_operation(topic: TopicImage) -> Operation:
    """Return the operation that writes the assignment of a topic, including its reassignments."""
    return SetData(topic_path(topic.name), assignment_of(topic.topic_id, topic.partitions).encode())


def assignment_of(topic_id: Uuid, partitions: tuple[PartitionImage, ...]) -> TopicAssignment:
    """The content of a topic's node."""
    return TopicAssignment(
        topic_id,
        {each.partition: each.replicas for each in partitions},
        {each.partition: each.adding_replicas for each in partitions if each.adding_replicas},
        {each.partition: each.removing_replicas for each in partitions if each.removing_replicas},
    )
