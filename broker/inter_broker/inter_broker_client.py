"""Connections to other brokers, one for each purpose: opened when something is asked, and opened again after they were
lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, TypeVar

from client.broker_connection import Connection, connect
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
    """Asks one broker in the versions of `broker.inter_broker.command_codec`: none are negotiated, as in Kafka.

    There is one connection at a time. Requests leave in the order of the calls of `ask`, and are answered in it.
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
        """`address` is looked up for every request; when it has changed, the connection to the old one is closed. None:
        it is not known. `receive_buffer` may be shared with other connections of the event loop. `numbers` become the
        correlation ids, from one connection to the next; each connection begins with 1 when it is None.
        """
        self._network = network
        self._address = address
        self._client_id = client_id
        self._request_timeout_ms = request_timeout_ms
        self._setup_timeout_ms = setup_timeout_ms
        self._receive_buffer = ReceiveBuffer() if receive_buffer is None else receive_buffer
        self._numbers = numbers
        self._turn = asyncio.Lock()
        self._connecting: asyncio.Task[Connection] | None = None
        self._connection: Connection | None = None
        self._connected_to: Address | None = None
        self._is_closed = False
        self._refusal = ""
        """Why the broker did not accept this one, or the other way round, when it was last tried."""

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection now."""
        return self._connection is not None and self._connection.is_open

    async def ask(self, request: Request, response_type: type[R], version: int, timeout_ms: int | None = None) -> R:
        """Send a request and wait for its answer; connect first where that is needed.

        Raises DisconnectedError when there is no connection, it ends first, or the answer takes longer than
        `timeout_ms` (`request_timeout_ms` when None): whether the request took effect is not known then. Raises
        EncodeError and ApiError UNSUPPORTED_VERSION for a request that cannot be sent. Fields of type `records` in the
        answer are slices of the frame received.
        """
        async with self._turn:
            connection = await self._connected()
            answer = connection.send(request, response_type, version, timeout_ms)
        try:
            return await answer
        finally:
            del answer  # its error has a traceback, which refers to this frame: a cycle

    def close(self) -> None:
        """Close the connection for good. Who waits for an answer, and who asks later, gets a DisconnectedError."""
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            self._connection.close()

    async def _connected(self) -> Connection:
        """A connection to the broker's present address."""
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
        """Raise DisconnectedError when this was closed, and close what was opened since."""
        if self._is_closed:
            self.close()
            raise DisconnectedError("the connection was closed")

    async def _connect(self, address: Address) -> Connection:
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
            # The others may learn of a user or a certificate a moment later, so it is tried again; but said once.
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
