"""Leader elections, and the resulting ISR (Kafka's PartitionStateMachine and ReplicaStateMachine).

One rule covers all events: a broker started or failed, lost a disk or is shutting down, or a new controller was
elected. It derives a partition's next state from its current one and the live brokers.
"""

from __future__ import annotations

from collections.abc import Iterable

from cluster.controller.context import ControllerContext
from cluster.controller.isr_decisions import elect_eligible, eligible_after, is_trusted, must_write_eligible
from cluster.metadata_image import PartitionImage
from cluster.znodes import NO_LEADER, RECOVERING, PartitionState, partition_state_path
from protocol.errors import ApiError, ErrorCode
from protocol.messages.reassignments import ElectionType
from protocol.topic_partition import TopicPartition
from zookeeper.coordination import Operation, SetData

NO_STATE = -1
"""Partition epoch and leader epoch of a partition whose state node does not exist yet."""
DAMAGED_STATE = -2
"""Partition epoch of a partition with an unreadable state node. Only that node contains the ISR, so the partition gets
neither a leader nor a write.
"""


def initial_state(replicas: tuple[int, ...], context: ControllerContext) -> PartitionState | None:
    """The first leader and ISR of a new partition: its live replicas. Returns None while all of them are down."""
    alive = tuple(
        broker for broker in replicas if broker in context.live_brokers and broker not in context.shutting_down
    )
    if not alive:
        return None
    return PartitionState(leader=alive[0], leader_epoch=0, isr=alive, controller_epoch=context.controller_epoch)


def online_state(topic: str, partition: PartitionImage, context: ControllerContext) -> PartitionState | None:
    """The state that the live brokers require, or None if it is unchanged.

    A usable leader stays, unless it is shutting down and another replica can take over. Otherwise the first usable
    member of the ISR, in replica order, becomes the leader. Unusable members leave the ISR. If all are unusable, the
    partition loses its leader and keeps its ISR, because no other replica is sure to have every committed record;
    eligible replicas are the exception (see `elect_eligible`).

    Each change raises the leader epoch, so that all replicas learn of it.
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
            return None  # shutting down, but the last one
        leader, isr = elect_eligible(partition, context)
    state = next_state(topic, partition, leader, isr, context)
    if (leader, isr) == (partition.leader, partition.isr) and not must_write_eligible(
        partition.eligible, state.eligible
    ):
        return None
    return state


def elected(
    topic: str, partition: PartitionImage, context: ControllerContext, *, allow_unclean: bool = False
) -> PartitionState | None:
    """As `online_state`. If that leaves the partition without a leader, elect an out-of-sync replica, if the topic or
    `allow_unclean` permits it. It then is the whole ISR (Kafka's OfflinePartitionLeaderElectionStrategy).
    """
    state = online_state(topic, partition, context)
    if (partition.leader if state is None else state.leader) != NO_LEADER:
        return state
    if not allow_unclean and not context.unclean.allows(topic):
        return state
    leader = next((broker for broker in partition.replicas if context.may_lead(broker, partition)), NO_LEADER)
    if leader == NO_LEADER:
        return state
    # No other replica is known to have this one's records.
    lost = partition.replace(isr=(), eligible=None, leader_recovery_state=RECOVERING)
    return next_state(topic, lost, leader, (leader,), context)


def preferred(topic: str, partition: PartitionImage, context: ControllerContext) -> PartitionState | None:
    """The state with the preferred replica as leader, or None if that is unusable or not in sync."""
    leader = partition.replicas[0]
    if leader not in partition.isr or not context.may_lead(leader, partition):
        return None
    return next_state(topic, partition, leader, partition.isr, context)


def decide_election(
    topic_partition: TopicPartition, election_type: ElectionType, context: ControllerContext
) -> PartitionState:
    """The state of a partition after a requested election, with Kafka's errors. Raises ApiError: ELECTION_NOT_NEEDED,
    PREFERRED_LEADER_NOT_AVAILABLE, ELIGIBLE_LEADERS_NOT_AVAILABLE, and errors for an unknown or deleted topic.
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
    """The partitions to return to their preferred replicas: those of each broker that fails to lead more than this
    share of its preferred partitions, as far as it can lead them (Kafka's `checkAndTriggerAutoLeaderRebalance`).
    """
    totals: dict[int, int] = {}
    elsewhere: dict[int, list[tuple[TopicPartition, PartitionImage]]] = {}
    for topic in context.topics.values():
        if topic.name in context.topics_to_be_deleted:
            continue
        for each in topic.partitions:
            wanted = each.replicas[0]
            totals[wanted] = totals.get(wanted, 0) + 1
            is_being_reassigned = bool(each.adding_replicas or each.removing_replicas)
            if each.leader != wanted and each.partition_epoch >= 0 and not is_being_reassigned:
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
    """The state of a partition for a new controller, or None if it is unchanged.

    As `elected`. With `unclean`, the leader epoch also rises for a leader that stays, so that records truncated by
    recovery can never be confused with new ones.
    """
    state = elected(topic, partition, context)
    if state is None and unclean and context.is_online(partition.leader, partition):
        return next_state(topic, partition, partition.leader, partition.isr, context)
    return state


def state_change(
    topic: str, partition: PartitionImage, context: ControllerContext
) -> tuple[Operation, PartitionImage] | None:
    """The operation for a changed partition, and the partition after it, or None if it is unchanged."""
    state = elected(topic, partition, context) if partition.partition_epoch >= 0 else None
    return None if state is None else (write(topic, partition, state), after(partition, state))


def offline_operations(
    replicas: Iterable[TopicPartition], broker_id: int, context: ControllerContext
) -> tuple[list[Operation], dict[str, list[PartitionImage]]]:
    """Return the operations for replicas that `broker_id` cannot use, and the changed partitions by topic. Another
    replica becomes their leader, if any can. Replicas already known to be offline are skipped.
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
    """Return the operation that replaces the state of a partition if its version is unchanged."""
    return SetData(partition_state_path(topic, partition.partition), state.encode(), partition.partition_epoch)


def next_state(
    topic: str, partition: PartitionImage, leader: int, isr: tuple[int, ...], context: ControllerContext
) -> PartitionState:
    """The state for the next leader epoch."""
    eligible = eligible_after(topic, partition, leader, isr, context)
    recovery, epoch = partition.leader_recovery_state, context.controller_epoch
    return PartitionState(leader, partition.leader_epoch + 1, isr, epoch, recovery, eligible)


def after(partition: PartitionImage, state: PartitionState) -> PartitionImage:
    """The partition after writing `state` over its current version."""
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
    """A partition from its assignment and state node; without a leader if that node does not exist."""
    if state is None:
        return PartitionImage(number, NO_LEADER, NO_STATE, replicas, (), NO_STATE, NO_STATE)
    blank = PartitionImage(number, NO_LEADER, NO_STATE, replicas, (), NO_STATE, NO_STATE)
    return with_state(blank, state, partition_epoch)
