"""The directory of a cluster on this machine: which brokers there are, their configurations, data and logs.

odradek-cluster/
  cluster.json                 the brokers, their ports and processes
  zookeeper/                   zookeeper.properties, data, server.log
  broker-1/                    server.properties, data, server.log
  broker-2/ ...
  security/, clients/          of a cluster with TLS or SASL (`tools.local_cluster.cluster_secrets`)

Nobody else can read the files that this command writes: there are keys and passwords in them.
"""

from __future__ import annotations

import fcntl
import json
import os
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
"""Those that know users by a name and a password."""


class ClusterSecurity(Value):
    """Of the one listener that a broker has, for clients and other brokers. `mechanism` is None without SASL."""

    has_tls: bool = False
    mechanism: str | None = None

    @property
    def is_on(self) -> bool:
        """Whether there is any."""
        return self.has_tls or self.mechanism is not None

    @property
    def protocol(self) -> str:
        """Kafka's name of it, which is the listener's name too."""
        return ("SASL_" if self.mechanism else "") + ("SSL" if self.has_tls else "PLAINTEXT")

    @property
    def is_scram(self) -> bool:
        """Whether users are kept in the coordination tree."""
        return self.mechanism is not None and self.mechanism.startswith("SCRAM")

    @property
    def title(self) -> str:
        """As messages name it, by the options of the command."""
        options = [*(["--tls"] if self.has_tls else []), *([f"--sasl {self.mechanism}"] if self.mechanism else [])]
        return " ".join(options) or "neither --tls nor --sasl"


DEFAULT_DIRECTORY = "odradek-cluster"
HOST = "127.0.0.1"
ZOOKEEPER = "zookeeper"
FORMAT = 1
"""Of cluster.json."""


class LocalBroker(Value):
    """A broker of the cluster; `process` is the last one that ran it."""

    broker_id: int
    port: int
    process: ProcessId | None = None

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{HOST}:{self.port}"


class LocalZooKeeper(Value):
    """The ZooKeeper of the cluster, or the embedded tree in a process of its own, which speaks as one. `port` is None
    when it is somebody else's, which is never started or stopped.
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
    """The contents of cluster.json. `settings` are the keys that were given for every broker."""

    zookeeper: LocalZooKeeper
    brokers: tuple[LocalBroker, ...]
    settings: Mapping[str, str]
    security: ClusterSecurity = ClusterSecurity()

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, as clients take them."""
        return ",".join(broker.address for broker in self.brokers)

    def broker(self, broker_id: int) -> LocalBroker:
        """One broker. Raises ToolError, naming those that there are."""
        for broker in self.brokers:
            if broker.broker_id == broker_id:
                return broker
        known = ", ".join(str(broker.broker_id) for broker in self.brokers)
        raise ToolError(f"the cluster has no broker {broker_id}; its brokers are {known}")

    def with_broker(self, changed: LocalBroker) -> ClusterState:
        """This state with a broker changed, or added."""
        others = [broker for broker in self.brokers if broker.broker_id != changed.broker_id]
        brokers = sorted([*others, changed], key=lambda broker: broker.broker_id)
        return self.replace(brokers=tuple(brokers))

    def with_zookeeper(self, changed: LocalZooKeeper) -> ClusterState:
        """This state with its ZooKeeper changed."""
        return self.replace(zookeeper=changed)


class ClusterDirectory:
    """The files of one cluster."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self._state_file = self.path / "cluster.json"

    @property
    def exists(self) -> bool:
        """Whether a cluster was made here."""
        return self._state_file.exists()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other commands from changing the cluster. Raises ToolError while another one does."""
        with (self.path / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ToolError(f"another `odradek cluster` command is at work in {self.path}") from None
            yield

    def load(self) -> ClusterState:
        """The cluster. Raises ToolError when there is none, or when its file cannot be understood."""
        try:
            text = self._state_file.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ToolError(
                f"there is no cluster in {self.path}; `odradek cluster start` makes one, --dir names another directory"
            ) from None
        try:
            return _state_of(json.loads(text))
        except (ValueError, KeyError, TypeError) as error:
            raise ToolError(f"{self._state_file} cannot be understood: {error!r}") from None

    def save(self, state: ClusterState) -> None:
        """Replace the file: whoever reads it, and a crash, finds the old state or the new one."""
        write_private(self._state_file, json.dumps(_json_of(state), indent=2))

    def forget(self) -> None:
        """Remove what makes this directory a cluster; data and logs stay."""
        self._state_file.unlink(missing_ok=True)

    def part(self, name: str | int) -> Path:
        """The directory of a broker, by its id, or of ZooKeeper."""
        return self.path / (ZOOKEEPER if name == ZOOKEEPER else f"broker-{name}")

    def log_file(self, name: str | int) -> Path:
        """The log of a broker, by its id, or of ZooKeeper."""
        return self.part(name) / "server.log"

    def output_file(self, name: str | int) -> Path:
        """The output of a process: ZooKeeper's log, or what a broker says that is not in its log."""
        return self.log_file(name) if name == ZOOKEEPER else self.part(name) / "kafkaServer.out"

    def properties_file(self, name: str | int) -> Path:
        """The configuration of a broker, by its id, or of ZooKeeper."""
        return self.part(name) / (f"{ZOOKEEPER}.properties" if name == ZOOKEEPER else "server.properties")

    def write_properties(self, name: str | int, settings: Mapping[str, str]) -> None:
        """Make the configuration of a broker or of ZooKeeper, and its directory."""
        write_private(self.properties_file(name), properties_text(settings), encoding="iso-8859-1")


def write_private(path: Path, text: str, *, encoding: str = "utf-8") -> None:
    """Make or replace a file in one step, and its directory if need be. Only this user can read it (mode 0600)."""
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
