"""The ways from a controller to a broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from broker.metadata.metadata_cache import MetadataCache
from broker.replication.hosted_partitions import HostedPartitions
from cluster.controller.commands import Answer, LeaderAndIsr, StopReplica, TopicStates, UpdateMetadata
from cluster.metadata_image import BrokerImage


class BrokerChannel(Protocol):
    """Carries commands to one broker, in order. Each raises ApiError when the broker refuses the command as a whole."""

    async def leader_and_isr(self, command: LeaderAndIsr) -> Answer: ...

    async def stop_replica(self, command: StopReplica) -> Answer: ...

    async def update_metadata(self, command: UpdateMetadata) -> None: ...


class RemoteBrokerChannel(BrokerChannel, Protocol):
    """To another broker. A call returns once the broker has answered, however long that takes."""

    def close(self) -> None:
        """The broker has gone: whatever waits for it is given up."""
        ...


NewChannel = Callable[[BrokerImage], RemoteBrokerChannel]
"""Makes the channel to a broker that has come."""


class LocalChannel:
    """To the broker that the controller is itself: a direct call, and the same commands.

    `settle_deletions` makes sure that a crash cannot bring deleted logs back, and that nothing else of their topics is
    left; a StopReplica is answered after it. `prepare` is called before topics begin here.
    """

    def __init__(
        self,
        replicas: HostedPartitions,
        metadata: MetadataCache,
        settle_deletions: Callable[[], Awaitable[None]],
        prepare: Callable[[list[TopicStates]], Awaitable[None]] | None = None,
    ) -> None:
        self._replicas = replicas
        self._metadata = metadata
        self._settle_deletions = settle_deletions
        self._prepare = prepare

    async def leader_and_isr(self, command: LeaderAndIsr) -> Answer:
        """See BrokerChannel."""
        if self._prepare is not None and (begun := self._replicas.topics_begun_by(command)):
            await self._prepare(begun)
        return await self._replicas.become_leader_or_follower(command)

    async def stop_replica(self, command: StopReplica) -> Answer:
        """See BrokerChannel."""
        answer = await self._replicas.stop_replicas(command)
        if any(each.delete_partition for each in command.partitions):
            await self._settle_deletions()
        return answer

    async def update_metadata(self, command: UpdateMetadata) -> None:
        """See BrokerChannel."""
        self._metadata.update_metadata(command)
