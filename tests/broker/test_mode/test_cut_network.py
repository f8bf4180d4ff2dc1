"""Links that lose packets in one direction or both, and links with a latency, on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from broker.test_mode.cut_network import HIGH_WATER_BYTES, CutNetwork, Link, Links
from environment.contract import Listener
from environment.system import TcpNetwork
from tests.kit.waiting import PATIENCE_S


class Peer(asyncio.Protocol):
    """Keeps what it receives."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.received = bytearray()
        self.changed = asyncio.Event()
        self.has_ended = False
        self.is_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.changed.set()

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.changed.set()

    def connection_lost(self, _error: Exception | None) -> None:
        self.has_ended = True
        self.changed.set()

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False
        self.changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until the condition holds."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                self.changed.clear()
                await self.changed.wait()


class World:
    """A server, and a client behind a network with links."""

    def __init__(self) -> None:
        self.links = Links()
        self.network = CutNetwork(TcpNetwork(50), self.links)
        self.server: Peer
        self.port = 0
        self._listener: Listener
        self._peers: list[Peer] = []

    async def listen(self) -> None:
        self._listener = self.network.bind("127.0.0.1", 0)
        await self._listener.start(self._accepted)
        self.port = self._listener.port

    async def close(self) -> None:
        """End all connections."""
        self.links.change([])
        await self._listener.close()
        for peer in self._peers:
            peer.transport.abort()
            await peer.until(lambda peer=peer: peer.has_ended)  # type: ignore[misc]

    def _accepted(self) -> Peer:
        self.server = self._new_peer()
        return self.server

    def _new_peer(self) -> Peer:
        self._peers.append(peer := Peer())
        return peer

    async def connected(self) -> Peer:
        """A client whose connection has been used."""
        _, client = await self.network.connect(self._new_peer, "127.0.0.1", self.port)
        client.transport.write(b"a")
        await asyncio.sleep(0)
        while not hasattr(self, "server"):
            await asyncio.sleep(0)
        await self.server.until(lambda: self.server.received == b"a")
        return client

    def change(self, **link: Any) -> None:
        self.links.change([Link(self.port, **link)])

    async def round_trip(self) -> None:
        """Let the loop read everything that is there, by another connection."""
        passed = self._new_peer()
        listener = self.network.bind("127.0.0.1", 0)
        await listener.start(lambda: passed)
        _, other = await self.network.connect(self._new_peer, "127.0.0.1", listener.port)
        other.transport.write(b"x")
        await passed.until(lambda: passed.received == b"x")
        await listener.close()


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        world = World()
        await world.listen()
        await scenario(world)
        await world.close()

    asyncio.run(main())


def test_without_faults_everything_passes() -> None:
    async def scenario(world: World) -> None:
        client = await world.connected()
        world.server.transport.write(b"b")
        await client.until(lambda: client.received == b"b")
        client.transport.close()
        await world.server.until(lambda: world.server.has_ended)
        assert client.has_ended

    run(scenario)


def test_a_cut_connection_is_silent_and_goes_on_when_it_is_healed() -> None:
    async def scenario(world: World) -> None:
        client = await world.connected()
        world.change(sends=False, receives=False)
        client.transport.write(b"b")
        client.transport.writelines([b"c", b"d"])
        world.server.transport.write(b"e")
        await world.round_trip()
        assert (world.server.received, client.received) == (b"a", b"")
        world.links.change([])
        await world.server.until(lambda: world.server.received == b"abcd")
        await client.until(lambda: client.received == b"e")

    run(scenario)


@pytest.mark.parametrize("sends", [True, False])
def test_one_direction_is_cut(sends: bool) -> None:
    async def scenario(world: World) -> None:
        client = await world.connected()
        world.change(sends=sends, receives=not sends)
        client.transport.write(b"b")
        world.server.transport.write(b"c")
        if sends:
            await world.server.until(lambda: world.server.received == b"ab")
        else:
            await client.until(lambda: client.received == b"c")
        await world.round_trip()
        assert (world.server.received, client.received) == ((b"ab", b"") if sends else (b"a", b"c"))

    run(scenario)


def test_the_end_of_a_cut_connection_is_not_seen_before_it_is_healed() -> None:
    async def scenario(world: World) -> None:
        client, other = await world.connected(), world.server
        world.change(sends=False, receives=False)
        other.transport.close()
        await world.round_trip()
        assert not client.has_ended
        world.links.change([])
        await client.until(lambda: client.has_ended)

    run(scenario)


def test_what_was_sent_before_a_close_arrives() -> None:
    async def scenario(world: World) -> None:
        client = await world.connected()
        world.change(sends=False, receives=False)
        client.transport.write(b"b")
        client.transport.abort()
        await client.until(lambda: client.has_ended)
        await world.round_trip()
        assert not world.server.has_ended
        world.links.change([])
        await world.server.until(lambda: world.server.has_ended)
        assert world.server.received == b"ab"
        assert client.received == b""

    run(scenario)


def test_a_new_connection_waits_for_both_directions() -> None:
    async def scenario(world: World) -> None:
        world.change(sends=True, receives=False)
        connecting = asyncio.ensure_future(world.connected())
        await world.round_trip()
        assert not hasattr(world, "server")
        world.change(sends=False, receives=True)
        await world.round_trip()
        assert not hasattr(world, "server")
        world.links.change([])
        await connecting

    run(scenario)


def test_a_protocol_pauses_when_a_cut_link_takes_no_more() -> None:
    async def scenario(world: World) -> None:
        client = await world.connected()
        world.change(sends=False)
        client.transport.write(b"b" * (HIGH_WATER_BYTES + 1))
        assert client.is_paused
        assert client.transport.get_write_buffer_size() == HIGH_WATER_BYTES + 1
        world.links.change([])
        await client.until(lambda: not client.is_paused)
        await world.server.until(lambda: len(world.server.received) == HIGH_WATER_BYTES + 2)

    run(scenario)


def test_a_latency_delays_both_directions_and_keeps_the_order() -> None:
    async def scenario(world: World) -> None:
        client, loop = await world.connected(), asyncio.get_running_loop()
        world.change(latency_s=0.05)
        began_s = loop.time()
        client.transport.write(b"b")
        client.transport.write(b"c")
        await world.server.until(lambda: world.server.received == b"abc")
        world.server.transport.write(b"d")
        await client.until(lambda: client.received == b"d")
        assert loop.time() - began_s >= 0.1
        world.change(sends=False, latency_s=0.05)
        client.transport.write(b"e")
        world.links.change([])
        client.transport.write(b"f")
        await world.server.until(lambda: world.server.received == b"abcef")

    run(scenario)
