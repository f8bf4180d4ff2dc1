"""Operations in fenced transactions, within the size limit of the coordination service."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from cluster.znodes import CONTROLLER_EPOCH
from protocol.value import Value
from zookeeper.coordination import Check, Create, Operation, SetData

_OPERATION_OVERHEAD_BYTES = 64
"""ZooKeeper's overhead per operation of a multi in bytes (headers, lengths, the default ACL), rounded up."""

_WITH_DATA = (Create, SetData)

NODES_PER_SHARE = 100
"""Topics, partitions or configurations per write: some 5 ms of work."""

T = TypeVar("T")


class ControllerEpoch(Value):
    """The controller's epoch, and the version of /controller_epoch that proves it is still the controller."""

    epoch: int
    znode_version: int


def fenced(operations: Iterable[Operation], epoch: ControllerEpoch, max_bytes: int) -> Iterator[list[Operation]]:
    """Split `operations`, in order, into transactions of at most `max_bytes` that each check the controller epoch.

    An operation above the limit is returned alone, so that the service rejects it.
    """
    check = Check(CONTROLLER_EPOCH, epoch.znode_version)
    transaction: list[Operation] = [check]
    size = check_size = _OPERATION_OVERHEAD_BYTES + len(check.path)
    for operation in operations:
        data = operation.data if isinstance(operation, _WITH_DATA) else None
        operation_size = _OPERATION_OVERHEAD_BYTES + len(operation.path) + (len(data) if data else 0)
        if len(transaction) > 1 and size + operation_size > max_bytes:
            yield transaction
            transaction, size = [check], check_size
        transaction.append(operation)
        size += operation_size
    if len(transaction) > 1:
        yield transaction


def shares(items: Sequence[T], nodes: Callable[[T], int]) -> Iterator[Sequence[T]]:
    """Split `items`, with their numbers of nodes, into shares to write in one transaction each, so that other tasks can
    run in between.
    """
    first = total = 0
    for at, item in enumerate(items):
        total += nodes(item)
        if total >= NODES_PER_SHARE:
            yield items[first : at + 1]
            first, total = at + 1, 0
    if first < len(items):
        yield items[first:]
