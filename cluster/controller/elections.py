"""Elections of leaders, and the ISR that goes with them (Kafka's PartitionStateMachine and ReplicaStateMachine).

One rule serves whatever happened: a broker came or went, lost a disk or is about to stop, or a controller took office.
It says what a partition has to become, from what it is and who is there.
"""

from __future__ import annotations

from collections.abc import Iterable

from cluster.controller.context import ControllerContext
from cluster.controller.isr_decisions import eligible_after, is_trusted, says_less, stand_in
from cluster.metadata_image import PartitionImage
from cluster.znodes import NO_LEADER, RECOVERING, PartitionState, partition_state_path
from cluster.zookeeper.coordination import Operation, SetData
from protocol.errors import ApiError, ErrorCode
from protocol.messages.reassignments import ElectionType
from protocol.topic_partition import TopicPartition

NO_STATE = -1
"""Partition epoch and leader epoch of a partition whose state node does not exist yet."""
DAMAGED_STATE = -2
"""Partition epoch of a partition whose state node cannot be read. Only the node says who is in sync: nobody leads the
partition, and nothing is written there.
"""


def initial_state(replicas: tuple[int, ...], context: ControllerContext) -> PartitionState | None:
    """The first leader and ISR of a new partition: its live replicas. None while no replica is alive."""
    alive = tuple(
        broker for broker in replicas if broker in context.live_brokers and broker not in context.shutting_down
    )
    if not alive:
        return None
    return PartitionState(leader=alive[0], leader_epoch=0, isr=alive, controller_epoch=context.controller_epoch)


def settled(topic: str, partition: PartitionImage, context: ControllerContext) -> PartitionState | None:
    """The state that follows from who is there now, or None when nothing has to change.

    A leader that can be used stays, unless it is about to stop and somebody can take over. One that is gone is followed
    by the first usable member of the ISR in the order of the replicas. The ISR loses the members that cannot be used.
    When no member is left there is no leader, and the ISR stays, because only its members have every committed record;
    unless there are other eligible replicas (see `stand_in`).
    Each change is a new leader epoch, so that everybody hears of it.
    """
    trusted = [broker for broker in partition.isr if is_trusted(broker, partition, context)]
    usable = tuple(broker for broker in trusted if context.may_lead(broker, partition))
    if partition.leader in usable:
        leader = partition.leader
    else:
        leader = next((broker for broker in partition.replicas if broker in usable), NO_LEADER)
    isr = usable
    if leader == NO_LEADER:
        if partition.leader in trusted and context.is_online(partition.leader, partition):
            return None  # about to stop, and the last one
        leader, isr = stand_in(partition, context)
    state = next_state(topic, partition, leader, isr, context)
    if (leader, isr) == (partition.leader, partition.isr) and not says_less(partition.eligible, state.eligible):
        return None
    return state


def elected(
    topic: str, partition: PartitionImage, context: ControllerContext, *, allow_unclean: bool = False
) -> PartitionState | None:
    """As `settled`. Where that leaves nobody to lead, a replica that is not in sync leads, if the topic allows it or
    with `allow_unclean`; it is the whole ISR then (Kafka's OfflinePartitionLeaderElectionStrategy).
    """
    state = settled(topic, partition, context)
    if (partition.leader if state is None else state.leader) != NO_LEADER:
        return state
    if not allow_unclean and not context.unclean.allows(topic):
        return state
    leader = next((broker for broker in partition.replicas if context.may_lead(broker, partition)), NO_LEADER)
    if leader == NO_LEADER:
        return state
    # Nobody else is known to have what this one has.
    lost = partition.replace(isr=(), eligible=None, leader_recovery_state=RECOVERING)
    return next_state(topic, lost, leader, (leader,), context)


def preferred(topic: str, partition: PartitionImage, context: ControllerContext) -> PartitionState | None:
    """The state in which the preferred replica leads, or None when it cannot be used or is not in sync."""
    leader = partition.replicas[0]
    if leader not in partition.isr or not context.may_lead(leader, partition):
        return None
    return next_state(topic, partition, leader, partition.isr, context)


