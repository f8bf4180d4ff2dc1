"""Polls the last stable offsets of transactional logs and the committed offsets of a loop; continuously during a
strike.
"""

from __future__ import annotations

import asyncio
from random import Random

from broker.coordinators.coordinator_service import coordinator_partition
from client import admin
from client.errors import ClientError
from client.kafka_client import KafkaClient
from protocol.errors import ApiError
from protocol.messages.group_offsets import OffsetFetchResponse
from protocol.topic_partition import CONSUMER_OFFSETS, TopicPartition
from tests.kit.transactions.requests import fetch_offset
from tests.simulation import history
from tests.simulation.clients import Clients
from tests.simulation.transactions.strikes import Strikes

READ_COMMITTED = 1


class Watch:
    """Two clients, as one of them may have to wait. `strikes` knows when to poll more often, and who leads."""

    def __init__(self, clients: Clients, strikes: Strikes) -> None:
        self._clients = clients
        self._strikes = strikes
        self._rng = Random(f"watch {clients.world.seed}")

    async def _pause(self) -> None:
        deadline = self._clients.now_s + 4.0 * self._rng.random()
        while self._clients.now_s < deadline and not self._strikes.is_on:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.1 * self._rng.random())

    async def watch_logs(self, client: KafkaClient, partitions: list[TopicPartition]) -> None:
        """Poll last stable offsets forever."""
        clients = self._clients
        wanted = dict.fromkeys(partitions, admin.LATEST_TIMESTAMP)
        while True:
            await self._pause()
            invoked = clients.now_s
            try:
                found = await admin.list_offsets(client, wanted, isolation_level=READ_COMMITTED, retry=False)
            except (ApiError, ClientError):
                continue
            for partition, end in found.items():
                if not isinstance(end, ApiError):
                    log = clients.log_of(partition)
                    clients.feed(history.StableOffset(invoked, clients.now_s, log, end.leader_epoch, end.offset))

    async def watch_group(self, client: KafkaClient, group: str, partitions: list[TopicPartition]) -> None:
        """Fetch committed offsets forever, except while a transaction may change them.

        A deposed coordinator returns old offsets until it learns that it is deposed: like Kafka's, it answers fetches
        without asking others.
        """
        clients = self._clients
        count = int(clients.plan.broker["offsets.topic.num.partitions"])
        of_group = TopicPartition(CONSUMER_OFFSETS, coordinator_partition(group, count))
        while True:
            await self._pause()
            partition = self._rng.choice(partitions)
            invoked = clients.now_s
            try:
                coordinator = await client.find_coordinator(group)
                connection = await client.node_connection(coordinator)
                request = fetch_offset(group, partition, require_stable=True)
                found = (await connection.ask(request, OffsetFetchResponse, 9)).groups[0]
            except (ApiError, ClientError):
                continue
            leader = self._strikes.leader(of_group)
            if found.error_code or leader is None or leader.broker_id != coordinator:
                continue
            answer = found.topics[0].partitions[0]
            if answer.error_code:
                continue
            offset = answer.committed_offset if answer.committed_offset >= 0 else None
            clients.feed(history.CommittedOffset(invoked, clients.now_s, group, clients.log_of(partition), offset))
