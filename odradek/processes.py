"""The launcher process, which forks brokers for this process; see `broker.test_mode.launcher` for its protocol.

It starts in about 0.3 s, a broker then in some 25 ms. It ends, with its brokers, when this process ends in any way.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, ClassVar

from odradek.command_list import server_root
from odradek.control import OdradekError

TMPFS = Path("/dev/shm")  # noqa: S108 - the memory file system of Linux
TMPFS_BYTES = 1 << 30
"""Data is kept in memory where this much is free; a container's /dev/shm often has 64 MB."""
PATIENCE_S = 60.0
"""How long a command of the launcher may take on a busy machine."""

_MAIN = """
import gc, sys
gc.disable()
sys.path.insert(0, sys.argv.pop(1))
from broker.test_mode.launcher import main
sys.exit(main(sys.argv[1:]))
"""


def temporary_directory() -> Path:
    """A new directory, in memory where there is room."""
    with contextlib.suppress(OSError):
        if shutil.disk_usage(TMPFS).free >= TMPFS_BYTES:
            return Path(tempfile.mkdtemp(prefix="odradek-", dir=TMPFS))
    return Path(tempfile.mkdtemp(prefix="odradek-"))


class Launcher:
    """Owns the launcher process of this process. Its methods may be called from any thread."""

    _shared: ClassVar[Launcher | None] = None
    _starting: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        """Start the process without waiting for it."""
        self.root = temporary_directory()
        self.owner = os.getpid()
        self._lock = threading.Lock()
        self._replies: dict[int, dict[str, Any]] = {}
        self._last_id = 0
        self._buffer = b""
        self._directories = 0
        self.used_ports: set[int] = set()
        """The ports of all brokers so far."""
        self._socket, theirs = socket.socketpair()
        with theirs, open(self.root / "launcher.log", "wb") as log:
            # In a separate session: Ctrl-C in a terminal is for the tests, which stop their brokers themselves.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _MAIN, str(server_root()), str(theirs.fileno()), str(self.root)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        atexit.register(self.close)

    @classmethod
    def shared(cls) -> Launcher:
        """The launcher of this process; a process forked from another one gets its own."""
        with cls._starting:
            launcher = cls._shared
            if launcher is not None and launcher.owner == os.getpid():
                if launcher._process.poll() is None:
                    return launcher
                launcher.close()
            cls._shared = cls()
            return cls._shared

    def new_directory(self) -> Path:
        """A path for the data of a broker."""
        with self._lock:
            self._directories += 1
            return self.root / str(self._directories)

    def request(self, command: str, **fields: object) -> int:
        """Send a command without waiting for its reply; returns its id."""
        with self._lock:
            self._last_id += 1
            line = json.dumps({"id": self._last_id, "do": command, **fields}).encode() + b"\n"
            try:
                self._socket.sendall(line)
            except OSError as error:
                raise OdradekError(f"the launcher of brokers has ended: {self._last_words()}") from error
            return self._last_id

    def reply(self, command_id: int) -> dict[str, Any]:
        """Wait for the reply to a command. Raises OdradekError with the reason of a failure."""
        with self._lock:
            self._socket.settimeout(PATIENCE_S)
            while command_id not in self._replies:
                try:
                    received = self._socket.recv(1 << 16)
                except TimeoutError:
                    raise OdradekError(f"the launcher of brokers has not answered for {PATIENCE_S:.0f} s") from None
                except OSError as error:
                    raise OdradekError(f"the launcher of brokers has ended: {error}") from error
                if not received:
                    raise OdradekError(f"the launcher of brokers has ended: {self._last_words()}")
                *lines, self._buffer = (self._buffer + received).split(b"\n")
                for line in lines:
                    reply = json.loads(line)
                    self._replies[reply["id"]] = reply
            reply = self._replies.pop(command_id)
        if "error" in reply:
            raise OdradekError(reply["error"])
        return reply

    def run(self, command: str, **fields: object) -> dict[str, Any]:
        """Send a command and wait for its reply."""
        return self.reply(self.request(command, **fields))

    def close(self) -> None:
        """End the launcher, and with it all its brokers."""
        if self.owner != os.getpid():
            return
        atexit.unregister(self.close)
        self._socket.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        shutil.rmtree(self.root, ignore_errors=True)

    def _last_words(self) -> str:
        log = self.root / "launcher.log"
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        return "\n".join(text.splitlines()[-10:]) or f"exit code {self._process.poll()}"
