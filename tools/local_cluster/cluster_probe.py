"""Requests to the brokers of a cluster, with short timeouts."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, Self

from client import admin
from client.errors import ClientError
from client.metadata import Metadata
from protocol.errors import ApiError
from protocol.messages.offsets import ListOffsetsRequest, ListOffsetsResponse
from protocol.topic_partition import TopicPartition
from tools.support.common import make_client

PATIENCE_MS = 1_500
"""Timeout of each request: a local broker answers in milliseconds."""

_LATEST = -1
_DEBUGGER = -2
"""The replica id of a debugging consumer: followers answer it, too."""


class ReplicaLog(NamedTuple):
    """A replica as its broker sees it; `end_offset` is None if unknown."""

    size_bytes: int
    end_offset: int | None


Replicas = Mapping[int, Mapping[TopicPartition, ReplicaLog]]
"""The replicas of each broker."""

_PROPERTIES = {
    "request.timeout.ms": str(PATIENCE_MS),
    "default.api.timeout.ms": str(PATIENCE_MS),
    "socket.connection.setup.timeout.ms": str(PATIENCE_MS),
}


class Probe:
    """A client of the brokers at `bootstrap_servers`, with the credentials in `security`. Use as an async context
    manager.

    Requests raise AuthenticationError if a broker rejects the credentials.
    """

    def __init__(self, bootstrap_servers: str, security: Mapping[str, str] | None = None) -> None:
        self._client = make_client(bootstrap_servers, {**_PROPERTIES, **(security or {})}, client_id="odradek-cluster")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._client.close()

    async def knows(self, brokers: Collection[int]) -> bool:
        """Whether the broker that answers knows these brokers and a live controller."""
        try:
            found = await self._client.fetch_metadata([])
        except ClientError:
            return False
        return found.nodes.keys() >= set(brokers) and found.controller_id in found.nodes

    async def metadata(self) -> Metadata | None:
        """The cluster with all topics, or None if no broker answers."""
        try:
            return await admin.list_topics(self._client)
        except ClientError:
            return None

    async def replicas(self, brokers: Sequence[int]) -> Replicas:
        """The replicas of each broker that answers."""
        found = await asyncio.gather(*map(self._replicas_of, brokers))
        return {broker: logs for broker, logs in zip(brokers, found, strict=True) if logs is not None}

    async def _replicas_of(self, broker: int) -> Mapping[TopicPartition, ReplicaLog] | None:
        try:
            sizes = await self._sizes_of(broker)
            ends = await self._ends_of(broker, sizes)
        except (ApiError, ClientError):
            return None
        return {name: ReplicaLog(size, ends.get(name)) for name, size in sizes.items()}

    async def _ends_of(self, broker: int, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        topics: dict[str, list[ListOffsetsRequest.ListOffsetsPartition]] = defaultdict(list)
        for topic, number in partitions:
            asked = ListOffsetsRequest.ListOffsetsPartition(partition_index=number, timestamp=_LATEST)
            topics[topic].append(asked)
        request = ListOffsetsRequest(
            replica_id=_DEBUGGER,
            topics=[ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=each) for name, each in topics.items()],
        )
        response = await self._client.ask_node(broker, "listOffsets", request, ListOffsetsResponse)
        return {
            TopicPartition(topic.name, each.partition_index): each.offset
            for topic in response.topics
            for each in topic.partitions
            if not each.error_code
        }

    async def _sizes_of(self, broker: int) -> Mapping[TopicPartition, int]:
        described = await admin.describe_log_dirs(self._client, broker)
        return {
            TopicPartition(topic.name, each.partition_index): each.partition_size
            for log_dir in described
            for topic in log_dir.topics
            for each in topic.partitions
            if not each.is_future_key
        }
