"""Connections to other brokers, one per purpose. They are opened on first use, and reopened after a loss."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, TypeVar

from client.broker_connection import BrokerConnection, connect
from client.environment import Network
from client.errors import AuthenticationError, DisconnectedError
from cluster.metadata_image import MetadataImage
from protocol.wire.frames import ReceiveBuffer
from protocol.wire.schema import Request, Response

logger = logging.getLogger("kafka.clients.NetworkClient")

Address = tuple[str, int]
"""Host and port."""

R = TypeVar("R", bound=Response)

SETUP_TIMEOUT_MS: Final = 10_000
"""Kafka's socket.connection.setup.timeout.ms."""


class InterBrokerClient:
    """Sends requests to one broker, in the fixed versions of `broker.inter_broker.command_codec`, as Kafka does.

    Uses one connection at a time. Requests are sent and answered in the order of the calls of `ask`.
    """

    def __init__(
        self,
        network: Network,
        address: Address | Callable[[], Address | None],
        client_id: str,
        request_timeout_ms: int,
        *,
        setup_timeout_ms: int = SETUP_TIMEOUT_MS,
        receive_buffer: ReceiveBuffer | None = None,
        numbers: Iterator[int] | None = None,
    ) -> None:
        """`address` is evaluated for every request, and may return None if unknown; when it changes, the old connection
        is closed. `receive_buffer` may be shared with other connections of the event loop. `numbers` supplies
        correlation ids across connections; if None, each connection starts at 1.
        """
        self._network = network
        self._address = address
        self._client_id = client_id
        self._request_timeout_ms = request_timeout_ms
        self._setup_timeout_ms = setup_timeout_ms
        self._receive_buffer = ReceiveBuffer() if receive_buffer is None else receive_buffer
        self._numbers = numbers
        self._turn = asyncio.Lock()
        self._connecting: asyncio.Task[BrokerConnection] | None = None
        self._connection: BrokerConnection | None = None
        self._connected_to: Address | None = None
        self._is_closed = False
        self._refusal = ""
        """The last authentication error, in either direction."""

    @property
    def is_connected(self) -> bool:
        """Whether the connection is open."""
        return self._connection is not None and self._connection.is_open

    async def ask(self, request: Request, response_type: type[R], version: int, timeout_ms: int | None = None) -> R:
        """Send a request and wait for the answer, connecting first if necessary.

        Raises DisconnectedError if connecting fails, the connection is lost, or the answer takes longer than
        `timeout_ms` (default `request_timeout_ms`); the request may have taken effect. Raises EncodeError or ApiError
        UNSUPPORTED_VERSION if the request cannot be sent. Fields of type `records` in the answer are slices of the
        received frame.
        """
        async with self._turn:
            connection = await self._connected()
            answer = connection.send(request, response_type, version, timeout_ms)
        try:
            return await answer
        finally:
            del answer  # avoids a cycle: the traceback of its error refers to this frame

    def close(self) -> None:
        """Close for good. Pending and later calls of `ask` raise DisconnectedError."""
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            self._connection.close()

    async def _connected(self) -> BrokerConnection:
        """Return a connection to the broker's current address."""
        self._check_open()
        address = self._address() if callable(self._address) else self._address
        if address is None:
            raise DisconnectedError("the broker's address is not known")
        connection = self._connection
        if connection is not None:
            if connection.is_open and address == self._connected_to:
                return connection
            connection.close()
            self._connection = None
        connection = await self._connect(address)
        self._connection, self._connected_to = connection, address
        self._check_open()
        return connection

    def _check_open(self) -> None:
        """Raise DisconnectedError if closed, and close connections opened since then."""
        if self._is_closed:
            self.close()
            raise DisconnectedError("the connection was closed")

    async def _connect(self, address: Address) -> BrokerConnection:
        host, port = address
        connecting = self._connecting = asyncio.ensure_future(
            connect(
                self._network,
                host,
                port,
                client_id=self._client_id,
                request_timeout_ms=self._request_timeout_ms,
                setup_timeout_ms=self._setup_timeout_ms,
                receive_buffer=self._receive_buffer,
                negotiate=False,
                numbers=self._numbers,
            )
        )
        try:
            connection = await connecting
        except AuthenticationError as error:
            # Retried, as the other broker may learn of a user or certificate a moment later; but each error is logged
            # once.
            if error.message != self._refusal:
                self._refusal = error.message
                logger.error("Connection to %s:%d failed authentication due to: %s", host, port, error.message)
            raise DisconnectedError(f"Connection to {host}:{port} failed authentication: {error.message}") from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._is_closed and (task is None or not task.cancelling()):
                raise DisconnectedError("the connection was closed") from None
            raise
        finally:
            self._connecting = None
            del connecting  # as in `ask`
        self._refusal = ""
        return connection


class BrokerClients:
    """An InterBrokerClient for each broker, through the listener for traffic between brokers."""

    def __init__(
        self,
        network: Network,
        image: Callable[[], MetadataImage],
        listener_name: str,
        client_id: str,
        request_timeout_ms: int,
    ) -> None:
        """`image` returns the metadata, which has the addresses."""
        self._network = network
        self._image = image
        self._listener_name = listener_name
        self._client_id = client_id
        self._request_timeout_ms = request_timeout_ms
        self._receive_buffer = ReceiveBuffer()
        self._clients: dict[int, InterBrokerClient] = {}

    def of(self, broker_id: int) -> InterBrokerClient:
        """The client of a broker, whether the broker is live or not."""
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
