"""A ControllerService on an embedded tree in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from broker.controller.cluster_membership import ClusterMembership
from broker.controller.controller_service import ControllerService
from broker.controller.controller_term import ControllerSettings, InternalTopic
from broker.controller.topic_changes import TopicRules
from broker.metadata.auto_topic_creation import AutoTopicCreation
from broker.metadata.dynamic_configs import DynamicConfigs
from broker.metadata.metadata_cache import MetadataCache
from broker.network.registry import RequestContext
from cluster.controller.commands import Answer, Command, CommandFence, LeaderAndIsr, StopReplica, UpdateMetadata
from cluster.controller.start_up import FoundReplica
from cluster.metadata_image import MetadataImage
from cluster.znodes import BrokerRegistration, Endpoint, ProducerIdBlock
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import CONSUMER_OFFSETS, TopicPartition
from tests.kit.coordination_fixtures import Machine
from tests.kit.environment import SeededRandom
from zookeeper.coordination import Coordination
from zookeeper.embedded_ensemble import EmbeddedEnsemble

CLUSTER_ID = "TDnAIpGdRY6C5D62KMJRLA"
SETTINGS = ControllerSettings(
    num_partitions=2,
    internal_topics={CONSUMER_OFFSETS: InternalTopic(5, 1, {"cleanup.policy": "compact"})},
)


def validate_topic_config(overrides: Mapping[str, str]) -> None:
    """A stand-in for the configuration's own check: it knows two keys."""
    for key, value in overrides.items():
        if key not in {"retention.ms", "cleanup.policy"}:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {key}")
        if key == "retention.ms" and not value.lstrip("-").isdigit():
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Invalid value {value} for configuration {key}")


class RecordingChannel:
    """A broker that can do everything it is asked to. `lost` are the replicas that it cannot use."""

    def __init__(self, cache: MetadataCache) -> None:
        self._cache = cache
        self.commands: list[Command] = []
        self.lost: set[TopicPartition] = set()

    async def leader_and_isr(self, command: LeaderAndIsr) -> Answer:
        self.commands.append(command)
        told = [TopicPartition(topic.topic, each.partition) for topic in command.topics for each in topic.partitions]
        return {each: ErrorCode.KAFKA_STORAGE_ERROR if each in self.lost else ErrorCode.NONE for each in told}

    async def stop_replica(self, command: StopReplica) -> Answer:
        self.commands.append(command)
        return {each.topic_partition: ErrorCode.NONE for each in command.partitions}

    async def update_metadata(self, command: UpdateMetadata) -> None:
        self.commands.append(command)
        self._cache.update_metadata(command)


class Cluster:
    """One broker, its machine, and every image that it published."""

    cache: MetadataCache
    channel: RecordingChannel
    service: ControllerService
    configs: DynamicConfigs
    auto_topics: AutoTopicCreation

    def __init__(
        self,
        machine: Machine | None = None,
        settings: ControllerSettings = SETTINGS,
        ensemble: EmbeddedEnsemble | None = None,
    ) -> None:
        self.machine = machine or Machine()
        self.ensemble = ensemble or self.machine.open()
        self._settings = settings
        self._random = SeededRandom(self.machine.executor.runs)
        self.fence = CommandFence()
        self.membership = ClusterMembership(self.ensemble, self.machine.clock, self._random, self.fence)
        self.published: list[tuple[MetadataImage, MetadataImage]] = []

    @property
    def coordination(self) -> Coordination:
        """The broker's session."""
        return self.membership.coordination

    @property
    def image(self) -> MetadataImage:
        """The metadata that clients get."""
        return self.cache.image

    async def join(self, cluster_id: str | None = CLUSTER_ID) -> Cluster:
        """Do everything that precedes the registration; returns itself."""
        configs = await self.membership.connect()
        cluster_id = await self.membership.create_or_get_cluster_id(cluster_id)
        self.cache = MetadataCache(self.fence, MetadataImage(cluster_id=cluster_id, configs=configs))
        self.cache.add_listener(lambda old, new: self.published.append((old, new)))
        self.channel = RecordingChannel(self.cache)
        self.service = ControllerService(
            self.membership,
            self.channel,
            self._settings,
            TopicRules(self._random, validate_topic_config, self.cache.update_configs, lambda _topic: None),
        )
        self.configs = DynamicConfigs(self.membership, self.cache)
        self.auto_topics = AutoTopicCreation(self.service, lambda: self._settings, self.cache)
        return self

    async def start(self, found: Sequence[FoundReplica] | None = None, **options: Any) -> Cluster:
        """Join and become the controller; returns itself. With `found` the tree adopts existing logs."""
        await self.join()
        endpoint = Endpoint("PLAINTEXT", "127.0.0.1", 9092, "PLAINTEXT")
        broker = await self.membership.register(BrokerRegistration(0, (endpoint,)))
        await self.configs.start()
        await self.service.start(broker, None if found is None else lambda: found, **options)
        return self

    async def allocate_producer_ids(self) -> ProducerIdBlock:
        """A block of producer ids for the broker."""
        return await self.service.allocate_producer_ids(0, self.fence.broker_epoch)

    async def close(self) -> None:
        """Finish the pending changes and leave the cluster."""
        await self.service.close()
        await self.membership.close()

    async def restart(self, *, kill: bool = False, unclean: bool = False) -> Cluster:
        """Start another process on the same disk, after closing or killing this one."""
        if not kill:
            await self.close()
            await self.ensemble.close()
        self.machine.disk.kill_process()
        return await Cluster(self.machine, self._settings).start(unclean=unclean)

    async def tree(self) -> dict[str, bytes | None]:
        """Every node and its data."""
        nodes: dict[str, bytes | None] = {}
        unread = ["/"]
        while unread:
            path = unread.pop()
            nodes[path] = (await self.coordination.get(path))[0]
            unread.extend(f"{path.rstrip('/')}/{name}" for name in (await self.coordination.children(path))[0])
        return nodes


def context(version: int, listener_name: str = "PLAINTEXT") -> RequestContext:
    """A request in `version`."""
    return RequestContext(
        api_version=version,
        client_id="test",
        client_address="127.0.0.1",
        listener_name=listener_name,
    )
