"""ZooKeeper's operations, stats, events and errors, in kazoo's types on one side and the contract's on the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kazoo import exceptions
from kazoo.protocol import serialization as wire
from kazoo.protocol import states
from kazoo.security import OPEN_ACL_UNSAFE

from cluster.zookeeper.coordination import (
    BadArgumentsError,
    BadVersionError,
    Check,
    ConnectionLossError,
    CoordinationError,
    Create,
    Delete,
    EventType,
    MultiError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    OperationResult,
    SessionExpiredError,
    SetData,
    ZnodeStat,
)
from cluster.zookeeper.znode_tree import split_path

_EPHEMERAL, _SEQUENTIAL = 1, 2
_ERRORS: tuple[tuple[type[Exception], type[CoordinationError], str], ...] = (
    (exceptions.NoNodeError, NoNodeError, "no node {path}"),
    (exceptions.NodeExistsError, NodeExistsError, "node {path} exists"),
    (exceptions.BadVersionError, BadVersionError, "the version of {path} is another one"),
    (exceptions.NotEmptyError, NotEmptyError, "{path} has children"),
    (
        exceptions.NoChildrenForEphemeralsError,
        NoChildrenForEphemeralsError,
        "{path}: an ephemeral node has no children",
    ),
    (exceptions.BadArgumentsError, BadArgumentsError, "not a path of a node: {path}"),
    (exceptions.SessionExpiredError, SessionExpiredError, "the session has ended: {path}"),
    (exceptions.ConnectionClosedError, SessionExpiredError, "the session has ended: {path}"),
    (exceptions.AuthFailedError, SessionExpiredError, "ZooKeeper refused the credentials: {path}"),
    (exceptions.ConnectionLoss, ConnectionLossError, "the connection to ZooKeeper was lost: {path}"),
    (exceptions.OperationTimeoutError, ConnectionLossError, "ZooKeeper did not answer in time: {path}"),
    (exceptions.SessionMovedError, ConnectionLossError, "the session has moved to another server: {path}"),
    (exceptions.NoAuthError, CoordinationError, "ZooKeeper does not allow it: {path}"),
)
_EVENT_TYPES = {
    states.EventType.CREATED: EventType.CREATED,
    states.EventType.DELETED: EventType.DELETED,
    states.EventType.CHANGED: EventType.DATA_CHANGED,
    states.EventType.CHILD: EventType.CHILDREN_CHANGED,
}


def event_type(event: states.WatchedEvent) -> EventType | None:
    """The kind of change; None for an event that is about the connection."""
    return _EVENT_TYPES.get(event.type)


def znode_stat(stat: states.ZnodeStat) -> ZnodeStat:
    """The stat without the version of the access control list."""
    return ZnodeStat(
        stat.czxid,
        stat.mzxid,
        stat.ctime,
        stat.mtime,
        stat.version,
        stat.cversion,
        stat.ephemeralOwner,
        stat.dataLength,
        stat.numChildren,
        stat.pzxid,
    )


def coordination_error(error: Exception, path: str) -> CoordinationError:
    """The contract's error; its message names `path`."""
    for theirs, ours, message in _ERRORS:
        if isinstance(error, theirs):
            return ours(message.format(path=path))
    return CoordinationError(f"{type(error).__name__}: {path}")


def creation_error(error: Exception, path: str) -> CoordinationError:
    """As `coordination_error`, where `path` was to be created: what is missing then is its parent."""
    if isinstance(error, exceptions.NoNodeError):
        return NoNodeError(f"no node {split_path(path)[0]}, the parent of {path}")
    return coordination_error(error, path)


def creation(operation: Create, full_path: str, *, with_stat: bool) -> Any:
    """The request for a Create; answered with the path, and the stat when that is asked for."""
    flags = (_EPHEMERAL if operation.ephemeral else 0) | (_SEQUENTIAL if operation.sequential else 0)
    request = wire.Create2 if with_stat else wire.Create
    return request(full_path, operation.data, OPEN_ACL_UNSAFE, flags)


def transaction(operations: Sequence[Operation], full: Callable[[str], str]) -> Any:
    """The request for a multi; `full` puts the chroot before a path."""
    requests: list[Any] = []
    for operation in operations:
        match operation:
            case Create(path):
                requests.append(creation(operation, full(path), with_stat=False))
            case SetData(path, data, version):
                requests.append(wire.SetData(full(path), data, version))
            case Delete(path, version):
                requests.append(wire.Delete(full(path), version))
            case Check(path, version):
                requests.append(wire.CheckVersion(full(path), version))
    return wire.Transaction(requests)


def transaction_results(
    answers: Sequence[Any], operations: Sequence[Operation], own: Callable[[str], str]
) -> list[OperationResult]:
    """The results of a multi; `own` takes the chroot from a path. Raises MultiError."""
    for index, answer in enumerate(answers):
        # Those before the operation that failed are rolled back, those after it were not tried.
        if isinstance(answer, exceptions.RolledBackError | exceptions.RuntimeInconsistency):
            continue
        if isinstance(answer, Exception):
            operation = operations[index]
            name_error = creation_error if isinstance(operation, Create) else coordination_error
            raise MultiError(index, name_error(answer, operation.path))
    return [_result(answer, own) for answer in answers]


def _result(answer: Any, own: Callable[[str], str]) -> OperationResult:
    if isinstance(answer, str):
        return own(answer)
    return znode_stat(answer) if isinstance(answer, states.ZnodeStat) else None
