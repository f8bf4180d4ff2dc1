"""The controller's ways to the brokers (Kafka classes `ControllerChannelManager`, `ControllerBrokerRequestBatch`)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Protocol

from broker.metadata.metadata_cache import MetadataCache
from broker.replication.hosted_partitions import HostedPartitions
from cluster.controller.commands import (
    EPOCH_DURING_DELETE,
    Answer,
    LeaderAndIsr,
    StoppedReplica,
    StopReplica,
    TopicStates,
    UpdateMetadata,
)
from cluster.controller.context import ControllerContext
from cluster.metadata_image import TopicImage
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition

logger = logging.getLogger("state.change.logger")

OfflineReplicas = dict[int, list[TopicPartition]]
"""The replicas that brokers cannot use, by broker."""


class BrokerChannel(Protocol):
    """Carries commands to one broker, in order. Each raises ApiError when the broker refuses the command as a whole."""

    async def leader_and_isr(self, command: LeaderAndIsr) -> Answer: ...

    async def stop_replica(self, command: StopReplica) -> Answer: ...

    async def update_metadata(self, command: UpdateMetadata) -> None: ...


class LocalChannel:
    """To the broker that the controller is itself: a direct call, and the same commands.

    `settle_deletions` makes sure that a crash cannot bring deleted logs back, and that nothing else of their topics is
    left; a StopReplica is answered after it.
    """

    def __init__(
        self, replicas: HostedPartitions, metadata: MetadataCache, settle_deletions: Callable[[], Awaitable[None]]
    ) -> None:
        self._replicas = replicas
        self._metadata = metadata
        self._settle_deletions = settle_deletions

    async def leader_and_isr(self, command: LeaderAndIsr) -> Answer:
        """See BrokerChannel."""
        answer = await self._replicas.become_leader_or_follower(command)
        if self._replicas.strays.unsettled:
            self._replicas.strays.unsettled = False
            await self._settle_deletions()
        return answer

    async def stop_replica(self, command: StopReplica) -> Answer:
        """See BrokerChannel."""
        answer = await self._replicas.stop_replicas(command)
        if any(each.delete_partition for each in command.partitions):
            await self._settle_deletions()
        return answer

    async def update_metadata(self, command: UpdateMetadata) -> None:
        """See BrokerChannel."""
        self._metadata.update_metadata(command)


class ControllerChannels:
    """Sends what a controller's context says to the live brokers, each of which has a channel."""

    def __init__(self, channels: Mapping[int, BrokerChannel], context: ControllerContext) -> None:
        self._channels = channels
        self._context = context

    async def leader_and_isr(self, topics: Iterable[TopicStates], *, is_full: bool = False) -> OfflineReplicas:
        """Send the brokers their roles in these partitions. Gives the replicas that they cannot use."""
        topics = tuple(topics)
        offline: OfflineReplicas = {}
        for broker in self._context.live_brokers.values():
            held = tuple(_held_by(broker.broker_id, topics))
            if not held:
                continue
            command = LeaderAndIsr(
                self._context.controller_id, self._context.controller_epoch, broker.epoch, held, is_full
            )
            try:
                answer = await self._channels[broker.broker_id].leader_and_isr(command)
            except ApiError as error:
                logger.error("Broker %d refused LeaderAndIsr: %s", broker.broker_id, error)
                continue
            lost = [each for each, error_code in answer.items() if error_code is ErrorCode.KAFKA_STORAGE_ERROR]
            if lost:
                offline[broker.broker_id] = lost
        return offline

    async def delete_replicas(self, topics: Iterable[TopicImage]) -> None:
        """Delete every replica of these topics. A replica whose disk refuses stays behind as a stray."""
        topics = tuple(topics)
        for broker in self._context.live_brokers.values():
            stopped = tuple(
                StoppedReplica(TopicPartition(topic.name, each.partition), EPOCH_DURING_DELETE, delete_partition=True)
                for topic in topics
                for each in topic.partitions
                if broker.broker_id in each.replicas
            )
            if not stopped:
                continue
            context = self._context
            command = StopReplica(context.controller_id, context.controller_epoch, broker.epoch, stopped)
            try:
                await self._channels[broker.broker_id].stop_replica(command)
            except ApiError as error:
                logger.error("Broker %d refused StopReplica: %s", broker.broker_id, error)

    async def update_metadata(self, topics: Iterable[TopicImage] = (), deleted: Iterable[str] = ()) -> None:
        """Send all brokers the metadata of these topics for their clients. Those that are `deleted` are known still."""
        states = tuple(TopicStates(topic.name, topic.topic_id, topic.partitions) for topic in topics)
        context = self._context
        gone = (context.topics[name] for name in deleted)
        deleted_states = tuple(TopicStates(topic.name, topic.topic_id, topic.partitions) for topic in gone)
        for broker in context.live_brokers.values():
            command = UpdateMetadata(
                context.controller_id,
                context.controller_epoch,
                broker.epoch,
                context.live_brokers,
                states,
                deleted_states,
            )
            try:
                await self._channels[broker.broker_id].update_metadata(command)
            except ApiError as error:
                logger.error("Broker %d refused UpdateMetadata: %s", broker.broker_id, error)


def _held_by(broker_id: int, topics: Iterable[TopicStates]) -> Iterator[TopicStates]:
    for topic in topics:
        partitions = tuple(each for each in topic.partitions if broker_id in each.replicas)
        if partitions:
            yield topic._replace(partitions=partitions)
