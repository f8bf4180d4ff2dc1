"""Creates, grows and deletes topics (Kafka class `TopicDeletionManager`). The work is done in slices, because a topic
can have thousands of partitions.

A deletion removes the metadata first, then the replicas, and the nodes last. After a crash in between, the deletion
mark is still in the tree, and the next controller starts over. The nodes are removed when every broker with a replica
has deleted it; an offline broker does so when it comes back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol

from broker.controller.controller_term import (
    ControllerSettings,
    ControllerTerm,
    PartitionStateMachine,
    TreeDiffersError,
)
from broker.zookeeper.topic_reader import each_of
from cluster import znodes
from cluster.controller import topics as decisions
from cluster.controller.commands import EPOCH_DURING_DELETE, Answer, StoppedReplica, TopicStates
from cluster.controller.context import NEVER_UNCLEAN, ControllerContext, UncleanRule, flat_name
from cluster.controller.topics import NewTopic, TopicDefaults, TopicPlan
from cluster.controller.transactions import shares
from cluster.metadata_image import ConfigResource, PartitionImage, TopicImage
from cluster.znodes import config_path
from environment.contract import Random
from environment.slices import Slices, in_slices
from protocol.config_resources import ConfigResourceType
from protocol.errors import ApiError, ErrorCode, detached
from protocol.replica_assignment import refuse_mixed_racks
from protocol.topic_partition import TopicPartition
from protocol.uuids import Uuid
from protocol.value import Value
from zookeeper.coordination import Delete, Operation, Watch

Configs = Mapping[ConfigResource, Mapping[str, str]]


class Requester(Protocol):
    """The client that requests partitions. Time spent on judging topics and writing their nodes is charged to it, as in
    Kafka, where request handlers do that; the rest is the controller's.
    """

    def take(self, partitions: int, /) -> None:
        """Charge the creation of this many partitions. Raises ApiError if they exceed the quota."""
        ...

    def counted(self) -> AbstractContextManager[None]:
        """Charge the time of a block, which must not wait, to the requester."""
        ...


class _Nobody:
    def take(self, partitions: int, /) -> None:
        """Allow any number of partitions."""

    def counted(self) -> AbstractContextManager[None]:
        """Charge nothing."""
        return nullcontext()


NOBODY: Final = _Nobody()
"""The brokers themselves, exempt from quotas."""


class TopicRules(Value):
    """This broker's rules for new topics, and the listeners for their configurations."""

    random: Random
    validate_config: Callable[[Mapping[str, str]], None]
    """Raises ApiError for invalid overrides."""
    configs_changed: Callable[[Configs], None]
    """Called with new configurations once they are in the tree."""
    refuse_new_partitions: Callable[[str], None]
    """Raises ApiError if the topic cannot get new partitions now, whoever asks."""
    unclean: UncleanRule = NEVER_UNCLEAN
    """Where an out-of-sync replica may lead."""
    min_isr: Callable[[str], int] | None = None
    """min.insync.replicas of a topic. Without it, no eligible leaders are tracked."""
    known_topic: Callable[[str], TopicImage | None] = lambda _name: None
    """A topic as the last controller described it to this broker."""


class TopicChanges:
    """Creates and grows topics in one term."""

    def __init__(self, term: ControllerTerm, state_machine: PartitionStateMachine, rules: TopicRules) -> None:
        self._term = term
        self._state_machine = state_machine
        self._rules = rules

    async def create(
        self, new_topics: Sequence[NewTopic], settings: ControllerSettings, *, validate_only: bool, requester: Requester
    ) -> dict[str, TopicPlan | ApiError]:
        """Create the topics that can be created, with leaders. Maps each name to the plan carried out, or to
        the error.
        """
        defaults = TopicDefaults(settings.num_partitions, settings.default_replication_factor)
        rules, context = self._rules, self._term.context
        outcome: dict[str, TopicPlan | ApiError] = {}
        plans: list[TopicPlan] = []
        planned: dict[str, str] = {}
        async for topic in in_slices(new_topics, self._term.clock):
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
        """Create these topics; returns the errors by name."""
        context = self._term.context
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
            # Before the roles: a new log reads its topic's configuration immediately.
            self._rules.configs_changed(configs)
            await self._state_machine.send_leader_and_isr(
                TopicStates(topic.name, topic.topic_id, topic.partitions, is_new=True) for topic in created
            )
        return errors

    async def _write(
        self, plans: Sequence[TopicPlan], requester: Requester, with_config: Collection[str] = ()
    ) -> list[TopicImage]:
        """Write these topics. Those in `with_config` already have a configuration node."""
        operations: list[Operation] = []
        topics = []
        slices = Slices(self._term.clock)
        async for plan in in_slices(plans, slices):
            topic_id = self._rules.random.uuid()
            with requester.counted():
                operations += decisions.topic_operations(plan, topic_id, has_config=plan.name in with_config)
            changes, topic = await first_leaders(plan, topic_id, self._term.context, slices)
            operations += changes
            topics.append(topic)
        await slices.pause()  # the transaction is built in one go
        await self._term.transact(operations)
        return topics

    async def _with_config(self, plans: Sequence[TopicPlan]) -> Collection[str]:
        """The topics that already have configurations in the tree, left by other tools or by a deletion."""
        names = [plan.name for plan in plans]
        paths = [config_path("topics", name) for name in names]
        found = await each_of(paths, self._term.zk_client.exists)
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
        """Grow a topic to `count` partitions. Raises ApiError. As in Kafka, it fails whenever only some brokers have a
        rack, even for assignments that do not need one.
        """
        context = self._term.context
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
        slices = Slices(self._term.clock)
        operations, grown = await expansion(topic, added, context, slices)
        await slices.pause()  # the transaction is built in one go
        await self._term.transact(operations)
        context.put_topics([grown])
        new = grown.partitions[len(topic.partitions) :]
        await self._state_machine.send_leader_and_isr([TopicStates(name, topic.topic_id, new, is_new=True)])


