"""The ISR changes that a controller accepts (Kafka's `KafkaController.processAlterPartition`; KIP-497, 841, 903), and
the replicas outside the ISR that may lead (KIP-966, the last replica standing).

The latter rules are KRaft's, with one difference: the ISR is never empty, because Kafka's ZooKeeper controllers could
not handle that. If no member of the ISR is trusted any longer, the eligible replicas become the ISR, without a leader.
"""

from __future__ import annotations

from cluster.controller.context import ControllerContext
from cluster.eligible_leaders import EligibleLeaders
from cluster.metadata_image import PartitionImage
from cluster.replication.isr import UNKNOWN_BROKER_EPOCH, IsrChange
from cluster.znodes import NO_LEADER, RECOVERED, RECOVERING, PartitionState
from protocol.errors import ErrorCode
from protocol.uuids import ZERO_UUID


def is_trusted(broker_id: int, partition: PartitionImage, context: ControllerContext) -> bool:
    """Whether a replica still has all records of its time in the ISR: its broker is in the same incarnation, or in the
    next one after a clean shutdown. A broker that is down is trusted until it returns.
    """
    eligible, broker = partition.eligible, context.live_brokers.get(broker_id)
    if eligible is None or broker is None or not context.tracks_eligible_leaders:
        return True
    known, before = eligible.epochs.get(broker_id, -1), broker.previous_epoch
    return broker.epoch <= known or (before is not None and 0 <= before <= known)


def elect_eligible(partition: PartitionImage, context: ControllerContext) -> tuple[int, tuple[int, ...]]:
    """Leader and ISR if no member of the ISR can lead.

    That is the first usable eligible replica. Without one, the partition waits leaderless for the trusted members of
    the ISR, or else for eligible replicas. Without those, it falls back to the last leader, which most likely has the
    most records.
    """
    eligible = partition.eligible
    if eligible is None or not context.tracks_eligible_leaders:
        return NO_LEADER, partition.isr
    others = _trusted(partition, eligible.replicas, context)
    leader = _first(partition, others, context)
    if leader != NO_LEADER:
        return leader, (leader,)
    waited_for = tuple(each for each in partition.isr if is_trusted(each, partition, context)) or others
    if waited_for:
        return NO_LEADER, waited_for
    last = eligible.last_known_leader
    waited_for = (last,) if last in partition.replicas else partition.isr
    leader = _first(partition, waited_for, context)
    return leader, waited_for if leader == NO_LEADER else (leader,)


def eligible_after(
    topic: str, partition: PartitionImage, leader: int, isr: tuple[int, ...], context: ControllerContext
) -> EligibleLeaders | None:
    """The eligible replicas for the next state, with this leader and this ISR, or None if it needs none."""
    min_isr = context.min_isr
    if min_isr is None or not context.tracks_eligible_leaders:
        return None
    is_under_min_isr = len(isr) < min(min_isr(topic), len(partition.replicas))
    if leader != NO_LEADER and not is_under_min_isr:
        return None
    before = partition.eligible or EligibleLeaders()
    replicas: tuple[int, ...] = ()
    if is_under_min_isr:
        left = [each for each in (*partition.isr, *before.replicas) if each not in isr]
        replicas = _trusted(partition, left, context)
    leaders = (leader, partition.leader, before.last_known_leader)
    epochs = {each: _epoch(each, before, context) for each in (*isr, *replicas)}
    return EligibleLeaders(replicas, next((each for each in leaders if each != NO_LEADER), NO_LEADER), epochs)


def _trusted(
    partition: PartitionImage, broker_ids: tuple[int, ...] | list[int], context: ControllerContext
) -> tuple[int, ...]:
    """The candidates for eligible replicas, in replica order. A replica that has lost its disk is not one."""
    return tuple(
        each
        for each in partition.replicas
        if each in broker_ids and each not in partition.offline_replicas and is_trusted(each, partition, context)
    )


def _first(partition: PartitionImage, broker_ids: tuple[int, ...], context: ControllerContext) -> int:
    can = (each for each in partition.replicas if each in broker_ids and context.may_lead(each, partition))
    return next(can, NO_LEADER)


def _epoch(broker_id: int, before: EligibleLeaders, context: ControllerContext) -> int:
    broker = context.live_brokers.get(broker_id)
    if broker is not None:
        return broker.epoch
    return before.epochs.get(broker_id, context.last_epochs.get(broker_id, -1))


def must_write_eligible(before: EligibleLeaders | None, now: EligibleLeaders | None) -> bool:
    """Whether the eligible replicas have changed from `before`, so that the state must be rewritten with the same
    leader and ISR.
    """
    return before is not None and (now is None or now.replicas != before.replicas)


def known_since(partition: PartitionImage, written_at: int, context: ControllerContext) -> PartitionImage:
    """The partition for an election by a new controller. The ISR refers to the incarnations of its members when the
    state was written, by transaction `written_at`. If these are still alive, the partition is unchanged.
    """
    live = [context.live_brokers.get(each) for each in partition.isr]
    if partition.eligible is not None or all(each is not None and each.epoch <= written_at for each in live):
        return partition
    epochs = dict.fromkeys(partition.isr, written_at)
    return partition.replace(eligible=EligibleLeaders((), partition.leader, epochs))


def validate_isr_change(
    change: IsrChange, broker_id: int, context: ControllerContext
) -> PartitionImage | PartitionState | ErrorCode:
    """Decide on an ISR change requested by `broker_id`.

    Returns the state to write, or the unchanged partition if it already has that state (the leader retries after a lost
    response), or the error.
    """
    topic = context.topics.get(change.topic_partition.topic)
    if topic is not None and change.topic_id not in (ZERO_UUID, topic.topic_id):
        return ErrorCode.UNKNOWN_TOPIC_ID
    partition = context.partition(change.topic_partition)
    if partition is None or change.topic_partition.topic in context.topics_to_be_deleted:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if change.partition_epoch > partition.partition_epoch or change.leader_epoch > partition.leader_epoch:
        # The leader knows newer epochs, so this controller has been deposed without noticing yet.
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
    """Checks of KRaft's controller; Kafka's ZooKeeper controller trusts the leader instead."""
    if broker_id != partition.leader or broker_id not in isr or len(set(isr)) != len(isr):
        return False
    if any(member not in partition.replicas for member in isr):
        return False
    if change.leader_recovery_state == RECOVERING:
        return len(isr) == 1 and partition.leader_recovery_state == RECOVERING
    return change.leader_recovery_state == RECOVERED


def _is_eligible(member: int, epoch: int, topic: str, partition: PartitionImage, context: ControllerContext) -> bool:
    """Whether this incarnation of a replica may be in the ISR; an earlier one may have had another log (KIP-903). A
    broker in controlled shutdown must not join, which would defeat the shutdown (KIP-841). Neither must a replica whose
    registration lists its log as truncated below the high watermark: the next controller would remove it again, and
    rely on the others.
    """
    if not context.is_online(member, partition):
        return False
    broker = context.live_brokers[member]
    is_truncated = partition.partition in broker.truncated_replicas.get(topic, ())
    if (is_truncated or member in context.shutting_down) and member not in partition.isr:
        return False
    return epoch in (UNKNOWN_BROKER_EPOCH, broker.epoch)
