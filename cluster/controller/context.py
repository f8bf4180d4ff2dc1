"""The elected controller's view of the cluster, and of the changes under way (Kafka class `ControllerContext`).

It is fed by the tree alone, and belongs to the controller alone: what brokers and clients know of it they are told by
commands (`cluster.controller.commands`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Protocol

from cluster.controller.commands import TopicStates
from cluster.metadata_image import BrokerImage, PartitionImage, TopicImage
from protocol.topic_partition import TopicPartition


class UncleanRule(Protocol):
    """Whether a replica that is not in sync may lead, which loses what only the others had."""

    def allows(self, topic: str) -> bool:
        """Whether it may in this topic (`unclean.leader.election.enable`)."""
        ...

    def elected(self, topic: str, partition: PartitionImage, leader: int) -> None:
        """Told that `leader` is elected, for a partition as it was before."""
        ...


class NeverUnclean:
    """Nowhere, whatever the topics say."""

    def allows(self, topic: str) -> bool:  # noqa: ARG002
        """No."""
        return False

    def elected(self, topic: str, partition: PartitionImage, leader: int) -> None:
        """Nothing to remember."""


NEVER_UNCLEAN: Final = NeverUnclean()


class ControllerContext:
    """The state of one controller in one term.

    Topics and partitions are the immutable values that a MetadataImage has too: id and assignment, and for each
    partition leader, ISR, leader epoch, the epoch of the controller that elected the leader, the version of the state
    node (`partition_epoch`) and the replicas that cannot be used though their brokers live.
    """

    def __init__(
        self,
        controller_id: int,
        controller_epoch: int,
        live_brokers: Iterable[BrokerImage] = (),
        unclean: UncleanRule = NEVER_UNCLEAN,
    ) -> None:
        self.controller_id = controller_id
        self.unclean = unclean
        self.controller_epoch = controller_epoch
        self.live_brokers: dict[int, BrokerImage] = {}
        self.brokers_are(live_brokers)
        self.topics: dict[str, TopicImage] = {}
        self.topics_to_be_deleted: dict[str, None] = {}
        """Topics with the mark of deletion in the tree; they are among `topics` until their nodes are gone."""
        self.deleted_replicas: dict[tuple[int, TopicPartition], None] = {}
        """Those that brokers, by id, have let go of, while others of the topic are waited for. They get no role again:
        the broker would begin an empty log (Kafka's ReplicaDeletionSuccessful).
        """
        self.shutting_down: dict[int, None] = {}
        """Live brokers that are about to stop: they are given nothing to lead."""
        self._flat_names: dict[str, dict[str, None]] = {}

    @property
    def racks(self) -> Mapping[int, str | None]:
        """The racks of the live brokers."""
        return {broker.broker_id: broker.rack for broker in self.live_brokers.values()}

    def is_online(self, broker_id: int, partition: PartitionImage) -> bool:
        """Whether the replica on this broker can be used."""
        return broker_id in self.live_brokers and broker_id not in partition.offline_replicas

    def may_lead(self, broker_id: int, partition: PartitionImage) -> bool:
        """Whether the replica on this broker can be used for some time to come."""
        return self.is_online(broker_id, partition) and broker_id not in self.shutting_down

    def partition(self, topic_partition: TopicPartition) -> PartitionImage | None:
        """One partition, or None when the topic or the partition does not exist."""
        topic = self.topics.get(topic_partition.topic)
        return None if topic is None else topic.partition(topic_partition.partition)

    def put_topics(self, topics: Iterable[TopicImage]) -> None:
        """The tree has these topics now, in place of those of their names."""
        for topic in topics:
            self.topics[topic.name] = topic
            self._flat_names.setdefault(flat_name(topic.name), {})[topic.name] = None

    def put_partitions(self, changed: Mapping[str, Iterable[PartitionImage]]) -> tuple[TopicStates, ...]:
        """Partitions of existing topics, by topic, are like this now; gives them as a command takes them."""
        states = []
        for name, partitions in changed.items():
            topic = self.topics[name].with_partitions(partitions)
            self.topics[name] = topic
            states.append(TopicStates(name, topic.topic_id, tuple(partitions)))
        return tuple(states)

    def remove_topic(self, name: str) -> None:
        """The tree has no node of the topic any more."""
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
        """The topics that differ from `name` in nothing but dots and underscores."""
        return self._flat_names.get(flat_name(name), ())

    def states_of(self, topics: Iterable[str]) -> Iterator[TopicStates]:
        """All partitions of these topics."""
        for name in topics:
            topic = self.topics[name]
            yield TopicStates(name, topic.topic_id, topic.partitions)

    def now(self, states: Iterable[TopicStates]) -> Iterator[TopicStates]:
        """These partitions as they are now."""
        for each in states:
            topic = self.topics[each.topic]
            yield each._replace(partitions=tuple(topic.partitions[state.partition] for state in each.partitions))

    def brokers_are(self, brokers: Iterable[BrokerImage]) -> None:
        """Only these brokers live now."""
        self.live_brokers = {each.broker_id: each for each in sorted(brokers, key=lambda each: each.broker_id)}

    def broker_has_gone(self, broker_id: int) -> None:
        """Forget what was said of this life of a broker: it need not be so of the next one."""
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

    def replicas(self) -> Iterator[TopicStates]:
        """All partitions, topic by topic."""
        return self.states_of(self.topics)


def flat_name(topic: str) -> str:
    """The name as metrics have it, which map '.' to '_'."""
    return topic.replace(".", "_")
