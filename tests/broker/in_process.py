"""A whole broker without sockets, disks or threads: every seam is replaced, the rest is the real thing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Self, TypeVar

from broker.network.connection import Connection
from broker.server import KafkaServer
from config.broker_config import BrokerConfig
from protocol.messages import RESPONSE_TYPES, RequestHeader, ResponseHeader
from protocol.schema import Request, Response
from storage.memory_file_system import MemoryFileSystem
from tests.broker.executor_worker import ExecutorWorker
from tests.broker.seams import InlineExecutor, ManualClock, SeededRandom

T = TypeVar("T")

SETTINGS = {
    "broker.id": "0",
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "log.dirs": "/data",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "5",
    "group.initial.rebalance.delay.ms": "0",
    "socket.request.max.bytes": "1000000",
}


class MemoryListener:
    """Remembers who wants to serve connections."""

    port = 9092

    def __init__(self) -> None:
        self.factory: Callable[[], asyncio.BaseProtocol] | None = None

    async def start(self, protocol_factory: Callable[[], asyncio.BaseProtocol]) -> None:
        self.factory = protocol_factory

    async def close(self) -> None:
        self.factory = None


class MemoryNetwork:
    """The Network seam with one listener."""

    def __init__(self) -> None:
        self.listener = MemoryListener()

    def bind(self, host: str | None, port: int) -> MemoryListener:
        return self.listener


class MemoryTransport(asyncio.Transport):
    """What a connection writes, and whether it hung up."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 50000)})
        self.written = bytearray()
        self.closed = False
        self.connection: Connection | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.written += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is always room."""

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        """Tests feed what they want to feed."""

    def resume_reading(self) -> None:
        """See `pause_reading`."""

    def abort(self) -> None:
        if not self.closed:
            self.closed = True
            assert self.connection is not None
            self.connection.connection_lost(None)


class Wire:
    """One client connection to an InProcessBroker."""

    def __init__(self, broker: InProcessBroker) -> None:
        assert broker.network.listener.factory is not None
        connection = broker.network.listener.factory()
        assert isinstance(connection, Connection)
        self.connection = connection
        self.transport = MemoryTransport()
        self.transport.connection = connection
        connection.connection_made(self.transport)
        self._correlation_id = 0

    @property
    def is_closed(self) -> bool:
        """Whether the broker hung up."""
        return self.transport.closed

    def feed(self, data: bytes | memoryview) -> None:
        """Let the connection receive `data`, as the event loop would."""
        view = memoryview(data)
        while view and not self.is_closed:
            buffer = self.connection.get_buffer(-1)
            size = min(len(buffer), len(view))
            buffer[:size] = view[:size]
            self.connection.buffer_updated(size)
            view = view[size:]

    def send(self, request: Request, version: int) -> int:
        """Send a request; gives its correlation id."""
        self._correlation_id += 1
        self.feed(framed(request_bytes(request, version, self._correlation_id)))
        return self._correlation_id

    async def ask(self, request: Request, version: int) -> Response:
        """Send a request and wait for the next answer."""
        self.transport.written.clear()
        self.send(request, version)
        for _ in range(10_000):
            written = self.transport.written
            if len(written) >= 4 and len(written) >= 4 + int.from_bytes(written[:4], "big"):
                break
            if self.is_closed:
                raise ConnectionError("the broker hung up")
            await asyncio.sleep(0)
        reply = memoryview(bytes(self.transport.written))[4:]
        header_version = request.api_key.response_header_version(version)
        _, body_at = ResponseHeader.decode_prefix(reply, header_version)
        return RESPONSE_TYPES[request.api_key].decode(reply[body_at:], version)

    def close(self) -> None:
        """Hang up."""
        self.transport.abort()


def request_bytes(request: Request, version: int, correlation_id: int = 1) -> bytes:
    """A request with its header, without the length in front."""
    header = RequestHeader(
        request_api_key=int(request.api_key),
        request_api_version=version,
        correlation_id=correlation_id,
        client_id="test",
    )
    return header.to_bytes(request.api_key.request_header_version(version)) + request.to_bytes(version)


def framed(payload: bytes) -> bytes:
    """`payload` behind its length."""
    return len(payload).to_bytes(4, "big") + payload


class InProcessBroker:
    """`async with InProcessBroker() as broker`: started, and shut down cleanly at the end."""

    def __init__(self, **settings: str) -> None:
        self.clock = ManualClock()
        self.network = MemoryNetwork()
        self.file_system = MemoryFileSystem()
        self.executor = InlineExecutor()
        self._settings = SETTINGS | {name.replace("_", "."): value for name, value in settings.items()}
        self.server: KafkaServer

    async def __aenter__(self) -> Self:
        self.server = KafkaServer(
            BrokerConfig(self._settings),
            clock=self.clock,
            random=SeededRandom(),
            executor=self.executor,
            network=self.network,
            file_system=self.file_system,
            new_cleaner_worker=partial(ExecutorWorker, self.file_system, self.executor),
        )
        await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.shutdown()

    def connect(self) -> Wire:
        """A new client connection."""
        return Wire(self)
