"""Connections to all brokers of the cluster for one purpose, opened when they are first needed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from broker.inter_broker.inter_broker_client import InterBrokerClient
from client.environment import Network
from cluster.metadata_image import MetadataImage
from protocol.wire.frames import ReceiveBuffer


class BrokerClients:
    """An InterBrokerClient for each broker, by the listener that brokers use among themselves."""

    def __init__(
        self,
        network: Network,
        image: Callable[[], MetadataImage],
        listener_name: str,
        client_id: str,
        request_timeout_ms: int,
    ) -> None:
        """`image` gives the metadata, where the addresses are."""
        self._network = network
        self._image = image
        self._listener_name = listener_name
        self._client_id = client_id
        self._request_timeout_ms = request_timeout_ms
        self._receive_buffer = ReceiveBuffer()
        self._clients: dict[int, InterBrokerClient] = {}

    def of(self, broker_id: int) -> InterBrokerClient:
        """The client of a broker, whether it is there or not."""
        client = self._clients.get(broker_id)
        if client is None:
            client = self._clients[broker_id] = InterBrokerClient(
                self._network,
                partial(self._address, broker_id),
                self._client_id,
                self._request_timeout_ms,
                receive_buffer=self._receive_buffer,
            )
        return client

    def _address(self, broker_id: int) -> tuple[str, int] | None:
        return self._image().address_of(broker_id, self._listener_name)

    def close(self) -> None:
        """Close all connections for good."""
        for client in self._clients.values():
            client.close()
