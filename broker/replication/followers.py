"""The interface of those who fetch for replicas, as their owner uses it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from cluster.replication.partition import Partition
from protocol.topic_partition import TopicPartition


class Followers(Protocol):
    """Fetches for the replicas here that follow."""

    def follow(self, partition: Partition) -> None:
        """Fetch from `partition.image.leader`, in that leader epoch. It must not be fetched for yet."""
        ...

    def drop(self, topic_partition: TopicPartition) -> None:
        """Fetch for this replica no longer; its disk failed, or it is not wanted any more."""
        ...

    async def stop(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Fetch for these no longer, and return when nothing is done on their logs any more."""
        ...
