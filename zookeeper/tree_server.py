"""The embedded tree served to others in ZooKeeper's wire protocol: the listening socket and its shared state."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from config.definitions import ConfigError
from environment.contract import Clock, Executor, Listener, Network, Random
from storage.directory.log_directories import lock_directory
from storage.directory.meta_properties import LogDirError
from storage.io.file_system import FileSystem, Lock
from zookeeper.commit_queue import CommitQueue
from zookeeper.durable_tree import DurableTree
from zookeeper.served_connection import ServedConnection
from zookeeper.served_requests import ServedUsers
from zookeeper.served_sessions import ServedSessions

logger = logging.getLogger(__name__)

_LOOPBACK = "127.0.0.1"
"""The default address unless `clientPortAddress` is set (ZooKeeper: every interface). An unauthenticated client may
change everything that access control lists do not protect, including users' keys.
"""
_DEFAULT_TICK_MS = 3000
_LEAST_TICKS, _MOST_TICKS = 2, 20
_REFUSED = (
    "server.",
    "secureClientPort",
    "ssl.",
    "quorum.",
    "enforce.auth.",
    "requireClientAuthScheme",
    "sessionRequireClientSASLAuth",
)
_SASL: Final = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
_MOST_OF_ADDRESS: Final = 60
"""ZooKeeper's default of maxClientCnxns."""
_REAL_DATA = "version-2"
"""The place of a real ZooKeeper's data, in `dataDir`."""


class TreeServerConfig(NamedTuple):
    """The settings in zookeeper.properties that a tree server uses."""

    directory: str
    host: str
    port: int
    least_timeout_ms: int
    most_timeout_ms: int
    knows_sasl: bool = False
    """Whether access control lists may name SASL users."""
    most_of_address: int = _MOST_OF_ADDRESS
    """Maximum connections of one address; 0 for no limit."""

    @classmethod
    def parse(cls, properties: dict[str, str]) -> TreeServerConfig:
        """Read ZooKeeper's keys, with its defaults. Raises ConfigError for a bad value, and for keys of an ensemble, of
        TLS or of other authentication, which a tree server does not support.
        """
        for key, value in properties.items():
            if key.startswith(_REFUSED):
                raise ConfigError(key, value, "the embedded tree has neither ensembles nor TLS; use a real ZooKeeper")
        providers = [key for key in properties if key.startswith("authProvider.")]
        for key in providers:
            if properties[key] != _SASL:
                raise ConfigError(key, properties[key], f"the embedded tree knows {_SASL} only")
        directory = properties.get("dataDir", "")
        if not directory:
            raise ConfigError("dataDir", directory, "it is needed")
        tick_ms = _number(properties, "tickTime", _DEFAULT_TICK_MS)
        port = _number(properties, "clientPort", 0)
        if not 0 < port < 65536:
            raise ConfigError("clientPort", str(port), "a port between 1 and 65535 is needed")
        return cls(
            directory,
            properties.get("clientPortAddress") or _LOOPBACK,
            port,
            _number(properties, "minSessionTimeout", _LEAST_TICKS * tick_ms),
            _number(properties, "maxSessionTimeout", _MOST_TICKS * tick_ms),
            bool(providers),
            _number(properties, "maxClientCnxns", _MOST_OF_ADDRESS),
        )


def _number(properties: dict[str, str], key: str, default: int) -> int:
    text = properties.get(key, "-1")
    try:
        number = int(text)
    except ValueError:
        raise ConfigError(key, text, "it is not a number") from None
    return default if number == -1 else number


class TreeServer:
    """One tree, its sessions and its connections. Implements the Server of `served_connection`."""

    def __init__(
        self,
        queue: CommitQueue,
        sessions: ServedSessions,
        listener: Listener,
        lock: Lock,
        users: ServedUsers,
        most_connections: int | None,
        most_of_address: int,
    ) -> None:
        """With `most_of_address` 0, the connections of an address are not limited."""
        self.queue = queue
        self.users = users
        self.sessions = sessions
        self._listener = listener
        self._lock = lock
        self._most_connections = most_connections
        self._most_of_address = most_of_address
        self._connections: dict[ServedConnection, str] = {}
        """The open connections, each with its address."""
        self._of_address: Counter[str] = Counter()

    async def start(self) -> None:
        """Serve. Raises OSError when another process has taken the port."""
        await self._listener.start(lambda: ServedConnection(self))
        self.sessions.start()

    async def close(self) -> None:
        """Close all connections and the journal. Sessions live on for their owners to resume."""
        await self._listener.close()
        self.sessions.stop()
        for connection in list(self._connections):
            connection.close()
        await self.queue.close()
        self._lock.release()

    # -- for connections -----------------------------------------------------------------------------------------------

    def enter(self, connection: ServedConnection, address: str) -> bool:
        if self._most_connections is not None and len(self._connections) >= self._most_connections:
            logger.warning("Too many connections; refusing one from %s", address)
            return False
        if 0 < self._most_of_address <= self._of_address[address]:  # ZooKeeper's message
            logger.warning("Too many connections from %s - max is %d", address, self._most_of_address)
            return False
        self._connections[connection] = address
        self._of_address[address] += 1
        return True

    def leave(self, connection: ServedConnection) -> None:
        address = self._connections.pop(connection, None)
        if address is not None:
            self._of_address[address] -= 1
            if not self._of_address[address]:
                del self._of_address[address]

    def command(self, word: bytes) -> bytes | None:
        """ZooKeeper's commands that report its health (ruok, srvr), and whether it accepts writes (isro)."""
        match word:
            case b"ruok":
                return b"imok"
            case b"isro":
                return b"rw"
            case b"srvr":
                return self._description().encode()
        return None

    def _description(self) -> str:
        tree = self.queue.tree
        return (
            f"Zookeeper version: Odradek's embedded tree\nConnections: {len(self._connections)}\n"
            f"Zxid: 0x{tree.last_zxid:x}\nMode: standalone\nNode count: {len(tree)}\n"
        )


async def open_tree_server(
    config: TreeServerConfig,
    *,
    network: Network,
    file_system: FileSystem,
    executor: Executor,
    clock: Clock,
    random: Random,
    passwords: Mapping[str, str] | None,
    most_connections: int | None,
    on_failure: Callable[[OSError], None],
) -> TreeServer:
    """Bind the port, lock the directory, and recover the tree; the server is not started yet. `passwords` holds the
    SASL passwords by user. `on_failure` is called once if the journal fails: then the process should stop. Raises
    JournalError, LogDirError, OSError.
    """
    listener = network.bind(config.host, config.port)
    try:
        lock = await executor.run(lock_directory, file_system, config.directory)
        if file_system.exists(f"{config.directory}/{_REAL_DATA}"):
            raise LogDirError(f"{config.directory} holds a real ZooKeeper's data, which the embedded tree cannot read")
        tree = await executor.run(DurableTree.open, file_system, config.directory, clock.now_ms())
    except BaseException:
        await listener.close()
        raise
    queue = CommitQueue(tree, executor, clock, on_failure)
    sessions = ServedSessions(queue, random.uuid, config.least_timeout_ms, config.most_timeout_ms)
    users = ServedUsers(lambda: random.uuid().hex(), passwords, config.knows_sasl)
    return TreeServer(queue, sessions, listener, lock, users, most_connections, config.most_of_address)
