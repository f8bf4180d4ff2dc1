"""Creates, grows and deletes topics (Kafka class `TopicDeletionManager`), in slices: a topic has up to thousands of
partitions.

A deletion takes the metadata first, then the replicas, the nodes last: a crash in between leaves the mark in the tree,
and the next controller begins again. The nodes go when every broker that holds a replica has let go of it; one that is
not there does so when it comes back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol

from broker.controller.controller_term import ControllerSettings, Office, Roles, TreeDiffersError
from broker.environment.contract import Random
from broker.network.slices import Slices, in_slices
from broker.zookeeper.topic_reader import each_of
from cluster import znodes
from cluster.controller import topics as decisions
from cluster.controller.commands import EPOCH_DURING_DELETE, Answer, StoppedReplica, TopicStates
from cluster.controller.context import NEVER_UNCLEAN, ControllerContext, UncleanRule, flat_name
from cluster.controller.topics import NewTopic, TopicDefaults, TopicPlan
from cluster.controller.transactions import shares
from cluster.metadata_image import ConfigResource, PartitionImage, TopicImage
from cluster.znodes import config_path
from cluster.zookeeper.coordination import Delete, Operation, Watch
from protocol.config_resources import ConfigResourceType
from protocol.errors import ApiError, ErrorCode, detached
from protocol.replica_assignment import refuse_mixed_racks
from protocol.topic_partition import TopicPartition
from protocol.uuids import Uuid
from protocol.value import Value

Configs = Mapping[ConfigResource, Mapping[str, str]]


class Requester(Protocol):
    """Who wants partitions. As in Kafka, where request handlers judge topics and write their nodes, the time that takes
    is the requester's; whatever follows from it is the controller's.
    """

    def take(self, partitions: int, /) -> None:
        """Ask whether so many may be created. Raises ApiError when these are too many now."""
        ...

    def counted(self) -> AbstractContextManager[None]:
        """Count the time of a block, in which nobody waits, as the requester's."""
        ...


class _Nobody:
    def take(self, partitions: int, /) -> None:
        """Permit any number of partitions."""

    def counted(self) -> AbstractContextManager[None]:
        """Count nothing."""
        return nullcontext()


NOBODY: Final = _Nobody()
"""The brokers themselves, who have no quotas."""


class TopicRules(Value):
    """Rules of this broker for new topics, and whom it tells of their configurations."""

    random: Random
    validate_config: Callable[[Mapping[str, str]], None]
    """Raises ApiError for overrides that are not valid."""
    configs_changed: Callable[[Configs], None]
    """Told of configurations that the tree has now."""
    refuse_new_partitions: Callable[[str], None]
    """Given a topic, raises ApiError when no partitions may be made now, whoever wants them."""
    unclean: UncleanRule = NEVER_UNCLEAN
    """Where replicas that are not in sync may lead."""
    min_isr: Callable[[str], int] | None = None
    """min.insync.replicas of a topic; None where no eligible leaders are kept."""
    known_topic: Callable[[str], TopicImage | None] = lambda _name: None
    """A topic as the last controller described it to this broker."""


