"""Requests between the controller and brokers: the commands that it sends (Kafka classes `ControllerChannelManager`,
`ControllerBrokerRequestBatch`), and the requests that any broker sends to it.

The controller runs commands to its own broker before the call returns. Each other broker has a queue, which keeps
commands in order, so a slow broker does not delay the controller; answers arrive later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from broker.controller.cluster_membership import PAUSE_AFTER_BUG_S
from broker.metadata.metadata_cache import MetadataCache
from broker.replication.hosted_partitions import HostedPartitions
from cluster.controller.commands import (
    Answer,
    LeaderAndIsr,
    StoppedReplica,
    StopReplica,
    TopicStates,
    UpdateMetadata,
)
from cluster.controller.context import ControllerContext
from cluster.controller.topics import NewTopic, TopicPlan
from cluster.metadata_image import BrokerImage, PartitionImage
from cluster.replication.isr import IsrChange
from cluster.znodes import ProducerIdBlock
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition


class BrokerChannel(Protocol):
    """Carries commands to one broker, in order. Every method raises ApiError when the broker refuses the whole
    command.
    """

    async def leader_and_isr(self, command: LeaderAndIsr) -> Answer: ...

    async def stop_replica(self, command: StopReplica) -> Answer: ...

    async def update_metadata(self, command: UpdateMetadata) -> None: ...


class RemoteBrokerChannel(BrokerChannel, Protocol):
    """A channel to another broker. A call returns when the broker has answered, however long that takes."""

    def close(self) -> None:
        """Abandon all pending commands: the broker has gone."""
        ...


NewChannel = Callable[[BrokerImage], RemoteBrokerChannel]
"""Creates the channel to a broker that has started."""


class LocalChannel:
    """A direct call to the controller's own broker.

    `complete_deletions` makes deletions crash-proof and removes what else is left of the deleted topics; StopReplica is
    answered after it. `prepare` is called before this broker creates logs for new topics.
    """

    def __init__(
        self,
        replicas: HostedPartitions,
        metadata: MetadataCache,
        complete_deletions: Callable[[], Awaitable[None]],
        prepare: Callable[[list[TopicStates]], Awaitable[None]] | None = None,
    ) -> None:
        self._replicas = replicas
        self._metadata = metadata
        self._complete_deletions = complete_deletions
        self._prepare = prepare

    async def leader_and_isr(self, command: LeaderAndIsr) -> Answer:
        """See BrokerChannel."""
        if self._prepare is not None and (begun := self._replicas.new_topics_of(command)):
            await self._prepare(begun)
        return await self._replicas.become_leader_or_follower(command)

    async def stop_replica(self, command: StopReplica) -> Answer:
        """See BrokerChannel."""
        answer = await self._replicas.stop_replicas(command)
        if any(each.delete_partition for each in command.partitions):
            await self._complete_deletions()
        return answer

    async def update_metadata(self, command: UpdateMetadata) -> None:
        """See BrokerChannel."""
        self._metadata.update_metadata(command)


logger = logging.getLogger("state.change.logger")

OfflineReplicas = dict[int, list[TopicPartition]]
"""The replicas that brokers cannot use, by broker id."""

ATTEMPTS = 3
"""Attempts per command when sending fails with an unexpected error. Commands are idempotent."""

BrokerCommand = LeaderAndIsr | StopReplica | UpdateMetadata

Answered = Callable[[int, LeaderAndIsr | StopReplica, Answer], None]
"""Called with the id of another broker, a command and the broker's answer to it."""


