"""The contract between the broker and whatever holds the znode tree: ZooKeeper's data model, asynchronously.

Guarantees that every implementation gives:

- Calls of one session take effect in the order in which they were made; a read sees that session's earlier writes.
- `multi` is atomic: all of its operations take effect under one zxid, or none does.
- What a call has answered is durable. What a read or a watch shows is durable.
- A watch fires at most once, after the change it reports can be read, and before the reply to any later read of the
  same session shows that change. It is called on the event loop, must not block and must not raise.
- A session's ephemeral nodes live exactly as long as the session. After SESSION_EXPIRED everything the session held is
  gone, all its watches are dead, and a new session (another `session_id`) has to be built up from nothing.

`ConnectionLossError` means that the outcome is *unknown*: the operation may have happened. Whoever gets it reads the
tree before trying again (compare `ephemeral_owner` with the own `session_id`, versions with the expected ones).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol

from cluster.zookeeper.access_control import OPEN, Acl
from protocol.value import Value

ANY_VERSION = -1
"""As an expected version: do not compare."""


class CoordinationError(Exception):
    """Base of everything that a Coordination raises. The message names the path."""


class ConnectionLossError(CoordinationError):
    """The outcome is unknown: read back before retrying."""


class SessionExpiredError(CoordinationError):
    """The session is over; nothing more can be done with it."""


class NoSpaceError(CoordinationError):
    """The change was not made, because there is no disk space to make it durable. It may be tried again."""


class NoNodeError(CoordinationError):
    """The node, or the parent of a node to be created, does not exist."""


class NodeExistsError(CoordinationError):
    """A node of that path exists already."""


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
    """An access control list that cannot be kept."""


class MultiError(CoordinationError):
    """One operation of a multi failed, so none took effect: `index` says which, `__cause__` says why."""

    def __init__(self, index: int, cause: CoordinationError) -> None:
        super().__init__(f"operation {index}: {cause}")
        self.index = index
        self.__cause__ = cause


class ZnodeStat(NamedTuple):
    """A node's bookkeeping, as ZooKeeper's Stat. `pzxid` is the zxid of the last change to the children."""

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
    """Create `path`. Sequential: ten digits, the number of children ever created under the parent, are appended.

    `data` None (ZooKeeper's null) and b"" are different values. An `acl` that is OPEN gives way to what the
    configuration of the session says.
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
    """Delete `path`, which must have no children, if its version is `version`."""

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
    """One change of one node (for SESSION_EXPIRED, the path is the watched one). Whoever may not read by `acl` is not
    told of it.
    """

    type: EventType
    path: str
    acl: Acl = OPEN


Watch = Callable[[WatchEvent], None]

READS_PER_REQUEST: Final = 200
"""The most nodes that are read together: no answer holds the event loop for long."""


class SessionState(Enum):
    """SUSPENDED: contact is lost, the session may still be alive; EXPIRED: it is gone, with its ephemerals."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    EXPIRED = "expired"


class Coordination(Protocol):
    """One session with the tree.

    Every method raises SessionExpiredError after the session's end and ConnectionLossError when the outcome cannot be
    known, besides the errors it names.
    """

    @property
    def session_id(self) -> int:
        """The owner of this session's ephemeral nodes; 0 before `connect`."""
        ...

    @property
    def max_transaction_bytes(self) -> int:
        """The most bytes of paths and data that one multi may carry (ZooKeeper's jute.maxbuffer, less its overhead)."""
        ...

    async def connect(self) -> None:
        """Begin the session. Raises ConnectionLossError when the tree cannot be reached in time."""
        ...

    async def close(self) -> None:
        """End the session: its ephemeral nodes are deleted before this returns."""
        ...

    def add_session_listener(self, listener: Callable[[SessionState], None]) -> None:
        """Call `listener` on the event loop at each change of the session's state."""
        ...

    async def create(
        self, path: str, data: bytes | None = None, *, ephemeral: bool = False, sequential: bool = False
    ) -> tuple[str, ZnodeStat]:
        """Create a node; gives its path and stat. Raises NodeExistsError, NoNodeError (the parent),
        NoChildrenForEphemeralsError, BadArgumentsError."""
        ...

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes | None, ZnodeStat]:
        """The node's data and stat; `watch` fires when either changes or the node goes. Raises NoNodeError, and then
        leaves no watch."""
        ...

    async def get_each(self, paths: Sequence[str]) -> list[tuple[bytes | None, ZnodeStat] | None]:
        """The data and stat of each of at most READS_PER_REQUEST nodes, None for one that is not there.

        They are asked for together, and need not be of one moment.
        """
        ...

    async def set(self, path: str, data: bytes | None, version: int = ANY_VERSION) -> ZnodeStat:
        """Replace the data. Raises NoNodeError, BadVersionError."""
        ...

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete the node. Raises NoNodeError, BadVersionError, NotEmptyError."""
        ...

    async def exists(self, path: str, watch: Watch | None = None) -> ZnodeStat | None:
        """The stat, or None. `watch` fires at creation, deletion or change of data, whether the node exists or not."""
        ...

    async def children(self, path: str, watch: Watch | None = None) -> tuple[list[str], ZnodeStat]:
        """The children's names, sorted, and the node's own stat; `watch` fires when a child comes or goes, or the node
        itself goes. Raises NoNodeError, and then leaves no watch."""
        ...

    async def multi(self, operations: Sequence[Operation]) -> list[OperationResult]:
        """Carry out all operations or none; results in their order. Raises MultiError."""
        ...
