"""Elections of partition leaders (Kafka's PartitionStateMachine), for one partition at a time."""

from __future__ import annotations

from collections.abc import Iterable

from cluster.controller.context import ControllerContext
from cluster.metadata_image import PartitionImage
from cluster.znodes import NO_LEADER, PartitionState, partition_state_path
from cluster.zookeeper.coordination import Operation, SetData
from protocol.topic_partition import TopicPartition

NO_STATE = -1
"""Partition epoch and leader epoch of a partition whose state node does not exist yet."""


def initial_state(replicas: tuple[int, ...], context: ControllerContext) -> PartitionState | None:
    """The first leader and ISR of a new partition: its live replicas. None while no replica is alive."""
    alive = tuple(broker for broker in replicas if broker in context.live_brokers)
    if not alive:
        return None
    return PartitionState(leader=alive[0], leader_epoch=0, isr=alive, controller_epoch=context.controller_epoch)


def elect_at_start(partition: PartitionImage, context: ControllerContext, *, unclean: bool) -> PartitionState | None:
    """The state of a partition after a start of this cluster, or None when nothing has to change.

    A live leader stays. Its epoch stays too after a clean stop; after an unclean one it grows, so that what recovery
    cut off can never be taken for what is written now. A leader that is gone is followed by the first live member of
    the ISR in the order of the replicas. When no member lives there is no leader, and the ISR stays, because only its
    members have every committed record.
    """
    if partition.leader in context.live_brokers:
        return _next_state(partition, partition.leader, partition.isr, context) if unclean else None
    alive = tuple(broker for broker in partition.isr if broker in context.live_brokers)
    leader = next((broker for broker in partition.replicas if broker in alive), NO_LEADER)
    if leader == partition.leader:
        return None
    return _next_state(partition, leader, alive or partition.isr, context)


def elect_without(partition: PartitionImage, broker_id: int, context: ControllerContext) -> PartitionState:
    """The state of a partition whose replica on `broker_id`, its leader, cannot be used: the next live member of the
    ISR leads; without one nobody does, and the ISR stays.
    """
    unusable = (*partition.offline_replicas, broker_id)
    alive = tuple(broker for broker in partition.isr if broker in context.live_brokers and broker not in unusable)
    leader = next((broker for broker in partition.replicas if broker in alive), NO_LEADER)
    return _next_state(partition, leader, alive or partition.isr, context)


def offline_operations(
    replicas: Iterable[TopicPartition], broker_id: int, context: ControllerContext
) -> tuple[list[Operation], dict[str, list[PartitionImage]]]:
    """Give the operations for replicas that `broker_id` cannot use, and the changed partitions by topic. The partitions
    that it leads get another leader, or none. A replica already known to be offline changes nothing.
    """
    operations: list[Operation] = []
    changed: dict[str, list[PartitionImage]] = {}
    for topic_partition in replicas:
        name, number = topic_partition
        partition = context.partition(topic_partition)
        if partition is None or broker_id in partition.offline_replicas:
            continue
        after = partition
        if partition.leader == broker_id:
            state = elect_without(partition, broker_id, context)
            version = partition.partition_epoch
            operations.append(SetData(partition_state_path(name, number), state.encode(), version))
            after = partition_image(number, partition.replicas, state, version + 1)
        after = after.replace(offline_replicas=(*partition.offline_replicas, broker_id))
        changed.setdefault(name, []).append(after)
    return operations, changed


def _next_state(
    partition: PartitionImage, leader: int, isr: tuple[int, ...], context: ControllerContext
) -> PartitionState:
    return PartitionState(
        leader, partition.leader_epoch + 1, isr, context.controller_epoch, partition.leader_recovery_state
    )


def partition_image(
    number: int, replicas: tuple[int, ...], state: PartitionState | None, partition_epoch: int
) -> PartitionImage:
    """A partition as its assignment and state node say; without a leader when the node does not exist."""
    if state is None:
        return PartitionImage(number, NO_LEADER, NO_STATE, replicas, (), NO_STATE, NO_STATE)
    return PartitionImage(
        number,
        state.leader,
        state.leader_epoch,
        replicas,
        state.isr,
        partition_epoch,
        state.controller_epoch,
        state.leader_recovery_state,
    )