async def first_leaders(
    plan: TopicPlan, topic_id: Uuid, context: ControllerContext, slices: Slices
) -> tuple[list[Operation], TopicImage]:
    """Build the operations that give a new topic its leaders, which follow those that create it, and its image."""
    operations, partitions = await new_partitions(plan.name, dict(enumerate(plan.assignment)), context, slices)
    return operations, TopicImage(plan.name, topic_id, partitions)


async def expansion(
    topic: TopicImage, added: Mapping[int, tuple[int, ...]], context: ControllerContext, slices: Slices
) -> tuple[list[Operation], TopicImage]:
    """Build the operations that add partitions to the topic, and its new image."""
    operations, partitions = await new_partitions(topic.name, added, context, slices)
    return [decisions.growth_operation(topic, added), *operations], topic.with_partitions(partitions)


async def removal(topic: TopicImage, slices: Slices, *, has_config: bool) -> list[Operation]:
    """Build the operations that remove all nodes of the topic, the deletion mark last."""
    removals = decisions.partition_removals(topic.name, topic.partitions)
    operations = [each async for each in in_slices(removals, slices)]
    operations.extend(decisions.topic_removals(topic.name, has_config=has_config))
    return operations


async def new_partitions(
    topic: str, assignment: Mapping[int, tuple[int, ...]], context: ControllerContext, slices: Slices
) -> tuple[list[Operation], tuple[PartitionImage, ...]]:
    """Build the operations that create these partitions with their first leaders, and the partitions."""
    operations: list[Operation] = []
    partitions: list[PartitionImage] = []
    async for nodes, partition in in_slices(decisions.new_partitions(topic, assignment, context), slices):
        operations.extend(nodes)
        partitions.append(partition)
    return operations, tuple(partitions)


logger = logging.getLogger("kafka.controller.TopicDeletionManager")


