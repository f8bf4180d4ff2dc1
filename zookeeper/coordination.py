"""The contract between the broker and any implementation of the znode tree: ZooKeeper's data model, asynchronous.

Every implementation guarantees:

- Calls of one session take effect in call order; a read sees that session's earlier writes.
- `multi` is atomic: all of its operations take effect under one zxid, or none does.
- The effects of a completed call are durable, and so is all data that reads and watches show.
- A watch fires at most once: after its change can be read, and before the reply to any later read of the same session
  shows that change. It runs on the event loop, must not block and must not raise.
- A session's ephemeral nodes live exactly as long as the session. After SESSION_EXPIRED all of them are gone and all of
  its watches are dead; a new session (another `session_id`) has to start from scratch.

After `ConnectionLossError` the outcome is *unknown*: the operation may have happened. The caller must read the tree
before a retry: compare `ephemeral_owner` with its own `session_id`, and versions with the expected ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol

from protocol.value import Value
from zookeeper.access_control import OPEN, Acl

ANY_VERSION = -1
"""As an expected version: skip the comparison."""


class CoordinationError(Exception):
    """Base class of all errors of a Coordination. The message names the path."""


class ConnectionLossError(CoordinationError):
    """The outcome is unknown: read back before a retry."""


class SessionExpiredError(CoordinationError):
    """The session is over; it can never be used again."""


class NoSpaceError(CoordinationError):
    """The disk is full, so the change could not be made durable and was not made. It can be retried."""


class NoNodeError(CoordinationError):
    """The node, or the parent of a node to be created, does not exist."""


class NodeExistsError(CoordinationError):
    """A node with that path exists already."""


class BadVersionError(CoordinationError):
    """The node's version is not the expected one."""


class NotEmptyError(CoordinationError):
    """A node with children cannot be deleted."""


class NoChildrenForEphemeralsError(CoordinationError):
    """An ephemeral node cannot have children."""


class BadArgumentsError(CoordinationError):
    """A malformed path."""


class NoAuthError(CoordinationError):
    """The node's access control list, or its parent's, does not allow it."""


class InvalidAclError(CoordinationError):
    """An invalid access control list."""


class MultiError(CoordinationError):
    """One operation of a multi failed, so none took effect: `index` is its position, `__cause__` its error."""

    def __init__(self, index: int, cause: CoordinationError) -> None:
        super().__init__(f"operation {index}: {cause}")
        self.index = index
        self.__cause__ = cause


class ZnodeStat(NamedTuple):
    """A node's metadata, as in ZooKeeper's Stat. `pzxid` is the zxid of the last change to the children."""

    czxid: int
    mzxid: int
    ctime_ms: int
    mtime_ms: int
    version: int
    cversion: int
    ephemeral_owner: int
    data_length: int
    num_children: int
    pzxid: int
    acl_version: int = 0


class Create(Value):
    """Create `path`. If sequential, append ten digits: the number of children ever created under the parent.

    `data` None (ZooKeeper's null) and b"" differ. The default list of the session's configuration replaces an `acl`
    that is OPEN.
    """

    path: str
    data: bytes | None = None
    ephemeral: bool = False
    sequential: bool = False
    acl: Acl = OPEN


class SetData(Value):
    """Replace the data of `path` if its version is `version`."""

    path: str
    data: bytes | None
    version: int = ANY_VERSION


class Delete(Value):
    """Delete `path`, which must not have children, if its version is `version`."""

    path: str
    version: int = ANY_VERSION


class Check(Value):
    """Change nothing, but fail unless the version of `path` is `version`."""

    path: str
    version: int


Operation = Create | SetData | Delete | Check
OperationResult = str | ZnodeStat | None
"""The created path for Create, the new stat for SetData, None for Delete and Check."""


class EventType(Enum):
    """The kinds of change that a watch reports."""

    CREATED = "created"
    DELETED = "deleted"
    DATA_CHANGED = "data_changed"
    CHILDREN_CHANGED = "children_changed"
    SESSION_EXPIRED = "session_expired"


class WatchEvent(NamedTuple):
    """One change of one node. With SESSION_EXPIRED, `path` is the watched one. Sessions without read access by `acl` do
    not get it.
    """

    type: EventType
    path: str
    acl: Acl = OPEN


Watch = Callable[[WatchEvent], None]

READS_PER_REQUEST: Final = 200
"""The most nodes per read request, so that no response holds the event loop for long."""


class SessionState(Enum):
    """SUSPENDED: the connection is lost, the session may still be alive. EXPIRED: it is gone, with its ephemeral
    nodes.
    """

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    EXPIRED = "expired"


class Coordination(Protocol):
    """One session with the tree.

    Besides its own errors, every method raises SessionExpiredError after the session's end, and ConnectionLossError if
    the outcome is unknown.
    """

    @property
    def session_id(self) -> int:
        """The owner of this session's ephemeral nodes; 0 before `connect`."""
        ...

    @property
    def max_transaction_bytes(self) -> int:
        """The maximum bytes of paths and data in one multi (ZooKeeper's jute.maxbuffer, less its overhead)."""
        ...

    async def connect(self) -> None:
        """Start the session. Raises ConnectionLossError if the tree cannot be reached in time."""
        ...

    async def close(self) -> None:
        """End the session and delete its ephemeral nodes before returning."""
        ...

    def add_session_listener(self, listener: Callable[[SessionState], None]) -> None:
        """Call `listener` on the event loop at each change of the session's state."""
        ...

    async def create(
        self, path: str, data: bytes | None = None, *, ephemeral: bool = False, sequential: bool = False
    ) -> tuple[str, ZnodeStat]:
        """Create a node and return its path and stat. Raises NodeExistsError, NoNodeError (for the parent),
        NoChildrenForEphemeralsError, BadArgumentsError.
        """
        ...

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes | None, ZnodeStat]:
        """The node's data and stat; `watch` fires when its data changes or it is deleted. Raises NoNodeError, without
        leaving a watch.
        """
        ...

    async def get_each(self, paths: Sequence[str]) -> list[tuple[bytes | None, ZnodeStat] | None]:
        """Data and stat of at most READS_PER_REQUEST nodes, None for each missing one. Not a snapshot: nodes may be
        read at different times.
        """
        ...

    async def set(self, path: str, data: bytes | None, version: int = ANY_VERSION) -> ZnodeStat:
        """Replace the data. Raises NoNodeError, BadVersionError."""
        ...

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete the node. Raises NoNodeError, BadVersionError, NotEmptyError."""
        ...

    async def exists(self, path: str, watch: Watch | None = None) -> ZnodeStat | None:
        """The stat, or None. `watch` fires on creation, deletion or change of data, whether the node exists or not."""
        ...

    async def children(self, path: str, watch: Watch | None = None) -> tuple[list[str], ZnodeStat]:
        """The sorted names of the children, and the node's own stat; `watch` fires when a child is created or deleted,
        or the node itself is deleted. Raises NoNodeError, without leaving a watch.
        """
        ...

    async def multi(self, operations: Sequence[Operation]) -> list[OperationResult]:
        """Apply all operations or none, and return their results in order. Raises MultiError."""
        ...
