"""A closed listener leaves no accepted connection open."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from environment.system import TcpNetwork


class Noted(asyncio.Protocol):
    """Closes its connection, like a broker that stops."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


@pytest.mark.parametrize("turns", range(5))
def test_a_client_that_connects_while_a_listener_closes_is_not_left_waiting(turns: int) -> None:
    async def scenario() -> None:
        listener = TcpNetwork(50).bind("127.0.0.1", 0)
        await listener.start(Noted)
        with socket.create_connection(("127.0.0.1", listener.port)) as client:
            client.setblocking(False)
            for _ in range(turns):
                await asyncio.sleep(0)
            await listener.close()
            async with asyncio.timeout(30):
                with contextlib.suppress(ConnectionResetError):  # it was never accepted
                    assert await asyncio.get_running_loop().sock_recv(client, 1) == b""

    asyncio.run(scenario())
