"""The parts of a controller during one term, and the failover that starts it (Kafka's `onControllerFailover`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from broker.controller.broker_changes import BrokerChanges
from broker.controller.broker_requests import accepted
from broker.controller.controller_term import ControllerSettings, ControllerTerm, PartitionStateMachine
from broker.controller.topic_changes import TopicChanges, TopicDeletions, TopicRules
from cluster import znodes
from cluster.controller.commands import Answer, LeaderAndIsr, StopReplica
from cluster.controller.start_up import FoundReplica, ReadTopic, adopt, adopted_config, keep_leader_epochs, take_over
from cluster.metadata_image import BrokerImage, PartitionImage
from protocol.config_resources import ConfigResourceType
from protocol.errors import ErrorCode
from protocol.topic_partition import TopicPartition
from protocol.uuids import Uuid
from zookeeper.coordination import Create, Operation

if TYPE_CHECKING:
    from broker.controller.controller_term import LeaderElections
    from broker.controller.reassignments import Reassignments
    from broker.controller.tree_changes import Begin, TreeChanges
    from cluster.replication.isr import IsrChange

logger = logging.getLogger("kafka.controller.KafkaController")

FindReplicas = Callable[[], Sequence[FoundReplica]]


class ActiveController:
    """The parts of a controller; they share one `ControllerTerm`, which lasts one term."""

    def __init__(self, term: ControllerTerm, rules: TopicRules, begin: Begin) -> None:
        """`begin` queues a reaction to a change in the tree."""
        self._term = term
        self._rules = rules
        self.state_machine = PartitionStateMachine(term)
        self.topics = TopicChanges(term, self.state_machine, rules)
        self.deletions = TopicDeletions(term)
        self.brokers = BrokerChanges(term, self.state_machine, self.deletions)
        self._reassignments: Reassignments | None = None
        self._tree: TreeChanges | None = None
        if term.is_shared:
            from broker.controller.tree_changes import TreeChanges

            self._tree = TreeChanges(
                term,
                self.state_machine,
                self.deletions,
                lambda: self.reassignments,
                lambda: self.elections,
                begin,
                rules.random.uuid,
            )

    @property
    def transaction_count(self) -> int:
        """Number of transactions this controller has begun."""
        return self._term.transaction_count

    async def on_controller_failover(
        self, settings: ControllerSettings, find_replicas: FindReplicas | None, *, unclean: bool
    ) -> None:
        """Elect leaders, then send every broker its roles and metadata.

        `find_replicas` returns the logs on this broker's disks; a new tree adopts them, and is regarded as new until it
        has. Pass None for a tree that brokers share. `unclean` means that some log was not closed cleanly: recovery may
        have truncated it, so every leader gets a new epoch.
        """
        term, context = self._term, self._term.context
        for broker in context.live_brokers.values():
            term.requests.add_broker(broker)
        await self._load(unclean=unclean)
        if find_replicas is not None and not await term.zk_client.exists(znodes.LOGS_ADOPTED):
            await self._adopt([each for each in find_replicas() if each.topic not in context.damaged_topics], settings)
        if self._tree is None or settings.delete_topics:
            marked = await term.zk_client.topic_deletions()
            context.topics_to_be_deleted.update(dict.fromkeys(each for each in marked if each in context.topics))
        if len(context.live_brokers) > 1:
            # A broker must know the other live brokers before it gets roles that refer to them.
            await term.requests.update_metadata()
        # Includes topics marked for deletion: a broker would treat logs missing from a full command as strays.
        offline = await term.requests.leader_and_isr(context.replicas(), is_full=True)
        await self.state_machine.take_offline(offline)
        if context.live_brokers[context.controller_id].truncated_replicas:
            await self.state_machine.on_replicas_online(())
        await term.requests.update_metadata(context.replicas(), is_full=True)
        if self._tree is None:
            await self.deletions.delete_marked(is_enabled=True)
        if any(
            each.adding_replicas or each.removing_replicas for topic in context.replicas() for each in topic.partitions
        ):
            await self.reassignments.resume()
        if self._tree is not None:
            await self._tree.start(deletes_topics=settings.delete_topics)

    @property
    def reassignments(self) -> Reassignments:
        """The partitions being reassigned. Created on first use, to keep the start of a single broker fast."""
        if self._reassignments is None:
            from broker.controller.reassignments import Reassignments

            self._reassignments = Reassignments(self._term, self.state_machine)
        return self._reassignments

    async def set_live_brokers(self, found: Mapping[int, BrokerImage]) -> None:
        """See `BrokerChanges.set_live_brokers`. Then continue reassignments, which may have waited for a returning
        broker.
        """
        await self.brokers.set_live_brokers(found)
        if self._reassignments is not None:
            await self._reassignments.complete_ready()

    @property
    def can_complete_reassignments(self) -> bool:
        """Whether some reassignment has all its target replicas in sync."""
        return self._reassignments is not None and self._reassignments.is_ready()

    async def _load(self, *, unclean: bool) -> None:
        """Read the topics from the tree, complete half-created ones and elect leaders."""
        term, context = self._term, self._term.context
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        operations: list[Operation] = []
        changed: list[ReadTopic] = []
        if self._tree is not None:
            topics, context.damaged_topics = await self._tree.read_topics()
        else:
            names = await term.zk_client.topic_names()
            topics, context.damaged_topics = await term.zk_client.topics.read_all(names)
        read_ms = round((loop.time() - began_s) * 1000)
        for found in topics:
            read = keep_leader_epochs(found, self._rules.known_topic(found.name))
            changes, topic = take_over(read, context, unclean=unclean or read is not found)
            if changes:
                operations.extend(changes)
                changed.append(read)
            context.put_topics([topic])
        count = sum(len(topic.partitions) for topic in context.replicas())
        logger.info("Read %d topics with %d partitions in %d ms", len(topics), count, read_ms)
        await term.transact(operations)
        for read in changed:
            context.count_unclean_elections(read.image(), context.topics[read.name].partitions)

    async def _adopt(self, found: Sequence[FoundReplica], settings: ControllerSettings) -> None:
        configs = {name: topic.config for name, topic in settings.internal_topics.items()}
        context, new_id = self._term.context, self._rules.random.uuid
        operations, adopted = adopt(found, context.controller_id, context, configs, new_id)
        # Create the marker in the same transaction (an unshared tree accepts one of any size). A crash in between would
        # leave a tree that treats these logs as strays.
        await self._term.transact([*operations, Create(znodes.LOGS_ADOPTED)])
        if not adopted:
            return
        logger.warning(
            "Adopted %d topics found in the log directories. Their configurations are not kept there: they got "
            "retention.ms=-1 and retention.bytes=-1, so that nothing is deleted; set cleanup.policy and the limits "
            "they are to have",
            len(adopted),
        )
        context.put_topics(adopted)
        self._rules.configs_changed(
            {(ConfigResourceType.TOPIC, topic.name): adopted_config(topic.name, configs) for topic in adopted}
        )

    @property
    def elections(self) -> LeaderElections:
        """Elections on request."""
        # Imported late: a single broker never elects on request.
        from broker.controller.controller_term import LeaderElections

        return LeaderElections(self._term, self.state_machine)

    async def alter_partition(
        self, broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]
    ) -> Mapping[TopicPartition, PartitionImage | ErrorCode]:
        """See `IsrChanges.alter`."""
        # Imported late: a single broker, which should start quickly, gets no such requests.
        from broker.controller.controller_term import IsrChanges

        return await IsrChanges(self._term).alter(broker_id, broker_epoch, changes)

    def topic_names(self, topic_ids: Collection[Uuid]) -> dict[Uuid, str]:
        """Map those of these ids that exist to their topics' names."""
        topics = self._term.context.topics
        return {each.topic_id: name for name, each in topics.items() if each.topic_id in topic_ids}

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> znodes.ProducerIdBlock:
        """Reserve a block of producer ids that nobody else has or will get. Raises ApiError."""
        self._term.check_broker(broker_id, broker_epoch)
        return await self._term.zk_client.allocate_producer_ids(broker_id)

    async def answered(self, broker_id: int, command: LeaderAndIsr | StopReplica, answer: Answer) -> None:
        """React to another broker's answer. Ignored if the broker has registered again since the command was sent."""
        broker = self._term.context.live_brokers.get(broker_id)
        if broker is None or broker.epoch != command.broker_epoch:
            return
        if isinstance(command, LeaderAndIsr):
            lost = [each for each, error_code in answer.items() if error_code is ErrorCode.KAFKA_STORAGE_ERROR]
            if lost:
                await self.state_machine.on_replicas_offline({broker_id: lost})
            back = self._term.context.mark_replicas_online(broker_id, accepted(answer))
            if back:
                await self.state_machine.on_replicas_online(back)
        elif any(each.delete_partition for each in command.partitions):
            await self.deletions.replicas_stopped(broker_id, answer)

    async def close(self) -> None:
        """Send no more commands."""
        self.deletions.close()
        await self._term.requests.close()
