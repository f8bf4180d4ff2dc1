"""A ZooKeeper server in a separate process."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tools.local_cluster.cluster_lifecycle import is_serving
from tools.zookeeper.zookeeper_jars import server_command

START_TIMEOUT_S = 60.0


class ZookeeperProcess:
    """A server on `directory`; `start` after `kill` or `stop` uses the same port and data."""

    def __init__(
        self,
        directory: Path,
        port: int,
        *,
        host: str = "127.0.0.1",
        tick_time_ms: int = 2000,
        settings: Mapping[str, str] | None = None,
        command: Callable[[Path], Sequence[str]] = server_command,
    ) -> None:
        """Session timeouts may be 2 to 20 ticks, unless `settings` say otherwise (minSessionTimeout,
        maxSessionTimeout). `command` returns the command line for a zookeeper.properties.
        """
        self._command = command
        self.host = host
        self.port = port
        self.output = directory / "zookeeper.log"
        self.properties = directory / "zookeeper.properties"
        self.process: subprocess.Popen[bytes] | None = None
        values = {
            "dataDir": str(directory / "data"),
            "clientPort": str(port),
            "clientPortAddress": host,
            "tickTime": str(tick_time_ms),
            "maxClientCnxns": "0",
            "admin.enableServer": "false",
            **(settings or {}),
        }
        directory.mkdir(parents=True, exist_ok=True)
        self.properties.write_text("".join(f"{key}={value}\n" for key, value in values.items()))

    @property
    def needs_java(self) -> bool:
        """Whether this is a real ZooKeeper."""
        return self._command is server_command

    @property
    def address(self) -> str:
        """host:port, as in zookeeper.connect."""
        return f"{self.host}:{self.port}"

    def start(self, timeout_s: float = START_TIMEOUT_S, *, detached: bool = False) -> None:
        """Start, and return when it serves clients. If `detached`, it outlives this process.

        Raises ZookeeperMissingError without Java or jars, and RuntimeError with its last output if it does not serve.
        """
        self.spawn(detached=detached)
        self.await_serving(timeout_s)

    def spawn(self, *, detached: bool = False) -> None:
        """Start without waiting. Raises ZookeeperMissingError, and RuntimeError if the port is taken."""
        command = self._command(self.properties)
        with contextlib.suppress(OSError), socket.create_connection((self.host, self.port), 1.0):
            raise RuntimeError(f"something listens at {self.address} already")
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=detached,
            )

    def await_serving(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until it serves clients. Raises RuntimeError with its last output if it ends first, or on timeout."""
        deadline = time.monotonic() + timeout_s
        while self.process is not None and self.process.poll() is None and time.monotonic() < deadline:
            if is_serving(self.host, self.port):
                return
            time.sleep(0.02)
        said = self.output.read_text(errors="replace")[-2000:]
        self.kill()
        raise RuntimeError(f"no ZooKeeper serves at {self.address}; it said:\n{said}")

    def stop(self) -> None:
        """Stop it, if it runs. All acknowledged writes are on its disk."""
        self._end(kill=False)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._end(kill=True)

    def _end(self, *, kill: bool) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        if kill:
            process.kill()
        else:
            process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
