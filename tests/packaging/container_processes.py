"""The services of a compose file as local processes, each at a separate loopback address, with the command, the
variables, the ports and the volumes of the file.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from tests.kit.broker_process import PATIENCE_S, ROOT
from tests.kit.waiting import eventually
from tests.kit.zookeeper import start_zookeeper
from tests.kit.zookeeper_process import ZookeeperProcess
from tests.packaging.compositions import (
    brokers,
    composition,
    entry_point,
    environment,
    health_check,
    published,
    written_file,
)

IMAGE_FILE = "/etc/odradek/server.properties"
START_SCRIPT = "/usr/local/bin/start-broker"
MOUNT = "/mnt/shared"


class ComposedCluster:
    """ZooKeeper and the brokers of a compose file. Linux has all of 127.0.0.0/8, so ports need not change."""

    def __init__(self, file: str, directory: Path, variables: dict[str, str]) -> None:
        """`variables` are set for each broker in addition to those of the file."""
        self._net = f"127.{secrets.randbelow(250) + 1}.{secrets.randbelow(250) + 1}"
        self.host = f"{self._net}.1"
        """The address of published ports, to which clients of the host connect."""
        self._directory = directory
        self._variables = variables
        self.services: dict[str, Any] = composition(file, PUBLISH_ON=self.host, ADVERTISED_HOST=self.host)["services"]
        self.addresses = {name: f"{self._net}.{number}" for number, name in enumerate(self.services, 2)}
        self.brokers = brokers(self.services)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._stack = contextlib.ExitStack()
        self._commands = directory / "bin"
        self._commands.mkdir()
        odradek = self._commands / "odradek"
        odradek.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m odradek "$@"\n')
        odradek.chmod(0o755)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.callback(self._end_all)
            _, port = self.services["broker-1"]["environment"]["KAFKA_ZOOKEEPER_CONNECT"].split("/")[0].split(":")
            zookeeper = ZookeeperProcess(self._directory / "zookeeper", int(port), host=self.addresses["zookeeper"])
            stack.callback(zookeeper.kill)
            start_zookeeper(zookeeper)
            for name, service in self.brokers.items():
                for outside, port_inside in published(service).items():
                    stack.enter_context(_forwarded(outside, (self.addresses[name], port_inside)))
                self.start(name)
            for name in self.brokers:
                self.await_healthy(name)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def here(self, text: str, name: str) -> str:
        """`text` adapted to this machine for one service: names of services, its address and its volumes."""
        for service, address in self.addresses.items():
            text = re.sub(rf"(?<![\w.-]){re.escape(service)}(?=:\d)", address, text)
        text = re.sub(r"\b(0\.0\.0\.0|127\.0\.0\.1)\b", self.addresses[name], text)
        own = self._directory / name
        for volume in self.services[name].get("volumes", []):
            text = text.replace(volume.partition(":")[2], str(own / "volume"))
        return text.replace(IMAGE_FILE, str(own / "server.properties")).replace(MOUNT, str(own / "mounted"))

    def start(self, name: str) -> None:
        """Start a broker's container; its volume is kept."""
        own = self._directory / name
        own.mkdir(exist_ok=True)
        (own / "server.properties").write_text(self.here(written_file(IMAGE_FILE), name))
        (own / "start-broker").write_text(self.here(written_file(START_SCRIPT), name))
        (command,) = entry_point("broker")
        with self.output(name).open("ab") as output:
            self._processes[name] = subprocess.Popen(
                ["sh", str(own / command)],
                env=self._environment(name),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _environment(self, name: str) -> dict[str, str]:
        inherited = {key: text for key, text in os.environ.items() if not key.startswith("KAFKA_")}
        given = {key: self.here(text, name) for key, text in environment(self.services[name]).items()}
        ours = {
            "PATH": f"{self._commands}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "ODRADEK_PYTHON": sys.executable,
        }
        return {**inherited, **given, **self._variables, **ours}

    def output(self, name: str) -> Path:
        """The output of a broker's container."""
        return self._directory / name / "output"

    def await_healthy(self, name: str) -> None:
        """Wait until the health check of its image succeeds."""
        command = self.here(" ".join(health_check()), name).split()

        def check() -> int:
            assert self._processes[name].poll() is None, self.output(name).read_text()[-3000:]
            return subprocess.run(
                command, env=self._environment(name), capture_output=True, timeout=PATIENCE_S, check=False
            ).returncode

        eventually(f"{name} is healthy", check, lambda code: code == 0)

    def kill(self, name: str) -> None:
        """kill -9."""
        self._end(name, signal.SIGKILL)

    def _end(self, name: str, number: signal.Signals) -> None:
        process = self._processes.pop(name)
        process.send_signal(number)
        process.wait(PATIENCE_S)

    def _end_all(self) -> None:
        for name in list(self._processes):
            self.kill(name)

    def broker_at(self, host: str, port: int) -> str:
        """The broker that the host reaches at an address."""
        (name,) = [name for name, service in self.brokers.items() if (host, port) in published(service)]
        return name


@contextlib.contextmanager
def _forwarded(outside: tuple[str, int], inside: tuple[str, int]) -> Iterator[None]:
    """Forward a published port: connections to `outside` lead to `inside`."""

    class Connection(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError), socket.create_connection(inside) as target:
                back = threading.Thread(target=_pump, args=(target, self.request), daemon=True)
                back.start()
                _pump(self.request, target)
                back.join()

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True
        block_on_close = False

    with Server(outside, Connection) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        serving.start()
        yield
        server.shutdown()
        serving.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    """Copy until one of them is closed; then shut both down."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
