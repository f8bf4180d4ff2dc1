"""Deletes topics (Kafka class `TopicDeletionManager`).

Metadata first, then replicas, nodes last: a crash in between leaves the mark in the tree, and the next controller
begins again. The nodes go when every broker that holds a replica has let go of it; one that is not there does so when
it comes back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence

from broker.controller import topic_operations
from broker.controller.office import Office
from broker.network.slices import Slices
from cluster import znodes
from cluster.controller import topics as decisions
from cluster.controller.commands import EPOCH_DURING_DELETE, Answer, StoppedReplica
from cluster.controller.transactions import shares
from cluster.zookeeper.coordination import Delete, Operation, Watch
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition

logger = logging.getLogger("kafka.controller.TopicDeletionManager")


class TopicDeletions:
    """Owner of the deletions under way in one term."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._awaited: dict[str, dict[tuple[int, int], None]] = {}
        """By topic: the replicas, as (broker, partition), that have not been let go of."""
        self._finished: dict[str, asyncio.Event] = {}

    async def delete(self, names: Iterable[str]) -> None:
        """Delete the topics of these names that exist."""
        context = self._office.context
        existing = [name for name in names if name in context.topics and name not in context.topics_to_be_deleted]
        marked = dict.fromkeys(await self._office.zk_client.topic_deletions())
        await self._office.transact([decisions.deletion_mark(name) for name in existing if name not in marked])
        await self._begin(existing)

    async def obey_marks(self, *, is_enabled: bool, watch: Watch | None = None) -> None:
        """Delete the topics that the tree has marks of: others write them, and a crash leaves them. What is not there,
        or with `is_enabled` false may not be deleted, loses its mark. `watch` fires when there are others.
        """
        office, context = self._office, self._office.context
        marked = [each for each in await office.zk_client.topic_deletions(watch) if each not in self._awaited]
        known = [name for name in marked if name in context.topics]
        if is_enabled:
            await self._begin(known)
        elif known:
            logger.info("Removing %s since delete topic is disabled", known)
            await office.transact([Delete(znodes.delete_topic_path(name)) for name in known])
        for name in marked:
            if name not in context.topics and name not in context.damaged_topics:
                leftovers = (znodes.config_path("topics", name), znodes.delete_topic_path(name))
                await office.transact([Delete(path) for path in leftovers if await office.zk_client.exists(path)])

    async def _begin(self, names: Sequence[str]) -> None:
        if not names:
            return
        office, context = self._office, self._office.context
        context.topics_to_be_deleted.update(dict.fromkeys(names))
        for name in names:
            self._finished[name] = asyncio.Event()
            self._awaited[name] = {
                (broker_id, partition.partition): None
                for partition in context.topics[name].partitions
                for broker_id in partition.replicas
                if office.is_shared or broker_id in context.live_brokers
            }
        await office.requests.update_metadata(deleted=names)
        await self._stop(names, list(context.live_brokers))

    async def _stop(self, names: Iterable[str], broker_ids: Sequence[int]) -> None:
        """Have these brokers delete their replicas of these topics. One whose disk refuses stays behind as a stray."""
        replicas: dict[int, list[StoppedReplica]] = {}
        for name in names:
            for broker_id, partition in self._awaited[name]:
                if broker_id in broker_ids:
                    stopped = StoppedReplica(
                        TopicPartition(name, partition), EPOCH_DURING_DELETE, delete_partition=True
                    )
                    replicas.setdefault(broker_id, []).append(stopped)
                    self._office.context.deleted_replicas[broker_id, stopped.topic_partition] = None
        await self._office.requests.stop_replicas(replicas)
        own_id = self._office.context.controller_id
        self._let_go(own_id, [each.topic_partition for each in replicas.get(own_id, ())])
        await self.remove_nodes()

    def _let_go(self, broker_id: int, replicas: Iterable[TopicPartition]) -> None:
        for replica in replicas:
            awaited = self._awaited.get(replica.topic, {})
            awaited.pop((broker_id, replica.partition), None)

    async def replicas_stopped(self, broker_id: int, answer: Answer) -> None:
        """Another broker has let go of replicas."""
        self._let_go(broker_id, answer)
        await self.remove_nodes()

    def commands_are_lost(self, broker_ids: Collection[int]) -> None:
        """Count on no command that these brokers have not answered: it may not have reached them."""
        for name, replicas in self._awaited.items():
            for broker_id, partition in replicas:
                if broker_id in broker_ids:
                    self._office.context.deleted_replicas.pop((broker_id, TopicPartition(name, partition)), None)

    async def brokers_came(self, broker_ids: Sequence[int]) -> None:
        """Brokers have come, which may hold replicas of topics that are being deleted."""
        if self._awaited:
            await self._stop(list(self._awaited), broker_ids)

    def brokers_went(self) -> None:
        """Nobody waits for a broker that has gone."""
        live_brokers = self._office.context.live_brokers
        for name, replicas in self._awaited.items():
            if not any(broker_id in live_brokers for broker_id, _ in replicas):
                self._finished[name].set()

    async def remove_nodes(self) -> None:
        """Remove the nodes of topics of which no replica is left. A full disk may not let them go; then they stay until
        the next change.
        """
        office, context = self._office, self._office.context
        topics = [context.topics[name] for name in self._without_replicas()]
        for share in shares(topics, lambda topic: len(topic.partitions)):
            operations: list[Operation] = []
            slices = Slices(office.clock)
            await slices.pause()  # What the answer of a broker changed was done in one go.
            for topic in share:
                has_config = await office.zk_client.exists(znodes.config_path("topics", topic.name))
                operations.extend(await topic_operations.removal(topic, slices, has_config=has_config))
            await slices.pause()  # The transaction is put together in one go.
            try:
                await office.transact(operations)
            except ApiError as error:
                logger.warning("Deleted topics stay in the tree until the next change: %s", error)
                break
            for topic in share:
                context.remove_topic(topic.name)
                del self._awaited[topic.name]
                self._finished.pop(topic.name).set()
        self.brokers_went()

    def _without_replicas(self) -> list[str]:
        return [name for name, replicas in self._awaited.items() if not replicas]

    async def remove_rest(self) -> None:
        """Finish deletions for which the disk had no room; nothing else may change before. Raises ApiError."""
        if not self._without_replicas():
            return
        await self.remove_nodes()
        if self._without_replicas():
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "The disk is full; topics cannot be changed")

    async def wait_for(self, names: Iterable[str], patience_s: float) -> None:
        """Return when the live brokers have let go of these topics, or `patience_s` is over."""
        waiting = [asyncio.create_task(self._finished[name].wait()) for name in names if name in self._finished]
        if waiting:
            await asyncio.wait(waiting, timeout=patience_s)
        for each in waiting:
            each.cancel()

    def close(self) -> None:
        """Let go of who waits."""
        for finished in self._finished.values():
            finished.set()
