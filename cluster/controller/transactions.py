"""Operations in fenced transactions no larger than the coordination service takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cluster.coordination.contract import Check, Create, Operation, SetData
from cluster.znodes import CONTROLLER_EPOCH

_OPERATION_OVERHEAD_BYTES = 64
"""What ZooKeeper adds per operation of a multi (headers, lengths, the default ACL), rounded up."""


@dataclass(frozen=True, slots=True)
class ControllerTerm:
    """This controller's epoch, and the version of /controller_epoch that proves it is still the controller."""

    epoch: int
    znode_version: int


def fenced(operations: Iterable[Operation], term: ControllerTerm, max_bytes: int) -> Iterator[list[Operation]]:
    """Split `operations`, in order, into transactions of at most `max_bytes` that each check the controller's term.

    A single operation above the limit is given alone, for the service to refuse.
    """
    check = Check(CONTROLLER_EPOCH, term.znode_version)
    transaction: list[Operation] = [check]
    size = _size(check)
    for operation in operations:
        operation_size = _size(operation)
        if len(transaction) > 1 and size + operation_size > max_bytes:
            yield transaction
            transaction, size = [check], _size(check)
        transaction.append(operation)
        size += operation_size
    if len(transaction) > 1:
        yield transaction


def _size(operation: Operation) -> int:
    data = operation.data if isinstance(operation, Create | SetData) else None
    return _OPERATION_OVERHEAD_BYTES + len(operation.path) + (len(data) if data else 0)
