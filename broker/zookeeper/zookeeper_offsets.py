"""Offsets in the coordination tree, where consumers kept them before Kafka 0.8.2: OffsetCommit and OffsetFetch v0.

Path and format are Kafka's: /consumers/<group>/offsets/<topic>/<partition>, a decimal number. They are independent of
the offsets in __consumer_offsets, and never expire.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from cluster.zookeeper.coordination import Coordination, NodeExistsError, NoNodeError
from protocol.topic_partition import TopicPartition

_ROOT = "/consumers"


class ZookeeperOffsets:
    """Reads and writes in the session that `session()` returns. Errors of the session propagate."""

    def __init__(self, session: Callable[[], Coordination]) -> None:
        self._session = session

    async def fetch(self, group_id: str, topic_partition: TopicPartition) -> int | None:
        """The offset, or None if the node is missing or not a number."""
        try:
            data, _ = await self._session().get(_path(group_id, topic_partition))
        except NoNodeError:
            return None
        try:
            return int(data or b"")
        except ValueError:
            return None

    async def commit(self, group_id: str, topic_partition: TopicPartition, offset: int) -> None:
        """Set the offset."""
        path, data = _path(group_id, topic_partition), str(offset).encode()
        try:
            await self._session().set(path, data)
        except NoNodeError:
            await self._create_parents(path)
            try:
                await self._session().create(path, data)
            except NodeExistsError:
                await self._session().set(path, data)

    async def _create_parents(self, path: str) -> None:
        names = path.split("/")[1:-1]
        for depth in range(1, len(names) + 1):
            with contextlib.suppress(NodeExistsError):
                await self._session().create("/" + "/".join(names[:depth]))


def _path(group_id: str, topic_partition: TopicPartition) -> str:
    return f"{_ROOT}/{group_id}/offsets/{topic_partition.topic}/{topic_partition.partition}"
