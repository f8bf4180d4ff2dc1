"""Carries out reassignments of partitions (KIP-455; Kafka's `KafkaController.onPartitionReassignment`)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from broker.controller.broker_requests import OfflineReplicas
from broker.controller.controller_term import ControllerTerm, PartitionStateMachine, TreeDiffersError
from cluster.controller import reassignment as decisions
from cluster.controller.commands import StoppedReplica, TopicStates
from cluster.controller.elections import NO_STATE, after, next_state, write
from cluster.metadata_image import PartitionImage, TopicImage
from cluster.znodes import REASSIGN_PARTITIONS, encode_reassignments
from protocol.errors import ApiError, detached
from protocol.topic_partition import TopicPartition
from zookeeper.coordination import Delete, Operation, SetData

logger = logging.getLogger("kafka.controller.KafkaController")

Target = tuple[int, ...] | None
"""The replicas that a partition should end up with, or None to cancel its reassignment."""


class Reassignments:
    """Reassigns partitions in one term. The context and the tree record all unfinished reassignments."""

    def __init__(self, term: ControllerTerm, state_machine: PartitionStateMachine) -> None:
        self._term = term
        self._state_machine = state_machine
        self._moving: dict[TopicPartition, None] = {}
        self._requested: dict[TopicPartition, tuple[int, ...]] = {}
        """The reassignments that the node /admin/reassign_partitions requests."""

    def in_progress(self) -> dict[TopicPartition, PartitionImage]:
        """The partitions being reassigned, without those of topics being deleted."""
        context = self._term.context
        moving = {}
        for name in list(self._moving):
            partition = context.partition(name)
            if (
                partition is None
                or not decisions.is_being_reassigned(partition)
                or name.topic in context.topics_to_be_deleted
            ):
                del self._moving[name]
            else:
                moving[name] = partition
        return moving

    async def alter(
        self, targets: Mapping[TopicPartition, Target], *, waits_for_brokers: bool = False
    ) -> dict[TopicPartition, ApiError | None]:
        """Start reassignments, or change their targets; maps each partition to its error, or None. See
        `decisions.plan`.
        """
        context = self._term.context
        outcome: dict[TopicPartition, ApiError | None] = {}
        planned: dict[str, dict[int, PartitionImage]] = {}
        for name, target in targets.items():
            try:
                planned.setdefault(name.topic, {})[name.partition] = decisions.plan(
                    name, target, context, waits_for_brokers=waits_for_brokers
                )
                outcome[name] = None
            except ApiError as error:
                outcome[name] = detached(error)
        for topic, wanted in planned.items():
            if not wanted:
                continue
            try:
                await self._begin(context.topics[topic], wanted)
            except ApiError as error:  # a full disk
                outcome.update((TopicPartition(topic, number), detached(error)) for number in wanted)
        await self.complete_ready()
        return outcome

    async def _begin(self, topic: TopicImage, wanted: Mapping[int, PartitionImage]) -> None:
        term, context = self._term, self._term.context
        operations, partitions = decisions.begun(topic, wanted, context)
        await term.transact(operations)
        for each in partitions:
            logger.info("Reassigning %s-%d to %s", topic.name, each.partition, decisions.target_replicas(each))
            self._moving[TopicPartition(topic.name, each.partition)] = None
        states = context.put_partitions({topic.name: partitions})
        await self._send_role_changes(states, {each.partition: each for each in topic.partitions})
        if any(each.partition_epoch == NO_STATE for each in partitions):
            # Until now no live broker could have led them.
            await self._state_machine.send_leader_and_isr(await self._state_machine.trigger_online_state_change())

    async def _send_role_changes(self, states: Iterable[TopicStates], before: Mapping[int, PartitionImage]) -> None:
        """Send brokers their new, remaining and deleted replicas. An offline broker, which misses a deletion, sets the
        replica aside as a stray when it comes back.
        """
        changed: dict[int, list[TopicStates]] = {}
        stopped: dict[int, list[StoppedReplica]] = {}
        for state in states:
            for each in state.partitions:
                known = before[each.partition].replicas
                if each.partition_epoch >= 0:
                    for broker_id in each.replicas:
                        replica = state.replace(partitions=(each,), is_new=broker_id not in known)
                        changed.setdefault(broker_id, []).append(replica)
                name = TopicPartition(state.topic, each.partition)
                for broker_id in known:
                    if broker_id not in each.replicas:
                        stop = StoppedReplica(name, each.leader_epoch, delete_partition=True)
                        stopped.setdefault(broker_id, []).append(stop)
        requests = self._term.requests
        offline: OfflineReplicas = {}
        for broker_id, replicas in changed.items():
            offline |= await requests.leader_and_isr(replicas, only=[broker_id])
        if stopped:
            await requests.stop_replicas(stopped)
        await self._state_machine.send_update_metadata(states, await self._state_machine.take_offline(offline))

    # -- reassignments requested through the tree ----------------------------------------------------------------------

    async def start_requested(self, requested: Mapping[TopicPartition, tuple[int, ...]]) -> None:
        """Start the new reassignments that the node requests. The node lists the unfinished ones, so that its writer
        can see when they are done (Kafka's `processZkPartitionReassignment`).
        """
        moving = self.in_progress()
        new = {
            name: target
            for name, target in requested.items()
            if self._requested.get(name) != target
            and not (name in moving and decisions.target_replicas(moving[name]) == target)
        }
        self._requested = dict(requested)
        for name, refusal in (await self.alter(new, waits_for_brokers=True)).items():
            if refusal is not None:
                logger.warning("%s is not reassigned as %s asks: %s", name, REASSIGN_PARTITIONS, refusal)

    async def _remove_from_node(self) -> None:
        """Leave only unfinished reassignments in the node. One that got another target since then is removed."""
        if not self._requested:
            return
        moving = self.in_progress()
        rest = {
            name: target
            for name, target in self._requested.items()
            if name in moving and decisions.target_replicas(moving[name]) == target
        }
        if rest != self._requested:
            self._requested = rest
            data = encode_reassignments(rest)
            try:
                await self._term.transact([SetData(REASSIGN_PARTITIONS, data) if rest else Delete(REASSIGN_PARTITIONS)])
            except TreeDiffersError:
                logger.info("Somebody else has deleted %s", REASSIGN_PARTITIONS)

    # -- progress ------------------------------------------------------------------------------------------------------

    async def resume(self) -> None:
        """Continue the reassignments recorded in the tree. The last controller may have written an assignment without
        sending it; a new leader epoch makes all brokers accept it.
        """
        term, context = self._term, self._term.context
        self._moving = {
            TopicPartition(topic.name, each.partition): None
            for topic in context.topics.values()
            for each in topic.partitions
            if decisions.is_being_reassigned(each)
        }
        operations: list[Operation] = []
        changed: dict[str, list[PartitionImage]] = {}
        for name, partition in self.in_progress().items():
            logger.info("Going on with the reassignment of %s to %s", name, decisions.target_replicas(partition))
            if partition.partition_epoch >= 0:
                state = next_state(name.topic, partition, partition.leader, partition.isr, context)
                operations.append(write(name.topic, partition, state))
                changed.setdefault(name.topic, []).append(after(partition, state))
        if changed:
            await term.transact(operations)
            await self._state_machine.send_leader_and_isr(context.put_partitions(changed))
        await self.complete_ready()

    def is_ready(self) -> bool:
        """Whether `complete_ready` could complete something."""
        context = self._term.context
        moving = self.in_progress().items()
        return any(decisions.completion(name.topic, each, context) is not None for name, each in moving)

    async def complete_ready(self) -> None:
        """Complete the reassignments whose new replicas are all in sync. Raises ApiError when the disk is full."""
        term, context = self._term, self._term.context
        ready: dict[str, list[tuple[PartitionImage, Operation]]] = {}
        before: dict[str, dict[int, PartitionImage]] = {}
        for name, partition in self.in_progress().items():
            state = decisions.completion(name.topic, partition, context)
            if state is not None:
                done = decisions.completed(partition, state), write(name.topic, partition, state)
                ready.setdefault(name.topic, []).append(done)
                before.setdefault(name.topic, {})[name.partition] = partition
        for topic, completions in ready.items():
            await term.transact([operation for _, operation in completions])
            states = context.put_partitions({topic: [partition for partition, _ in completions]})
            await self._send_role_changes(states, before[topic])
            # Written last: until then, a new controller finds the removed replicas and deletes them again.
            await term.transact([decisions.assignment_operation(context.topics[topic])])
            for partition, _ in completions:
                logger.info("Reassignment of %s-%d to %s is completed", topic, partition.partition, partition.replicas)
        await self._remove_from_node()
