"""The first steps of a new controller: adopt logs, complete topics, elect leaders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from cluster.controller.context import ControllerContext, without_truncated_replicas
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
from protocol.uuids import Uuid
from protocol.value import Value
from zookeeper.coordination import Create, Delete, Operation, SetData

KEEP_EVERYTHING: Mapping[str, str] = {"retention.ms": "-1", "retention.bytes": "-1"}
"""Overrides of an adopted topic with unknown configuration: its own retention is lost, and the broker's default would
delete data meant to be kept.
"""


class FoundReplica(Value):
    """A log that this broker found on its disks. `topic_id` is None before Kafka 2.8; `leader_epoch` is the latest one
    with records in the log, -1 for none.
    """

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
    """Create topics for logs that are missing in the tree, because another broker wrote them or the journal was lost.

    Each topic gets all partitions up to the highest one found, on this broker only. Leader epochs continue those of the
    logs. Log directories do not contain topic configurations: see `adopted_config`.
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
    """The overrides of an adopted topic: those in `configs`, by topic name, otherwise ones that keep all data.
    (Internal topics must stay compacted, or retention would delete the groups' offsets.)
    """
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
    """A topic read from the tree: its node, and the states of partitions, with versions.

    `written_at` contains the zxids that wrote these states, as far as known. `stateless` partitions have a node but no
    state yet, because Kafka creates one after the other. States of `damaged` partitions are unreadable.
    """

    name: str
    assignment: TopicAssignment
    states: Mapping[int, tuple[PartitionState, int]]
    has_partitions_node: bool
    written_at: Mapping[int, int] = MappingProxyType({})
    stateless: Sequence[int] = ()
    damaged: Sequence[int] = ()

    def image(self) -> TopicImage:
        """The topic for the image; partitions without a state lack a leader."""
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


def keep_leader_epochs(topic: ReadTopic, known: TopicImage | None) -> ReadTopic:
    """The topic with leader epochs at least as high as the `known` ones. A tree restored from a backup has lower ones,
    although the logs contain records with the higher epochs, which followers would not find on a leader with a lower
    epoch.
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
    # They are recreated together with their state, possibly later.
    operations.extend(Delete(partition_path(topic.name, number)) for number in topic.stateless)
    result = without_truncated_replicas(topic.image(), context.live_brokers.values())
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
    """Elect leaders for the partitions with a state; `image` has them as read."""
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
    """A partition with its unusable replicas marked as offline, and its next state (see `elect_at_start`)."""
    written_at = topic.written_at.get(partition.partition)
    if context.tracks_eligible_leaders and written_at is not None:
        known = known_since(partition, written_at, context)
        state = elect_at_start(topic.name, known, context, unclean=unclean)
        if state is None and known.eligible != partition.eligible and partition.leader == NO_LEADER:
            state = next_state(topic.name, known, partition.leader, partition.isr, context)
        return partition, state
    bounced = _bounced(partition, written_at, context)
    has_trusted = any(each not in bounced and context.may_lead(each, partition) for each in partition.isr)
    if has_trusted:
        partition = partition.replace(offline_replicas=(*partition.offline_replicas, *bounced))
    # Otherwise trust all usable members. Rewriting the state lets the next controller tell them from brokers that
    # restart later.
    is_renewed = unclean or (bool(bounced) and not has_trusted and len(partition.isr) > 1)
    return partition, elect_at_start(topic.name, partition, context, unclean=is_renewed)


def _bounced(partition: PartitionImage, written_at: int | None, context: ControllerContext) -> tuple[int, ...]:
    """The members of the ISR whose brokers registered after the state was written.

    An earlier incarnation of these was in sync, and no controller saw it end, perhaps because the last one died with
    it. Unflushed records may be lost. They are used only if no other member of the ISR is usable.
    """
    if written_at is None:
        return ()
    live = context.live_brokers
    return tuple(each for each in partition.isr if each in live and live[each].epoch > written_at)
