"""The network of a broker that takes over the address of another one: it binds its listeners only when it is told to.

So a broker starts while the one before it still serves clients at the same address. Nothing that was sent to that one
can reach this one: its connections, and those that wait to be accepted, end with its process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from broker.server import KafkaServer
from cluster.znodes import PRODUCER_ID_BLOCK, ProducerIdBlock
from environment.contract import Listener, Network

_IDS_OF_A_BROKER: Final = 1_000_000
"""More producer ids than the clients of a test use."""


class HeldNetwork(Network):
    """`network`, with listeners that are bound by `open`."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._held: list[HeldListener] = []
        self._is_open = False

    def bind(self, host: str | None, port: int) -> Listener:
        if self._is_open:
            return self._network.bind(host, port)
        listener = HeldListener(self._network, host, port)
        self._held.append(listener)
        return listener

    async def open(self) -> None:
        """Bind all addresses and accept connections. Raises OSError."""
        self._is_open = True
        held, self._held = self._held, []
        for listener in held:
            await listener.open()

    async def connect(self, protocol_factory: Callable[[], Any], host: str, port: int) -> tuple[Any, Any]:
        return await self._network.connect(protocol_factory, host, port)

    async def addresses_of(self, host: str) -> list[str]:
        return await self._network.addresses_of(host)

    def host_name(self) -> str:
        return self._network.host_name()


class HeldListener(Listener):
    """A listener on an address that another process may still have."""

    def __init__(self, network: Network, host: str | None, port: int) -> None:
        self._network = network
        self._host = host
        self._port = port
        self._opened: Listener | None = None
        self._protocol_factory: Callable[[], asyncio.BaseProtocol] | None = None

    @property
    def port(self) -> int:
        return self._port

    def listen(self) -> None:
        """It listens when it is opened."""

    async def start(self, protocol_factory: Callable[[], asyncio.BaseProtocol]) -> None:
        self._protocol_factory = protocol_factory

    async def open(self) -> None:
        """Bind the address, and accept connections. The broker has started. Raises OSError."""
        assert self._protocol_factory is not None, "the broker has not started"
        self._opened = self._network.bind(self._host, self._port)
        self._opened.listen()
        await self._opened.start(self._protocol_factory)

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()


async def skip_producer_ids(server: KafkaServer, predecessors: int) -> None:
    """Give no producer id that one of so many brokers before this one may have given.

    Their clients go on with their ids. This broker would take a record of a new producer with such an id for a
    duplicate.
    """
    serving = server.serving
    tree, first = serving.coordination.membership.coordination, predecessors * _IDS_OF_A_BROKER
    block = ProducerIdBlock(serving.member.broker_id, first, first)
    await tree.set(PRODUCER_ID_BLOCK, block.encode())
