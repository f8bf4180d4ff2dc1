"""Which replica is fetched for by whom (Kafka class `ReplicaFetcherManager`): up to `num.replica.fetchers` fetchers for
each leader.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterable

from broker.replication.replica_fetcher import ReplicaFetcher
from cluster.replication.partition import Partition
from protocol.topic_partition import TopicPartition


class ReplicaFetcherManager:
    """Owner of the fetchers. `new_fetcher(leader_id)` begins one."""

    def __init__(self, new_fetcher: Callable[[int], ReplicaFetcher], fetchers_per_leader: int) -> None:
        self._new_fetcher = new_fetcher
        self._fetchers_per_leader = fetchers_per_leader
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        self._by_partition: dict[TopicPartition, ReplicaFetcher] = {}
        self._ending: dict[asyncio.Future[None], None] = {}
        self._is_closed = False

    @property
    def fetchers(self) -> list[ReplicaFetcher]:
        """Those that are there now."""
        return list(self._fetchers.values())

    def follow(self, partition: Partition) -> None:
        """See `Followers`."""
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
        """See `Followers`."""
        self._drop(topic_partition)

    def _drop(self, topic_partition: TopicPartition) -> asyncio.Future[None] | None:
        fetcher = self._by_partition.pop(topic_partition, None)
        return None if fetcher is None else fetcher.drop(topic_partition)

    async def stop(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """See `Followers`."""
        self._close_idle()
        if not self._by_partition:
            return
        under_way = [work for each in topic_partitions if (work := self._drop(each)) is not None]
        if under_way:
            await asyncio.gather(*under_way, return_exceptions=True)

    def _close_idle(self) -> None:
        """End the fetchers that have nothing to fetch for: their leader may be gone."""
        for key in [key for key, fetcher in self._fetchers.items() if not len(fetcher)]:
            ending = asyncio.ensure_future(self._fetchers.pop(key).close())
            self._ending[ending] = None
            ending.add_done_callback(self._ending.pop)

    async def close(self) -> None:
        """Fetch no more. Returns when nothing is done on the logs any more."""
        self._is_closed = True
        fetchers, self._fetchers = self.fetchers, {}
        self._by_partition = {}
        await asyncio.gather(*(fetcher.close() for fetcher in fetchers), *self._ending)
