"""A whole broker without sockets, disks or threads: its environment is replaced, all other code is the real one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Self, TypeVar

from broker.broker_environment import Environment, open_embedded
from broker.network.connection import Connection
from broker.server import KafkaServer
from config.broker_config import BrokerConfig
from environment.contract import P
from protocol.messages import RESPONSE_TYPES
from protocol.messages.headers import ResponseHeader
from protocol.wire.schema import Request, Response
from tests.kit.environment import InlineExecutor, ManualClock, SeededRandom
from tests.kit.executor_worker import ExecutorWorker
from tests.kit.memory_file_system import MemoryFileSystem
from tests.kit.wire_requests import framed, request_bytes

T = TypeVar("T")

SETTINGS = {
    "broker.id": "0",
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "log.dirs": "/data",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    "socket.request.max.bytes": "1000000",
}


class MemoryListener:
    """Remembers the handler of new connections."""

    port = 9092

    def __init__(self) -> None:
        self.factory: Callable[[], asyncio.BaseProtocol] | None = None

    def listen(self) -> None:
        """Do nothing: no client connects before the start."""

    async def start(self, protocol_factory: Callable[[], asyncio.BaseProtocol]) -> None:
        self.factory = protocol_factory

    async def close(self) -> None:
        self.factory = None


class MemoryNetwork:
    """A Network with one listener."""

    def __init__(self) -> None:
        self.listener = MemoryListener()
        self.hosts = {"localhost": "127.0.0.1"}
        """The addresses of hosts by their names."""

    def bind(self, host: str | None, port: int) -> MemoryListener:
        return self.listener

    async def connect(self, protocol_factory: Callable[[], P], host: str, port: int) -> tuple[asyncio.BaseTransport, P]:
        raise ConnectionRefusedError(f"nobody listens at {host}:{port}")

    async def addresses_of(self, host: str) -> list[str]:
        if host not in self.hosts:
            raise OSError(f"{host} is unknown")
        return [self.hosts[host]]

    def host_name(self) -> str:
        return "memory"


class MemoryTransport(asyncio.Transport):
    """A transport that keeps the bytes written and records whether the connection was closed."""

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
        """Do nothing: writes never block."""

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        """Do nothing: tests decide what they feed."""

    def resume_reading(self) -> None:
        """See `pause_reading`."""

    def close(self) -> None:
        """Do nothing: writes are never buffered."""
        self.abort()

    def abort(self) -> None:
        if not self.closed:
            self.closed = True
            assert self.connection is not None
            self.connection.connection_lost(None)


class Wire:
    """One client connection to an InProcessBroker."""

    def __init__(self, broker: InProcessBroker, client_id: str = "test") -> None:
        self._client_id = client_id
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
        """Whether the broker closed the connection."""
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
        """Send a request; returns its correlation id."""
        self._correlation_id += 1
        self.feed(framed(request_bytes(request, version, self._correlation_id, self._client_id)))
        return self._correlation_id

    async def ask(self, request: Request, version: int) -> Response:
        """Send a request and wait for the next answer. Raises ConnectionError if the broker closes the connection, and
        TimeoutError without an answer.
        """
        self.transport.written.clear()
        self.send(request, version)
        for _ in range(10_000):
            written = self.transport.written
            if len(written) >= 4 and len(written) >= 4 + int.from_bytes(written[:4], "big"):
                break
            if self.is_closed:
                raise ConnectionError("the broker hung up")
            await asyncio.sleep(0)
        else:
            raise TimeoutError(f"{type(request).__name__} is not answered")
        reply = memoryview(bytes(self.transport.written))[4:]
        header_version = request.api_key.response_header_version(version)
        _, body_at = ResponseHeader.decode_prefix(reply, header_version)
        return RESPONSE_TYPES[request.api_key].decode(reply[body_at:], version)

    def close(self) -> None:
        """Hang up."""
        self.transport.abort()


class InProcessBroker:
    """`async with InProcessBroker() as broker`: started, and shut down cleanly at the end."""

    def __init__(self, **settings: str) -> None:
        self.clock = ManualClock()
        self.random = SeededRandom()
        self.network = MemoryNetwork()
        self.file_system = MemoryFileSystem()
        self.executor = InlineExecutor()
        self._settings = SETTINGS | {name.replace("_", "."): value for name, value in settings.items()}
        self.server: KafkaServer

    async def __aenter__(self) -> Self:
        self.server = KafkaServer(
            BrokerConfig(self._settings),
            environment=Environment(
                clock=self.clock,
                random=self.random,
                executor=self.executor,
                network=self.network,
                file_system=self.file_system,
                open_ensemble=open_embedded,
                new_cleaner_worker=partial(ExecutorWorker, self.file_system, self.executor),
            ),
        )
        await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.shutdown()

    def connect(self, client_id: str = "test") -> Wire:
        """A new client connection."""
        return Wire(self, client_id)


Scenario = Callable[[InProcessBroker, Wire], Awaitable[None]]


def play(
    *scenarios: Scenario, prepare: Callable[[InProcessBroker], None] = lambda broker: None, **settings: str
) -> None:
    """Run the scenarios one after the other, each with a new broker on the same disk. `prepare` gets each broker before
    it starts.
    """

    async def run() -> None:
        file_system = MemoryFileSystem()
        for scenario in scenarios:
            broker = InProcessBroker(**settings)
            broker.file_system = file_system
            prepare(broker)
            async with broker:
                await scenario(broker, broker.connect())

    asyncio.run(run())
