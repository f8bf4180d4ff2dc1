"""Asks at times how far transactional logs are stable, and what a loop has committed; all the time during a strike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from client import admin
from client.errors import ClientError
from client.groups import fetch_offsets
from client.kafka_client import KafkaClient
from protocol.errors import ApiError
from protocol.topic_partition import TopicPartition
from tests.simulation import history
from tests.simulation.clients import Clients

READ_COMMITTED = 1


class Watch:
    """Two clients, as one of them may have to wait. `is_busy` tells when to ask more often."""

    def __init__(self, clients: Clients, is_busy: Callable[[], bool]) -> None:
        self._clients = clients
        self._is_busy = is_busy
        self._rng = Random(f"watch {clients.world.seed}")

    async def _pause(self) -> None:
        deadline = self._clients.now_s + 4.0 * self._rng.random()
        while self._clients.now_s < deadline and not self._is_busy():
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.1 * self._rng.random())

    async def watch_logs(self, client: KafkaClient, partitions: list[TopicPartition]) -> None:
        """Ask for last stable offsets, for ever."""
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
        """Ask for committed offsets that no transaction is about to change, for ever."""
        clients = self._clients
        while True:
            await self._pause()
            partition = self._rng.choice(partitions)
            invoked = clients.now_s
            try:
                found = await fetch_offsets(client, group, [partition], require_stable=True)
            except (ApiError, ClientError):
                continue
            offset = found[partition].offset if partition in found else None
            clients.feed(history.CommittedOffset(invoked, clients.now_s, group, clients.log_of(partition), offset))
