"""The network of a broker that takes over another broker's address. Its listeners are bound only by `HeldNetwork.open`.

The new broker starts while the old one still serves clients at that address. Data sent to the old broker never reaches
the new one: connections, also those not accepted yet, end with the old process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from broker.server import KafkaServer
from broker.test_mode.cut_network import WrappedNetwork
from cluster.znodes import PRODUCER_ID_BLOCK, ProducerIdBlock
from environment.contract import Listener, Network

_IDS_OF_A_BROKER: Final = 1_000_000
"""More producer ids than the clients of a test use."""


class HeldNetwork(WrappedNetwork):
    """`network`, with listeners that are bound by `open`."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
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
    """Skip the producer ids that so many earlier brokers may have assigned.

    Clients of those brokers still use them. If a new producer got the same id, the broker would take its records for
    duplicates.
    """
    serving = server.serving
    tree, first = serving.coordination.membership.coordination, predecessors * _IDS_OF_A_BROKER
    block = ProducerIdBlock(serving.member.broker_id, first, first)
    await tree.set(PRODUCER_ID_BLOCK, block.encode())
