"""A broker as a user runs it: a separate process on a free port, to kill and to restart on its data."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0
_given_ports: set[int] = set()
"""Ports already handed out. Their owners bind them later, or again after a kill, so no one else may get them."""


def free_port() -> int:
    """A port that was just free, outside the range of outgoing connections.

    A client that retries an ephemeral port until its broker is back can get that very port for its own end: then it is
    connected to itself, and the broker finds its port in use.
    """
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        if port in _given_ports:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            _given_ports.add(port)
            return port


def await_port(
    port: int, process: subprocess.Popen[Any], output: Path, timeout_s: float, *, host: str = "127.0.0.1"
) -> None:
    """Return when `process` listens; raises RuntimeError with the end of its output if it exits or times out."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
            return
        time.sleep(0.02)
    raise RuntimeError(f"nothing listens on {port}:\n{output.read_text()[-4000:]}")


STARTED: Final = re.compile(rb"\[KafkaServer id=-?\d+\] started \(")


class Host(NamedTuple):
    """Where a process runs: its address, and a command prefix that starts it there."""

    ip: str
    command: Sequence[str]


LOOPBACK = Host("127.0.0.1", ())


class BrokerProcess:
    """One broker on `directory`; `start` may follow `kill` or `stop`, and then finds the same port and data."""

    def __init__(
        self,
        directory: Path,
        overrides: dict[str, str] | None = None,
        *,
        open_files: int | None = None,
        host: Host = LOOPBACK,
    ) -> None:
        """`open_files` limits how many files the process may have open (ulimit -n)."""
        limit = [] if open_files is None else ["sh", "-c", f'ulimit -n {open_files}; exec "$@"', "sh"]
        self._wrapper = [*host.command, *limit]
        self._host = host.ip
        self.address = f"{host.ip}:{free_port()}"
        self.program: Sequence[str] = ("-m", "broker")
        """The arguments for Python."""
        self.checkout = ROOT
        """The checkout that the next `start` runs."""
        self.output = directory / "broker.log"
        self._properties = directory / "server.properties"
        self._process: subprocess.Popen[bytes] | None = None
        self._launched_at = 0
        """Offset of the running process's output."""
        settings = {
            "broker.id": "0",
            "listeners": f"PLAINTEXT://{self.address}",
            "log.dirs": str(directory / "data"),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            # Many test records are years old: the first round of retention, after 30 s, would delete them.
            "log.initial.task.delay.ms": "3600000",
            **(overrides or {}),
        }
        directory.mkdir(parents=True, exist_ok=True)
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    @property
    def pid(self) -> int:
        """The process id of the running broker."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it is running."""
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Start without waiting."""
        with self.output.open("ab") as output:
            self._launched_at = output.tell()
            self._process = self.spawn(output)

    def await_listening(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until the port accepts; raises RuntimeError with the broker's output if it exits or times out."""
        assert self._process is not None
        await_port(int(self.address.rpartition(":")[2]), self._process, self.output, timeout_s, host=self._host)

    def await_started(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until the broker is registered and serves; raises RuntimeError like `await_listening`.

        A broker listens before it is registered: a topic created in between may find one broker too few.
        """
        self.await_listening(timeout_s)
        assert self._process is not None
        deadline = time.monotonic() + timeout_s
        while STARTED.search(self.output.read_bytes(), self._launched_at) is None:
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError(f"{self.address} has not started:\n{self.output.read_text()[-4000:]}")
            time.sleep(0.02)

    def start(self, timeout_s: float = PATIENCE_S) -> None:
        """Start and wait until it serves; raises RuntimeError with the broker's output if it fails."""
        self.launch()
        try:
            self.await_started(timeout_s)
        except RuntimeError:
            self.kill()
            raise

    def spawn(self, output: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start the process without waiting; the caller must end it."""
        return subprocess.Popen(
            [*self._wrapper, sys.executable, "-P", *self.program, str(self._properties)],
            env={**os.environ, "PYTHONPATH": str(self.checkout)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )

    def kill(self) -> None:
        """Kill the broker (SIGKILL), if it is running."""
        self._end(signal.SIGKILL)

    def stop(self) -> int | None:
        """Stop the broker cleanly (SIGTERM) and return its exit code, or None if it was not running."""
        return self._end(signal.SIGTERM)

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the running process."""
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for the process to exit; returns its exit code."""
        assert self._process is not None
        code = self._process.wait(timeout_s)
        self._process = None
        return code

    def _end(self, signal_number: int) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        process.send_signal(signal_number)
        try:
            return process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(PATIENCE_S)
            raise
