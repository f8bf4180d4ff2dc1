"""The znode tree as a pure state machine: only `apply(transaction, zxid, now_ms)` changes it.

The rules are ZooKeeper's (DataTree, PrepRequestProcessor): atomic transactions under one zxid, versions, ephemeral
owners, sequence numbers counted by the parent, and events for watches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from environment.sliced import Sliced, never, run_to_end
from protocol.value import Value
from zookeeper.access_control import Acl, AuthIds, Permission, is_allowed
from zookeeper.coordination import (
    ANY_VERSION,
    BadArgumentsError,
    BadVersionError,
    Check,
    CoordinationError,
    Create,
    Delete,
    EventType,
    InvalidAclError,
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
    WatchEvent,
    ZnodeStat,
)
from zookeeper.znode import Znode, split_path, validate_path


class Resumable(Value):
    """A session that outlives its process: its timeout, and the password that its owner resumes it with."""

    timeout_ms: int
    password: bytes


class CreateSession(Value):
    """Start session `session_id`, which the caller took from `ZnodeTree.next_session_id`.

    A session that is not resumable ends with the process that holds the tree.
    """

    session_id: int
    resumable: Resumable | None = None


class CloseSession(Value):
    """End a session and delete its ephemeral nodes."""

    session_id: int


class SetAcl(Value):
    """Replace the access control list of `path` if its version is `version`."""

    path: str
    acl: Acl
    version: int = ANY_VERSION


TreeOperation = Operation | SetAcl


class Multi(Value):
    """Operations of one session, all or none. Unless `identities` is None, these must have the rights for them."""

    session_id: int
    operations: tuple[TreeOperation, ...]
    identities: AuthIds | None = None


class _Change:
    """A Multi in progress: its session and time, its effects so far, and how to undo them."""

    __slots__ = ("applied", "identities", "now_ms", "session_id", "undo", "zxid")

    def __init__(self, session_id: int, identities: AuthIds | None, zxid: int, now_ms: int) -> None:
        self.session_id = session_id
        self.identities = identities
        self.zxid = zxid
        self.now_ms = now_ms
        self.applied = Applied([], [])
        self.undo: list[Callable[[], None]] = []

    def require(self, permission: Permission, node: Znode, path: str) -> None:
        """Raise NoAuthError unless the node's list allows it."""
        if self.identities is not None and not is_allowed(node.acl, permission, self.identities):
            raise NoAuthError(f"{path} is not allowed")

    def notify(self, kind: EventType, path: str, node: Znode) -> None:
        """Record an event for watches."""
        self.applied.events.append(WatchEvent(kind, path, node.acl))


Transaction = CreateSession | CloseSession | Multi


class Applied(Value):
    """The effects of a transaction: one result per operation, and the events in order."""

    results: list[OperationResult]
    events: list[WatchEvent]


def _require_version(path: str, expected: int, version: int) -> None:
    if expected not in {ANY_VERSION, version}:
        raise BadVersionError(f"version of {path} is {version}, expected {expected}")


def _require_acl(path: str, acl: Acl) -> None:
    if not acl:
        raise InvalidAclError(f"no access control list of {path} that can be kept")