class _Sender:
    """The queue for one other broker, and the task that drains it (Kafka class `RequestSendThread`)."""

    def __init__(self, broker: BrokerImage, channel: RemoteBrokerChannel, answered: Answered) -> None:
        self._broker_id = broker.broker_id
        self._channel = channel
        self._answered = answered
        self._queue: asyncio.Queue[BrokerCommand] = asyncio.Queue()
        self._task = asyncio.create_task(self._send_all(), name=f"controller-to-broker-{broker.broker_id}")

    def send(self, command: BrokerCommand) -> None:
        self._queue.put_nowait(command)

    async def _send_all(self) -> None:
        while True:
            await self._send(await self._queue.get())

    async def _send(self, command: BrokerCommand) -> None:
        """Deliver a command. Drops it after ATTEMPTS unexpected errors, so that later commands still get through."""
        name = type(command).__name__
        for attempt in range(1, ATTEMPTS + 1):
            try:
                answer = await _deliver(self._channel, self._broker_id, command)
                if answer is not None and not isinstance(command, UpdateMetadata):
                    self._answered(self._broker_id, command, answer)
            except Exception as error:
                if attempt == ATTEMPTS:
                    logger.error("Giving up %s to broker %d: %r; later ones follow", name, self._broker_id, error)
                    return
                if attempt == 1:
                    logger.exception("%s to broker %d failed; trying again", name, self._broker_id)
            else:
                return
            await asyncio.sleep(PAUSE_AFTER_BUG_S)

    async def close(self) -> None:
        self._channel.close()
        self._task.cancel()
        await asyncio.wait([self._task])


class BrokerRequests:
    """Sends the commands of `context`. Each live broker has a channel."""

    def __init__(
        self, context: ControllerContext, own_channel: BrokerChannel, new_channel: NewChannel | None, answered: Answered
    ) -> None:
        """`new_channel` is None if other brokers cannot be reached."""
        self._context = context
        self._own_channel = own_channel
        self._new_channel = new_channel
        self._answered = answered
        self._senders: dict[int, _Sender] = {}

    def add_broker(self, broker: BrokerImage) -> None:
        """Open a channel to a newly registered broker; later commands go to this registration."""
        if broker.broker_id != self._context.controller_id and self._new_channel is not None:
            self._senders[broker.broker_id] = _Sender(broker, self._new_channel(broker), self._answered)

    async def remove_broker(self, broker_id: int) -> None:
        """Close the channel of a broker that has gone, dropping unsent commands."""
        sender = self._senders.pop(broker_id, None)
        if sender is not None:
            await sender.close()

    async def close(self) -> None:
        """Close all channels."""
        for broker_id in list(self._senders):
            await self.remove_broker(broker_id)

    async def leader_and_isr(
        self, topics: Iterable[TopicStates], *, only: Iterable[int] | None = None, is_full: bool = False
    ) -> OfflineReplicas:
        """Send brokers (all, or those in `only`) their roles in these partitions. Returns the replicas that this broker
        cannot use. `is_full` claims that the list is complete; the claim is dropped while some topics are unreadable.
        """
        topics, context = tuple(topics), self._context
        is_full = is_full and not context.damaged_topics
        commands: dict[int, BrokerCommand] = {}
        for broker in self._receivers(only):
            held = tuple(_held_by(broker.broker_id, topics, context.deleted_replicas))
            if held:
                commands[broker.broker_id] = LeaderAndIsr(
                    context.controller_id, context.controller_epoch, broker.epoch, topics=held, is_full=is_full
                )
        answer = await self._send(commands)
        context.mark_replicas_online(context.controller_id, accepted(answer))
        lost = [each for each, error_code in answer.items() if error_code is ErrorCode.KAFKA_STORAGE_ERROR]
        return {context.controller_id: lost} if lost else {}

    async def stop_replicas(self, replicas: dict[int, list[StoppedReplica]]) -> Answer:
        """Make brokers, by id, stop these replicas. Returns this broker's own answer."""
        context = self._context
        commands: dict[int, BrokerCommand] = {}
        for broker in self._receivers(replicas):
            stopped = tuple(replicas[broker.broker_id])
            commands[broker.broker_id] = StopReplica(
                context.controller_id, context.controller_epoch, broker.epoch, partitions=stopped
            )
        return await self._send(commands)

    async def update_metadata(
        self,
        topics: Iterable[TopicStates] = (),
        deleted: Iterable[str] = (),
        *,
        only: Iterable[int] | None = None,
        is_full: bool = False,
    ) -> None:
        """Send brokers (all, or those in `only`) these partitions and the live brokers, for their clients. The context
        must still know the `deleted` topics. `is_full` claims that the list is complete; the claim is dropped while
        some topics are unreadable.

        Topics marked for deletion are never sent as existing: clients would use them again.
        """
        context = self._context
        topics = tuple(each for each in topics if each.topic not in context.topics_to_be_deleted)
        gone = tuple(context.states_of(deleted))
        live_brokers, marks_full = dict(context.live_brokers), not context.damaged_topics
        await self._send(
            {
                broker.broker_id: UpdateMetadata(
                    context.controller_id,
                    context.controller_epoch,
                    broker.epoch,
                    live_brokers=live_brokers,
                    topics=topics,
                    deleted_topics=gone,
                    is_full=is_full and marks_full,
                    marks_full=marks_full,
                )
                for broker in self._receivers(only)
            }
        )

    def _receivers(self, only: Iterable[int] | None) -> list[BrokerImage]:
        live = self._context.live_brokers
        return list(live.values()) if only is None else [live[each] for each in only if each in live]

    async def _send(self, commands: dict[int, BrokerCommand]) -> Answer:
        own_id = self._context.controller_id
        for broker_id, command in commands.items():
            if broker_id in self._senders:
                self._senders[broker_id].send(command)
        if own_id not in commands:
            return {}
        return await _deliver(self._own_channel, own_id, commands[own_id]) or {}


