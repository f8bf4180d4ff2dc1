"""Starts brokers for tests by fork: `python -m broker.test_mode.launcher FD`, run by the package `odradek`.

The launcher imports the broker once. Each broker is a fork of it, so it serves some 25 ms after the request, where a
new interpreter takes 300 ms. The launcher has neither threads nor an event loop: a fork is safe.

Its user writes commands, and it writes replies, as JSON lines on the socket with the descriptor FD:

    {"id": 1, "do": "start", "directory": "/tmp/x", "token": "secret", "properties": {"broker.id": "0", ...}}
    {"id": 1, "pid": 17, "log": "/tmp/x/broker.log", "ports": {"PLAINTEXT": 40001}, "control": 40002}
    {"id": 2, "do": "signal", "pid": 17, "signal": 9, "await": true}
    {"id": 2, "exit_code": -9}
    {"id": 3, "do": "end", "pid": 17, "directory": "/tmp/x"}
    {"id": 4, "do": "start_tree", "directory": "/tmp/y", "token": "secret", "broker_ports": 3}
    {"id": 4, "pid": 18, "log": "/tmp/y/broker.log", "ports": [40003, 40004, 40005], "control": 40006}

A broker of a cluster has `links` in its command, see `cut_network`. `start_tree` starts the tree of a cluster. Other
fields of `start`: `snapshot` is a directory to start from, see `snapshots`; `ahead_ms` is how far the broker's wall
clock is ahead of the machine's; `is_frozen` lets its time stand still from its start on; `predecessors` is the number
of brokers that had its address before, see `held_network`.
`error` in a reply is the reason why the command failed. When the socket closes, or its user has died, the launcher
kills all brokers and deletes its directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import logging
import os
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from broker.broker_environment import system_environment
from broker.main import serve
from broker.server import KafkaServer
from broker.test_mode.control_server import ControlServer
from broker.test_mode.cut_network import CutNetwork, Link, Links
from broker.test_mode.faulty_disk import DiskFaults, FaultyFileSystem
from broker.test_mode.held_network import HeldNetwork, skip_producer_ids
from broker.test_mode.interception import CONTROL
from broker.test_mode.snapshots import DATA, link_tree
from broker.test_mode.virtual_time import MovableLoop, MovableTime, TimeMachine
from config.broker_config import BrokerConfig
from config.definitions import ConfigError
from environment.logging_setup import configure_logging
from environment.system import raise_open_file_limit
from security.authorization import SUPER_USERS

LOG_FILE: Final = "broker.log"
"""The log of a broker, in its directory."""
_PARENT_CHECK_S: Final = 1.0
"""How often the launcher checks that its user is alive. A process forked by the user may hold the socket open."""
_PR_SET_PDEATHSIG: Final = 1
_LOADED_AT_START: Final = ("zookeeper.embedded_ensemble",)
"""Modules that a broker imports only when it starts: the forks share them."""
_LOADED_FOR_CLUSTERS: Final = (
    "broker.controller.controlled_shutdown",
    "broker.stages.cluster_links",
    "broker.test_mode.tree_host",
    "broker.zookeeper.kazoo_session",
)
"""Modules that only brokers of clusters import."""


class ForkServer:
    """Owns the forked brokers. `root` is deleted at the end."""

    def __init__(self, commands: socket.socket, root: Path) -> None:
        self._commands = commands
        self._root = root
        self._parent = os.getppid()
        self._starting: dict[int, tuple[int, int]] = {}
        """The command id and the pid of each broker that is starting, by the pipe it reports on."""
        self._awaited: dict[int, list[int]] = {}
        """The ids of the commands that wait for the end of a broker, by its pid."""
        self._running: dict[int, Path] = {}
        """The directories of the brokers, by pid."""
        self._deleted: set[int] = set()
        """The brokers whose directories are deleted when they have ended."""

    def run(self) -> None:
        """Serve commands until the socket closes."""
        # A child's end interrupts the wait, through this descriptor.
        wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        lines = _lines(self._commands)
        while os.getppid() == self._parent:
            sources: list[int | socket.socket] = [self._commands, wake, *self._starting]
            readable, _, _ = select.select(sources, [], [], _PARENT_CHECK_S)
            if wake in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
            for pipe in [each for each in self._starting if each in readable]:
                self._report(pipe)
            self._reap()
            if self._commands in readable:
                for line in next(lines):
                    if line is None:
                        return
                    self._execute(json.loads(line))

    def end(self) -> None:
        """Kill all brokers, and delete the directory."""
        for pid in self._running:
            os.kill(pid, signal.SIGKILL)
        while self._running:
            pid, _ = os.wait()
            self._running.pop(pid, None)
        shutil.rmtree(self._root, ignore_errors=True)

    def _execute(self, command: dict[str, Any]) -> None:
        match command["do"]:
            case "start":
                self._start(command, _serve_broker)
            case "start_tree":
                self._start(command, _serve_tree)
                _load(_LOADED_FOR_CLUSTERS)
            case "signal":
                self._signal(command)
            case "end":
                self._end(command)
            case "certificates":
                _issue_certificates(Path(command["directory"]))
                self._reply(command["id"])
            case other:
                self._reply(command["id"], error=f"unknown command {other!r}")

    def _start(self, command: dict[str, Any], serve: Callable[[dict[str, Any], int], int]) -> None:
        directory = Path(command["directory"])
        directory.mkdir(parents=True, exist_ok=True)
        report, reported = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(report)
            _run(directory, reported, partial(serve, command, reported))
        os.close(reported)
        self._running[pid] = directory
        self._starting[report] = command["id"], pid

    def _signal(self, command: dict[str, Any]) -> None:
        pid = command["pid"]
        if pid not in self._running:
            self._reply(command["id"], error=f"no broker has the process id {pid}")
            return
        os.kill(pid, command["signal"])
        if command.get("await"):
            self._awaited.setdefault(pid, []).append(command["id"])
        else:
            self._reply(command["id"])

    def _end(self, command: dict[str, Any]) -> None:
        """Kill a broker if it still runs, and delete its directory."""
        pid = command["pid"]
        if pid in self._running:
            self._deleted.add(pid)
            os.kill(pid, signal.SIGKILL)
            self._awaited.setdefault(pid, []).append(command["id"])
        else:
            self._delete(Path(command["directory"]))
            self._reply(command["id"])

    def _report(self, pipe: int) -> None:
        """Pass on the report of a broker that has started, or the reason why it could not."""
        command_id, pid = self._starting.pop(pipe)
        with open(pipe, "rb") as reader:
            report = reader.read()
        if report:
            self._reply(command_id, pid=pid, log=str(self._running[pid] / LOG_FILE), **json.loads(report))
        else:
            self._reply(command_id, error=_reason(self._running[pid] / LOG_FILE))

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            for pipe in [pipe for pipe, (_, starting) in self._starting.items() if starting == pid]:
                self._report(pipe)
            for command_id in self._awaited.pop(pid, []):
                self._reply(command_id, exit_code=os.waitstatus_to_exitcode(status))
            directory = self._running.pop(pid, None)
            if directory is not None and pid in self._deleted:
                self._delete(directory)
            self._deleted.discard(pid)

    def _delete(self, directory: Path) -> None:
        """Delete a directory in a separate process, as it may have many files. Starting `rm` costs less than a fork."""
        os.posix_spawnp("rm", ["rm", "-rf", "--", str(directory)], os.environ)

    def _reply(self, command_id: int, **fields: object) -> None:
        with contextlib.suppress(OSError):  # the user has left
            self._commands.sendall(json.dumps({"id": command_id, **fields}).encode() + b"\n")


def _lines(commands: socket.socket) -> Iterator[list[bytes | None]]:
    """The lines that each read completes; the last one is None at the end of the stream."""
    buffer = b""
    while True:
        received = commands.recv(1 << 16)
        *lines, buffer = (buffer + received).split(b"\n")
        yield [*lines, *([] if received else [None])]


def _reason(log: Path) -> str:
    """The last error that a broker logged, or the end of its output."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    fatal = [line.partition(" FATAL ")[2].rpartition(" (")[0] for line in lines if " FATAL " in line]
    return fatal[-1] if fatal else "\n".join(lines[-20:]) or "the broker ended without a message"


def _run(directory: Path, report: int, main: Callable[[], int]) -> NoReturn:
    """Run a broker or a tree in this process, a fork of the launcher."""
    code = 1
    try:
        launcher = os.getppid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:
            os._exit(1)
        output = os.open(directory / LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.closerange(3, report)
        os.closerange(report + 1, output + 1)
        configure_logging(None)
        gc.enable()  # off while the launcher imports
        code = main()
    except BaseException:
        logging.getLogger("kafka.Kafka").critical("The process failed", exc_info=True)
    finally:
        logging.shutdown()
        os._exit(code)


def _serve_broker(command: dict[str, Any], report: int) -> int:
    """Run a broker with a control server, and report its ports. Returns the exit code."""
    launched_s = time.monotonic()
    try:
        config = BrokerConfig.of(_with_control(command["properties"]))
    except ConfigError as error:
        logging.getLogger("kafka.Kafka").critical("The broker cannot start: %s", error)
        return 1
    raise_open_file_limit()
    links = Links(map(Link.of, command["links"])) if "links" in command else None
    movable = MovableTime()
    if "ahead_ms" in command:
        movable.set_ahead(command["ahead_ms"] / 1000)
    data = command["properties"]["log.dirs"]
    if "snapshot" in command:
        link_tree(f"{command['snapshot']}/{DATA}", data)
    files = FaultyFileSystem(DiskFaults(), has_links=os.path.exists(data))

    async def run() -> int:
        machine, environment = TimeMachine.of(movable, system_environment(config))
        environment = environment.replace(file_system=files)
        held = HeldNetwork(environment.network) if "predecessors" in command else None
        if held is not None:
            environment = environment.replace(network=held)
        if links is not None:
            environment = environment.replace(network=CutNetwork(environment.network, links))
        controls = []  # as long as the broker runs

        async def announce(server: KafkaServer) -> None:
            if command.get("predecessors"):
                await skip_producer_ids(server, command["predecessors"])
            controls.append(ControlServer(server, command["token"], machine, files, links=links, held=held))
            port = await controls[0].start()
            if command.get("is_frozen", False):
                movable.freeze()
            _report(report, json.dumps({"ports": server.ports, "control": port}))

        return await serve(config, launched_s, announce, environment=environment)

    with asyncio.Runner(loop_factory=lambda: MovableLoop(movable)) as runner:
        return runner.run(run())


def _with_control(properties: dict[str, str]) -> dict[str, str]:
    """The keys of server.properties. If they name an authorizer, the control API is a super user."""
    if "authorizer.class.name" not in properties:
        return properties
    return {**properties, SUPER_USERS: ";".join(filter(None, [properties.get(SUPER_USERS, ""), str(CONTROL)]))}


def _serve_tree(command: dict[str, Any], report: int) -> int:
    """Run the tree of a cluster. Returns the exit code."""
    from broker.test_mode.tree_host import serve_tree

    raise_open_file_limit()
    if "snapshot" in command:
        link_tree(command["snapshot"], command["directory"])
    announce = partial(_report, report)
    return asyncio.run(serve_tree(command["directory"], command["broker_ports"], command["token"], announce))


def _issue_certificates(directory: Path) -> None:
    """Write `authority.pem`, which clients trust, and `broker.pem`, the broker's key and certificate."""
    from security.certificate_authority import issue, new_authority, subject

    directory.mkdir(parents=True)
    authority = new_authority("Odradek test authority")
    own = issue(authority, subject("broker"))
    (directory / "authority.pem").write_text(authority.certificate_pem, encoding="ascii")
    (directory / "broker.pem").write_text(own.key_pem() + own.certificate_pem, encoding="ascii")


def _report(report: int, text: str) -> None:
    os.write(report, text.encode())
    os.close(report)


def _load(modules: Iterable[str]) -> None:
    """Import modules, and keep them out of the garbage collections of the forks, which share their memory."""
    for name in modules:
        __import__(name)
    gc.collect()
    gc.freeze()


def main(argv: list[str]) -> int:
    """Run the launcher: the descriptor of the socket, and the directory to delete at the end."""
    commands = socket.socket(fileno=int(argv[0]))
    launcher = ForkServer(commands, Path(argv[1]))
    _load(_LOADED_AT_START)
    try:
        launcher.run()
    finally:
        launcher.end()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