def decide_election(
    topic_partition: TopicPartition, election_type: ElectionType, context: ControllerContext
) -> PartitionState:
    """The state of a partition after an election that somebody asked for, with Kafka's errors. Raises ApiError:
    ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE, ELIGIBLE_LEADERS_NOT_AVAILABLE and for what does not exist.
    """
    name, _ = topic_partition
    partition = context.partition(topic_partition)
    if partition is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
    if name in context.topics_to_be_deleted:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is being deleted")
    has_state = partition.partition_epoch >= 0
    if election_type is ElectionType.PREFERRED:
        is_needed = partition.leader != partition.replicas[0]
        state = preferred(name, partition, context) if has_state else None
        error_code, strategy = (
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            "PreferredReplicaPartitionLeaderElectionStrategy",
        )
    else:
        is_needed = partition.leader not in context.live_brokers
        state = elected(name, partition, context, allow_unclean=True) if has_state else None
        error_code, strategy = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "OfflinePartitionLeaderElectionStrategy(true)"
    if not is_needed:
        raise ApiError(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
    if state is None or state.leader == NO_LEADER:
        raise ApiError(error_code, f"Failed to elect leader for partition {topic_partition} under strategy {strategy}")
    return state


def imbalanced(context: ControllerContext, limit_percentage: int) -> list[TopicPartition]:
    """The partitions to be given back to their preferred replicas: those of the brokers that do not lead more than
    this share of what they should, as far as they can (Kafka's `checkAndTriggerAutoLeaderRebalance`).
    """
    totals: dict[int, int] = {}
    elsewhere: dict[int, list[tuple[TopicPartition, PartitionImage]]] = {}
    for topic in context.topics.values():
        if topic.name in context.topics_to_be_deleted:
            continue
        for each in topic.partitions:
            wanted = each.replicas[0]
            totals[wanted] = totals.get(wanted, 0) + 1
            is_moving = bool(each.adding_replicas or each.removing_replicas)
            if each.leader != wanted and each.partition_epoch >= 0 and not is_moving:
                elsewhere.setdefault(wanted, []).append((TopicPartition(topic.name, each.partition), each))
    return [
        topic_partition
        for wanted, partitions in elsewhere.items()
        if len(partitions) / totals[wanted] > limit_percentage / 100
        for topic_partition, partition in partitions
        if preferred(topic_partition.topic, partition, context) is not None
    ]


def elect_at_start(
    topic: str, partition: PartitionImage, context: ControllerContext, *, unclean: bool
) -> PartitionState | None:
    """The state of a partition when a controller takes office, or None when nothing has to change.

    As `elected`. With `unclean` the epoch of a leader that stays grows too, so that what recovery cut off can never be
    taken for what is written now.
    """
    state = elected(topic, partition, context)
    if state is None and unclean and context.is_online(partition.leader, partition):
        return next_state(topic, partition, partition.leader, partition.isr, context)
    return state


def settle(
    topic: str, partition: PartitionImage, context: ControllerContext
) -> tuple[Operation, PartitionImage] | None:
    """The operation for a partition that has to change, and what it becomes; None when nothing has to change."""
    state = elected(topic, partition, context) if partition.partition_epoch >= 0 else None
    return None if state is None else (write(topic, partition, state), after(partition, state))


def offline_operations(
    replicas: Iterable[TopicPartition], broker_id: int, context: ControllerContext
) -> tuple[list[Operation], dict[str, list[PartitionImage]]]:
    """Give the operations for replicas that `broker_id` cannot use, and the changed partitions by topic. The partitions
    that it leads get another leader, or none. A replica already known to be offline changes nothing.
    """
    operations: list[Operation] = []
    changed: dict[str, list[PartitionImage]] = {}
    for topic_partition in replicas:
        name, _ = topic_partition
        partition = context.partition(topic_partition)
        if partition is None or broker_id in partition.offline_replicas:
            continue
        lost = partition.replace(offline_replicas=(*partition.offline_replicas, broker_id))
        eligible = () if partition.eligible is None else partition.eligible.replicas
        state = elected(name, lost, context) if broker_id in (*partition.isr, *eligible) else None
        if state is not None:
            operations.append(write(name, partition, state))
            lost = after(lost, state)
        changed.setdefault(name, []).append(lost)
    return operations, changed


def write(topic: str, partition: PartitionImage, state: PartitionState) -> Operation:
    """Give the operation that replaces the state of a partition, as long as it is the one that `partition` has."""
    return SetData(partition_state_path(topic, partition.partition), state.encode(), partition.partition_epoch)


def next_state(
    topic: str, partition: PartitionImage, leader: int, isr: tuple[int, ...], context: ControllerContext
) -> PartitionState:
    """The state of the next leader epoch."""
    eligible = eligible_after(topic, partition, leader, isr, context)
    recovery, epoch = partition.leader_recovery_state, context.controller_epoch
    return PartitionState(leader, partition.leader_epoch + 1, isr, epoch, recovery, eligible)


def after(partition: PartitionImage, state: PartitionState) -> PartitionImage:
    """The partition once `state` has been written, at the version that it had."""
    return with_state(partition, state, partition.partition_epoch + 1)


def with_state(partition: PartitionImage, state: PartitionState, partition_epoch: int) -> PartitionImage:
    """The partition with this state, at this version."""
    return partition.replace(
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=state.isr,
        partition_epoch=partition_epoch,
        controller_epoch=state.controller_epoch,
        leader_recovery_state=state.leader_recovery_state,
        eligible=state.eligible,
    )


def partition_image(
    number: int, replicas: tuple[int, ...], state: PartitionState | None, partition_epoch: int
) -> PartitionImage:
    """A partition as its assignment and state node say; without a leader when the node does not exist."""
    if state is None:
        return PartitionImage(number, NO_LEADER, NO_STATE, replicas, (), NO_STATE, NO_STATE)
    blank = PartitionImage(number, NO_LEADER, NO_STATE, replicas, (), NO_STATE, NO_STATE)
    return with_state(blank, state, partition_epoch)