async def _deliver(channel: BrokerChannel, broker_id: int, command: BrokerCommand) -> Answer | None:
    """Deliver a command and return the answer, or None if the broker refused the command or the command does not have
    one.
    """
    try:
        if isinstance(command, LeaderAndIsr):
            return await channel.leader_and_isr(command)
        if isinstance(command, StopReplica):
            return await channel.stop_replica(command)
        await channel.update_metadata(command)
    except ApiError as error:
        logger.error("Broker %d refused %s: %s", broker_id, type(command).__name__, error)
    return None


def accepted(answer: Answer) -> Iterator[TopicPartition]:
    """The replicas whose roles in a LeaderAndIsr are in effect, including those that already had them."""
    fine = (ErrorCode.NONE, ErrorCode.STALE_CONTROLLER_EPOCH)
    return (each for each, error_code in answer.items() if error_code in fine)


def _held_by(
    broker_id: int, topics: Iterable[TopicStates], deleted: Mapping[tuple[int, TopicPartition], None]
) -> Iterator[TopicStates]:
    for topic in topics:
        partitions = tuple(
            each
            for each in topic.partitions
            if broker_id in each.replicas
            and not (deleted and (broker_id, TopicPartition(topic.topic, each.partition)) in deleted)
        )
        if partitions:
            yield topic.replace(partitions=partitions)


class ControllerApi(Protocol):
    """The controller. Every method raises ApiError: NOT_CONTROLLER if the controller is unknown, and, for requests with
    a broker id, STALE_BROKER_EPOCH and BROKER_ID_NOT_REGISTERED.
    """

    async def alter_partition(
        self, broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]
    ) -> Mapping[TopicPartition, PartitionImage | ErrorCode]:
        """Change the ISR of partitions that `broker_id` leads (KIP-497). Returns the new state or the error of each."""
        ...

    async def create_topics(
        self, new_topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> dict[str, TopicPlan | ApiError]:
        """Create the topics that can be created. Maps each name to the plan carried out, or to the error."""
        ...

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> Sequence[TopicPartition]:
        """Move leadership away from a broker that is shutting down; returns the partitions that it still leads."""
        ...

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> ProducerIdBlock:
        """Reserve a block of producer ids that nobody else has or will get (KIP-730)."""
        ...
