"""Reacts to brokers that start and fail (Kafka's `KafkaController.onBrokerStartup`, `onBrokerFailure`), and moves
leadership away from a broker that announces its shutdown.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from broker.controller.controller_term import ControllerTerm, PartitionStateMachine
from broker.controller.topic_changes import TopicDeletions
from cluster.controller.commands import NO_EPOCH, StoppedReplica
from cluster.controller.context import without_truncated_replicas
from cluster.metadata_image import BrokerImage, PartitionImage
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition

logger = logging.getLogger("kafka.controller.KafkaController")


class BrokerChanges:
    """Updates leaders, ISRs and every broker's metadata when brokers start or fail, during one term."""

    def __init__(self, term: ControllerTerm, state_machine: PartitionStateMachine, deletions: TopicDeletions) -> None:
        self._term = term
        self._state_machine = state_machine
        self._deletions = deletions

    async def set_live_brokers(self, found: Mapping[int, BrokerImage]) -> None:
        """React to the current registrations. A new epoch means that the broker restarted: it is handled as a failure
        and a startup. New endpoints need a new channel, so the broker gets its full state again.
        """
        context = self._term.context
        known = dict(context.live_brokers)
        dead = [each for each in known if each not in found or found[each].epoch != known[each].epoch]
        came = [each for each in found if each not in known or not _is_same(found[each], known[each])]
        if not dead and not came:
            context.set_live_brokers(found.values())
            return
        logger.info("Brokers gone: %s, come or bounced: %s, live now: %s", dead, came, list(found))
        changed = {**dict.fromkeys(dead), **dict.fromkeys(came)}
        for broker_id in changed:
            await self._term.requests.remove_broker(broker_id)
        self._deletions.forget_commands(changed)
        topics: dict[str, None] = {}
        if dead:
            topics |= await self._on_broker_failure(dead)
        context.set_live_brokers(found.values())
        if came:
            topics |= await self._on_broker_startup(came)
        await self._state_machine.send_update_metadata((), topics)
        await self._deletions.on_broker_startup(came)

    async def _on_broker_failure(self, dead: Sequence[int]) -> dict[str, None]:
        """Elect new leaders and inform the remaining brokers. Returns the topics that changed."""
        for broker_id in dead:
            self._term.context.remove_live_broker(broker_id)
        self._deletions.on_broker_failure()
        return await self._elect()

    async def _on_broker_startup(self, came: Sequence[int]) -> dict[str, None]:
        """Send new brokers all their roles, and elect leaders for leaderless partitions. Returns the topics that
        changed.
        """
        term, context = self._term, self._term.context
        for broker_id in came:
            broker = context.live_brokers[broker_id]
            term.requests.add_broker(broker)
            known = [context.topics[each] for each in broker.truncated_replicas if each in context.topics]
            context.put_topics([without_truncated_replicas(each, [broker]) for each in known])
        # The other brokers must know the new ones before they get roles that refer to them.
        await term.requests.update_metadata(only=[each for each in context.live_brokers if each not in came])
        deleted = list(context.topics_to_be_deleted)
        await term.requests.update_metadata(context.replicas(), deleted, only=came, is_full=True)
        # Includes topics being deleted: a broker would treat logs missing from a full command as strays.
        offline = await term.requests.leader_and_isr(context.replicas(), only=came, is_full=True)
        moved = dict.fromkeys(await self._state_machine.take_offline(offline))
        return moved | await self._elect()

    async def _elect(self) -> dict[str, None]:
        states = await self._state_machine.trigger_online_state_change()
        moved = await self._state_machine.take_offline(await self._term.requests.leader_and_isr(states))
        return dict.fromkeys(each.topic for each in states) | dict.fromkeys(moved)

    # -- controlled shutdown -------------------------------------------------------------------------------------------

    async def shut_down(self, broker_id: int, broker_epoch: int) -> Sequence[TopicPartition]:
        """Move leadership away from a broker that is shutting down, and remove it from ISRs. Returns the partitions
        that it still leads although they have other replicas. Raises BROKER_NOT_AVAILABLE, STALE_BROKER_EPOCH.
        """
        term, context = self._term, self._term.context
        broker = context.live_brokers.get(broker_id)
        if broker is None:
            raise ApiError(ErrorCode.BROKER_NOT_AVAILABLE, f"Broker id {broker_id} does not exist.")
        if broker_epoch != NO_EPOCH and broker_epoch < broker.epoch:
            raise ApiError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"Received stale broker epoch {broker_epoch} for broker {broker_id}, whose epoch is {broker.epoch}",
            )
        if broker_id not in context.shutting_down:
            logger.info("Shutting down broker %d", broker_id)
            context.shutting_down[broker_id] = None
        followed = [each for each, state in self._shared_replicas(broker_id) if state.leader != broker_id]
        states = await self._state_machine.trigger_online_state_change()
        if states:
            await self._state_machine.send_leader_and_isr(states)
        stopped = [
            StoppedReplica(each, state.leader_epoch, delete_partition=False)
            for each in followed
            if (state := context.partition(each)) is not None
        ]
        if stopped:
            await term.requests.stop_replicas({broker_id: stopped})
        return [each for each, state in self._shared_replicas(broker_id) if state.leader == broker_id]

    def _shared_replicas(self, broker_id: int) -> list[tuple[TopicPartition, PartitionImage]]:
        """The replicas on this broker whose partitions have other replicas too."""
        context = self._term.context
        return [
            (TopicPartition(topic.name, each.partition), each)
            for topic in context.topics.values()
            if topic.name not in context.topics_to_be_deleted
            for each in topic.partitions
            if broker_id in each.replicas and len(each.replicas) > 1
        ]


def _is_same(found: BrokerImage, known: BrokerImage) -> bool:
    """Compare registrations, ignoring `truncated_replicas`: the answers to commands are more recent."""
    return found == known.replace(truncated_replicas=found.truncated_replicas)
