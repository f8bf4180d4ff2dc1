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
from collections.abc import Mapping, Sequence
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


class Snapshot:
    """The saved state of a broker or a cluster: `snapshot` returns it, and `restore` takes it.

    It lasts until this process ends, also when the broker that it was taken of has been reset or stopped.
    """

    def __init__(
        self,
        directory: Path,
        taken_of: str,
        clock: Mapping[str, Any] | None = None,
        *,
        members: Mapping[int, Snapshot] | None = None,
        topics: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """`taken_of` describes the brokers that it may be restored in. The snapshot of a cluster has one of each of its
        `members`, by id, and the `topics` as they were.
        """
        self._directory = directory
        self._taken_of = taken_of
        self._clock = clock or {"ahead_ms": 0, "is_frozen": False}
        self.members = members or {}
        self.topics = topics

    def __repr__(self) -> str:
        return f"<snapshot of {self._taken_of}>"

    def part(self, name: str) -> Path:
        """The directory of a part of the snapshot of a cluster."""
        return self._directory / name

    def check(self, restored_in: str) -> None:
        """Raise OdradekError unless brokers of this description can be restored from it."""
        if restored_in != self._taken_of:
            raise OdradekError(
                f"the snapshot is of {self._taken_of}, and this is {restored_in}: the options must be the same"
            )
        if not self._directory.is_dir():
            raise OdradekError(
                f"the files of the snapshot are gone ({self._directory}): a snapshot lasts until its process ends"
            )

    @property
    def start_fields(self) -> dict[str, Any]:
        """The fields of the command that starts a broker, or the tree of a cluster, as it was."""
        return {"snapshot": str(self._directory), "ahead_ms": self._clock["ahead_ms"]}

    @property
    def clock(self) -> dict[str, Any]:
        """The request that gives a broker its time: as far ahead of this machine's as it was, or frozen as it was."""
        if self._clock["is_frozen"]:
            return {"freeze": True, "set_ms": self._clock["now_ms"]}
        return {"freeze": False, "ahead_ms": self._clock["ahead_ms"]}


class Address:
    """A port of the loopback interface, kept for brokers that come and go."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        if sys.platform != "linux":
            self._socket.close()  # other systems let no broker bind a port that is bound

    def close(self) -> None:
        """Give the port back."""
        self._socket.close()


class Launcher:
    """Owns the launcher process of this process. Its methods may be called from any thread."""

    _shared: ClassVar[Launcher | None] = None
    _starting: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        """Start the process without waiting for it."""
        self.root = temporary_directory()
        self.owner = os.getpid()
        self._lock = threading.Lock()
        self._arrived = threading.Condition()
        """Guards the replies, and notifies of new ones."""
        self._is_read = False
        """Whether a thread is reading replies."""
        self._replies: dict[int, dict[str, Any]] = {}
        self._last_id = 0
        self._buffer = b""
        self._directories = 0
        self.used_ports: set[int] = set()
        """The ports of all brokers so far."""
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(PATIENCE_S)
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

    def new_address(self) -> Address:
        """A port that no broker of this process had before."""
        refused: list[Address] = []
        while (address := Address()).port in self.used_ports:
            refused.append(address)
        for each in refused:
            each.close()
        self.used_ports.add(address.port)
        return address

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
        while True:
            with self._arrived:
                while command_id not in self._replies and self._is_read:
                    self._arrived.wait()
                if command_id in self._replies:
                    reply = self._replies.pop(command_id)
                    break
                self._is_read = True  # by this thread, for all threads
            received: list[dict[str, Any]] = []
            try:
                received = self._receive()
            finally:
                with self._arrived:
                    self._is_read = False
                    self._replies.update((each["id"], each) for each in received)
                    self._arrived.notify_all()
        if "error" in reply:
            raise OdradekError(reply["error"])
        return reply

    def _receive(self) -> list[dict[str, Any]]:
        """Wait for replies. Raises OdradekError."""
        try:
            received = self._socket.recv(1 << 16)
        except TimeoutError:
            raise OdradekError(f"the launcher of brokers has not answered for {PATIENCE_S:.0f} s") from None
        except OSError as error:
            raise OdradekError(f"the launcher of brokers has ended: {error}") from error
        if not received:
            raise OdradekError(f"the launcher of brokers has ended: {self._last_words()}")
        *lines, self._buffer = (self._buffer + received).split(b"\n")
        return [json.loads(line) for line in lines]

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
