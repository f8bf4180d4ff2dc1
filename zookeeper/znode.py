"""One node of the tree, and its path."""

from __future__ import annotations

import re

from zookeeper.access_control import OPEN, Acl
from zookeeper.coordination import BadArgumentsError, ZnodeStat


class Znode:
    """One node. `creations`, the number of children ever created, yields sequence numbers and cversion."""

    __slots__ = (
        "acl",
        "acl_version",
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
        self.acl: Acl = OPEN
        self.acl_version = 0
        self.czxid = self.mzxid = self.pzxid = zxid
        self.ctime_ms = self.mtime_ms = now_ms
        self.version = 0
        self.creations = 0
        self.ephemeral_owner = ephemeral_owner
        # Most nodes are leaves; empty sets for ten thousand partition states would waste 2 MB.
        self.children: set[str] | None = None

    def share_acl(self, parent: Znode) -> None:
        """Share the parent's list if equal, which it is for nearly all nodes."""
        if self.acl == parent.acl:
            self.acl = parent.acl

    def stat(self) -> ZnodeStat:
        """The node's metadata. cversion counts creations and deletions, as in ZooKeeper."""
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
            self.acl_version,
        )


_LEGAL_PATH = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[^/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]+)+")


def validate_path(path: str) -> None:
    """Raise BadArgumentsError unless `path` is absolute, normalized and without control characters (ZooKeeper's
    PathUtils).
    """
    if path != "/" and _LEGAL_PATH.fullmatch(path) is None:
        raise BadArgumentsError(f"not a path of a node: {path!r}")


def split_path(path: str) -> tuple[str, str]:
    """(parent path, own name)."""
    parent, _, name = path.rpartition("/")
    return parent or "/", name
