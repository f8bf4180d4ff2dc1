"""A real ZooKeeper for tests, and sessions with it."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from broker.zookeeper.kazoo_security import SessionSecurity
from broker.zookeeper.kazoo_session import KazooCoordination
from config.zookeeper_connection import parse_zookeeper_connect
from tests.kit.broker_process import ROOT, free_port
from tests.kit.jars import require
from tests.kit.zookeeper_process import ZookeeperProcess
from tools.zookeeper.zookeeper_jars import ZookeeperMissingError

SESSION_TIMEOUT_MS = 6000


def new_zookeeper(
    directory: Path,
    *,
    tick_time_ms: int = 500,
    port: int | None = None,
    host: str = "127.0.0.1",
    settings: Mapping[str, str] | None = None,
) -> ZookeeperProcess:
    """A ZooKeeper, not started yet, by default on loopback; sessions live 1 to 60 seconds."""
    settings = {"maxSessionTimeout": "60000", "minSessionTimeout": "1000", **(settings or {})}
    return ZookeeperProcess(directory, port or free_port(), host=host, tick_time_ms=tick_time_ms, settings=settings)


def new_served_tree(
    directory: Path, *, port: int | None = None, settings: Mapping[str, str] | None = None
) -> ZookeeperProcess:
    """The embedded tree as a separate process, not yet started; it does not use Java. Sessions as with the real one."""

    def command(properties: Path) -> list[str]:
        python = ["env", f"PYTHONPATH={ROOT}", sys.executable]
        return [*python, "-P", "-m", "zookeeper.tree_process", str(properties)]

    settings = {"maxSessionTimeout": "60000", "minSessionTimeout": "1000", **(settings or {})}
    return ZookeeperProcess(directory, port or free_port(), settings=settings, command=command)


@contextlib.contextmanager
def served_tree(directory: Path, *, settings: Mapping[str, str] | None = None) -> Iterator[ZookeeperProcess]:
    """Run a served tree for the duration of a block; see `new_served_tree`."""
    server = new_served_tree(directory, settings=settings)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def start_zookeeper(server: ZookeeperProcess) -> None:
    """Start, and return when it serves. Skips the test if a real one's Java or jars are missing."""
    if server.needs_java:
        require("java")
    try:
        server.start()
    except ZookeeperMissingError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))


@contextlib.contextmanager
def real_zookeeper(
    directory: Path, *, tick_time_ms: int = 500, port: int | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[ZookeeperProcess]:
    """Run a ZooKeeper for the duration of a block; see `new_zookeeper`. Skips the test without Java or jars."""
    server = new_zookeeper(directory, tick_time_ms=tick_time_ms, port=port, settings=settings)
    start_zookeeper(server)
    try:
        yield server
    finally:
        server.kill()


def tls_listener(port: int, key_store: Path, trusted: Path | str, *, host: str = "127.0.0.1") -> dict[str, str]:
    """Settings of a ZooKeeper for an additional port, which requires certificates signed by `trusted`."""
    return {
        "secureClientPort": str(port),
        "secureClientPortAddress": host,
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": str(key_store),
        "ssl.trustStore.location": str(trusted),
        "ssl.protocol": "TLSv1.3",
        "ssl.enabledProtocols": "TLSv1.2,TLSv1.3",
    }


def tls_session(connect: str, key_store: Path, trusted: Path | str) -> dict[str, str]:
    """Settings of a broker that connects to such a port."""
    return {
        "zookeeper.connect": connect,
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
        "zookeeper.ssl.keystore.location": str(key_store),
        "zookeeper.ssl.truststore.location": str(trusted),
    }


@contextlib.contextmanager
def something_else() -> Iterator[str]:
    """For the duration of a block, run a server that is not a ZooKeeper and says so to every client."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection, contextlib.suppress(OSError):
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    connection.recv(1000)

        answering = threading.Thread(target=answer, daemon=True)
        answering.start()
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            answering.join()


@contextlib.contextmanager
def without_quorum(directory: Path, *, read_only: bool) -> Iterator[str]:
    """For the duration of a block, run one server out of three. It may not know yet that it is alone; with `read_only`
    it then serves reads.
    """
    others = {f"server.{number}": f"127.0.0.1:{free_port()}:{free_port()}" for number in range(3)}
    server = ZookeeperProcess(
        directory, free_port(), tick_time_ms=500, settings={**others, "initLimit": "5", "syncLimit": "5"}
    )
    (directory / "data").mkdir()
    (directory / "data" / "myid").write_text("0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", f"-Dreadonlymode.enabled={str(read_only).lower()}")
        server.spawn()
    try:
        yield server.address
    finally:
        server.kill()


def new_session(
    address: str,
    *,
    session_timeout_ms: int = SESSION_TIMEOUT_MS,
    connection_timeout_ms: int = 20_000,
    in_flight: int = 10,
    security: SessionSecurity = SessionSecurity(),  # noqa: B008 - it is immutable
) -> KazooCoordination:
    """A session, not yet connected, with the ZooKeeper at `address` (host:port/chroot)."""
    place = parse_zookeeper_connect(address)
    return KazooCoordination(place, session_timeout_ms, connection_timeout_ms, in_flight, security)


@contextlib.contextmanager
def real_ensemble(directory: Path, count: int = 3) -> Iterator[list[ZookeeperProcess]]:
    """Run an ensemble of that many servers for the duration of a block. Skips the test without Java or jars."""
    require("java")
    ports = [(free_port(), free_port(), free_port()) for _ in range(count)]
    members = {f"server.{at}": f"127.0.0.1:{ports[at][1]}:{ports[at][2]}" for at in range(count)}
    limits = {"initLimit": "20", "syncLimit": "10", "minSessionTimeout": "1000", "maxSessionTimeout": "60000"}
    servers = []
    for at in range(count):
        own = directory / str(at)
        servers.append(ZookeeperProcess(own, ports[at][0], tick_time_ms=500, settings={**members, **limits}))
        (own / "data").mkdir(exist_ok=True)
        (own / "data" / "myid").write_text(str(at))
    try:
        for server in servers:
            server.spawn()
        for server in servers:
            server.await_serving()
        yield servers
    finally:
        for server in servers:
            server.kill()
