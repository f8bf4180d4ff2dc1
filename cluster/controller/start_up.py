"""First steps of a new controller: adopt logs, complete topics, elect leaders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from cluster.controller.context import ControllerContext, without_cut_replicas
from cluster.controller.elections import DAMAGED_STATE, NO_STATE, after, elect_at_start, next_state, partition_image
from cluster.controller.isr_decisions import known_since
from cluster.controller.topics import first_states
from cluster.metadata_image import PartitionImage, TopicImage
from cluster.znodes import (
    NO_LEADER,
    PartitionState,
    TopicAssignment,
    config_path,
    encode_config,
    partition_path,
    partition_state_path,
    partitions_path,
    topic_path,
)
from cluster.zookeeper.coordination import Create, Delete, Operation, SetData
from protocol.uuids import Uuid
from protocol.value import Value

KEEP_EVERYTHING: Mapping[str, str] = {"retention.ms": "-1", "retention.bytes": "-1"}
"""Overrides of an adopted topic where no better are known: its own limits are lost, and the broker's would
delete what it was meant to keep."""


class FoundReplica(Value):
    """A log that this broker found on its disks. `topic_id` is None before Kafka 2.8; `leader_epoch` is the latest
    epoch the log has records of, -1 for none."""

    topic: str
    partition: int
    topic_id: Uuid | None
    leader_epoch: int = -1


def adopt(
    found: Iterable[FoundReplica],
    broker_id: int,
    context: ControllerContext,
    configs: Mapping[str, Mapping[str, str]],
    new_id: Callable[[], Uuid],
) -> tuple[list[Operation], list[TopicImage]]:
    """Create topics for logs that the tree does not know, because another broker wrote them or the journal was lost.

    Each topic gets its partitions up to the highest found, all on this broker. Leader epochs continue those of the
    logs. A log directory does not hold a topic's configuration: see `adopted_config`.
    """
    by_topic: dict[str, dict[int, FoundReplica]] = {}
    for replica in found:
        by_topic.setdefault(replica.topic, {})[replica.partition] = replica
    operations: list[Operation] = []
    topics: list[TopicImage] = []
    for name in sorted(by_topic):
        replicas = by_topic[name]
        ids = Counter(each.topic_id for each in replicas.values() if each.topic_id is not None)
        topic_id = ids.most_common(1)[0][0] if ids else new_id()
        partitions = []
        for number in range(max(replicas) + 1):
            epoch = replicas[number].leader_epoch + 1 if number in replicas else 0
            state = PartitionState(broker_id, epoch, (broker_id,), context.controller_epoch)
            partitions.append(partition_image(number, (broker_id,), state, partition_epoch=0))
        operations.extend(_adoption_operations(name, topic_id, partitions, adopted_config(name, configs)))
        topics.append(TopicImage(name, topic_id, tuple(partitions)))
    return operations, topics


def adopted_config(name: str, configs: Mapping[str, Mapping[str, str]]) -> Mapping[str, str]:
    """The overrides of a topic that is adopted: those in `configs`, by topic name (internal topics must stay compacted,
    or retention would delete the groups' offsets), else such as lose nothing."""
    return configs.get(name, KEEP_EVERYTHING)


def _adoption_operations(
    name: str, topic_id: Uuid, partitions: list[PartitionImage], config: Mapping[str, str]
) -> Iterable[Operation]:
    assignment = {each.partition: each.replicas for each in partitions}
    yield Create(config_path("topics", name), encode_config(config))
    yield Create(topic_path(name), TopicAssignment(topic_id, assignment).encode())
    yield Create(partitions_path(name))
    for each in partitions:
        yield Create(partition_path(name, each.partition))
        state = PartitionState(each.leader, each.leader_epoch, each.isr, each.controller_epoch)
        yield Create(partition_state_path(name, each.partition), state.encode())


class ReadTopic(Value):
    """A topic as it stands in the tree: its node, and the states of the partitions that have one, with versions.
    `written_at` has the transactions (zxid) that wrote these states, as far as they are known. `stateless` are the
    partitions that have a node but no state: Kafka makes one after the other. The states of `damaged` partitions cannot
    be read.
    """

    name: str
    assignment: TopicAssignment
    states: Mapping[int, tuple[PartitionState, int]]
    has_partitions_node: bool
    written_at: Mapping[int, int] = MappingProxyType({})
    stateless: Sequence[int] = ()
    damaged: Sequence[int] = ()

    def image(self) -> TopicImage:
        """The topic as the image has it; partitions without a state have no leader."""
        partitions = []
        for number, replicas in sorted(self.assignment.partitions.items()):
            state, version = self.states.get(number, (None, 0))
            image = partition_image(number, replicas, state, version)
            if number in self.damaged:
                image = image.replace(partition_epoch=DAMAGED_STATE)
            adding = self.assignment.adding_replicas.get(number, ())
            removing = self.assignment.removing_replicas.get(number, ())
            if adding or removing:
                image = image.replace(adding_replicas=adding, removing_replicas=removing)
            partitions.append(image)
        return TopicImage(self.name, self.assignment.topic_id, tuple(partitions))


def not_set_back(topic: ReadTopic, known: TopicImage | None) -> ReadTopic:
    """The topic with leader epochs that are not below those that are `known` of it. A tree that was restored from a
    backup has lower ones; records of the higher epochs are in the logs, and followers would not find them in a leader
    whose epoch is lower.
    """
    if known is None or known.topic_id != topic.assignment.topic_id:
        return topic
    newer = {
        each.partition: each.leader_epoch
        for each in known.partitions
        if each.partition in topic.states and each.leader_epoch > topic.states[each.partition][0].leader_epoch
    }
    if not newer:
        return topic
    states = {
        number: (state.replace(leader_epoch=newer.get(number, state.leader_epoch)), version)
        for number, (state, version) in topic.states.items()
    }
    return topic.replace(states=states)


def take_over(topic: ReadTopic, context: ControllerContext, *, unclean: bool) -> tuple[list[Operation], TopicImage]:
    """Complete a topic that a crash left half created, and elect leaders (see `elect_at_start`)."""
    operations: list[Operation] = []
    if not topic.has_partitions_node:
        operations.append(Create(partitions_path(topic.name)))
    # They are made again with their state, which may be later.
    operations.extend(Delete(partition_path(topic.name, number)) for number in topic.stateless)
    result = without_cut_replicas(topic.image(), context.live_brokers.values())
    changed = []
    without_state = [each for each in result.partitions if each.partition_epoch == NO_STATE]
    for created, partition in first_states(topic.name, without_state, context):
        operations.extend(created)
        changed.append(partition)
    written, result = elect_found(topic, result.with_partitions(changed), context, unclean=unclean)
    return [*operations, *written], result


def elect_found(
    topic: ReadTopic, image: TopicImage, context: ControllerContext, *, unclean: bool
) -> tuple[list[Operation], TopicImage]:
    """Elect leaders of the partitions whose states were found; `image` has them as they were read."""
    operations: list[Operation] = []
    elected: list[PartitionImage] = []
    for number, (_, version) in topic.states.items():
        partition, state = _at_start(topic, image.partitions[number], context, unclean=unclean)
        if state is not None:
            operations.append(SetData(partition_state_path(topic.name, number), state.encode(), version))
            elected.append(after(partition, state))
    return operations, image.with_partitions(elected)


def _at_start(
    topic: ReadTopic, partition: PartitionImage, context: ControllerContext, *, unclean: bool
) -> tuple[PartitionImage, PartitionState | None]:
    """A partition without those that cannot be used now, and the state that it is to have (see `elect_at_start`)."""
    written_at = topic.written_at.get(partition.partition)
    if context.keeps_eligible_leaders and written_at is not None:
        known = known_since(partition, written_at, context)
        state = elect_at_start(topic.name, known, context, unclean=unclean)
        if state is None and known.eligible != partition.eligible and partition.leader == NO_LEADER:
            state = next_state(topic.name, known, partition.leader, partition.isr, context)
        return partition, state
    bounced = _bounced(partition, written_at, context)
    knows_more = any(each not in bounced and context.may_lead(each, partition) for each in partition.isr)
    if knows_more:
        partition = partition.replace(offline_replicas=(*partition.offline_replicas, *bounced))
    # Else all that can be used are trusted. Their state is written again: the next controller has to tell them from
    # one that comes back later.
    is_renewed = unclean or (bool(bounced) and not knows_more and len(partition.isr) > 1)
    return partition, elect_at_start(topic.name, partition, context, unclean=is_renewed)


def _bounced(partition: PartitionImage, written_at: int | None, context: ControllerContext) -> tuple[int, ...]:
    """The members of the ISR whose brokers registered after the state was written.

    It was another life of theirs that was in sync, and no controller saw it end: the last one went with it, perhaps.
    What they had not flushed may be gone. They count only where no other member of the ISR can be used.
    """
    if written_at is None:
        return ()
    live = context.live_brokers
    return tuple(each for each in partition.isr if each in live and live[each].epoch > written_at)
