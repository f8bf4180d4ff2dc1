"""Which changes of an ISR a controller accepts (Kafka's `KafkaController.processAlterPartition`; KIP-497, 841, 903)."""

from __future__ import annotations

from cluster.controller.context import ControllerContext
from cluster.controller.eligible_replicas import eligible_after
from cluster.metadata_image import PartitionImage
from cluster.replication.isr_changes import UNKNOWN_BROKER_EPOCH, IsrChange
from cluster.znodes import RECOVERED, RECOVERING, PartitionState
from protocol.errors import ErrorCode
from protocol.uuids import ZERO_UUID


def judge_isr_change(
    change: IsrChange, broker_id: int, context: ControllerContext
) -> PartitionImage | PartitionState | ErrorCode:
    """Decide on one change that `broker_id` asks for.

    Gives the state to write; or the partition as it is, when it is in the wanted state already, because an answer was
    lost and the leader asks again; or why the change is refused.
    """
    topic = context.topics.get(change.topic_partition.topic)
    if topic is not None and change.topic_id not in (ZERO_UUID, topic.topic_id):
        return ErrorCode.UNKNOWN_TOPIC_ID
    partition = context.partition(change.topic_partition)
    if partition is None or change.topic_partition.topic in context.topics_to_be_deleted:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if change.partition_epoch > partition.partition_epoch or change.leader_epoch > partition.leader_epoch:
        # The leader knows what this controller does not: it has been deposed, and has not heard of it.
        return ErrorCode.NOT_CONTROLLER
    if change.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    isr = change.broker_ids
    if (
        broker_id == partition.leader
        and isr == partition.isr
        and change.leader_recovery_state == partition.leader_recovery_state
    ):
        return partition
    if change.partition_epoch < partition.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    if not _is_sound(change, isr, broker_id, partition):
        return ErrorCode.INVALID_REQUEST
    name = change.topic_partition.topic
    if not all(_is_eligible(member, epoch, name, partition, context) for member, epoch in change.new_isr):
        return ErrorCode.INELIGIBLE_REPLICA
    leader, epoch, recovery = partition.leader, context.controller_epoch, change.leader_recovery_state
    eligible = eligible_after(name, partition, leader, isr, context)
    return PartitionState(leader, partition.leader_epoch, isr, epoch, recovery, eligible)


def _is_sound(change: IsrChange, isr: tuple[int, ...], broker_id: int, partition: PartitionImage) -> bool:
    """Kafka's ZooKeeper controller trusts the leader in this; the rules are those of KRaft's."""
    if broker_id != partition.leader or broker_id not in isr or len(set(isr)) != len(isr):
        return False
    if any(member not in partition.replicas for member in isr):
        return False
    if change.leader_recovery_state == RECOVERING:
        return len(isr) == 1 and partition.leader_recovery_state == RECOVERING
    return change.leader_recovery_state == RECOVERED


def _is_eligible(member: int, epoch: int, topic: str, partition: PartitionImage, context: ControllerContext) -> bool:
    """Whether this life of a replica may be in the ISR: an earlier one had another log, perhaps (KIP-903). Who is about
    to stop must not join, or its leaving would have been for nothing (KIP-841). A replica must not join either while
    its broker's registration calls it cut: the next controller would take it out again, and count on the others alone.
    """
    if not context.is_online(member, partition):
        return False
    broker = context.live_brokers[member]
    is_cut = partition.partition in broker.cut_replicas.get(topic, ())
    if (is_cut or member in context.shutting_down) and member not in partition.isr:
        return False
    return epoch in (UNKNOWN_BROKER_EPOCH, broker.epoch)
