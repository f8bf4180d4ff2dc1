"""Several brokers over one tree, without disks: their memberships, controllers and the channels between them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable

from broker.controller.cluster_membership import ClusterMembership
from broker.controller.controller_service import ControllerService
from broker.controller.controller_term import ControllerSettings
from broker.controller.topic_changes import TopicRules
from broker.metadata.dynamic_configs import DynamicConfigs
from broker.metadata.metadata_cache import MetadataCache
from cluster.controller.commands import Answer, Command, CommandFence, LeaderAndIsr, StopReplica, UpdateMetadata
from cluster.controller.topics import NewTopic, TopicPlan
from cluster.metadata_image import BrokerImage, MetadataImage, PartitionImage
from cluster.replication.isr import IsrChange
from cluster.znodes import BrokerRegistration, Endpoint, PartitionState, TopicAssignment, topic_path
from protocol.errors import ErrorCode
from protocol.topic_partition import TopicPartition
from tests.kit.controller.controller_fixtures import CLUSTER_ID, validate_topic_config
from tests.kit.coordination_fixtures import Machine
from tests.kit.environment import SeededRandom
from tests.kit.waiting import eventually_on_loop
from zookeeper.coordination import Coordination

SETTINGS = ControllerSettings(num_partitions=1, default_replication_factor=3)


class Inbox:
    """A broker that obeys its controller. `lost` are the replicas that it cannot use, `roles` the newest."""

    def __init__(self, fence: CommandFence, cache: MetadataCache) -> None:
        self._fence = fence
        self._cache = cache
        self.commands: list[Command] = []
        self.roles: dict[TopicPartition, PartitionImage] = {}
        self.lost: set[TopicPartition] = set()

    async def leader_and_isr(self, command: LeaderAndIsr) -> Answer:
        self._fence.admit(command)
        self.commands.append(command)
        answer: dict[TopicPartition, ErrorCode] = {}
        for topic in command.topics:
            for each in topic.partitions:
                replica = TopicPartition(topic.topic, each.partition)
                self.roles[replica] = each
                answer[replica] = ErrorCode.KAFKA_STORAGE_ERROR if replica in self.lost else ErrorCode.NONE
        return answer

    async def stop_replica(self, command: StopReplica) -> Answer:
        self._fence.admit(command)
        self.commands.append(command)
        for each in command.partitions:
            self.roles.pop(each.topic_partition, None)
        return {each.topic_partition: ErrorCode.NONE for each in command.partitions}

    async def update_metadata(self, command: UpdateMetadata) -> None:
        self.commands.append(command)
        self._cache.update_metadata(command)


class Wire:
    """The path to one registration of a broker. While it is cut, calls wait."""

    def __init__(self, receiver: Member, broker: BrokerImage) -> None:
        self._receiver = receiver
        self._broker = broker
        self.is_closed = False

    async def leader_and_isr(self, command: LeaderAndIsr) -> Answer:
        await self._receiver.reachable.wait()
        return await self._receiver.inbox.leader_and_isr(command)

    async def stop_replica(self, command: StopReplica) -> Answer:
        await self._receiver.reachable.wait()
        return await self._receiver.inbox.stop_replica(command)

    async def update_metadata(self, command: UpdateMetadata) -> None:
        await self._receiver.reachable.wait()
        await self._receiver.inbox.update_metadata(command)

    def close(self) -> None:
        self.is_closed = True


class Member:
    """One life of a broker."""

    def __init__(self, cluster: ControllerCluster, broker_id: int) -> None:
        self.broker_id = broker_id
        self.cluster = cluster
        self.fence = CommandFence()
        self.lost: list[str] = []
        random = SeededRandom(broker_id)
        self.membership = ClusterMembership(
            cluster.ensemble, cluster.machine.clock, random, self.fence, self.lost.append, session_timeout_ms=50
        )
        self.cache = MetadataCache(self.fence, MetadataImage(cluster_id=CLUSTER_ID))
        self.inbox = Inbox(self.fence, self.cache)
        self.reachable = asyncio.Event()
        self.reachable.set()
        self.service = ControllerService(
            self.membership,
            self.inbox,
            SETTINGS,
            TopicRules(random, validate_topic_config, self.cache.update_configs, lambda _topic: None),
            lambda broker: Wire(cluster.members[broker.broker_id], broker),
        )
        self.configs = DynamicConfigs(self.membership, self.cache)

    @property
    def epoch(self) -> int:
        """The broker epoch of its registration."""
        return self.fence.broker_epoch

    @property
    def session_id(self) -> int:
        """Its current session."""
        return self.membership.coordination.session_id

    async def start(self) -> None:
        """Join, and take part in the election."""
        await self.membership.connect()
        await self.membership.create_or_get_cluster_id(CLUSTER_ID)
        endpoint = Endpoint("PLAINTEXT", "127.0.0.1", 9092 + self.broker_id, "PLAINTEXT")
        broker = await self.membership.register(BrokerRegistration(self.broker_id, (endpoint,)))
        await self.configs.start()
        await self.service.start(broker)

    async def kill(self) -> None:
        """The process dies, and its session ends."""
        self.reachable.clear()
        self.service._is_closed = True
        await self.configs.close()
        await self.membership.close()

    async def expire(self) -> None:
        """The session ends, the process lives."""
        epoch = self.epoch
        await self.cluster.ensemble.expire(self.session_id)
        await eventually_on_loop("it is registered again", lambda: self.epoch > epoch)

    def role(self, topic: str, partition: int = 0) -> PartitionImage | None:
        """The newest role that it received."""
        return self.inbox.roles.get(TopicPartition(topic, partition))


class ControllerCluster:
    """The tree, and the live brokers by id."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.ensemble = self.machine.open()
        self.ensemble.is_shared = True
        self.members: dict[int, Member] = {}

    async def start(self, count: int = 3) -> ControllerCluster:
        """Start brokers 1 to `count`, one after the other; returns itself."""
        for broker_id in range(1, count + 1):
            await self.start_broker(broker_id)
        await eventually_on_loop("all know all", lambda: self.all_know(range(1, count + 1)))
        return self

    async def start_broker(self, broker_id: int) -> Member:
        """Start or restart one broker."""
        member = self.members[broker_id] = Member(self, broker_id)
        await member.start()
        return member

    @property
    def controller(self) -> Member:
        """The broker that is the controller."""
        (active,) = [each for each in self.members.values() if each.service.is_active]
        return active

    def all_know(self, broker_ids: Iterable[int]) -> bool:
        """Whether each reachable broker knows that these brokers are alive, with their current epochs."""
        wanted = {each: self.members[each].epoch for each in broker_ids}
        return self.everywhere(
            lambda each: {broker.broker_id: broker.epoch for broker in each.cache.image.brokers.values()} == wanted
        )

    async def create(self, name: str, *replicas: tuple[int, ...]) -> None:
        """Create a topic with these replicas, and wait until all brokers know it."""
        topic = NewTopic(name, assignment=dict(enumerate(replicas)))
        outcome = (await self.controller.service.create_topics([topic]))[name]
        assert isinstance(outcome, TopicPlan), outcome
        await self.until("the topic is known", lambda: self.everywhere(lambda each: name in each.cache.image.topics))

    def everywhere(self, holds: Callable[[Member], object]) -> bool:
        """Whether it holds at all reachable brokers."""
        return all(holds(each) for each in self.members.values() if each.reachable.is_set())

    async def until(self, what: str, holds: Callable[[], object]) -> None:
        """Run the loop until it holds."""
        await eventually_on_loop(what, holds)

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[Coordination]:
        """The coordination session of a client that is not a broker."""
        session = self.ensemble.session()
        await session.connect()
        try:
            yield session
        finally:
            await session.close()

    async def assignment(self, topic: str) -> TopicAssignment:
        """The node of a topic."""
        async with self.session() as session:
            return TopicAssignment.decode(topic, (await session.get(topic_path(topic)))[0])

    async def join(self, topic: str, *isr: int) -> None:
        """As the leader of the topic's first partition, request this ISR, based on the state it knows."""
        name = TopicPartition(topic, 0)
        leader_id, _, leader_epoch, version = await self.partition(topic)
        leader = self.members[leader_id]
        await self.until(
            "the leader has its role", lambda: (role := leader.role(topic)) and role.leader_epoch == leader_epoch
        )
        members = tuple((each, self.members[each].epoch) for each in isr)
        change = IsrChange(name, leader.cache.image.topics[topic].topic_id, leader_epoch, version, members)
        answer = await self.controller.service.alter_partition(leader_id, leader.epoch, [change])
        assert not isinstance(answer[name], ErrorCode)

    async def partition(self, topic: str, partition: int = 0) -> tuple[int, tuple[int, ...], int, int]:
        """Leader, ISR, leader epoch and version of the partition state in the tree."""
        async with self.session() as session:
            data, stat = await session.get(f"/brokers/topics/{topic}/partitions/{partition}/state")
        state = PartitionState.decode(topic, partition, data)
        return state.leader, state.isr, state.leader_epoch, stat.version

    def told(self, topic: str, leader: int, isr: tuple[int, ...], partition: int = 0) -> bool:
        """Whether the metadata of all reachable brokers satisfies it."""

        def knows(member: Member) -> bool:
            image = member.cache.image.partition(TopicPartition(topic, partition))
            return image is not None and (image.leader, image.isr) == (leader, isr)

        return self.everywhere(knows)
