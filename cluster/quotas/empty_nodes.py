"""Nodes of users, client ids and addresses that hold nothing any more (Kafka's `AdminZkClient.tryCleanQuotaNodes`)."""

from __future__ import annotations

from collections.abc import Sequence

from cluster import znodes
from cluster.zookeeper.coordination import Coordination, Delete, NoNodeError, Operation


async def removal(coordination: Coordination, path: str, parents: Sequence[str]) -> list[Operation] | None:
    """Give the operations that take a node with an empty configuration out of the tree, and of its `parents` (a user's
    node and the one of its client ids) those that hold nothing else; None where there are others below it.
    """
    try:
        if (await coordination.children(path))[0]:
            return None
    except NoNodeError:
        return []
    removed: list[Operation] = [Delete(path)]
    if parents:
        user, clients = parents
        if len((await coordination.children(clients))[0]) == 1:
            removed.append(Delete(clients))
            data, stat = await coordination.get(user)
            if stat.num_children == 1 and _holds_nothing(user, data):
                removed.append(Delete(user))
    return removed


def _holds_nothing(path: str, data: bytes | None) -> bool:
    try:
        return not znodes.decode_config(path, data)
    except znodes.ZnodeFormatError:  # somebody may mend it
        return False
