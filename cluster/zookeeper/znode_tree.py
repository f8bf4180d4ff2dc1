"""The znode tree as a pure state machine: `apply(transaction, zxid, now_ms)` changes it, nothing else does.

The rules are ZooKeeper's (DataTree, PrepRequestProcessor): atomic transactions under one zxid, versions, ephemeral
owners, sequence numbers counted by the parent, events for whoever watches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from typing import Final, TypeVar

from cluster.zookeeper.coordination import (
    ANY_VERSION,
    BadArgumentsError,
    BadVersionError,
    Check,
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
    WatchEvent,
    ZnodeStat,
)
from protocol.value import Value

T = TypeVar("T")


class Znode:
    """One node. `creations` counts the children ever created, from which sequence numbers and cversion come."""

    __slots__ = (
        "children",
        "creations",
        "ctime_ms",
        "czxid",
        "data",
        "ephemeral_owner",
        "mtime_ms",
        "mzxid",
        "pzxid",
        "version",
    )

    def __init__(self, data: bytes | None, zxid: int, now_ms: int, ephemeral_owner: int = 0) -> None:
        self.data = data
        self.czxid = self.mzxid = self.pzxid = zxid
        self.ctime_ms = self.mtime_ms = now_ms
        self.version = 0
        self.creations = 0
        self.ephemeral_owner = ephemeral_owner
        # Most nodes are leaves; a set for each of ten thousand partition states would cost 2 MB of nothing.
        self.children: set[str] | None = None

    def stat(self) -> ZnodeStat:
        """The node's bookkeeping. cversion counts creations and deletions, as ZooKeeper reports it."""
        count = len(self.children) if self.children else 0
        return ZnodeStat(
            self.czxid,
            self.mzxid,
            self.ctime_ms,
            self.mtime_ms,
            self.version,
            2 * self.creations - count,
            self.ephemeral_owner,
            len(self.data) if self.data is not None else 0,
            count,
            self.pzxid,
        )


class CreateSession(Value):
    """Begin session `session_id`, which the caller took from `ZnodeTree.next_session_id`."""

    session_id: int


class CloseSession(Value):
    """End a session and delete its ephemeral nodes."""

    session_id: int


class Multi(Value):
    """Operations of one session, all or none."""

    session_id: int
    operations: tuple[Operation, ...]


Transaction = CreateSession | CloseSession | Multi

OPERATIONS_PER_SLICE: Final = 250
"""Operations of a transaction that are carried out, or encoded, in one go: some 3 ms of work."""

Slices = Generator[None, None, T]
"""Work that pauses at times, and returns its result in the end."""


