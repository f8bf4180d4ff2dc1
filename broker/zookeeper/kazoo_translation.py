"""ZooKeeper's operations, stats, events and errors, in kazoo's types on one side and the contract's on the other."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from kazoo import exceptions
from kazoo.protocol import serialization as wire
from kazoo.protocol import states
from kazoo.security import ACL, Id

from zookeeper.access_control import OPEN
from zookeeper.coordination import (
    BadArgumentsError,
    BadVersionError,
    Check,
    ConnectionLossError,
    CoordinationError,
    Create,
    Delete,
    EventType,
    MultiError,
    NoAuthError,
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
from zookeeper.wire_format import UnimplementedError
from zookeeper.znode import split_path

_EPHEMERAL, _SEQUENTIAL = 1, 2
_READ_HEADER = struct.Struct(">i?i")
_GET_DATA = _READ_HEADER.pack(wire.GetData.type, False, -1)
_END_OF_READS = _READ_HEADER.pack(-1, True, -1)
_ERROR_RESULT = -1
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
    (exceptions.NoAuthError, NoAuthError, "ZooKeeper does not allow it: {path}"),
    (exceptions.UnimplementedError, UnimplementedError, "this ZooKeeper is too old for it: {path}"),
)
_EVENT_TYPES = {
    states.EventType.CREATED: EventType.CREATED,
    states.EventType.DELETED: EventType.DELETED,
    states.EventType.CHANGED: EventType.DATA_CHANGED,
    states.EventType.CHILD: EventType.CHILDREN_CHANGED,
}


def event_type(event: states.WatchedEvent) -> EventType | None:
    """The kind of change, or None for an event of the connection."""
    return _EVENT_TYPES.get(event.type)


def znode_stat(stat: states.ZnodeStat) -> ZnodeStat:
    """The contract's stat."""
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
        stat.acl_version,
    )


def coordination_error(error: Exception, path: str) -> CoordinationError:
    """The contract's error; its message names `path`."""
    for theirs, ours, message in _ERRORS:
        if isinstance(error, theirs):
            return ours(message.format(path=path))
    return CoordinationError(f"{type(error).__name__}: {path}")


def creation_error(error: Exception, path: str) -> CoordinationError:
    """Like `coordination_error`, for the creation of `path`: a missing node is its parent."""
    if isinstance(error, exceptions.NoNodeError):
        return NoNodeError(f"no node {split_path(path)[0]}, the parent of {path}")
    return coordination_error(error, path)


def creation(operation: Create, full_path: str, acl: list[ACL], *, with_stat: bool) -> Any:
    """The request for a Create; answered with the path and, if requested, the stat. `acl` applies if the operation does
    not include a list.
    """
    if operation.acl is not OPEN:
        acl = [ACL(each.permissions, Id(each.scheme, each.id)) for each in operation.acl]
    flags = (_EPHEMERAL if operation.ephemeral else 0) | (_SEQUENTIAL if operation.sequential else 0)
    request = wire.Create2 if with_stat else wire.Create
    return request(full_path, operation.data, acl, flags)


def transaction(operations: Sequence[Operation], full: Callable[[str], str], acl: Callable[[str], list[ACL]]) -> Any:
    """The request for a multi; `full` prepends the chroot to a path, `acl` returns a new node's list."""
    requests: list[Any] = []
    for operation in operations:
        match operation:
            case Create(path):
                requests.append(creation(operation, full(path), acl(path), with_stat=False))
            case SetData(path, data, version):
                requests.append(wire.SetData(full(path), data, version))
            case Delete(path, version):
                requests.append(wire.Delete(full(path), version))
            case Check(path, version):
                requests.append(wire.CheckVersion(full(path), version))
    return wire.Transaction(requests)


class MultiRead:
    """The request for the data of many nodes (ZooKeeper 3.6's MultiRead), which kazoo does not support.

    The answer is a list of data and stat, None for a missing node, or kazoo's exception for another error.
    """

    type = 22

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths

    def serialize(self) -> bytes:
        parts = [part for path in self._paths for part in (_GET_DATA, wire.write_string(path), b"\0")]
        return b"".join((*parts, _END_OF_READS))

    @staticmethod
    def deserialize(data: bytes, offset: int) -> list[Any]:
        """Called with the answer's frame, in kazoo's thread."""
        found: list[Any] = []
        while True:
            kind, is_end, _ = _READ_HEADER.unpack_from(data, offset)
            offset += _READ_HEADER.size
            if is_end:
                return found
            if kind == _ERROR_RESULT:
                (code,) = wire.int_struct.unpack_from(data, offset)
                offset += wire.int_struct.size
                found.append(None if code == exceptions.NoNodeError.code else exceptions.EXCEPTIONS[code]())
                continue
            value, offset = wire.read_buffer(data, offset)
            found.append((value, znode_stat(states.ZnodeStat._make(wire.stat_struct.unpack_from(data, offset)))))
            offset += wire.stat_struct.size


def transaction_results(
    answers: Sequence[Any], operations: Sequence[Operation], own: Callable[[str], str]
) -> list[OperationResult]:
    """The results of a multi; `own` removes the chroot from a path. Raises MultiError."""
    for index, answer in enumerate(answers):
        # Operations before the failed one are rolled back, later ones were not tried.
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