class TopicChanges:
    """Carries out creations in one term."""

    def __init__(self, office: Office, roles: Roles, rules: TopicRules) -> None:
        self._office = office
        self._roles = roles
        self._rules = rules

    async def create(
        self, new_topics: Sequence[NewTopic], settings: ControllerSettings, *, validate_only: bool, requester: Requester
    ) -> dict[str, TopicPlan | ApiError]:
        """Create what can be created, with leaders; by topic name, the plan carried out or why there is none."""
        defaults = TopicDefaults(settings.num_partitions, settings.default_replication_factor)
        rules, context = self._rules, self._office.context
        outcome: dict[str, TopicPlan | ApiError] = {}
        plans: list[TopicPlan] = []
        planned: dict[str, str] = {}
        async for topic in in_slices(new_topics, self._office.clock):
            try:
                with requester.counted():
                    plan = decisions.plan_topic(
                        topic, context, planned, defaults, rules.validate_config, rules.random.randrange
                    )
                rules.refuse_new_partitions(topic.name)
                if not validate_only:
                    requester.take(len(plan.assignment))
            except ApiError as error:
                outcome[topic.name] = detached(error)
            else:
                outcome[topic.name] = plan
                plans.append(plan)
                planned[flat_name(topic.name)] = topic.name
        if plans and not validate_only:
            outcome.update(await self._create(plans, requester))
        return outcome

    async def _create(self, plans: Sequence[TopicPlan], requester: Requester) -> dict[str, ApiError]:
        """Create these topics; gives why some were not."""
        context = self._office.context
        created: list[TopicImage] = []
        errors: dict[str, ApiError] = {}
        configs: dict[ConfigResource, Mapping[str, str]] = {}
        for share in shares(plans, lambda plan: len(plan.assignment)):
            try:
                try:
                    topics = await self._write(share, requester)
                except TreeDiffersError:
                    topics = await self._write(share, requester, await self._with_config(share))
            except ApiError as error:  # a full disk
                errors.update((plan.name, detached(error)) for plan in share)
                continue
            context.put_topics(topics)
            created += topics
            configs.update(((ConfigResourceType.TOPIC, plan.name), plan.config) for plan in share)
        if created:
            # Before the roles, as a log uses its topic's configuration from the first moment.
            self._rules.configs_changed(configs)
            await self._roles.announce(
                TopicStates(topic.name, topic.topic_id, topic.partitions, is_new=True) for topic in created
            )
        return errors

    async def _write(
        self, plans: Sequence[TopicPlan], requester: Requester, with_config: Collection[str] = ()
    ) -> list[TopicImage]:
        """Write these topics; those of `with_config` have the node of their configuration already."""
        operations: list[Operation] = []
        topics = []
        slices = Slices(self._office.clock)
        async for plan in in_slices(plans, slices):
            topic_id = self._rules.random.uuid()
            with requester.counted():
                operations += decisions.topic_operations(plan, topic_id, has_config=plan.name in with_config)
            changes, topic = await first_leaders(plan, topic_id, self._office.context, slices)
            operations += changes
            topics.append(topic)
        await slices.pause()  # The transaction is put together in one go.
        await self._office.transact(operations)
        return topics

    async def _with_config(self, plans: Sequence[TopicPlan]) -> Collection[str]:
        """Those for whose names the tree has configurations, which other tools, or a deletion, may leave there."""
        names = [plan.name for plan in plans]
        paths = [config_path("topics", name) for name in names]
        found = await each_of(paths, self._office.zk_client.exists)
        return {name: None for name, has_config in zip(names, found, strict=True) if has_config}

    async def create_partitions(
        self,
        name: str,
        count: int,
        assignments: Sequence[tuple[int, ...]] | None,
        *,
        validate_only: bool,
        requester: Requester,
    ) -> None:
        """Grow a topic to `count` partitions. Raises ApiError; if only some brokers have a rack for every topic, even
        for assignments that need none, as Kafka does.
        """
        context = self._office.context
        refuse_mixed_racks(context.racks)
        topic = context.topics.get(name)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        with requester.counted():
            added = decisions.expand_topic(topic, count, assignments, context)
        self._rules.refuse_new_partitions(name)
        if validate_only:
            return
        requester.take(len(added))
        slices = Slices(self._office.clock)
        operations, grown = await expansion(topic, added, context, slices)
        await slices.pause()  # The transaction is put together in one go.
        await self._office.transact(operations)
        context.put_topics([grown])
        new = grown.partitions[len(topic.partitions) :]
        await self._roles.announce([TopicStates(name, topic.topic_id, new, is_new=True)])


