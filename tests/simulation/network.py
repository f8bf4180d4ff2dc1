"""A network of machines on virtual time: listeners, connections and the faults between them.

`endpoint` is one end of a connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from random import Random
from typing import TypeVar

from tests.simulation.endpoint import Endpoint, Links
from tests.simulation.loop import CURRENT, Process, SimLoop

P = TypeVar("P", bound=asyncio.BaseProtocol)


class SimNetwork:
    """All machines, and all connections between them."""

    def __init__(self, loop: SimLoop, rng: Random) -> None:
        self.loop = loop
        self.links = Links(loop, rng)
        self.listeners: dict[tuple[str, int], SimListener] = {}
        self._waiting_to_connect: list[tuple[str, str, Callable[[], None]]] = []
        self._ports = 40_000

    def of(self, host: str) -> HostNetwork:
        """The network of a process on `host`."""
        return HostNetwork(self, host)

    def next_port(self) -> int:
        """A client's port."""
        self._ports += 1
        return self._ports

    # -- faults --------------------------------------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """Stop all traffic from one host to the other. Data waits, as TCP retransmits it later."""
        self.links.cuts[source, target] = None

    def heal(self, source: str | None = None, target: str | None = None) -> None:
        """Remove one cut, or all."""
        if source is None or target is None:
            self.links.cuts.clear()
            for endpoint in self.links.endpoints:
                endpoint.held = False
        else:
            self.links.cuts.pop((source, target), None)
        for endpoint in list(self.links.endpoints):
            endpoint.send_stalled()
        waiting, self._waiting_to_connect = self._waiting_to_connect, []
        for from_host, to_host, attempt in waiting:
            self._when_linked(from_host, to_host, attempt)

    def connections(self, host: str) -> list[Endpoint]:
        """The ends of open connections on a host."""
        return [each for each in self.links.endpoints if each.host == host and not each.gone]

    def process_died(self, process: Process, *, silently: bool = False) -> None:
        """Close its listeners and connections: the other side notices, unless the power failed."""
        for address in [each for each, listener in self.listeners.items() if listener.process is process]:
            del self.listeners[address]
        for endpoint in [each for each in self.links.endpoints if each.process is process]:
            endpoint.die(silently=silently)

    # -- connecting ----------------------------------------------------------------------------------------------------

    def _when_linked(self, source: str, target: str, attempt: Callable[[], None]) -> None:
        if self.links.is_cut(source, target) or self.links.is_cut(target, source):
            self._waiting_to_connect.append((source, target, attempt))
        else:
            self.loop.kernel_at(self.loop.time() + 2 * self.links.delay_s(), attempt)

    async def connect(
        self, source: str, protocol_factory: Callable[[], P], host: str, port: int
    ) -> tuple[asyncio.BaseTransport, P]:
        answered: asyncio.Future[SimListener | None] = self.loop.create_future()

        def attempt() -> None:
            if not answered.done():
                answered.set_result(self.listeners.get((host, port)))

        self._when_linked(source, host, attempt)
        listener = await answered
        if listener is None or not listener.process.alive or not listener.is_listening:
            raise ConnectionRefusedError(111, "Connection refused")
        own_address, peer_address = (source, self.next_port()), (host, port)
        mine = Endpoint(self.links, source, CURRENT.get(), copy_context(), own_address, peer_address)
        theirs = Endpoint(self.links, host, listener.process, listener.context, peer_address, own_address)
        mine.peer, theirs.peer = theirs, mine
        self.links.endpoints[mine] = self.links.endpoints[theirs] = None
        listener.accept(theirs)
        protocol = protocol_factory()
        mine.begin(lambda: protocol)
        return mine, protocol


class HostNetwork:
    """The environment's Network (and the client's) on one host."""

    def __init__(self, network: SimNetwork, host: str) -> None:
        self._network = network
        self._host = host

    def bind(self, host: str | None, port: int) -> SimListener:
        address = (self._host, port)
        if address in self._network.listeners:
            raise OSError(98, "Address already in use")
        listener = self._network.listeners[address] = SimListener(self._network, address)
        return listener

    async def connect(self, protocol_factory: Callable[[], P], host: str, port: int) -> tuple[asyncio.BaseTransport, P]:
        return await self._network.connect(self._host, protocol_factory, host, port)

    async def addresses_of(self, host: str) -> list[str]:
        return [host]

    def host_name(self) -> str:
        return self._host


class SimListener:
    """A bound port. Connections are refused before `listen`, and wait in the kernel's backlog until `start`."""

    def __init__(self, network: SimNetwork, address: tuple[str, int]) -> None:
        self._network = network
        self._address = address
        self.process = CURRENT.get()
        self.context = copy_context()
        self.is_listening = False
        self._factory: Callable[[], asyncio.BaseProtocol] | None = None
        self._backlog: list[Endpoint] = []

    @property
    def port(self) -> int:
        return self._address[1]

    def listen(self) -> None:
        self.is_listening = True

    async def start(self, protocol_factory: Callable[[], asyncio.BaseProtocol]) -> None:
        self.is_listening = True
        self._factory = protocol_factory
        waiting, self._backlog = self._backlog, []
        for endpoint in waiting:
            self.accept(endpoint)

    def accept(self, endpoint: Endpoint) -> None:
        """The kernel has a connection for this listener; the process learns of it once it accepts."""
        if self._factory is None:
            self._backlog.append(endpoint)
        elif not endpoint.gone:
            self._network.loop.call_soon(endpoint.begin, self._factory, context=endpoint.context)

    async def close(self) -> None:
        self.is_listening = False
        while self._backlog:
            self._backlog.pop().die(silently=False)
        if self._network.listeners.get(self._address) is self:
            del self._network.listeners[self._address]
