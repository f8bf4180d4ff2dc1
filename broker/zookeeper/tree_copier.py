"""`python -m broker.zookeeper.tree_copier DIRECTORY HOST:PORT[/CHROOT] [FILE]`: copy an embedded tree into a ZooKeeper.

This turns a stopped single broker into the first of a cluster: the cluster finds the topics, configurations, ids and
epochs in ZooKeeper, and the logs stay in place. FILE holds Kafka's properties for TLS with ZooKeeper.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence

from broker.zookeeper.kazoo_security import SessionSecurity
from broker.zookeeper.kazoo_session import KazooCoordination
from cluster import znodes
from config.definitions import ConfigError
from config.zookeeper_connection import ZookeeperAddress, parse_zookeeper_connect
from storage.directory.log_directories import lock_directory
from storage.directory.meta_properties import LogDirError
from storage.io.os_file_system import OsFileSystem
from zookeeper.coordination import ANY_VERSION, CoordinationError, Create, Operation, SetData
from zookeeper.durable_tree import JournalError, read_tree
from zookeeper.znode import split_path
from zookeeper.znode_tree import ZnodeTree

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
"""Notices to running brokers. They are numbered, and the numbers restart in another tree: a copied notice would block a
later one with the same number.
"""
_MOST_OPERATIONS = 1000


def operations_to_copy(tree: ZnodeTree) -> Iterator[Operation]:
    """Operations that create the persistent nodes of the tree in an empty one, parents first.

    Ephemeral nodes, notices, and ZooKeeper's own nodes are left out. Versions restart at 0, except that of
    /brokers/seqid, which generates the brokers' ids.
    """
    for path, node in tree.nodes():
        is_own = path in {"/", "/zookeeper"} or path.startswith("/zookeeper/")
        if is_own or node.ephemeral_owner or split_path(path)[0] in _NOTICES:
            continue
        yield Create(path, node.data, acl=node.acl)
        if path == znodes.BROKER_SEQUENCE:
            yield from (SetData(path, node.data, ANY_VERSION) for _ in range(node.version))


def transactions(operations: Iterator[Operation], most_bytes: int, bytes_each: int) -> Iterator[Sequence[Operation]]:
    """Group `operations` into transactions of at most `most_bytes`; each costs `bytes_each` plus its path and data."""
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


_SESSION_TIMEOUT_MS = 18_000
_CONNECT_TIMEOUT_MS = 18_000
_OPERATION_BYTES = 64
_ZOOKEEPERS_OWN = "zookeeper"


class CopyRefusedError(Exception):
    """The copy was refused; the message gives the reason."""


def main(argv: list[str]) -> int:
    """Copy, and print a summary. Returns the exit code."""
    directory, connect, *tls_files = argv
    try:
        security = SessionSecurity.of_tool(connect, OsFileSystem().read_file(tls_files[0]) if tls_files else b"")
        print(asyncio.run(copy_directory(directory, parse_zookeeper_connect(connect), security)))
    except (CopyRefusedError, ConfigError, CoordinationError, JournalError, LogDirError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


async def copy_directory(directory: str, address: ZookeeperAddress, security: SessionSecurity) -> str:
    """Copy the tree in `directory`, which must not be in use. Returns a summary.

    Raises CopyRefusedError, LogDirError when a broker runs there, JournalError, CoordinationError, OSError.
    """
    file_system = OsFileSystem()
    if not file_system.exists(directory):
        raise CopyRefusedError(f"there is no directory {directory}")
    lock = lock_directory(file_system, directory)
    try:
        tree = read_tree(file_system, directory)
        session = KazooCoordination(address, _SESSION_TIMEOUT_MS, _CONNECT_TIMEOUT_MS, 10, security)
        await session.connect()
        try:
            return await _copy(tree, session, f"{directory} to {address}")
        finally:
            await session.close()
    finally:
        lock.release()


async def _copy(tree: ZnodeTree, session: KazooCoordination, what: str) -> str:
    found = [name for name in (await session.children("/"))[0] if name != _ZOOKEEPERS_OWN]
    if found:
        raise CopyRefusedError(
            f"{what.rpartition(' ')[2]} is not empty, it has {', '.join(found[:10])}; name an empty chroot, "
            "such as HOST:PORT/kafka"
        )
    copied = 0
    for operations in transactions(operations_to_copy(tree), session.max_transaction_bytes, _OPERATION_BYTES):
        await session.multi(operations)
        copied += len(operations)
    return f"copied {copied} of {len(tree)} nodes from {what}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
