"""A closed connection leaves no cycle, no object and no memory behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from broker.network.connection import Connection
from broker.network.registry import CloseConnection
from broker.network.reply_writer import Parts
from broker.network.socket_server import ProtocolFactory
from tests.broker.network.closed_connections import measure
from tests.broker.network.scripted_server import ScriptedServer, framed, run
from tests.broker.network.test_tls_transport import client_context, server_tls
from tests.broker.security.sasl_server import security as server_sasl
from tests.kit.waiting import eventually_on_loop, turns

PACKAGES = ("broker", "client", "cluster", "config", "environment", "protocol", "storage", "zookeeper")


@contextlib.contextmanager
def cycles_of_ours() -> Iterator[Counter[str]]:
    """Count the objects, by class, that only a garbage collection has freed by the end of the block."""
    found: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        classes = [type(each) for each in gc.garbage]
        found.update(f"{each.__module__}.{each.__qualname__}" for each in classes if is_ours(each))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def is_ours(kind: type) -> bool:
    """A transport of asyncio's standard loop is a cycle by itself; it holds no connection once it is closed."""
    package = str(kind.__module__).partition(".")[0]
    return package in PACKAGES or package == "uvloop"


def answer(frame: bytes) -> Parts | Awaitable[Parts | None]:
    match frame[:4]:
        case b"wait":
            return asyncio.get_running_loop().create_future()
        case b"long":
            return [b"x" * 20_000_000]
        case b"fail":
            raise ValueError("a planned failure")
        case b"hang":
            raise CloseConnection("a request that nobody serves")
    return [frame]


IS_ANSWERED = framed(b"a request")
WAITS = framed(b"wait") * 3 + framed(b"a request behind them")[:7]
IS_NOT_READ = framed(b"long")
HALF_A_FRAME = struct.pack(">i", 500_000) + b"long" * 25_000
NO_FRAME = struct.pack(">i", -1)
FAILS = framed(b"fail")
IS_REFUSED = framed(b"hang")
SENT = [b"", IS_ANSWERED, WAITS, IS_NOT_READ, HALF_A_FRAME, NO_FRAME, FAILS, IS_REFUSED]


async def visit(scripted: ScriptedServer, data: bytes, context: ssl.SSLContext | None, *, mutes: bool) -> None:
    """Send, and hang up once the server has received everything."""
    server = scripted.server
    port = server.ports["PLAINTEXT"]
    seen = {id(each) for each in server.connections}
    client = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", port))
    await eventually_on_loop("it is accepted", lambda: any(id(each) not in seen for each in server.connections))
    if context is not None:
        client = await asyncio.to_thread(context.wrap_socket, client)
    await asyncio.to_thread(client.sendall, data)
    await turns()
    for connection in list(server.connections) if mutes else ():
        connection.mute(60_000)
        connection.close("the test ends it: no socket is read while its connection is muted")
    client.close()
    await eventually_on_loop("it is gone", lambda: not server.connections)


@pytest.mark.usefixtures("every_loop")
@pytest.mark.parametrize("kind", ["PLAINTEXT", "SASL_PLAINTEXT", "SSL"])
def test_a_closed_connection_is_in_no_cycle(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tested without any collection: a full one may freeze open objects, and cycles would stay."""
    # pytest keeps log records, with the frames of errors.
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)
    securities: dict[str, Callable[[], ProtocolFactory | None]] = {
        "PLAINTEXT": lambda: None,
        "SASL_PLAINTEXT": server_sasl,
        "SSL": server_tls,
    }

    async def scenario() -> None:
        context = client_context() if kind == "SSL" else None
        async with ScriptedServer(answer, security=securities[kind]()) as scripted:
            with cycles_of_ours() as found:
                for data in SENT:
                    await visit(scripted, data, context, mutes=False)
                await visit(scripted, IS_ANSWERED, context, mutes=True)
                if context is not None:
                    for data in (b"", b"\x16\x03\x01\x02\x00\x01\x00", b"plain text"):
                        await visit(scripted, data, None, mutes=False)
                await eventually_on_loop("nothing waits to be closed", partial(_is_gone, scripted), pause_s=0.05)
            assert not found

    run(scenario())


def _is_gone(scripted: ScriptedServer) -> bool:
    """Timers hold connections that failed to authenticate for as long as their clients wait."""
    return not any(isinstance(each, Connection) for each in gc.get_objects()) and not scripted.server.connections


def test_many_closed_connections_leave_no_memory(tmp_path: Path) -> None:
    before, after = measure(tmp_path, 20_000, 2_000)
    assert not after.has_grown_since(before), (before, after)