async def first_leaders(
    plan: TopicPlan, topic_id: Uuid, context: ControllerContext, slices: Slices
) -> tuple[list[Operation], TopicImage]:
    """Give the operations that give a new topic its leaders, to follow those of the topic itself, and its image."""
    operations, partitions = await new_partitions(plan.name, dict(enumerate(plan.assignment)), context, slices)
    return operations, TopicImage(plan.name, topic_id, partitions)


async def expansion(
    topic: TopicImage, added: Mapping[int, tuple[int, ...]], context: ControllerContext, slices: Slices
) -> tuple[list[Operation], TopicImage]:
    """Give the operations that add partitions to the topic, and its new image."""
    operations, partitions = await new_partitions(topic.name, added, context, slices)
    return [decisions.growth_operation(topic, added), *operations], topic.with_partitions(partitions)


async def removal(topic: TopicImage, slices: Slices, *, has_config: bool) -> list[Operation]:
    """Give the operations that remove every node of the topic, its deletion mark last."""
    removals = decisions.partition_removals(topic.name, topic.partitions)
    operations = [each async for each in in_slices(removals, slices)]
    operations.extend(decisions.topic_removals(topic.name, has_config=has_config))
    return operations


async def new_partitions(
    topic: str, assignment: Mapping[int, tuple[int, ...]], context: ControllerContext, slices: Slices
) -> tuple[list[Operation], tuple[PartitionImage, ...]]:
    """Give the operations that create these partitions with their first leaders, and the partitions."""
    operations: list[Operation] = []
    partitions: list[PartitionImage] = []
    async for nodes, partition in in_slices(decisions.new_partitions(topic, assignment, context), slices):
        operations.extend(nodes)
        partitions.append(partition)
    return operations, tuple(partitions)


logger = logging.getLogger("kafka.controller.TopicDeletionManager")


