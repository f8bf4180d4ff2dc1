"""The part of a tree that is worth to be made again in another one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cluster import znodes
from cluster.zookeeper.coordination import ANY_VERSION, Create, Operation, SetData
from cluster.zookeeper.znode import split_path
from cluster.zookeeper.znode_tree import ZnodeTree

_NOTICES = frozenset(
    {
        znodes.CONFIG_CHANGES,
        znodes.LOG_DIR_EVENTS,
        "/isr_change_notification",
        "/kafka-acl-changes",
        "/kafka-acl-extended-changes",
        "/delegation_token/token_changes",
    }
)
"""Their children are news for brokers that run. They have numbers, which begin again in another tree: a copied one
would stand in the way of a later one of the same number.
"""
_MOST_OPERATIONS = 1000


def operations_to_copy(tree: ZnodeTree) -> Iterator[Operation]:
    """Operations that make the tree's lasting nodes, parents first, in one that has none but the root.

    Left out are ephemeral nodes, notices, and nodes below ZooKeeper's own. Versions begin at 0 again; only that of
    /brokers/seqid is kept, as the ids that brokers were given come from it.
    """
    for path, node in tree.nodes():
        is_own = path in {"/", "/zookeeper"} or path.startswith("/zookeeper/")
        if is_own or node.ephemeral_owner or split_path(path)[0] in _NOTICES:
            continue
        yield Create(path, node.data, acl=node.acl)
        if path == znodes.BROKER_SEQUENCE:
            yield from (SetData(path, node.data, ANY_VERSION) for _ in range(node.version))


def transactions(operations: Iterator[Operation], most_bytes: int, bytes_each: int) -> Iterator[Sequence[Operation]]:
    """`operations` in transactions of at most `most_bytes`, when each costs `bytes_each` beside its path and data."""
    batch: list[Operation] = []
    size = 0
    for operation in operations:
        data = operation.data if isinstance(operation, Create | SetData) else None
        cost = bytes_each + len(operation.path.encode()) + len(data or b"")
        if batch and (size + cost > most_bytes or len(batch) == _MOST_OPERATIONS):
            yield batch
            batch, size = [], 0
        batch.append(operation)
        size += cost
    if batch:
        yield batch
