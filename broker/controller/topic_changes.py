"""Creates and grows topics."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol

from broker.controller import topic_operations
from broker.controller.controller_settings import ControllerSettings
from broker.controller.office import Office, TreeDiffersError
from broker.controller.roles import Roles
from broker.environment.contract import Random
from broker.network.slices import Slices, in_slices
from broker.zookeeper.pipelined_reads import each_of
from cluster.controller import topics as decisions
from cluster.controller.commands import TopicStates
from cluster.controller.context import NEVER_UNCLEAN, UncleanRule, flat_name
from cluster.controller.topics import NewTopic, TopicDefaults, TopicPlan
from cluster.controller.transactions import shares
from cluster.metadata_image import ConfigResource, TopicImage
from cluster.znodes import config_path
from cluster.zookeeper.coordination import Operation
from protocol.config_resources import ConfigResourceType
from protocol.errors import ApiError, ErrorCode, detached
from protocol.replica_assignment import refuse_mixed_racks
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
            changes, topic = await topic_operations.first_leaders(plan, topic_id, self._office.context, slices)
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
        operations, grown = await topic_operations.expansion(topic, added, context, slices)
        await slices.pause()  # The transaction is put together in one go.
        await self._office.transact(operations)
        context.put_topics([grown])
        new = grown.partitions[len(topic.partitions) :]
        await self._roles.announce([TopicStates(name, topic.topic_id, new, is_new=True)])
