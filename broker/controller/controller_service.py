"""The controller: carries out the decisions of `cluster.controller`, and has brokers act on them.

Every change goes one way, one at a time: a pure decision on the ControllerContext, its operations as fenced
transactions, the context brought up to date, commands to the brokers: first what makes them lead, then what clients
are told; for a deletion the other way round.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from broker.controller import topic_operations
from broker.controller.change_queue import ChangeQueue
from broker.controller.channels import BrokerChannel, ControllerChannels, OfflineReplicas
from broker.controller.cluster_membership import ClusterMembership
from broker.controller.controller_settings import ControllerSettings, controller_settings
from broker.environment.contract import Random
from cluster import znodes
from cluster.controller import topics as decisions
from cluster.controller.commands import TopicStates
from cluster.controller.context import ControllerContext, flat_name
from cluster.controller.elections import offline_operations
from cluster.controller.start_up import FoundReplica, adopt, adopted_config, take_over
from cluster.controller.topics import NewTopic, TopicDefaults, TopicPlan
from cluster.controller.transactions import ControllerTerm, fenced, shares
from cluster.metadata_image import BrokerImage, ConfigResource, TopicImage
from cluster.zookeeper.coordination import (
    ConnectionLossError,
    Create,
    Delete,
    NoSpaceError,
    Operation,
    SessionExpiredError,
)
from config.broker_config import BrokerConfig
from protocol.config_resources import ConfigResourceType
from protocol.errors import ApiError, ErrorCode

logger = logging.getLogger("kafka.controller.KafkaController")

Configs = Mapping[ConfigResource, Mapping[str, str]]

T = TypeVar("T")

PLANS_PER_SLICE = 50
"""Topics judged before the event loop gets its turn: some 5 ms of work."""


class ControllerService:
    """Owner of the ControllerContext. Methods that change something raise ApiError for what Kafka refuses."""

    def __init__(
        self,
        membership: ClusterMembership,
        channels: Mapping[int, BrokerChannel],
        random: Random,
        settings: ControllerSettings,
        validate_topic_config: Callable[[Mapping[str, str]], None],
        configs_changed: Callable[[Configs], None],
        refuse_new_partitions: Callable[[str], None] = lambda _topic: None,
    ) -> None:
        """`channels` are the ways to the brokers, by id. `configs_changed` is told of configurations that the tree has
        now. `refuse_new_partitions(topic)` raises ApiError when no partitions may be made now, whoever wants them.
        """
        self.settings = settings
        self._membership = membership
        self._coordination = membership.coordination
        self._zk_client = membership.zk_client
        self._channel_by_broker = channels
        self._random = random
        self._validate_topic_config = validate_topic_config
        self._configs_changed = configs_changed
        self._refuse_new_partitions = refuse_new_partitions
        self._take_office(ControllerContext(-1, 0), ControllerTerm(0, 0))
        self._changes = ChangeQueue()
        self._auto_creating: set[str] = set()

    def _take_office(self, context: ControllerContext, term: ControllerTerm) -> None:
        self._context = context
        self._term = term
        self._channels = ControllerChannels(self._channel_by_broker, context)

    def config_changed(self, config: BrokerConfig) -> None:
        """Use this configuration from now on."""
        self.settings = controller_settings(config)

    # -- start and stop ------------------------------------------------------------------------------------------------

    async def start(
        self,
        broker: BrokerImage,
        find_replicas: Callable[[], Sequence[FoundReplica]] | None = None,
        *,
        unclean: bool = True,
    ) -> None:
        """Become the controller of a cluster that `broker` has joined: elect leaders, and command everybody.

        `find_replicas` gives the logs on this broker's disks: a new tree adopts them, and is new until that is done;
        None for a tree that other brokers share. `unclean`: some log was not closed cleanly, so recovery may have cut
        something off; leaders then get new epochs. Raises ClusterError.
        """
        term = await self._zk_client.register_controller(broker.broker_id)
        self._take_office(ControllerContext(broker.broker_id, term.epoch, [broker]), term)
        logger.info("Broker %d is the controller with epoch %d", broker.broker_id, term.epoch)
        await self._load(unclean=unclean)
        if find_replicas is not None and not await self._zk_client.exists(znodes.LOGS_ADOPTED):
            await self._adopt(find_replicas())
        context = self._context
        # Those to be deleted are in it too: without them their logs would be strays.
        offline = await self._channels.leader_and_isr(context.replicas(), is_full=True)
        await self._take_offline(offline)
        await self._channels.update_metadata(context.topics.values())
        await self._finish_deletions()

    async def _load(self, *, unclean: bool) -> None:
        """Topics from the tree, half-created ones completed and leaders elected."""
        operations: list[Operation] = []
        for name in await self._zk_client.topic_names():
            changes, topic = take_over(await self._zk_client.read_topic(name), self._context, unclean=unclean)
            operations.extend(changes)
            self._context.put_topics([topic])
        await self._transact(operations)

    async def _adopt(self, found: Sequence[FoundReplica]) -> None:
        configs = {name: topic.config for name, topic in self.settings.internal_topics.items()}
        operations, adopted = adopt(found, self._context.controller_id, self._context, configs, self._random.uuid)
        # With the mark in the same transaction (a tree of our own takes it whole): a crash in between must not leave a
        # tree to which these logs are strays.
        await self._transact([*operations, Create(znodes.LOGS_ADOPTED)])
        if not adopted:
            return
        logger.warning(
            "Adopted %d topics found in the log directories. Their configurations are not kept there: they got "
            "retention.ms=-1 and retention.bytes=-1, so that nothing is deleted; set cleanup.policy and the limits "
            "they are to have",
            len(adopted),
        )
        self._context.put_topics(adopted)
        self._configs_changed(
            {(ConfigResourceType.TOPIC, topic.name): adopted_config(topic.name, configs) for topic in adopted}
        )

    async def _finish_deletions(self) -> None:
        """Delete the topics whose deletion a stop interrupted."""
        marked = await self._zk_client.topic_deletions()
        await self._drop([name for name in marked if name in self._context.topics])
        for name in marked:
            if name not in self._context.topics:
                leftovers = (znodes.config_path("topics", name), znodes.delete_topic_path(name))
                await self._transact([Delete(path) for path in leftovers if await self._zk_client.exists(path)])

    async def close(self) -> None:
        """Finish the changes under way. The office is left with the session."""
        await self._changes.close()

    # -- topics --------------------------------------------------------------------------------------------------------

    async def create_topics(
        self, new_topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> dict[str, TopicPlan | ApiError]:
        """Create what can be created, with leaders; by topic name, the plan carried out or why there is none."""
        try:
            return await self._change(self._create_topics(new_topics, validate_only=validate_only))
        except ApiError as error:  # a full disk
            return {topic.name: error for topic in new_topics}

    async def _create_topics(
        self, new_topics: Sequence[NewTopic], *, validate_only: bool
    ) -> dict[str, TopicPlan | ApiError]:
        defaults = TopicDefaults(self.settings.num_partitions, self.settings.default_replication_factor)
        outcome: dict[str, TopicPlan | ApiError] = {}
        plans: list[TopicPlan] = []
        planned: dict[str, str] = {}
        for number, topic in enumerate(new_topics, start=1):
            try:
                plan = decisions.plan_topic(
                    topic, self._context, planned, defaults, self._validate_topic_config, self._random.randrange
                )
                self._refuse_new_partitions(topic.name)
            except ApiError as error:
                outcome[topic.name] = error
            else:
                outcome[topic.name] = plan
                plans.append(plan)
                planned[flat_name(topic.name)] = topic.name
            if number % PLANS_PER_SLICE == 0:
                await asyncio.sleep(0)
        if plans and not validate_only:
            outcome.update(await self._create(plans))
        return outcome

    async def _create(self, plans: Sequence[TopicPlan]) -> dict[str, ApiError]:
        """Create these topics; gives why some were not."""
        created: list[TopicImage] = []
        errors: dict[str, ApiError] = {}
        configs: dict[ConfigResource, Mapping[str, str]] = {}
        for share in shares(plans, lambda plan: len(plan.assignment)):
            operations: list[Operation] = []
            topics = []
            for plan in share:
                changes, topic = await topic_operations.creation(plan, self._random.uuid(), self._context)
                operations.extend(changes)
                topics.append(topic)
            await asyncio.sleep(0)
            try:
                await self._transact(operations)
            except ApiError as error:  # a full disk
                errors.update((plan.name, error) for plan in share)
                continue
            self._context.put_topics(topics)
            created += topics
            configs.update(((ConfigResourceType.TOPIC, plan.name), plan.config) for plan in share)
        self._configs_changed(configs)
        await self._announce(TopicStates(each.name, each.topic_id, each.partitions, is_new=True) for each in created)
        return errors

    async def create_partitions(
        self, name: str, count: int, assignments: Sequence[tuple[int, ...]] | None, *, validate_only: bool = False
    ) -> None:
        """Grow a topic to `count` partitions. Raises ApiError."""
        await self._change(self._create_partitions(name, count, assignments, validate_only=validate_only))

    async def _create_partitions(
        self, name: str, count: int, assignments: Sequence[tuple[int, ...]] | None, *, validate_only: bool
    ) -> None:
        topic = self._context.topics.get(name)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        added = decisions.expand_topic(topic, count, assignments, self._context)
        self._refuse_new_partitions(name)
        if validate_only:
            return
        operations, grown = await topic_operations.expansion(topic, added, self._context)
        await self._transact(operations)
        self._context.put_topics([grown])
        new = grown.partitions[len(topic.partitions) :]
        await self._announce([TopicStates(name, topic.topic_id, new, is_new=True)])

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
        topic = self.settings.new_topic(name)
        outcome = (await self.create_topics([topic]))[name]
        if isinstance(outcome, TopicPlan) or outcome.error_code is ErrorCode.TOPIC_ALREADY_EXISTS:
            return ErrorCode.LEADER_NOT_AVAILABLE
        logger.warning("Topic %s could not be created automatically: %s", name, outcome)
        return outcome.error_code

    async def ensure_internal_topic(self, name: str) -> None:
        """Create an internal topic unless it exists. Raises ApiError when it cannot be created."""
        if name in self._context.topics:
            return
        error_code = await self._auto_create(name)
        if error_code is not ErrorCode.LEADER_NOT_AVAILABLE:
            raise ApiError(error_code, f"The internal topic {name} could not be created")

    # -- deletion ------------------------------------------------------------------------------------------------------

    async def delete_topics(self, names: Iterable[str]) -> None:
        """Delete the topics of these names that exist: when this returns nothing of them is left."""
        await self._change(self._delete_topics(names))

    async def _delete_topics(self, names: Iterable[str]) -> None:
        existing = [name for name in names if name in self._context.topics]
        await self._transact([decisions.deletion_mark(name) for name in existing])
        await self._drop(existing)

    async def _drop(self, names: Sequence[str]) -> None:
        """Metadata first, then replicas, nodes last: a crash in between leaves the mark, and the next start comes here
        again. So does the next change, where a full disk did not let the nodes go.
        """
        if not names:
            return
        context = self._context
        context.topics_to_be_deleted.update(dict.fromkeys(names))
        await self._channels.update_metadata(deleted=names)
        topics = [context.topics[name] for name in names]
        await self._channels.delete_replicas(topics)
        for share in shares(topics, lambda topic: len(topic.partitions)):
            operations: list[Operation] = []
            for topic in share:
                has_config = await self._zk_client.exists(znodes.config_path("topics", topic.name))
                operations.extend(await topic_operations.removal(topic, has_config=has_config))
            await asyncio.sleep(0)
            try:
                await self._transact(operations)
            except ApiError as error:
                logger.warning("Deleted topics stay in the tree until the next change: %s", error)
                return
            for topic in share:
                context.remove_topic(topic.name)

    async def _drop_rest(self) -> None:
        """Finish deletions for which the disk had no room; nothing else may change before."""
        await self._drop(list(self._context.topics_to_be_deleted))
        if self._context.topics_to_be_deleted:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "The disk is full; topics cannot be changed")

    # -- roles ---------------------------------------------------------------------------------------------------------

    async def _announce(self, changed: Iterable[TopicStates]) -> None:
        """Send the brokers their roles in these partitions, then tell clients who leads."""
        changed = tuple(changed)
        await self._take_offline(await self._channels.leader_and_isr(changed))
        await self._channels.update_metadata(self._context.topics[each.topic] for each in changed)

    async def log_directory_failed(self) -> None:
        """React to a broker that cannot use some of its replicas. The broker names them in its answer to LeaderAndIsr
        (Kafka's `processLogDirEventNotification`), because a list made earlier could be outdated by now.
        """
        await self._change(self._ask_for_offline_replicas())

    async def _ask_for_offline_replicas(self) -> None:
        moved = await self._take_offline(await self._channels.leader_and_isr(self._context.replicas()))
        await self._channels.update_metadata(self._context.topics[name] for name in moved)

    async def _take_offline(self, offline: OfflineReplicas) -> Iterable[str]:
        """Take these replicas offline (Kafka's OfflineReplica), with new leaders. Gives the topics that changed."""
        moved: dict[str, None] = {}
        while offline:
            states: tuple[TopicStates, ...] = ()
            for broker_id, replicas in offline.items():
                operations, changed = offline_operations(replicas, broker_id, self._context)
                try:
                    await self._transact(operations)
                except ApiError as error:  # a full disk
                    logger.error("Partitions stay without leaders for now: %s", error)
                    continue
                states += self._context.put_partitions(changed)
                moved |= dict.fromkeys(changed)
            offline = await self._channels.leader_and_isr(states) if states else {}
        return moved

    # -- configurations and producer ids -------------------------------------------------------------------------------

    async def alter_configs(self, changes: Configs) -> Mapping[ConfigResource, ApiError]:
        """Replace the overrides of topics or brokers ("" for all), which are valid; gives why some were not."""
        return await self._change(self._alter_configs(changes))

    async def _alter_configs(self, changes: Configs) -> dict[ConfigResource, ApiError]:
        topics = self._context.topics
        errors = {
            (kind, name): ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
            for kind, name in changes
            if kind == ConfigResourceType.TOPIC and name not in topics
        }
        known = [resource for resource in changes if resource not in errors]
        try:
            for share in list(shares(known, lambda _: 1)):
                await self._transact(await self._zk_client.config_operations({each: changes[each] for each in share}))
                self._configs_changed({each: changes[each] for each in share})
                del known[: len(share)]
            await self._transact(await self._zk_client.expired_config_changes())
        except ApiError as error:  # a full disk
            errors.update(dict.fromkeys(known, error))
        return errors

    async def allocate_producer_ids(self) -> znodes.ProducerIdBlock:
        """A block of producer ids that nobody else has or will get (Kafka's ZkProducerIdManager)."""
        return await self._change(self._zk_client.allocate_producer_ids(self._context.controller_id))

    # -- carrying out --------------------------------------------------------------------------------------------------

    async def _change(self, change: Coroutine[Any, Any, T]) -> T:
        return await self._changes.run(self._carry_out(change))

    async def _carry_out(self, change: Coroutine[Any, Any, T]) -> T:
        if self._context.topics_to_be_deleted:
            try:
                await self._drop_rest()
            except ApiError:
                change.close()
                raise
        try:
            return await change
        except (ConnectionLossError, SessionExpiredError) as error:
            # Whether the transaction took effect is not known. The next start reads the tree.
            self._membership.lost(f"the outcome of a change is not known: {error}")
            raise ApiError(ErrorCode.NOT_CONTROLLER, f"the outcome is not known: {error}") from error

    async def _transact(self, operations: Iterable[Operation]) -> None:
        for transaction in fenced(operations, self._term, self._coordination.max_transaction_bytes):
            try:
                await self._coordination.multi(transaction)
            except NoSpaceError as error:
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
