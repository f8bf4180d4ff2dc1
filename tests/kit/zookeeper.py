"""A real ZooKeeper for tests, and sessions with it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.zookeeper.kazoo_session import KazooCoordination
from config.zookeeper_connect import parse_zookeeper_connect
from tests.kit.broker_process import free_port
from tests.kit.jars import require
from tools.zookeeper.zookeeper_process import ZookeeperMissingError, ZookeeperProcess

SESSION_TIMEOUT_MS = 6000


def new_zookeeper(directory: Path, *, tick_time_ms: int = 500, port: int | None = None) -> ZookeeperProcess:
    """A ZooKeeper on loopback, not started yet; sessions live 1 to 60 seconds."""
    settings = {"maxSessionTimeout": "60000", "minSessionTimeout": "1000"}
    return ZookeeperProcess(directory, port or free_port(), tick_time_ms=tick_time_ms, settings=settings)


def start_zookeeper(server: ZookeeperProcess) -> None:
    """Start, and return when it serves. Skips the test without Java or jars."""
    require("java")
    try:
        server.start()
    except ZookeeperMissingError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))


@contextlib.contextmanager
def real_zookeeper(directory: Path, *, tick_time_ms: int = 500, port: int | None = None) -> Iterator[ZookeeperProcess]:
    """A ZooKeeper that serves, for a block; see `new_zookeeper`. Skips the test without Java or jars."""
    server = new_zookeeper(directory, tick_time_ms=tick_time_ms, port=port)
    start_zookeeper(server)
    try:
        yield server
    finally:
        server.kill()


def new_session(
    address: str,
    *,
    session_timeout_ms: int = SESSION_TIMEOUT_MS,
    connection_timeout_ms: int = 20_000,
    in_flight: int = 10,
) -> KazooCoordination:
    """A session, not yet connected, with the ZooKeeper at `address` (host:port/chroot)."""
    return KazooCoordination(parse_zookeeper_connect(address), session_timeout_ms, connection_timeout_ms, in_flight)


@contextlib.contextmanager
def real_ensemble(directory: Path, count: int = 3) -> Iterator[list[ZookeeperProcess]]:
    """That many servers of one ensemble, which serve together, for a block. Skips the test without Java or jars."""
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
