"""The directory of a local cluster: its brokers, their configurations, data and logs.

odradek-cluster/
  cluster.json                 the brokers, their ports and processes
  zookeeper/                   zookeeper.properties, data, server.log
  broker-1/                    server.properties, data, server.log
  broker-2/ ...
  security/, clients/          of a cluster with TLS or SASL (`tools.local_cluster.cluster_secrets`)

Only the user can read the files that this command writes, because they contain keys and passwords.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from config.properties import properties_text
from protocol.value import Value
from tools.local_cluster.cluster_processes import ProcessId
from tools.support.common import ToolError

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
"""The mechanisms that identify users by name and password."""


class ClusterSecurity(Value):
    """Security of each broker's only listener, for clients and other brokers. `mechanism` is None without SASL."""

    has_tls: bool = False
    mechanism: str | None = None

    @property
    def is_on(self) -> bool:
        """Whether the cluster uses TLS or SASL."""
        return self.has_tls or self.mechanism is not None

    @property
    def protocol(self) -> str:
        """Kafka's name of the protocol, which is also the listener's name."""
        return ("SASL_" if self.mechanism else "") + ("SSL" if self.has_tls else "PLAINTEXT")

    @property
    def is_scram(self) -> bool:
        """Whether the coordination tree holds the users."""
        return self.mechanism is not None and self.mechanism.startswith("SCRAM")

    @property
    def title(self) -> str:
        """Its description in messages, in terms of the command's options."""
        options = [*(["--tls"] if self.has_tls else []), *([f"--sasl {self.mechanism}"] if self.mechanism else [])]
        return " ".join(options) or "neither --tls nor --sasl"


DEFAULT_DIRECTORY = "odradek-cluster"
HOST = "127.0.0.1"
ZOOKEEPER = "zookeeper"
FORMAT = 1
"""Version of the format of cluster.json."""


class LocalBroker(Value):
    """A broker of the cluster; `process` is the last process that ran it."""

    broker_id: int
    port: int
    process: ProcessId | None = None

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{HOST}:{self.port}"


class LocalZooKeeper(Value):
    """The ZooKeeper of the cluster, or a process that serves the embedded tree as one. `port` is None for an external
    ZooKeeper, which is never started or stopped.
    """

    connect: str
    port: int | None = None
    process: ProcessId | None = None
    is_embedded: bool = False

    @property
    def title(self) -> str:
        """Its name in messages."""
        return "the coordination tree" if self.is_embedded else "ZooKeeper"


