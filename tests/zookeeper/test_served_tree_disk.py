"""The served tree on a full or failing disk: clients lose their connection, because the outcome is unknown."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from environment.system import SystemRandom, TcpNetwork
from tests.kit.broker_process import free_port
from tests.kit.coordination_fixtures import DIRECTORY, Machine, in_loop
from tests.kit.memory_file_system import Fault
from tests.kit.waiting import eventually_on_loop
from tests.kit.zookeeper import new_session
from zookeeper.coordination import ConnectionLossError
from zookeeper.tree_server import TreeServerConfig, open_tree_server


@asynccontextmanager
async def served(machine: Machine) -> AsyncIterator[str]:
    """Serve a machine's tree on this event loop; yields `host:port`."""
    port = free_port()
    server = await open_tree_server(
        TreeServerConfig(DIRECTORY, "127.0.0.1", port, 1000, 60_000),
        network=TcpNetwork(5),
        file_system=machine.disk,
        executor=machine.executor,
        clock=machine.clock,
        random=SystemRandom(),
        passwords=None,
        most_connections=2,
        on_failure=machine.failures.append,
    )
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.close()


@in_loop
async def test_a_full_disk_ends_no_session() -> None:
    machine = Machine()
    async with served(machine) as address:
        session = new_session(address)
        await session.connect()
        await session.create("/a", b"old", ephemeral=True)
        machine.disk.inject = lambda operation, _path: Fault(errno=errno.ENOSPC) if operation == "append" else None
        for _ in range(3):
            with pytest.raises(ConnectionLossError):
                await session.set("/a", b"new")
        assert (await session.get("/a"))[0] == b"old"
        machine.disk.inject = lambda _operation, _path: None
        assert (await session.set("/a", b"new", 0)).version == 1
        assert (await session.get("/a"))[1].ephemeral_owner == session.session_id
        await session.close()
    assert machine.failures == []


@in_loop
async def test_a_disk_that_fails_ends_the_service() -> None:
    machine = Machine()
    async with served(machine) as address:
        session = new_session(address)
        await session.connect()
        machine.disk.inject = lambda operation, _path: Fault(errno=errno.EIO) if operation == "flush" else None
        with pytest.raises(ConnectionLossError):
            await session.create("/a")
        await eventually_on_loop("the process is told to stop", lambda: machine.failures)
        await session.close()


@in_loop
async def test_connections_are_refused_when_there_are_too_many() -> None:
    machine = Machine()
    async with served(machine) as address:
        sessions = [new_session(address, connection_timeout_ms=500) for _ in range(3)]
        for session in sessions[:2]:
            await session.connect()
        with pytest.raises(ConnectionLossError, match="within 500 ms"):
            await sessions[2].connect()
        for session in sessions[:2]:
            await session.close()