class TopicDeletions:
    """Owns the unfinished deletions in one term."""

    def __init__(self, term: ControllerTerm) -> None:
        self._term = term
        self._awaited: dict[str, dict[tuple[int, int], None]] = {}
        """By topic, the replicas, as (broker, partition), whose deletion is not confirmed yet."""
        self._finished: dict[str, asyncio.Event] = {}

    async def delete(self, names: Iterable[str]) -> None:
        """Delete those of these topics that exist."""
        context = self._term.context
        existing = [name for name in names if name in context.topics and name not in context.topics_to_be_deleted]
        marked = dict.fromkeys(await self._term.zk_client.topic_deletions())
        await self._term.transact([decisions.deletion_mark(name) for name in existing if name not in marked])
        await self._begin(existing)

    async def delete_marked(self, *, is_enabled: bool, watch: Watch | None = None) -> None:
        """Delete the topics marked in the tree by other tools or before a crash. A mark is removed if its topic does
        not exist, or if `is_enabled` is false. `watch` fires on new marks.
        """
        term, context = self._term, self._term.context
        marked = [each for each in await term.zk_client.topic_deletions(watch) if each not in self._awaited]
        known = [name for name in marked if name in context.topics]
        if is_enabled:
            await self._begin(known)
        elif known:
            logger.info("Removing %s since delete topic is disabled", known)
            await term.transact([Delete(znodes.delete_topic_path(name)) for name in known])
        for name in marked:
            if name not in context.topics and name not in context.damaged_topics:
                leftovers = (znodes.config_path("topics", name), znodes.delete_topic_path(name))
                await term.transact([Delete(path) for path in leftovers if await term.zk_client.exists(path)])

    async def _begin(self, names: Sequence[str]) -> None:
        if not names:
            return
        term, context = self._term, self._term.context
        context.topics_to_be_deleted.update(dict.fromkeys(names))
        for name in names:
            self._finished[name] = asyncio.Event()
            self._awaited[name] = {
                (broker_id, partition.partition): None
                for partition in context.topics[name].partitions
                for broker_id in partition.replicas
                if term.is_shared or broker_id in context.live_brokers
            }
        await term.requests.update_metadata(deleted=names)
        await self._stop(names, list(context.live_brokers))

    async def _stop(self, names: Iterable[str], broker_ids: Sequence[int]) -> None:
        """Make these brokers delete their replicas of these topics. A replica that cannot be deleted is left as a
        stray.
        """
        replicas: dict[int, list[StoppedReplica]] = {}
        for name in names:
            for broker_id, partition in self._awaited[name]:
                if broker_id in broker_ids:
                    stopped = StoppedReplica(
                        TopicPartition(name, partition), EPOCH_DURING_DELETE, delete_partition=True
                    )
                    replicas.setdefault(broker_id, []).append(stopped)
                    self._term.context.deleted_replicas[broker_id, stopped.topic_partition] = None
        await self._term.requests.stop_replicas(replicas)
        own_id = self._term.context.controller_id
        self._note_deleted(own_id, [each.topic_partition for each in replicas.get(own_id, ())])
        await self.remove_nodes()

    def _note_deleted(self, broker_id: int, replicas: Iterable[TopicPartition]) -> None:
        for replica in replicas:
            awaited = self._awaited.get(replica.topic, {})
            awaited.pop((broker_id, replica.partition), None)

    async def replicas_stopped(self, broker_id: int, answer: Answer) -> None:
        """Record the replicas that another broker has deleted."""
        self._note_deleted(broker_id, answer)
        await self.remove_nodes()

    def forget_commands(self, broker_ids: Collection[int]) -> None:
        """Forget unanswered commands to these brokers: they may never have arrived."""
        for name, replicas in self._awaited.items():
            for broker_id, partition in replicas:
                if broker_id in broker_ids:
                    self._term.context.deleted_replicas.pop((broker_id, TopicPartition(name, partition)), None)

    async def on_broker_startup(self, broker_ids: Sequence[int]) -> None:
        """Make new brokers delete their replicas of topics that are being deleted."""
        if self._awaited:
            await self._stop(list(self._awaited), broker_ids)

    def on_broker_failure(self) -> None:
        """Wake the callers that wait only for brokers that have gone."""
        live_brokers = self._term.context.live_brokers
        for name, replicas in self._awaited.items():
            if not any(broker_id in live_brokers for broker_id, _ in replicas):
                self._finished[name].set()

    async def remove_nodes(self) -> None:
        """Remove the nodes of topics without replicas. If the disk is full, they stay until the next change."""
        term, context = self._term, self._term.context
        topics = [context.topics[name] for name in self._without_replicas()]
        for share in shares(topics, lambda topic: len(topic.partitions)):
            operations: list[Operation] = []
            slices = Slices(term.clock)
            await slices.pause()  # the last broker's answer was processed in one go
            for topic in share:
                has_config = await term.zk_client.exists(znodes.config_path("topics", topic.name))
                operations.extend(await removal(topic, slices, has_config=has_config))
            await slices.pause()  # the transaction is built in one go
            try:
                await term.transact(operations)
            except ApiError as error:
                logger.warning("Deleted topics stay in the tree until the next change: %s", error)
                break
            for topic in share:
                context.remove_topic(topic.name)
                del self._awaited[topic.name]
                self._finished.pop(topic.name).set()
        self.on_broker_failure()

    def _without_replicas(self) -> list[str]:
        return [name for name, replicas in self._awaited.items() if not replicas]

    async def retry_deletions(self) -> None:
        """Finish deletions that failed on a full disk. No other change may run before this. Raises ApiError."""
        if not self._without_replicas():
            return
        await self.remove_nodes()
        if self._without_replicas():
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "The disk is full; topics cannot be changed")

    async def wait_for(self, names: Iterable[str], patience_s: float) -> None:
        """Return when the live brokers have deleted these topics, or after `patience_s`."""
        waiting = [asyncio.create_task(self._finished[name].wait()) for name in names if name in self._finished]
        if waiting:
            await asyncio.wait(waiting, timeout=patience_s)
        for each in waiting:
            each.cancel()

    def close(self) -> None:
        """Wake all waiting callers."""
        for finished in self._finished.values():
            finished.set()