class ClusterState(Value):
    """The contents of cluster.json. `settings` are configuration keys for every broker."""

    zookeeper: LocalZooKeeper
    brokers: tuple[LocalBroker, ...]
    settings: Mapping[str, str]
    security: ClusterSecurity = ClusterSecurity()

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, in the format for clients."""
        return ",".join(broker.address for broker in self.brokers)

    def broker(self, broker_id: int) -> LocalBroker:
        """One broker. Raises ToolError listing the existing ones."""
        for broker in self.brokers:
            if broker.broker_id == broker_id:
                return broker
        known = ", ".join(str(broker.broker_id) for broker in self.brokers)
        raise ToolError(f"the cluster has no broker {broker_id}; its brokers are {known}")

    def with_broker(self, changed: LocalBroker) -> ClusterState:
        """This state with a changed or additional broker."""
        others = [broker for broker in self.brokers if broker.broker_id != changed.broker_id]
        brokers = sorted([*others, changed], key=lambda broker: broker.broker_id)
        return self.replace(brokers=tuple(brokers))

    def with_zookeeper(self, changed: LocalZooKeeper) -> ClusterState:
        """This state with a changed ZooKeeper."""
        return self.replace(zookeeper=changed)


class ClusterDirectory:
    """The files of one cluster."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self._state_file = self.path / "cluster.json"

    def command(self, action: str) -> str:
        """The command line of an action on this cluster, for messages: with --dir unless this is the default."""
        is_default = self.path == Path(DEFAULT_DIRECTORY).absolute()
        return f"odradek cluster {action}" + ("" if is_default else f" --dir {shlex.quote(str(self.path))}")

    @property
    def exists(self) -> bool:
        """Whether the directory contains a cluster."""
        return self._state_file.exists()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the cluster against changes by other commands. Raises ToolError if one holds the lock."""
        with (self.path / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ToolError(f"another `odradek cluster` command is at work in {self.path}") from None
            yield

    def load(self) -> ClusterState:
        """The cluster. Raises ToolError if it does not exist, or its file is invalid."""
        try:
            text = self._state_file.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ToolError(
                f"there is no cluster in {self.path}; `odradek cluster start` makes one, --dir names another directory"
            ) from None
        try:
            return _state_of(json.loads(text))
        except (ValueError, KeyError, TypeError) as error:
            raise ToolError(f"{self._state_file} is damaged: {error!r}") from None

    def save(self, state: ClusterState) -> None:
        """Replace the file atomically: a reader, or a restart after a crash, finds the old state or the new one."""
        write_private(self._state_file, json.dumps(_json_of(state), indent=2))

    def forget(self) -> None:
        """Remove the file that makes this directory a cluster; data and logs stay."""
        self._state_file.unlink(missing_ok=True)

    def part(self, name: str | int) -> Path:
        """The directory of a broker, by its id, or of ZooKeeper."""
        return self.path / (ZOOKEEPER if name == ZOOKEEPER else f"broker-{name}")

    def log_file(self, name: str | int) -> Path:
        """The log of a broker, by its id, or of ZooKeeper."""
        return self.part(name) / "server.log"

    def output_file(self, name: str | int) -> Path:
        """The output of a process: ZooKeeper's log, or broker output that is not in its log."""
        return self.log_file(name) if name == ZOOKEEPER else self.part(name) / "kafkaServer.out"

    def properties_file(self, name: str | int) -> Path:
        """The configuration of a broker, by its id, or of ZooKeeper."""
        return self.part(name) / (f"{ZOOKEEPER}.properties" if name == ZOOKEEPER else "server.properties")

    def write_properties(self, name: str | int, settings: Mapping[str, str]) -> None:
        """Write the configuration of a broker or of ZooKeeper, and create its directory."""
        write_private(self.properties_file(name), properties_text(settings), encoding="iso-8859-1")


def write_private(path: Path, text: str, *, encoding: str = "utf-8") -> None:
    """Write a file atomically, and create its directory if needed. Only this user can read it (mode 0600)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=f"{path.name}.", delete=False, encoding=encoding
    ) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).replace(path)


def _json_of(state: ClusterState) -> dict[str, Any]:
    zookeeper = state.zookeeper
    return {
        "format": FORMAT,
        "zookeeper": {
            "connect": zookeeper.connect,
            "port": zookeeper.port,
            "process": zookeeper.process,
            "embedded": zookeeper.is_embedded,
        },
        "brokers": [{"id": each.broker_id, "port": each.port, "process": each.process} for each in state.brokers],
        "settings": dict(state.settings),
        "security": {"tls": state.security.has_tls, "sasl": state.security.mechanism},
    }


def _state_of(found: dict[str, Any]) -> ClusterState:
    if found["format"] != FORMAT:
        raise ValueError(f"format {found['format']} was written by another version of Odradek")

    def process_of(entry: dict[str, Any]) -> ProcessId | None:
        return None if entry["process"] is None else ProcessId(*entry["process"])

    zookeeper, security = found["zookeeper"], found.get("security", {})
    return ClusterState(
        LocalZooKeeper(
            zookeeper["connect"], zookeeper["port"], process_of(zookeeper), zookeeper.get("embedded", False)
        ),
        tuple(LocalBroker(each["id"], each["port"], process_of(each)) for each in found["brokers"]),
        found["settings"],
        ClusterSecurity(security.get("tls", False), security.get("sasl")),
    )