def to_the_end(work: Slices[T]) -> T:
    """Do all of `work` at once; gives its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


class Applied(Value):
    """The effects of a transaction: one result per operation, and the events in the order they came about."""

    results: list[OperationResult]
    events: list[WatchEvent]


_LEGAL_PATH = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[^/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]+)+")


def validate_path(path: str) -> None:
    """Raises BadArgumentsError unless `path` is absolute, normal and without control characters (ZooKeeper's
    PathUtils)."""
    if path != "/" and _LEGAL_PATH.fullmatch(path) is None:
        raise BadArgumentsError(f"not a path of a node: {path!r}")


def split_path(path: str) -> tuple[str, str]:
    """(parent path, own name)."""
    parent, _, name = path.rpartition("/")
    return parent or "/", name


class ZnodeTree:
    """The state: nodes by path, live sessions with what they own, the last zxid."""

    def __init__(self) -> None:
        self._nodes: dict[str, Znode] = {"/": Znode(b"", 0, 0)}
        self._ephemerals: dict[int, set[str]] = {}
        self.last_zxid = 0
        self.next_session_id = 1

    @property
    def sessions(self) -> list[int]:
        """Live sessions, oldest first."""
        return sorted(self._ephemerals)

    def __len__(self) -> int:
        return len(self._nodes)

    # Reads

    def get(self, path: str) -> tuple[bytes | None, ZnodeStat]:
        """Data and stat. Raises NoNodeError, BadArgumentsError."""
        node = self._node(path)
        return node.data, node.stat()

    def exists(self, path: str) -> ZnodeStat | None:
        """Stat or None. Raises BadArgumentsError."""
        validate_path(path)
        node = self._nodes.get(path)
        return node.stat() if node is not None else None

    def children(self, path: str) -> tuple[list[str], ZnodeStat]:
        """Sorted names and the node's stat. Raises NoNodeError, BadArgumentsError."""
        node = self._node(path)
        return sorted(node.children or ()), node.stat()

    def nodes(self) -> Iterator[tuple[str, Znode]]:
        """Every node, parents before children."""
        return iter(sorted(self._nodes.items()))

    # Changes

    def apply(self, transaction: Transaction, zxid: int, now_ms: int) -> Applied:
        """Carry out `transaction` under `zxid`, which must exceed `last_zxid`.

        Raises the CoordinationError of ZooKeeper (a MultiError for a Multi), and then nothing has changed but that
        `zxid` stays unused.
        """
        return to_the_end(self.apply_in_slices(transaction, zxid, now_ms))

    def apply_in_slices(self, transaction: Transaction, zxid: int, now_ms: int) -> Slices[Applied]:
        """As `apply`, with a pause after every OPERATIONS_PER_SLICE operations. The tree is not to be looked at, nor
        changed, before the last slice.
        """
        if zxid <= self.last_zxid:
            raise ValueError(f"zxid {zxid} does not follow {self.last_zxid}")
        if isinstance(transaction, Multi):
            applied = yield from self._apply_multi(transaction, zxid, now_ms)
        elif isinstance(transaction, CreateSession):
            if transaction.session_id < self.next_session_id:
                raise ValueError(f"session id {transaction.session_id} was used before")
            self._ephemerals[transaction.session_id] = set()
            self.next_session_id = transaction.session_id + 1
            applied = Applied([], [])
        else:
            applied = self._close_session(transaction.session_id, zxid)
        self.last_zxid = zxid
        return applied

    def restore(self, path: str, node: Znode) -> None:
        """Put back a node of a snapshot; parents come first. For recovery only."""
        self._nodes[path] = node
        if path != "/":
            parent, name = split_path(path)
            self._attach(self._nodes[parent], name)
        if node.ephemeral_owner:
            self._ephemerals.setdefault(node.ephemeral_owner, set()).add(path)

    def restore_session(self, session_id: int) -> None:
        """Put back a session of a snapshot. For recovery only."""
        self._ephemerals.setdefault(session_id, set())

    def _node(self, path: str) -> Znode:
        node = self._nodes.get(path)
        if node is None:
            validate_path(path)
            raise NoNodeError(f"no node {path}")
        return node

    def _apply_multi(self, multi: Multi, zxid: int, now_ms: int) -> Slices[Applied]:
        if multi.session_id not in self._ephemerals:
            raise SessionExpiredError(f"session {multi.session_id} has ended")
        applied = Applied([], [])
        undo: list[Callable[[], None]] = []
        for index, operation in enumerate(multi.operations):
            try:
                applied.results.append(self._carry_out(operation, multi.session_id, zxid, now_ms, applied.events, undo))
            except CoordinationError as error:
                for step in reversed(undo):
                    step()
                raise MultiError(index, error) from error
            if index % OPERATIONS_PER_SLICE == OPERATIONS_PER_SLICE - 1:
                yield
        return applied

    def _carry_out(
        self,
        operation: Operation,
        session_id: int,
        zxid: int,
        now_ms: int,
        events: list[WatchEvent],
        undo: list[Callable[[], None]],
    ) -> OperationResult:
        match operation:
            case Create():
                return self._create(operation, session_id, zxid, now_ms, events, undo)
            case SetData(path, data, version):
                return self._set_data(path, data, version, zxid, now_ms, events, undo)
            case Delete(path, version):
                self._delete(path, version, zxid, events, undo)
            case Check(path, version):
                self._checked(path, version)
        return None

    def _checked(self, path: str, version: int) -> Znode:
        node = self._node(path)
        if version not in {ANY_VERSION, node.version}:
            raise BadVersionError(f"version of {path} is {node.version}, expected {version}")
        return node

    def _create(
        self,
        operation: Create,
        session_id: int,
        zxid: int,
        now_ms: int,
        events: list[WatchEvent],
        undo: list[Callable[[], None]],
    ) -> str:
        path = operation.path
        if operation.sequential:
            parent_node = self._nodes.get(path.rpartition("/")[0] or "/")
            # ZooKeeper's parent version is a 32-bit int and its format is %010d.
            path += f"{parent_node.creations:010d}" if parent_node is not None else "0"
        validate_path(path)
        parent_path, name = split_path(path)
        if path in self._nodes:
            raise NodeExistsError(f"node {path} exists")
        parent = self._nodes.get(parent_path)
        if parent is None:
            raise NoNodeError(f"no node {parent_path}, the parent of {path}")
        if parent.ephemeral_owner:
            raise NoChildrenForEphemeralsError(f"{parent_path} is ephemeral and can have no child {name}")
        owner = session_id if operation.ephemeral else 0
        pzxid = parent.pzxid
        self._nodes[path] = Znode(operation.data, zxid, now_ms, owner)
        self._attach(parent, name)
        parent.creations += 1
        parent.pzxid = zxid
        if owner:
            self._ephemerals[owner].add(path)

        def back() -> None:
            self._detach(path, parent, name)
            parent.creations -= 1
            parent.pzxid = pzxid

        undo.append(back)
        events.append(WatchEvent(EventType.CREATED, path))
        events.append(WatchEvent(EventType.CHILDREN_CHANGED, parent_path))
        return path

    def _set_data(
        self,
        path: str,
        data: bytes | None,
        version: int,
        zxid: int,
        now_ms: int,
        events: list[WatchEvent],
        undo: list[Callable[[], None]],
    ) -> ZnodeStat:
        node = self._checked(path, version)
        before = (node.data, node.version, node.mzxid, node.mtime_ms)
        node.data, node.version, node.mzxid, node.mtime_ms = data, node.version + 1, zxid, now_ms

        def back() -> None:
            node.data, node.version, node.mzxid, node.mtime_ms = before

        undo.append(back)
        events.append(WatchEvent(EventType.DATA_CHANGED, path))
        return node.stat()

    def _delete(
        self, path: str, version: int, zxid: int, events: list[WatchEvent], undo: list[Callable[[], None]]
    ) -> None:
        if path == "/":
            raise BadArgumentsError("the root cannot be deleted")
        node = self._checked(path, version)
        if node.children:
            raise NotEmptyError(f"{path} has children")
        parent_path, name = split_path(path)
        parent = self._nodes[parent_path]
        pzxid = parent.pzxid
        self._detach(path, parent, name)
        parent.pzxid = zxid

        def back() -> None:
            self._nodes[path] = node
            self._attach(parent, name)
            parent.pzxid = pzxid
            if node.ephemeral_owner:
                self._ephemerals[node.ephemeral_owner].add(path)

        undo.append(back)
        events.append(WatchEvent(EventType.DELETED, path))
        events.append(WatchEvent(EventType.CHILDREN_CHANGED, parent_path))

    def _close_session(self, session_id: int, zxid: int) -> Applied:
        if session_id not in self._ephemerals:
            raise SessionExpiredError(f"session {session_id} has ended")
        applied = Applied([], [])
        # Ephemerals have no children, so any order works; sorted makes a replay give the same events.
        for path in sorted(self._ephemerals[session_id]):
            self._delete(path, ANY_VERSION, zxid, applied.events, [])
        del self._ephemerals[session_id]
        return applied

    @staticmethod
    def _attach(parent: Znode, name: str) -> None:
        if parent.children is None:
            parent.children = set()
        parent.children.add(name)

    def _detach(self, path: str, parent: Znode, name: str) -> None:
        node = self._nodes.pop(path)
        if parent.children is not None:
            parent.children.discard(name)
        if node.ephemeral_owner:
            self._ephemerals[node.ephemeral_owner].discard(path)
