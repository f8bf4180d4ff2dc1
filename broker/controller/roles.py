"""Sends the brokers their roles, and reacts to replicas that they cannot use."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from broker.controller.broker_requests import OfflineReplicas
from broker.controller.office import Office
from broker.network.slices import Slices, in_slices
from cluster.controller.commands import TopicStates
from cluster.controller.elections import NO_STATE, offline_operations, settle
from cluster.controller.topics import first_states
from cluster.metadata_image import PartitionImage
from cluster.zookeeper.coordination import Delete, Operation
from protocol.errors import ApiError

logger = logging.getLogger("kafka.controller.KafkaController")


class UncleanElections:
    """The broker's UncleanRule: what configurations say, and how many such elections there were (trap M12)."""

    def __init__(self, is_enabled: Callable[[str], bool]) -> None:
        """`is_enabled` says what `unclean.leader.election.enable` is for a topic."""
        self._is_enabled = is_enabled
        self.count = 0
        """How many there were since the start (Kafka's metric `UncleanLeaderElectionsPerSec`)."""

    def allows(self, topic: str) -> bool:
        """See UncleanRule."""
        return self._is_enabled(topic)

    def elected(self, topic: str, partition: PartitionImage, leader: int) -> None:
        """See UncleanRule."""
        self.count += 1
        logger.warning(
            "Unclean leader election: broker %d leads partition %s-%d, although it is not in the ISR %s. Records that "
            "only those brokers had are lost",
            leader,
            topic,
            partition.partition,
            list(partition.isr),
        )


class Roles:
    """Elects leaders, and tells brokers and clients of them."""

    def __init__(self, office: Office) -> None:
        self._office = office

    async def announce(self, changed: Iterable[TopicStates]) -> None:
        """Send the brokers their roles in these partitions, then tell clients who leads."""
        changed = tuple(changed)
        moved = await self.take_offline(await self._office.requests.leader_and_isr(changed))
        await self.tell_clients(changed, moved)

    async def tell_clients(self, changed: Iterable[TopicStates], moved: Iterable[str] = ()) -> None:
        """Tell clients of these partitions, and of all partitions of the topics `moved`."""
        context = self._office.context
        moved = dict.fromkeys(moved)
        await Slices(self._office.clock).pause()  # The command is put together in one go.
        states = [*context.now(each for each in changed if each.topic not in moved), *context.states_of(moved)]
        await self._office.requests.update_metadata(states)

    async def settle(self) -> tuple[TopicStates, ...]:
        """Bring leaders and ISRs in line with who is there; gives the partitions that changed, of which nobody has been
        told yet. Topics that are being deleted are left alone.
        """
        context, slices = self._office.context, Slices(self._office.clock)
        operations: list[Operation] = []
        changed: dict[str, list[PartitionImage]] = {}
        # Between two partitions no other change of the controller is made: changes are made one at a time.
        for topic in list(context.topics.values()):
            if topic.name in context.topics_to_be_deleted:
                continue
            missing: list[PartitionImage] = []
            async for partition in in_slices(topic.partitions, slices):
                if partition.partition_epoch == NO_STATE:
                    missing.append(partition)
                elif (settled := settle(topic.name, partition, context)) is not None:
                    operations.append(settled[0])
                    changed.setdefault(topic.name, []).append(settled[1])
            async for writes, begun in in_slices(first_states(topic.name, missing, context), slices):
                operations += writes
                if begun.partition_epoch >= 0:
                    changed.setdefault(topic.name, []).append(begun)
        await self._office.transact(operations)
        return context.put_partitions(changed)

    async def look_for_offline_replicas(self, only: Iterable[int]) -> None:
        """React to brokers that cannot use some of their replicas. A broker names them in its answer to LeaderAndIsr
        (Kafka's `processLogDirEventNotification`), because a list made earlier could be outdated by now.
        """
        office = self._office
        offline = await office.requests.leader_and_isr(office.context.replicas(), only=list(only))
        await self.replicas_came_back(await self.take_offline(offline))

    async def log_dir_events(self, events: Mapping[str, int | None]) -> None:
        """React to what brokers left in the tree, by path: they cannot use some of their replicas."""
        if events:
            await self.look_for_offline_replicas(dict.fromkeys(each for each in events.values() if each is not None))
            await self._office.transact([Delete(path) for path in events])

    async def brokers_lost_replicas(self, offline: OfflineReplicas) -> None:
        """React to replicas that brokers cannot use, as they say."""
        moved = await self.take_offline(offline)
        if moved:
            await self.tell_clients((), moved)

    async def replicas_came_back(self, topics: Iterable[str]) -> None:
        """Elect leaders where replicas can be used that could not before. Clients are told of all of `topics`."""
        states = await self.settle()
        moved = await self.take_offline(await self._office.requests.leader_and_isr(states)) if states else ()
        await self.tell_clients(states, [*topics, *moved])

    async def take_offline(self, offline: OfflineReplicas) -> Collection[str]:
        """Take these replicas offline (Kafka's OfflineReplica), with new leaders. Gives the topics that changed;
        clients have not been told yet.
        """
        office, context = self._office, self._office.context
        moved: dict[str, None] = {}
        while offline:
            states: tuple[TopicStates, ...] = ()
            for broker_id, replicas in offline.items():
                operations, changed = offline_operations(replicas, broker_id, context)
                try:
                    await office.transact(operations)
                except ApiError as error:  # a full disk
                    logger.error("Partitions stay without leaders for now: %s", error)
                    continue
                states += context.put_partitions(changed)
                moved |= dict.fromkeys(changed)
            offline = await office.requests.leader_and_isr(states) if states else {}
        return moved
