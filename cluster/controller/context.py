"""The elected controller's view of the cluster, and of changes in progress (Kafka class `ControllerContext`).

Its only source is the tree, and only the controller uses it: brokers and clients learn of it from commands
(`cluster.controller.commands`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

from cluster.controller.commands import TopicStates
from cluster.metadata_image import BrokerImage, PartitionImage, TopicImage
from cluster.znodes import NO_LEADER, RECOVERING
from protocol.topic_partition import TopicPartition


class UncleanRule(Protocol):
    """Whether an out-of-sync replica may be elected, which loses the records that only others had."""

    def allows(self, topic: str) -> bool:
        """Whether this topic allows it (`unclean.leader.election.enable`)."""
        ...

    def elected(self, topic: str, partition: PartitionImage, leader: int) -> None:
        """Called once the tree contains an unclean election of `leader`, with the partition before it."""
        ...


class NeverUnclean:
    """Never allows it, regardless of the topics' settings."""

    def allows(self, topic: str) -> bool:  # noqa: ARG002
        """No."""
        return False

    def elected(self, topic: str, partition: PartitionImage, leader: int) -> None:
        """Does nothing."""


NEVER_UNCLEAN: Final = NeverUnclean()


class ControllerContext:
    """The state of one controller in one epoch.

    Topics and partitions are the same immutable values as in a MetadataImage: id and assignment, and per partition the
    leader, ISR, leader epoch, the epoch of the electing controller, the version of the state node (`partition_epoch`)
    and the unusable replicas on live brokers.
    """

    def __init__(
        self,
        controller_id: int,
        controller_epoch: int,
        live_brokers: Iterable[BrokerImage] = (),
        unclean: UncleanRule = NEVER_UNCLEAN,
        min_isr: Callable[[str], int] | None = None,
    ) -> None:
        """`min_isr` returns min.insync.replicas of a topic; without it, eligible leaders are not tracked (KIP-966)."""
        self.controller_id = controller_id
        self.unclean = unclean
        self.controller_epoch = controller_epoch
        self.min_isr = min_isr
        self.live_brokers: dict[int, BrokerImage] = {}
        self.last_epochs: dict[int, int] = {}
        """The broker epochs of all brokers that were registered in this controller epoch."""
        self.set_live_brokers(live_brokers)
        self.topics: dict[str, TopicImage] = {}
        self.damaged_topics: dict[str, None] = {}
        """Topics with unreadable nodes. While any exist, `topics` is incomplete, and brokers must not treat other
        replicas they have as stray.
        """
        self.topics_to_be_deleted: dict[str, None] = {}
        """Topics marked for deletion in the tree; they stay in `topics` until their nodes are gone."""
        self.deleted_replicas: dict[tuple[int, TopicPartition], None] = {}
        """Replicas, by broker id, that brokers of an existing topic have dropped or been ordered to. They do not get a
        role again, because the broker would start an empty log (Kafka's ReplicaDeletionStarted and
        ReplicaDeletionSuccessful).
        """
        self.shutting_down: dict[int, None] = {}
        """Live brokers in controlled shutdown, which must not become leaders."""
        self._flat_names: dict[str, dict[str, None]] = {}

    @property
    def racks(self) -> Mapping[int, str | None]:
        """The racks of the live brokers."""
        return {broker.broker_id: broker.rack for broker in self.live_brokers.values()}

    @property
    def tracks_eligible_leaders(self) -> bool:
        """Whether all live brokers follow KIP-966. Another one might lead, and commit records that eligible replicas
        lack.
        """
        if self.min_isr is None:
            return False
        return all(broker.previous_epoch is not None for broker in self.live_brokers.values())

    def is_online(self, broker_id: int, partition: PartitionImage) -> bool:
        """Whether the replica on this broker is usable."""
        return broker_id in self.live_brokers and broker_id not in partition.offline_replicas

    def may_lead(self, broker_id: int, partition: PartitionImage) -> bool:
        """Whether the replica on this broker is usable and its broker not about to stop."""
        return self.is_online(broker_id, partition) and broker_id not in self.shutting_down

    def partition(self, topic_partition: TopicPartition) -> PartitionImage | None:
        """One partition, or None when the topic or the partition does not exist."""
        topic = self.topics.get(topic_partition.topic)
        return None if topic is None else topic.partition(topic_partition.partition)

    def put_topics(self, topics: Iterable[TopicImage]) -> None:
        """Add topics that the tree now has, or replace those with the same names."""
        for topic in topics:
            self.topics[topic.name] = topic
            self.damaged_topics.pop(topic.name, None)
            self._flat_names.setdefault(flat_name(topic.name), {})[topic.name] = None

    def put_partitions(self, changed: Mapping[str, Iterable[PartitionImage]]) -> tuple[TopicStates, ...]:
        """Replace partitions of existing topics after the tree has them. Returns them in the form of commands."""
        states = []
        for name, partitions in changed.items():
            before = self.topics[name]
            topic = before.with_partitions(partitions)
            self.topics[name] = topic
            self.count_unclean_elections(before, partitions)
            states.append(TopicStates(name, topic.topic_id, tuple(partitions)))
        return tuple(states)

    def count_unclean_elections(self, before: TopicImage, partitions: Iterable[PartitionImage]) -> None:
        """Report unclean elections among a topic's changes that are in the tree."""
        for now in partitions:
            was = before.partition(now.partition)
            if was is not None and is_unclean(was, now):
                self.unclean.elected(before.name, was, now.leader)

    def remove_topic(self, name: str) -> None:
        """The topic's node is gone from the tree."""
        self.topics.pop(name, None)
        self.topics_to_be_deleted.pop(name, None)
        for replica in [each for each in self.deleted_replicas if each[1].topic == name]:
            del self.deleted_replicas[replica]
        flat = flat_name(name)
        same = self._flat_names.get(flat, {})
        same.pop(name, None)
        if not same:
            self._flat_names.pop(flat, None)

    def names_like(self, name: str) -> Iterable[str]:
        """The topics that differ from `name` only in dots and underscores."""
        return self._flat_names.get(flat_name(name), ())

    def states_of(self, topics: Iterable[str]) -> Iterator[TopicStates]:
        """All partitions of these topics."""
        for name in topics:
            topic = self.topics[name]
            yield TopicStates(name, topic.topic_id, topic.partitions)

    def now(self, states: Iterable[TopicStates]) -> Iterator[TopicStates]:
        """The current states of these partitions."""
        for each in states:
            topic = self.topics[each.topic]
            yield each.replace(partitions=tuple(topic.partitions[state.partition] for state in each.partitions))

    def set_live_brokers(self, brokers: Iterable[BrokerImage]) -> None:
        """Replace the set of live brokers."""
        self.live_brokers = {each.broker_id: each for each in sorted(brokers, key=lambda each: each.broker_id)}
        self.last_epochs.update((each.broker_id, each.epoch) for each in self.live_brokers.values())

    def remove_live_broker(self, broker_id: int) -> None:
        """Forget the state of this incarnation of a broker; it need not hold for the next one."""
        self.live_brokers.pop(broker_id, None)
        self.shutting_down.pop(broker_id, None)
        for name, topic in list(self.topics.items()):
            changed = [
                each.replace(offline_replicas=tuple(other for other in each.offline_replicas if other != broker_id))
                for each in topic.partitions
                if broker_id in each.offline_replicas
            ]
            if changed:
                self.topics[name] = topic.with_partitions(changed)

    def mark_replicas_online(self, broker_id: int, replicas: Iterable[TopicPartition]) -> dict[str, None]:
        """A broker can use these replicas after all. Returns the topics of those marked as offline."""
        back: dict[str, list[PartitionImage]] = {}
        for name in replicas:
            partition = self.partition(name)
            if partition is not None and broker_id in partition.offline_replicas:
                offline = tuple(each for each in partition.offline_replicas if each != broker_id)
                back.setdefault(name.topic, []).append(partition.replace(offline_replicas=offline))
        self.put_partitions(back)
        return dict.fromkeys(back)

    def replicas(self) -> Iterator[TopicStates]:
        """All partitions, topic by topic. Topics marked for deletion appear without leaders, because records that these
        acknowledged would be deleted with the topic.
        """
        for states in self.states_of(self.topics):
            if states.topic in self.topics_to_be_deleted:
                leaderless = tuple(each.replace(leader=NO_LEADER) for each in states.partitions)
                yield states.replace(partitions=leaderless)
            else:
                yield states


def is_unclean(before: PartitionImage, now: PartitionImage) -> bool:
    """Whether `now` results from an unclean election: its leader was neither in sync nor eligible (KIP-966)."""
    if now.leader_recovery_state != RECOVERING or now.leader_epoch <= before.leader_epoch or now.leader == NO_LEADER:
        return False
    eligible = () if before.eligible is None else before.eligible.replicas
    return now.leader not in (*before.isr, *eligible)


def without_truncated_replicas(topic: TopicImage, brokers: Iterable[BrokerImage]) -> TopicImage:
    """The topic after these brokers have registered: replicas whose logs were truncated below the high watermark are
    unusable until they take a role.
    """
    changed: dict[int, PartitionImage] = {}
    for broker in brokers:
        for number in broker.truncated_replicas.get(topic.name, ()):
            known = changed.get(number) or topic.partition(number)
            if known is not None and broker.broker_id not in known.offline_replicas:
                changed[number] = known.replace(offline_replicas=(*known.offline_replicas, broker.broker_id))
    return topic.with_partitions(changed.values()) if changed else topic


def flat_name(topic: str) -> str:
    """The name as used in metrics, with '.' replaced by '_'."""
    return topic.replace(".", "_")
