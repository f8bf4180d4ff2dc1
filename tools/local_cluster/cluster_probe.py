"""Questions to the brokers of a cluster, answered soon or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from types import TracebackType
from typing import Self

from client import admin
from client.errors import ClientError
from client.metadata import Metadata
from protocol.errors import ApiError
from protocol.topic_partition import TopicPartition
from tools.support.common import make_client

PATIENCE_MS = 1_500
"""For each question: a broker of this machine answers in milliseconds."""

LogSizes = Mapping[int, Mapping[TopicPartition, int]]
"""The bytes of each replica, by broker."""

_PROPERTIES = {
    "request.timeout.ms": str(PATIENCE_MS),
    "default.api.timeout.ms": str(PATIENCE_MS),
    "socket.connection.setup.timeout.ms": str(PATIENCE_MS),
}


class Probe:
    """A client of the brokers at `bootstrap_servers`. Use as an async context manager."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._client = make_client(bootstrap_servers, _PROPERTIES, client_id="odradek-cluster")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._client.close()

    async def knows(self, brokers: Collection[int]) -> bool:
        """Whether the broker that answers knows these, and a controller that is alive."""
        try:
            found = await self._client.fetch_metadata([])
        except ClientError:
            return False
        return found.nodes.keys() >= set(brokers) and found.controller_id in found.nodes

    async def metadata(self) -> Metadata | None:
        """The cluster with all topics; None when no broker answers."""
        try:
            return await admin.list_topics(self._client)
        except ClientError:
            return None

    async def log_sizes(self, brokers: Sequence[int]) -> LogSizes:
        """The bytes of the replicas of each broker that answers."""
        found = await asyncio.gather(*map(self._sizes_of, brokers))
        return {broker: sizes for broker, sizes in zip(brokers, found, strict=True) if sizes is not None}

    async def _sizes_of(self, broker: int) -> Mapping[TopicPartition, int] | None:
        try:
            described = await admin.describe_log_dirs(self._client, broker)
        except (ApiError, ClientError):
            return None
        return {
            TopicPartition(topic.name, each.partition_index): each.partition_size
            for log_dir in described
            for topic in log_dir.topics
            for each in topic.partitions
            if not each.is_future_key
        }
