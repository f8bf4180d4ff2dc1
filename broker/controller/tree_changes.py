"""Reacts to changes that others write into the tree: topics created, grown and removed, and the requests of older tools
(Kafka's `TopicChange`, `PartitionModifications`, `TopicDeletion`, `ZkPartitionReassignment` and
`ReplicaLeaderElection`).

Every reaction reads the current state, so it may run late or more than once. The controller's own changes trigger
reactions too, which find nothing to do.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from broker.controller.controller_term import ControllerTerm, PartitionStateMachine, TreeDiffersError
from broker.controller.topic_changes import TopicDeletions, new_partitions
from broker.zookeeper.topic_reader import UNREADABLE, each_of
from cluster import znodes
from cluster.controller.commands import TopicStates
from cluster.controller.context import without_truncated_replicas
from cluster.controller.elections import DAMAGED_STATE
from cluster.controller.reassignment import assignment_operation
from cluster.controller.start_up import ReadTopic, elect_found, take_over
from cluster.metadata_image import PartitionImage, TopicImage
from environment.slices import Slices
from protocol.errors import ApiError, ErrorCode
from protocol.messages.reassignments import ElectionType
from protocol.uuids import ZERO_UUID, Uuid
from zookeeper.coordination import Delete, EventType, Watch, WatchEvent

if TYPE_CHECKING:
    from broker.controller.controller_term import LeaderElections
    from broker.controller.reassignments import Reassignments

logger = logging.getLogger("kafka.controller.KafkaController")

Begin = Callable[[Callable[[], Awaitable[None]]], None]
"""Queues a reaction behind earlier changes; dropped when the term ends."""


class TreeChanges:
    """The watches of one term, and the reactions to them."""

    def __init__(
        self,
        term: ControllerTerm,
        state_machine: PartitionStateMachine,
        deletions: TopicDeletions,
        reassignments: Callable[[], Reassignments],
        elections: Callable[[], LeaderElections],
        begin: Begin,
        new_id: Callable[[], Uuid],
    ) -> None:
        """`new_id` generates ids for topics created without one."""
        self._term = term
        self._state_machine = state_machine
        self._deletions = deletions
        self._reassignments = reassignments
        self._elections = elections
        self._begin = begin
        self._new_id = new_id
        self._deletes_topics = True
        self._has_requested_moves = False
        self._watched: dict[str, None] = {}
        """The topics whose nodes are watched."""

    async def read_topics(self) -> tuple[list[ReadTopic], dict[str, None]]:
        """Read and watch all topics. Also returns the names of the unreadable ones."""
        names = await self._term.zk_client.topic_names()
        self._watched = dict.fromkeys(names)
        return await self._term.zk_client.topics.read_all(names, self._node_of_topic_changed)

    async def start(self, *, deletes_topics: bool) -> None:
        """Process the current content of the tree, then changes as they come. `deletes_topics` is
        `delete.topic.enable`.
        """
        self._deletes_topics = deletes_topics
        await self._topics_changed()
        await self._deletions_changed()
        await self._log_dirs_changed()
        await self._reassignments_changed()
        await self._elections_changed()

    def _watch(self, reaction: Callable[[], Awaitable[None]]) -> Watch:
        def fire(event: WatchEvent) -> None:
            if event.type is not EventType.SESSION_EXPIRED:
                self._begin(reaction)

        return fire

    def _node_of_topic_changed(self, event: WatchEvent) -> None:
        """Handle a change of a topic's node, or of an unreadable partition state."""
        name, _, state = event.path.removeprefix(znodes.topic_path("")).partition("/")
        self._watch(partial(self._mend_partitions if state else self._topic_changed, name))(event)

    # -- topics --------------------------------------------------------------------------------------------------------

    async def _topics_changed(self) -> None:
        context, zk_client = self._term.context, self._term.zk_client
        names = dict.fromkeys(await zk_client.topic_names(self._watch(self._topics_changed)))
        for name in list(context.topics):
            if name not in names and name not in context.topics_to_be_deleted:
                logger.info("The nodes of topic %s are gone: it is forgotten, its logs stay", name)
                context.remove_topic(name)
        context.damaged_topics = {name: None for name in context.damaged_topics if name in names}
        unwatched = [name for name in names if name not in self._watched]
        self._watched = names
        for name in unwatched:
            if name not in context.topics:
                await self._add(name)
        created_here = [name for name in unwatched if name in context.topics]
        found = await each_of(created_here, self._assignment)
        for name, assignment in zip(created_here, found, strict=True):
            await self._grow(name, assignment)
        if self._has_requested_moves:
            await self._reassignments().complete_ready()

    async def _add(self, name: str) -> None:
        """Elect leaders for a topic that is new, or readable again, and give it an id if it lacks one."""
        term, context = self._term, self._term.context
        read = await term.zk_client.topics.read(name, self._node_of_topic_changed)
        if read is None:
            self._watched.pop(name, None)
            return
        if name in context.topics:
            return
        if read is UNREADABLE:
            context.damaged_topics[name] = None
            return
        is_new = name not in context.damaged_topics
        operations, topic = take_over(read, context, unclean=False)
        if topic.topic_id == ZERO_UUID:
            topic = TopicImage(name, self._new_id(), topic.partitions)
            operations.insert(0, assignment_operation(topic))
        logger.info("%s topic %s with %d partitions", "New" if is_new else "Mended", name, len(topic.partitions))
        await term.transact(operations)
        context.put_topics([topic])
        await self._send_leader_and_isr(topic, topic.partitions, is_new=is_new)
        if not is_new:  # requests for it were ignored while it could not be read
            await self._deletions_changed()
            await self._reassignments().resume()

    async def _topic_changed(self, name: str) -> None:
        if name in self._term.context.topics:
            await self._grow(name, await self._assignment(name))
        elif name in self._watched:
            await self._add(name)

    async def _assignment(self, name: str) -> znodes.TopicAssignment | None:
        """Read and watch a topic's node. Returns None if it is missing or unreadable."""
        found = await self._term.zk_client.topics.assignment(name, self._node_of_topic_changed)
        if found is None:
            self._watched.pop(name, None)
        return None if found is UNREADABLE else found

    async def _mend_partitions(self, name: str) -> None:
        """Elect leaders of partitions whose states are readable again."""
        term, context = self._term, self._term.context
        known = context.topics.get(name)
        if known is None or name in context.topics_to_be_deleted:
            return
        read = await term.zk_client.topics.read(name, self._node_of_topic_changed)
        if read is None or read is UNREADABLE:
            return
        damaged = [each.partition for each in known.partitions if each.partition_epoch == DAMAGED_STATE]
        states = {number: read.states[number] for number in damaged if number in read.states}
        if not states:
            return
        found = without_truncated_replicas(read.image(), context.live_brokers.values())
        image = known.with_partitions([found.partitions[number] for number in states])
        operations, topic = elect_found(read.replace(states=states), image, context, unclean=False)
        logger.info("The states of the partitions %s of topic %s can be read again", list(states), name)
        await term.transact(operations)
        context.put_topics([topic])
        await self._send_leader_and_isr(topic, tuple(topic.partitions[number] for number in states), is_new=False)

    async def _grow(self, name: str, assignment: znodes.TopicAssignment | None) -> None:
        """Add partitions that appeared in the node. All other changes of it are the controller's own."""
        term, context = self._term, self._term.context
        topic = context.topics.get(name)
        if assignment is None or topic is None:
            return
        count = len(topic.partitions)
        added = {number: replicas for number, replicas in assignment.partitions.items() if number >= count}
        if not added:
            return
        if name in context.topics_to_be_deleted:
            logger.warning("Skipping adding partitions %s for topic %s since it is being deleted", list(added), name)
            await term.transact([assignment_operation(topic)])
        else:
            logger.info("New partitions of topic %s: %s", name, added)
            operations, partitions = await new_partitions(name, added, context, Slices(term.clock))
            await term.transact(operations)
            context.put_topics([topic.with_partitions(partitions)])
            await self._send_leader_and_isr(topic, partitions, is_new=True)

    async def _send_leader_and_isr(
        self, topic: TopicImage, partitions: tuple[PartitionImage, ...], *, is_new: bool
    ) -> None:
        led = tuple(each for each in partitions if each.partition_epoch >= 0)
        if led:
            await self._state_machine.send_leader_and_isr([TopicStates(topic.name, topic.topic_id, led, is_new=is_new)])

    async def _deletions_changed(self) -> None:
        await self._deletions.delete_marked(is_enabled=self._deletes_topics, watch=self._watch(self._deletions_changed))

    # -- requests through the tree -------------------------------------------------------------------------------------

    async def _reassignments_changed(self) -> None:
        requested = await self._term.zk_client.requested_reassignments(self._watch(self._reassignments_changed))
        self._has_requested_moves = bool(requested)
        if requested:
            await self._reassignments().start_requested(requested)

    async def _elections_changed(self) -> None:
        requested = await self._term.zk_client.requested_elections(self._watch(self._elections_changed))
        if requested is None:
            return
        for name, outcome in (await self._elections().elect(requested, ElectionType.PREFERRED)).items():
            if isinstance(outcome, ApiError) and outcome.error_code is not ErrorCode.ELECTION_NOT_NEEDED:
                logger.warning("Partition %s failed to complete preferred replica leader election: %s", name, outcome)
        try:
            await self._term.transact([Delete(znodes.PREFERRED_ELECTION)])
        except TreeDiffersError:
            logger.info("Somebody else has deleted %s", znodes.PREFERRED_ELECTION)

    async def _log_dirs_changed(self) -> None:
        events = await self._term.zk_client.log_dir_events(self._watch(self._log_dirs_changed))
        await self._state_machine.log_dir_events(events)
