"""The broker's part in the cluster: its session, its registration, the controller's office, and the current image.

One owner for the MetadataImage. Every change goes one way: a pure decision of `cluster.controller` on the current
image, its operations carried out as fenced transactions, then the new image to all listeners, one change at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from broker.controller_settings import ControllerSettings
from broker.kafka_zk_client import CONFIG_ENTITIES, ClusterError, KafkaZkClient
from broker.seams import Clock, Random
from cluster import znodes
from cluster.controller import topics as decisions
from cluster.controller.elections import offline_operations
from cluster.controller.start_up import FoundReplica, adopt, adopted_config, take_over
from cluster.controller.topics import NewTopic, TopicDefaults, TopicPlan
from cluster.controller.transactions import ControllerTerm, fenced
from cluster.coordination.contract import (
    Coordination,
    Create,
    Delete,
    NoSpaceError,
    Operation,
    SetData,
)
from cluster.metadata_image import BrokerImage, ConfigResource, MetadataImage, TopicImage
from protocol.config_resources import ConfigResourceType
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from protocol.uuids import uuid_to_text

logger = logging.getLogger("kafka.controller.KafkaController")

ImageListener = Callable[[MetadataImage, MetadataImage], None]
ImagePreparation = Callable[[MetadataImage, MetadataImage], Awaitable[None]]

T = TypeVar("T")


class ControllerService:
    """See the module. Methods that change something raise ApiError for what Kafka refuses."""

    def __init__(
        self,
        registration: znodes.BrokerRegistration,
        coordination: Coordination,
        clock: Clock,
        random: Random,
        settings: ControllerSettings,
        validate_topic_config: Callable[[Mapping[str, str]], None],
        refuse_new_partitions: Callable[[str], None] = lambda _topic: None,
    ) -> None:
        """`refuse_new_partitions(topic)` raises ApiError when no partitions may be made now, whoever wants them."""
        self._refuse_new_partitions = refuse_new_partitions
        self.settings = settings
        self._registration = registration
        self._coordination = coordination
        self._zk_client = KafkaZkClient(coordination, clock)
        self._clock = clock
        self._random = random
        self._validate_topic_config = validate_topic_config
        self._image = MetadataImage()
        self._stored_configs: Mapping[ConfigResource, Mapping[str, str]] = {}
        self._term = ControllerTerm(0, 0)
        self._listeners: list[ImageListener] = []
        self._preparations: list[ImagePreparation] = []
        self._completions: list[ImagePreparation] = []
        self._changing = asyncio.Lock()
        self._running: set[asyncio.Task[Any]] = set()
        self._auto_creating: set[str] = set()
        self._undropped: dict[str, TopicImage] = {}
        """Topics that are deleted but for their nodes in the tree, which a full disk did not let go."""

    @property
    def broker_id(self) -> int:
        """This broker."""
        return self._registration.broker_id

    @property
    def image(self) -> MetadataImage:
        """The cluster as it is now."""
        return self._image

    def add_listener(self, listener: ImageListener) -> None:
        """`listener(old, new)` is called at every change, in order; listeners in the order in which they were added."""
        self._listeners.append(listener)

    def add_preparation(self, preparation: ImagePreparation) -> None:
        """`await preparation(old, new)` comes before the listeners hear of `new`.

        It is for what takes long and can be done in slices, so that the event loop serves others meanwhile."""
        self._preparations.append(preparation)

    def add_completion(self, completion: ImagePreparation) -> None:
        """`await completion(old, new)` comes after the listeners, before the change counts as made: a deleted topic's
        nodes, for one, are still there."""
        self._completions.append(completion)

    # -- start and stop ------------------------------------------------------------------------------------------------

    async def connect(self) -> Mapping[ConfigResource, Mapping[str, str]]:
        """Open the session, before anything else; gives all configurations, as logs are loaded by their own."""
        await self._coordination.connect()
        await self._zk_client.create_missing(znodes.PERSISTENT_PATHS)
        self._stored_configs = await self._zk_client.read_configs()
        return self._stored_configs

    async def start(
        self,
        cluster_id: str | None,
        find_replicas: Callable[[], Sequence[FoundReplica]] | None = None,
        *,
        unclean: bool = True,
    ) -> None:
        """Join the cluster, become its controller, elect leaders, publish the first image. After `connect`.

        `cluster_id` is the one in meta.properties, if there is one. `find_replicas` gives the logs on this broker's
        disks: a new tree adopts them, and is new until that is done; None for a tree that other brokers share.
        `unclean`: some log was not closed cleanly, so recovery may have cut something off; leaders then get new
        epochs. Raises ClusterError.
        """
        cluster_id = await self._agree_on_cluster_id(cluster_id)
        broker = await self._register()
        self._term = await self._zk_client.register_controller(self.broker_id)
        logger.info("Broker %d is the controller with epoch %d", self.broker_id, self._term.epoch)
        image = MetadataImage(
            cluster_id=cluster_id,
            controller_id=self.broker_id,
            controller_epoch=self._term.epoch,
            brokers={broker.broker_id: broker},
        )
        image = await self._load(image, unclean=unclean)
        if find_replicas is not None and not await self._zk_client.exists(znodes.LOGS_ADOPTED):
            image = await self._adopt(find_replicas(), image)
        await self._finish_deletions(image)

    async def _adopt(self, found: Sequence[FoundReplica], image: MetadataImage) -> MetadataImage:
        configs = {name: topic.config for name, topic in self.settings.internal_topics.items()}
        operations, adopted = adopt(found, self.broker_id, image, configs, self._random.uuid)
        # With the mark in the same transaction (a tree of our own takes it whole): a crash in between must not leave a
        # tree to which these logs are strays.
        await self._transact([*operations, Create(znodes.LOGS_ADOPTED)])
        if not adopted:
            return image
        logger.warning(
            "Adopted %d topics found in the log directories. Their configurations are not kept there: they got "
            "retention.ms=-1 and retention.bytes=-1, so that nothing is deleted; set cleanup.policy and the limits "
            "they are to have",
            len(adopted),
        )
        adopted_configs: dict[ConfigResource, Mapping[str, str]] = {
            (ConfigResourceType.TOPIC, topic.name): adopted_config(topic.name, configs) for topic in adopted
        }
        return image.with_topics(adopted).with_configs(adopted_configs)

    async def close(self) -> None:
        """Finish the changes under way and leave: the registration and the office vanish with the session."""
        if self._running:
            await asyncio.wait(self._running)
        await self._coordination.close()

    async def _agree_on_cluster_id(self, known: str | None) -> str:
        cluster_id = await self._zk_client.cluster_id()
        if cluster_id is None:
            cluster_id = known or uuid_to_text(self._random.uuid())
            await self._zk_client.create_cluster_id(cluster_id)
        elif known is not None and known != cluster_id:
            raise ClusterError(
                f"The cluster id {cluster_id} does not match the one in meta.properties, {known}: "
                "the log directories belong to another cluster"
            )
        return cluster_id

    async def _register(self) -> BrokerImage:
        registration = replace(self._registration, timestamp_ms=self._clock.now_ms())
        epoch = await self._zk_client.register_broker(registration)
        endpoints = {endpoint.listener_name: endpoint for endpoint in registration.endpoints}
        return BrokerImage(self.broker_id, epoch, endpoints, registration.rack)

    async def _load(self, image: MetadataImage, *, unclean: bool) -> MetadataImage:
        """Topics from the tree, half-created ones completed and leaders elected, and the configurations read before."""
        operations: list[Operation] = []
        topics: list[TopicImage] = []
        for name in await self._zk_client.topic_names():
            changes, topic = take_over(await self._zk_client.read_topic(name), image, unclean=unclean)
            operations.extend(changes)
            topics.append(topic)
        await self._transact(operations)
        configs, self._stored_configs = self._stored_configs, {}
        return image.with_topics(topics).with_configs(configs)

    async def _finish_deletions(self, image: MetadataImage) -> None:
        """Publish the first image; then delete the topics whose deletion a stop interrupted."""
        await self._publish(image)
        marked = await self._zk_client.topic_deletions()
        await self._drop([image.topics[name] for name in marked if name in image.topics])
        for name in marked:
            if name not in image.topics:
                leftovers = (znodes.config_path("topics", name), znodes.delete_topic_path(name))
                await self._transact([Delete(path) for path in leftovers if await self._zk_client.exists(path)])

    # -- topics --------------------------------------------------------------------------------------------------------

    async def create_topics(
        self, new_topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> dict[str, TopicPlan | ApiError]:
        """Create what can be created; by topic name, the plan carried out or why there is none.

        Returns after the listeners have applied the new topics, so leaders exist where a replica is alive.
        """
        try:
            return await self._change(self._create_topics(new_topics, validate_only=validate_only))
        except ApiError as error:  # a full disk
            return {topic.name: error for topic in new_topics}

    async def _create_topics(
        self, new_topics: Sequence[NewTopic], *, validate_only: bool
    ) -> dict[str, TopicPlan | ApiError]:
        defaults = TopicDefaults(self.settings.num_partitions, self.settings.default_replication_factor)
        outcome: dict[str, TopicPlan | ApiError] = {}
        plans: dict[str, TopicPlan] = {}
        for topic in new_topics:
            try:
                plan = decisions.plan_topic(
                    topic, self._image, plans, defaults, self._validate_topic_config, self._random.randrange
                )
                self._refuse_new_partitions(topic.name)
            except ApiError as error:
                outcome[topic.name] = error
            else:
                outcome[topic.name] = plans[topic.name] = plan
        if plans and not validate_only:
            await self._create(list(plans.values()))
        return outcome

    async def _create(self, plans: Sequence[TopicPlan]) -> None:
        operations: list[Operation] = []
        topics = []
        for plan in plans:
            changes, topic = decisions.creation_operations(plan, self._random.uuid(), self._image)
            operations.extend(changes)
            topics.append(topic)
        await self._transact(operations)
        configs: dict[ConfigResource, Mapping[str, str]] = {
            (ConfigResourceType.TOPIC, plan.name): plan.config for plan in plans
        }
        await self._publish(self._image.with_topics(topics).with_configs(configs))

    async def delete_topics(self, names: Iterable[str]) -> None:
        """Delete the topics of these names that exist: when this returns nothing of them is left."""
        await self._change(self._delete_topics(names))

    async def _delete_topics(self, names: Iterable[str]) -> None:
        topics = [self._image.topics[name] for name in names if name in self._image.topics]
        await self._transact([decisions.deletion_mark(topic.name) for topic in topics])
        await self._drop(topics)

    async def _drop(self, topics: Sequence[TopicImage]) -> None:
        """Replicas first, nodes last: a crash in between leaves the mark, and the next start comes here again."""
        if not topics:
            return
        await self._publish(
            self._image.with_topics(removed=[topic.name for topic in topics if topic.name in self._image.topics])
        )
        operations: list[Operation] = []
        for topic in topics:
            has_config = await self._zk_client.exists(znodes.config_path("topics", topic.name))
            operations.extend(decisions.removal_operations(topic, has_config=has_config))
        try:
            await self._transact(operations)
        except ApiError as error:  # a full disk; the mark stays, and so does what the topics are to the tree
            logger.warning("Deleted topics stay in the tree for now: %s", error)
            self._undropped.update((topic.name, topic) for topic in topics)

    async def _drop_rest(self) -> None:
        """Finish deletions for which the disk had no room; nothing else may change before."""
        topics = list(self._undropped.values())
        self._undropped.clear()
        await self._drop(topics)
        if self._undropped:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "The disk has no room for any change of topics")

    async def create_partitions(
        self, name: str, count: int, assignments: Sequence[tuple[int, ...]] | None, *, validate_only: bool = False
    ) -> None:
        """Grow a topic to `count` partitions. Raises ApiError."""
        await self._change(self._create_partitions(name, count, assignments, validate_only=validate_only))

    async def _create_partitions(
        self, name: str, count: int, assignments: Sequence[tuple[int, ...]] | None, *, validate_only: bool
    ) -> None:
        topic = self._image.topics.get(name)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        added = decisions.expand_topic(topic, count, assignments, self._image)
        self._refuse_new_partitions(name)
        if validate_only:
            return
        operations, grown = decisions.expansion_operations(topic, added, self._image)
        await self._transact(operations)
        await self._publish(self._image.with_topics([grown]))

    async def take_offline(self, replicas: Sequence[TopicPartition]) -> None:
        """This broker cannot use these replicas of its own: it does not lead them any more (Kafka's OfflineReplica)."""
        if any(self._image.leader_of(each) == self.broker_id for each in replicas):
            await self._change(self._take_offline(replicas))

    async def _take_offline(self, replicas: Sequence[TopicPartition]) -> None:
        operations, changed = offline_operations(replicas, self.broker_id, self._image)
        await self._transact(operations)
        await self._publish(self._image.with_topics(changed))

    async def auto_create_topic(self, name: str) -> ErrorCode:
        """Create a topic that a client asked metadata of; gives the error code to answer (Kafka's
        AutoTopicCreationManager): LEADER_NOT_AVAILABLE when it was created now."""
        if name in self._auto_creating:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        self._auto_creating.add(name)
        try:
            return await self._auto_create(name)
        finally:
            self._auto_creating.discard(name)

    async def _auto_create(self, name: str) -> ErrorCode:
        internal = self.settings.internal_topics.get(name)
        if internal is None:
            topic = NewTopic(name)
        else:
            topic = NewTopic(name, internal.num_partitions, internal.replication_factor, config=dict(internal.config))
        outcome = (await self.create_topics([topic]))[name]
        if isinstance(outcome, TopicPlan) or outcome.error_code is ErrorCode.TOPIC_ALREADY_EXISTS:
            return ErrorCode.LEADER_NOT_AVAILABLE
        logger.warning("Topic %s could not be created automatically: %s", name, outcome)
        return outcome.error_code

    async def ensure_internal_topic(self, name: str) -> None:
        """Create an internal topic unless it exists. Raises ApiError when it cannot be created."""
        if name in self._image.topics:
            return
        error_code = await self._auto_create(name)
        if error_code is not ErrorCode.LEADER_NOT_AVAILABLE:
            raise ApiError(error_code, f"The internal topic {name} could not be created")

    # -- configurations and producer ids -------------------------------------------------------------------------------

    async def alter_configs(self, resource_type: int, name: str, new_config: Mapping[str, str]) -> None:
        """Replace the overrides of a topic or broker ("" for all brokers), which the caller has validated.

        Raises ApiError UNKNOWN_TOPIC_OR_PARTITION for a topic that does not exist (any more).
        """
        await self._change(self._alter_configs(ConfigResourceType(resource_type), name, dict(new_config)))

    async def _alter_configs(self, resource_type: ConfigResourceType, name: str, new_config: dict[str, str]) -> None:
        if resource_type is ConfigResourceType.TOPIC and name not in self._image.topics:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        entity = f"{CONFIG_ENTITIES[resource_type]}/{name or znodes.DEFAULT_ENTITY}"
        data = znodes.encode_config(new_config)
        exists = await self._zk_client.exists(f"/config/{entity}")
        notice = f"{znodes.CONFIG_CHANGES}/config_change_"
        await self._transact(
            [
                SetData(f"/config/{entity}", data) if exists else Create(f"/config/{entity}", data),
                Create(notice, znodes.encode_config_change(entity), sequential=True),
            ]
        )
        await self._transact(await self._zk_client.expired_config_changes())
        await self._publish(self._image.with_configs({(resource_type, name): new_config}))

    async def allocate_producer_ids(self) -> znodes.ProducerIdBlock:
        """A block of producer ids that nobody else has or will get (Kafka's ZkProducerIdManager)."""
        return await self._change(self._zk_client.allocate_producer_ids(self.broker_id))

    # -- carrying out --------------------------------------------------------------------------------------------------

    async def _change(self, change: Coroutine[Any, Any, T]) -> T:
        """Run `change` after those before it, and to its end even if the caller is cancelled: between the transaction
        and the publication the tree and the image differ, and nobody could repair that."""
        task = asyncio.create_task(self._in_turn(change))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def _in_turn(self, change: Coroutine[Any, Any, T]) -> T:
        async with self._changing:
            if self._undropped:
                try:
                    await self._drop_rest()
                except ApiError:
                    change.close()
                    raise
            return await change

    async def _transact(self, operations: Iterable[Operation]) -> None:
        for transaction in fenced(operations, self._term, self._coordination.max_transaction_bytes):
            try:
                await self._coordination.multi(transaction)
            except NoSpaceError as error:
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    async def _publish(self, image: MetadataImage) -> None:
        for prepare in self._preparations:
            await prepare(self._image, image)
        old, self._image = self._image, image
        for listener in self._listeners:
            try:
                listener(old, image)
            except Exception:
                logger.exception("A listener failed to apply the new metadata")
        for complete in self._completions:
            await complete(old, image)
