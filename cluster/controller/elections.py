"""Who leads a partition (Kafka's PartitionStateMachine), for one partition at a time."""

from __future__ import annotations

from cluster.metadata_image import MetadataImage, PartitionImage
from cluster.znodes import NO_LEADER, PartitionState

NO_STATE = -1
"""Partition epoch and leader epoch of a partition whose state node does not exist yet."""


def initial_state(replicas: tuple[int, ...], image: MetadataImage) -> PartitionState | None:
    """The first leader and ISR of a new partition: its live replicas. None while no replica is alive."""
    alive = tuple(broker for broker in replicas if broker in image.brokers)
    if not alive:
        return None
    return PartitionState(leader=alive[0], leader_epoch=0, isr=alive, controller_epoch=image.controller_epoch)


def elect_at_start(partition: PartitionImage, image: MetadataImage) -> PartitionState | None:
    """The state of a partition after a start of this cluster, or None when nothing has to change.

    The leader stays or, when it is gone, the first live member of the ISR in the order of the replicas leads; either
    way the leader epoch grows, so that what this start's recovery cut off can never be taken for what is written now.
    The last member of the ISR stays in it even when it is gone, because only it has every committed record.
    """
    leader = partition.leader
    if leader not in image.brokers:
        candidates = (each for each in partition.replicas if each in partition.isr and each in image.brokers)
        leader = next(candidates, NO_LEADER)
        if leader == partition.leader == NO_LEADER:
            return None
    alive = tuple(broker for broker in partition.isr if broker in image.brokers)
    return PartitionState(
        leader=leader,
        leader_epoch=partition.leader_epoch + 1,
        isr=alive or partition.isr,
        controller_epoch=image.controller_epoch,
        leader_recovery_state=partition.leader_recovery_state,
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