class ZnodeTree:
    """The state: nodes by path, live sessions with their ephemeral nodes, and the last zxid."""

    def __init__(self) -> None:
        self._nodes: dict[str, Znode] = {"/": Znode(b"", 0, 0)}
        self._ephemerals: dict[int, set[str]] = {}
        self.resumable: dict[int, Resumable] = {}
        """The sessions that outlive the process."""
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

    def acl(self, path: str) -> Acl:
        """The access control list. Raises NoNodeError, BadArgumentsError."""
        return self._node(path).acl

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

        Raises ZooKeeper's CoordinationError (a MultiError for a Multi); the tree is then unchanged, and `zxid` stays
        unused.
        """
        return run_to_end(self.apply_in_slices(transaction, zxid, now_ms, never))

    def apply_in_slices(
        self, transaction: Transaction, zxid: int, now_ms: int, should_yield: Callable[[], bool]
    ) -> Sliced[Applied]:
        """As `apply`, with pauses. The tree must not be read or changed before the last slice."""
        if zxid <= self.last_zxid:
            raise ValueError(f"zxid {zxid} does not follow {self.last_zxid}")
        if isinstance(transaction, Multi):
            applied = yield from self._apply_multi(transaction, zxid, now_ms, should_yield)
        elif isinstance(transaction, CreateSession):
            if transaction.session_id < self.next_session_id:
                raise ValueError(f"session id {transaction.session_id} was used before")
            self.restore_session(transaction.session_id, transaction.resumable)
            self.next_session_id = transaction.session_id + 1
            applied = Applied([], [])
        else:
            applied = yield from self._close_session(transaction.session_id, zxid, should_yield)
        self.last_zxid = zxid
        return applied

    def restore(self, path: str, node: Znode) -> None:
        """Restore a node from a snapshot, after its parent. For recovery only."""
        self._nodes[path] = node
        if path != "/":
            parent, name = split_path(path)
            self._attach(self._nodes[parent], name)
            node.share_acl(self._nodes[parent])
        if node.ephemeral_owner:
            self._ephemerals.setdefault(node.ephemeral_owner, set()).add(path)

    def restore_session(self, session_id: int, resumable: Resumable | None = None) -> None:
        """Restore a session from a snapshot. For recovery only."""
        self._ephemerals.setdefault(session_id, set())
        if resumable is not None:
            self.resumable[session_id] = resumable

    def _node(self, path: str) -> Znode:
        node = self._nodes.get(path)
        if node is None:
            validate_path(path)
            raise NoNodeError(f"no node {path}")
        return node

    def _apply_multi(self, multi: Multi, zxid: int, now_ms: int, should_yield: Callable[[], bool]) -> Sliced[Applied]:
        if multi.session_id not in self._ephemerals:
            raise SessionExpiredError(f"session {multi.session_id} has ended")
        change = _Change(multi.session_id, multi.identities, zxid, now_ms)
        results = change.applied.results
        for index, operation in enumerate(multi.operations):
            try:
                results.append(self._carry_out(operation, change))
            except CoordinationError as error:
                for step in reversed(change.undo):
                    step()
                raise MultiError(index, error) from error
            if should_yield():
                yield
        return change.applied

    def _carry_out(self, operation: TreeOperation, change: _Change) -> OperationResult:
        match operation:
            case Create():
                return self._create(operation, change)
            case SetData():
                return self._set_data(operation, change)
            case SetAcl():
                return self._set_acl(operation, change)
            case Delete(path, version):
                self._delete(path, version, change)
            case Check(path, version):
                node = self._node(path)
                change.require(Permission.READ, node, path)
                _require_version(path, version, node.version)
        return None

    def _create(self, operation: Create, change: _Change) -> str:
        path = operation.path
        if operation.sequential:
            parent_node = self._nodes.get(path.rpartition("/")[0] or "/")
            # The parent's counter is a 32-bit int in ZooKeeper, formatted with %010d.
            path += f"{parent_node.creations:010d}" if parent_node is not None else "0"
        validate_path(path)
        _require_acl(path, operation.acl)
        parent_path, name = split_path(path)
        parent = self._nodes.get(parent_path)
        if parent is None:
            raise NoNodeError(f"no node {parent_path}, the parent of {path}")
        change.require(Permission.CREATE, parent, path)
        if path in self._nodes:
            raise NodeExistsError(f"node {path} exists")
        if parent.ephemeral_owner:
            raise NoChildrenForEphemeralsError(f"{parent_path} is ephemeral and can have no child {name}")
        owner = change.session_id if operation.ephemeral else 0
        pzxid = parent.pzxid
        node = self._nodes[path] = Znode(operation.data, change.zxid, change.now_ms, owner)
        node.acl = operation.acl
        node.share_acl(parent)
        self._attach(parent, name)
        parent.creations += 1
        parent.pzxid = change.zxid
        if owner:
            self._ephemerals[owner].add(path)

        def back() -> None:
            self._detach(path, parent, name)
            parent.creations -= 1
            parent.pzxid = pzxid

        change.undo.append(back)
        change.notify(EventType.CREATED, path, node)
        change.notify(EventType.CHILDREN_CHANGED, parent_path, parent)
        return path

    def _set_data(self, operation: SetData, change: _Change) -> ZnodeStat:
        path = operation.path
        node = self._node(path)
        change.require(Permission.WRITE, node, path)
        _require_version(path, operation.version, node.version)
        before = (node.data, node.version, node.mzxid, node.mtime_ms)
        node.data, node.version = operation.data, node.version + 1
        node.mzxid, node.mtime_ms = change.zxid, change.now_ms

        def back() -> None:
            node.data, node.version, node.mzxid, node.mtime_ms = before

        change.undo.append(back)
        change.notify(EventType.DATA_CHANGED, path, node)
        return node.stat()

    def _set_acl(self, operation: SetAcl, change: _Change) -> ZnodeStat:
        path = operation.path
        _require_acl(path, operation.acl)
        node = self._node(path)
        change.require(Permission.ADMIN, node, path)
        _require_version(path, operation.version, node.acl_version)
        before = (node.acl, node.acl_version)
        node.acl, node.acl_version = operation.acl, node.acl_version + 1

        def back() -> None:
            node.acl, node.acl_version = before

        change.undo.append(back)
        return node.stat()

    def _delete(self, path: str, version: int, change: _Change) -> None:
        if path == "/":
            raise BadArgumentsError("the root cannot be deleted")
        parent_path, name = split_path(path)
        parent = self._node(parent_path)
        change.require(Permission.DELETE, parent, path)
        node = self._node(path)
        _require_version(path, version, node.version)
        if node.children:
            raise NotEmptyError(f"{path} has children")
        pzxid = parent.pzxid
        self._detach(path, parent, name)
        parent.pzxid = change.zxid

        def back() -> None:
            self._nodes[path] = node
            self._attach(parent, name)
            parent.pzxid = pzxid
            if node.ephemeral_owner:
                self._ephemerals[node.ephemeral_owner].add(path)

        change.undo.append(back)
        change.notify(EventType.DELETED, path, node)
        change.notify(EventType.CHILDREN_CHANGED, parent_path, parent)

    def _close_session(self, session_id: int, zxid: int, should_yield: Callable[[], bool]) -> Sliced[Applied]:
        if session_id not in self._ephemerals:
            raise SessionExpiredError(f"session {session_id} has ended")
        change = _Change(session_id, None, zxid, 0)
        # Ephemeral nodes cannot have children, so any order works; sorting makes a replay fire the same events.
        for path in sorted(self._ephemerals[session_id]):
            self._delete(path, ANY_VERSION, change)
            if should_yield():
                yield
        del self._ephemerals[session_id]
        self.resumable.pop(session_id, None)
        return change.applied

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
