"""The cluster as one broker knows it: an immutable image, replaced as a whole, that shares all unchanged parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from cluster.eligible_leaders import EligibleLeaders
from cluster.znodes import NO_LEADER, BrokerRegistration, Endpoint
from protocol.config_resources import ConfigResourceType
from protocol.topic_partition import TopicPartition
from protocol.uuids import Uuid
from protocol.value import Value, field

_EMPTY: Mapping[Any, Any] = MappingProxyType({})


ConfigResource = tuple[int, str]
"""(ConfigResourceType, name). The name of a broker is its id in digits; "" means all brokers (`<default>`)."""


class BrokerImage(Value):
    """A live broker. `epoch` is the czxid of its registration; endpoints are by listener name.

    `truncated_replicas` are the partitions, by topic, whose logs on this broker were truncated below the high watermark
    by recovery. The broker must not be elected as their leader. `previous_epoch` is the epoch of the broker's last life
    if it shut down cleanly, else -1. It is None if the broker does not support eligible leaders (KIP-966): Apache
    Kafka, or Odradek with them disabled.
    """

    broker_id: int
    epoch: int
    endpoints: Mapping[str, Endpoint]
    rack: str | None = None
    truncated_replicas: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: _EMPTY)
    previous_epoch: int | None = None

    @classmethod
    def of(cls, registration: BrokerRegistration, epoch: int) -> BrokerImage:
        """Build it from the broker's registration."""
        endpoints = {endpoint.listener_name: endpoint for endpoint in registration.endpoints}
        truncated, previous = registration.truncated_replicas, registration.previous_epoch
        return cls(registration.broker_id, epoch, endpoints, registration.rack, truncated, previous)

    def address(self, listener_name: str) -> tuple[str, int] | None:
        """Host and port of a listener, or None if the broker lacks it."""
        endpoint = self.endpoints.get(listener_name)
        return None if endpoint is None else (endpoint.host, endpoint.port)


class PartitionImage(Value):
    """One partition. `leader` is -1 if it has none. `partition_epoch` is the version of its state znode.

    `offline_replicas` are on failed disks of live brokers. During a reassignment, `replicas` also contains the adding
    (`adding_replicas`) and the removing ones. While `eligible` is set, no leader commits anything.
    """

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    partition_epoch: int
    controller_epoch: int
    leader_recovery_state: int = 0
    offline_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    eligible: EligibleLeaders | None = None

    def before(self) -> PartitionImage:
        """The same partition without a leader, in the previous leader epoch, so that this state is the newer one."""
        return self.replace(leader=NO_LEADER, leader_epoch=self.leader_epoch - 1)


class TopicImage(Value):
    """One topic. `partitions[i].partition == i`."""

    name: str
    topic_id: Uuid
    partitions: tuple[PartitionImage, ...]

    def partition(self, partition: int) -> PartitionImage | None:
        """The partition of that number, or None."""
        return self.partitions[partition] if 0 <= partition < len(self.partitions) else None

    def with_partitions(self, changed: Iterable[PartitionImage]) -> TopicImage:
        """A copy with `changed` partitions: by number, they replace existing ones or extend the list."""
        partitions = list(self.partitions)
        for each in sorted(changed, key=attrgetter("partition")):
            if each.partition < len(partitions):
                partitions[each.partition] = each
            elif each.partition == len(partitions):
                partitions.append(each)
            else:
                raise ValueError(f"partition {each.partition} of {self.name} leaves a gap behind {len(partitions) - 1}")
        return self.replace(partitions=tuple(partitions))


class MetadataImage(Value):
    """A snapshot of the cluster's metadata. `controller_id` is -1 while no controller is known."""

    cluster_id: str = ""
    controller_id: int = -1
    controller_epoch: int = 0
    brokers: Mapping[int, BrokerImage] = field(default_factory=lambda: _EMPTY)
    topics: Mapping[str, TopicImage] = field(default_factory=lambda: _EMPTY)
    topic_names: Mapping[Uuid, str] = field(default_factory=lambda: _EMPTY)
    configs: Mapping[ConfigResource, Mapping[str, str]] = field(default_factory=lambda: _EMPTY)

    def partition(self, topic_partition: TopicPartition) -> PartitionImage | None:
        """One partition, or None when the topic or the partition does not exist."""
        topic = self.topics.get(topic_partition.topic)
        return topic.partition(topic_partition.partition) if topic is not None else None

    def leader_of(self, topic_partition: TopicPartition) -> int:
        """The broker that leads a partition; -1 if it has none."""
        partition = self.partition(topic_partition)
        return partition.leader if partition is not None else NO_LEADER

    def address_of(self, broker_id: int, listener_name: str) -> tuple[str, int] | None:
        """Host and port of a broker's listener, or None while unknown."""
        broker = self.brokers.get(broker_id)
        return None if broker is None else broker.address(listener_name)

    def config(self, resource_type: int, name: str) -> Mapping[str, str]:
        """The overrides of a topic or broker; empty if it has none."""
        return self.configs.get((resource_type, name), _EMPTY)

    def with_topics(self, changed: Iterable[TopicImage] = (), removed: Iterable[str] = ()) -> MetadataImage:
        """A copy with topics added or replaced, and others removed together with their configurations."""
        topics, names, configs = dict(self.topics), dict(self.topic_names), self.configs
        removed = set(removed)
        for name in removed:
            names.pop(topics.pop(name).topic_id, None)
        for topic in changed:
            before = topics.get(topic.name)
            if before is not None and before.topic_id != topic.topic_id:
                names.pop(before.topic_id, None)
            topics[topic.name] = topic
            names[topic.topic_id] = topic.name
        if any((ConfigResourceType.TOPIC, name) in configs for name in removed):
            configs = {
                resource: config
                for resource, config in configs.items()
                if not (resource[0] == ConfigResourceType.TOPIC and resource[1] in removed)
            }
        return self.replace(topics=topics, topic_names=names, configs=configs)

    def with_configs(self, changed: Mapping[ConfigResource, Mapping[str, str]]) -> MetadataImage:
        """A copy with configurations replaced; empty ones are dropped. If nothing changes, `configs` stays the same
        object, so listeners can compare by identity.
        """
        changed = {resource: config for resource, config in changed.items() if config != self.config(*resource)}
        if not changed:
            return self
        configs = {**self.configs, **changed}
        for resource, config in changed.items():
            if not config:
                configs.pop(resource, None)
        return self.replace(configs=configs)