class TopicDeletions:
    """Owner of the deletions under way in one term."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._awaited: dict[str, dict[tuple[int, int], None]] = {}
        """By topic: the replicas, as (broker, partition), that have not been let go of."""
        self._finished: dict[str, asyncio.Event] = {}

    async def delete(self, names: Iterable[str]) -> None:
        """Delete the topics of these names that exist."""
        context = self._office.context
        existing = [name for name in names if name in context.topics and name not in context.topics_to_be_deleted]
        marked = dict.fromkeys(await self._office.zk_client.topic_deletions())
        await self._office.transact([decisions.deletion_mark(name) for name in existing if name not in marked])
        await self._begin(existing)

    async def obey_marks(self, *, is_enabled: bool, watch: Watch | None = None) -> None:
        """Delete the topics that the tree has marks of: others write them, and a crash leaves them. What is not there,
        or with `is_enabled` false may not be deleted, loses its mark. `watch` fires when there are others.
        """
        office, context = self._office, self._office.context
        marked = [each for each in await office.zk_client.topic_deletions(watch) if each not in self._awaited]
        known = [name for name in marked if name in context.topics]
        if is_enabled:
            await self._begin(known)
        elif known:
            logger.info("Removing %s since delete topic is disabled", known)
            await office.transact([Delete(znodes.delete_topic_path(name)) for name in known])
        for name in marked:
            if name not in context.topics and name not in context.damaged_topics:
                leftovers = (znodes.config_path("topics", name), znodes.delete_topic_path(name))
                await office.transact([Delete(path) for path in leftovers if await office.zk_client.exists(path)])

    async def _begin(self, names: Sequence[str]) -> None:
        if not names:
            return
        office, context = self._office, self._office.context
        context.topics_to_be_deleted.update(dict.fromkeys(names))
        for name in names:
            self._finished[name] = asyncio.Event()
            self._awaited[name] = {
                (broker_id, partition.partition): None
                for partition in context.topics[name].partitions
                for broker_id in partition.replicas
                if office.is_shared or broker_id in context.live_brokers
            }
        await office.requests.update_metadata(deleted=names)
        await self._stop(names, list(context.live_brokers))

    async def _stop(self, names: Iterable[str], broker_ids: Sequence[int]) -> None:
        """Have these brokers delete their replicas of these topics. One whose disk refuses stays behind as a stray."""
        replicas: dict[int, list[StoppedReplica]] = {}
        for name in names:
            for broker_id, partition in self._awaited[name]:
                if broker_id in broker_ids:
                    stopped = StoppedReplica(
                        TopicPartition(name, partition), EPOCH_DURING_DELETE, delete_partition=True
                    )
                    replicas.setdefault(broker_id, []).append(stopped)
                    self._office.context.deleted_replicas[broker_id, stopped.topic_partition] = None
        await self._office.requests.stop_replicas(replicas)
        own_id = self._office.context.controller_id
        self._let_go(own_id, [each.topic_partition for each in replicas.get(own_id, ())])
        await self.remove_nodes()

    def _let_go(self, broker_id: int, replicas: Iterable[TopicPartition]) -> None:
        for replica in replicas:
            awaited = self._awaited.get(replica.topic, {})
            awaited.pop((broker_id, replica.partition), None)

    async def replicas_stopped(self, broker_id: int, answer: Answer) -> None:
        """Another broker has let go of replicas."""
        self._let_go(broker_id, answer)
        await self.remove_nodes()

    def commands_are_lost(self, broker_ids: Collection[int]) -> None:
        """Count on no command that these brokers have not answered: it may not have reached them."""
        for name, replicas in self._awaited.items():
            for broker_id, partition in replicas:
                if broker_id in broker_ids:
                    self._office.context.deleted_replicas.pop((broker_id, TopicPartition(name, partition)), None)

    async def brokers_came(self, broker_ids: Sequence[int]) -> None:
        """Brokers have come, which may hold replicas of topics that are being deleted."""
        if self._awaited:
            await self._stop(list(self._awaited), broker_ids)

    def brokers_went(self) -> None:
        """Nobody waits for a broker that has gone."""
        live_brokers = self._office.context.live_brokers
        for name, replicas in self._awaited.items():
            if not any(broker_id in live_brokers for broker_id, _ in replicas):
                self._finished[name].set()

    async def remove_nodes(self) -> None:
        """Remove the nodes of topics of which no replica is left. A full disk may not let them go; then they stay until
        the next change.
        """
        office, context = self._office, self._office.context
        topics = [context.topics[name] for name in self._without_replicas()]
        for share in shares(topics, lambda topic: len(topic.partitions)):
            operations: list[Operation] = []
            slices = Slices(office.clock)
            await slices.pause()  # What the answer of a broker changed was done in one go.
            for topic in share:
                has_config = await office.zk_client.exists(znodes.config_path("topics", topic.name))
                operations.extend(await removal(topic, slices, has_config=has_config))
            await slices.pause()  # The transaction is put together in one go.
            try:
                await office.transact(operations)
            except ApiError as error:
                logger.warning("Deleted topics stay in the tree until the next change: %s", error)
                break
            for topic in share:
                context.remove_topic(topic.name)
                del self._awaited[topic.name]
                self._finished.pop(topic.name).set()
        self.brokers_went()

    def _without_replicas(self) -> list[str]:
        return [name for name, replicas in self._awaited.items() if not replicas]

    async def remove_rest(self) -> None:
        """Finish deletions for which the disk had no room; nothing else may change before. Raises ApiError."""
        if not self._without_replicas():
            return
        await self.remove_nodes()
        if self._without_replicas():
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "The disk is full; topics cannot be changed")

    async def wait_for(self, names: Iterable[str], patience_s: float) -> None:
        """Return when the live brokers have let go of these topics, or `patience_s` is over."""
        waiting = [asyncio.create_task(self._finished[name].wait()) for name in names if name in self._finished]
        if waiting:
            await asyncio.wait(waiting, timeout=patience_s)
        for each in waiting:
            each.cancel()

    def close(self) -> None:
        """Let go of who waits."""
        for finished in self._finished.values():
            finished.set()
