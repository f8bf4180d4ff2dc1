"""The work of an administrator on the partitions of a cluster: moves, elections of leaders, deletions of records."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from client import admin
from client.errors import ClientError
from client.kafka_client import KafkaClient
from protocol.errors import ApiError
from protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectionType,
)
from protocol.topic_partition import TopicPartition
from tests.simulation import history
from tests.simulation.clients import Clients
from tests.simulation.cluster.invariants import Invariants
from tests.simulation.world import World

Work = Callable[[KafkaClient, str], Coroutine[Any, Any, None]]


class Moves:
    """One piece of work at a time. `is_busy` until its last request is answered or abandoned."""

    def __init__(self, world: World, clients: Clients, invariants: Invariants) -> None:
        self.is_busy = False
        self._clients = clients
        self._invariants = invariants
        self._rng = Random(f"moves {world.seed}")

    def begin(self, work: Work) -> bool:
        """Make an administrator do `work`; returns whether it could begin."""
        if self.is_busy or not self._clients.topics.exist:
            return False
        self.is_busy = True

        async def do(client: KafkaClient, reader: str) -> None:
            try:
                await work(client, reader)
            except (ApiError, ClientError):
                pass  # no broker answered, or the request is impossible now
            finally:
                self.is_busy = False

        self._clients.start("mover", do)
        return True

    async def reassign(self, client: KafkaClient, _reader: str) -> None:
        """Move a partition to other brokers, reorder its replicas, or cancel a move."""
        partitions = list(self._invariants.partitions)
        if not partitions:
            return
        plan, rng = self._clients.plan, self._rng
        topic, number = rng.choice(partitions)
        replicas = None if rng.random() < 0.2 else rng.sample(range(plan.brokers), plan.replication_factor)
        partition = AlterPartitionReassignmentsRequest.ReassignablePartition(partition_index=number, replicas=replicas)
        moved = AlterPartitionReassignmentsRequest.ReassignableTopic(name=topic, partitions=[partition])
        request = AlterPartitionReassignmentsRequest(timeout_ms=5_000, topics=[moved])
        what, answer = "alterPartitionReassignments", AlterPartitionReassignmentsResponse
        await client.ask_controller(what, request, answer, lambda answered: [answered.error_code])

    async def elect_preferred(self, client: KafkaClient, _reader: str) -> None:
        """Return every partition to its preferred replica."""
        await admin.elect_leaders(client, ElectionType.PREFERRED, None)

    async def delete_records(self, client: KafkaClient, _reader: str) -> None:
        """Delete records that a reader has read. Those of the recreated topic are deleted with it."""
        clients, rng = self._clients, self._rng
        renewed = clients.plan.renewed
        reached: list[tuple[TopicPartition, int]] = [
            (partition, end)
            for partition, end in clients.reached.get("tail", {}).items()
            if renewed is None or partition.topic != renewed.name
        ]
        if not reached:
            return
        partition, end = rng.choice(reached)
        before = int(end * rng.choice([0.3, 0.9, 1.0]))
        log = clients.log_of(partition)
        clients.feed(history.RecordsDeleted(clients.now_s, log, before))
        await admin.delete_records(client, {partition: before})
