"""The assignment of replicas to fetchers (Kafka class `ReplicaFetcherManager`): up to `num.replica.fetchers` fetchers
for each leader, created from the broker's configuration.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial

from broker.broker_environment import Environment
from broker.inter_broker.inter_broker_client import InterBrokerClient
from broker.metadata.metadata_cache import MetadataCache
from broker.replication.replica_fetcher import FetcherSettings, ReplicaFetcher
from broker.replication.replica_manager import ReplicaManager
from broker.replication.replication_quota import ReplicationQuota
from client.environment import Network
from cluster.controller.commands import CommandFence
from cluster.replication.partition import Partition
from config.broker_config import BrokerConfig
from protocol.topic_partition import TopicPartition
from protocol.wire.frames import ReceiveBuffer


class ReplicaFetcherManager:
    """Owns the fetchers. `new_fetcher(leader_id)` starts one."""

    def __init__(self, new_fetcher: Callable[[int], ReplicaFetcher], fetchers_per_leader: int) -> None:
        self._new_fetcher = new_fetcher
        self._fetchers_per_leader = fetchers_per_leader
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        self._by_partition: dict[TopicPartition, ReplicaFetcher] = {}
        self._wanted_per_leader = fetchers_per_leader
        self._tasks: dict[asyncio.Future[None], None] = {}
        self._is_closed = False

    @property
    def fetchers(self) -> list[ReplicaFetcher]:
        """The current fetchers."""
        return list(self._fetchers.values())

    def follow(self, partition: Partition) -> None:
        """Fetch from `partition.image.leader`, in that leader epoch. The replica must not have a fetcher yet."""
        if self._is_closed:
            return
        topic_partition = partition.topic_partition
        self.drop(topic_partition)
        number = (zlib.crc32(topic_partition.topic.encode()) + topic_partition.partition) % self._fetchers_per_leader
        key = partition.image.leader, number
        fetcher = self._fetchers.get(key)
        if fetcher is None:
            fetcher = self._fetchers[key] = self._new_fetcher(key[0])
        self._by_partition[topic_partition] = fetcher
        fetcher.add(partition)

    def drop(self, topic_partition: TopicPartition) -> None:
        """Stop fetching for this replica, because its disk failed or it is not needed any more."""
        self._drop(topic_partition)

    def _drop(self, topic_partition: TopicPartition) -> asyncio.Future[None] | None:
        fetcher = self._by_partition.pop(topic_partition, None)
        return None if fetcher is None else fetcher.drop(topic_partition)

    async def stop(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching for these replicas. Returns when no work on their logs is running."""
        self._close_idle()
        if not self._by_partition:
            return
        in_progress = [work for each in topic_partitions if (work := self._drop(each)) is not None]
        if in_progress:
            await asyncio.gather(*in_progress, return_exceptions=True)

    def _close_idle(self) -> None:
        """End the fetchers without replicas: their leader may be gone."""
        for key in [key for key, fetcher in self._fetchers.items() if not len(fetcher)]:
            self._run(self._fetchers.pop(key).close())

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def resize(
        self, fetchers_per_leader: int, hand_over: Callable[[Callable[[], None]], Coroutine[None, None, None]]
    ) -> None:
        """Change the number of fetchers per leader soon. `hand_over` is `HostedPartitions.restart_fetchers`."""
        if fetchers_per_leader != self._wanted_per_leader and not self._is_closed:
            self._wanted_per_leader = fetchers_per_leader
            self._run(hand_over(self._take_size))

    def _take_size(self) -> None:
        self._fetchers_per_leader = self._wanted_per_leader
        self._close_idle()

    async def close(self) -> None:
        """Stop fetching. Returns when no work on the logs is running."""
        self._is_closed = True
        fetchers, self._fetchers = self.fetchers, {}
        self._by_partition = {}
        await asyncio.gather(*(fetcher.close() for fetcher in fetchers), *self._tasks)


def fetchers_of(
    broker_id: int,
    config: BrokerConfig,
    environment: Environment,
    network: Network,
    metadata: MetadataCache,
    fence: CommandFence,
    replicas: ReplicaManager,
    quota: ReplicationQuota,
    keep_log_starts: Callable[[], Awaitable[None]],
) -> ReplicaFetcherManager:
    """Create the fetchers of `replicas`; they fetch for its followers from now on. `quota` limits the fetched bytes;
    `keep_log_starts` returns once the current log start offsets are on disk. Close them before the logs.
    """
    settings = FetcherSettings(
        broker_id,
        config.replica_fetch_max_bytes,
        config.replica_fetch_response_max_bytes,
        config.replica_fetch_min_bytes,
        config.replica_fetch_wait_max_ms,
        config.replica_fetch_backoff_ms,
    )
    receive_buffer = ReceiveBuffer()

    def connect(leader_id: int) -> InterBrokerClient:
        return InterBrokerClient(
            network,
            lambda: metadata.image.address_of(leader_id, config.inter_broker_listener_name),
            f"broker-{broker_id}-fetcher",
            config.replica_socket_timeout_ms,
            receive_buffer=receive_buffer,
        )

    def new_fetcher(leader_id: int) -> ReplicaFetcher:
        return ReplicaFetcher(
            leader_id,
            partial(connect, leader_id),
            settings,
            environment.clock,
            environment.executor,
            replicas.group_commit,
            lambda: fence.broker_epoch,
            replicas.high_watermark_moved,
            quota,
            keep_log_starts,
        )

    manager = ReplicaFetcherManager(new_fetcher, config.num_replica_fetchers)
    replicas.hosted.fetch_with(manager)
    return manager
