"""A SocketServer with a scripted dispatcher, and the loops to run it on."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import Awaitable, Callable
from typing import Self

from broker.network.connection import Connection
from broker.network.limits import ConnectionLimits
from broker.network.memory import RequestMemory
from broker.network.registry import Waiting
from broker.network.reply_writer import Parts
from broker.network.socket_server import ListenerBinding, ProtocolFactory, SocketServer
from environment.system import SystemClock, TcpNetwork, ThreadExecutor

Answer = Callable[[bytes], Parts | Waiting[Parts | None] | Awaitable[Parts | None] | None]
"""An awaitable lets everything pass."""


class ScriptedDispatcher:
    """Answers every frame with the result of `answer`."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.seen = 0

    def dispatch(self, connection: Connection, frame: memoryview) -> Parts | Waiting[Parts | None] | None:
        self.seen += 1
        answer = self._answer(bytes(frame))
        if isinstance(answer, Awaitable):
            return Waiting(asyncio.ensure_future(answer))
        return answer


class ScriptedServer:
    """A SocketServer on an ephemeral port with a scripted dispatcher."""

    def __init__(
        self,
        answer: Answer,
        *,
        max_connections: int = 100,
        per_ip: int = 100,
        max_idle_ms: int = -1,
        queued_bytes: int = -1,
        security: ProtocolFactory | None = None,
    ) -> None:
        self.executor = ThreadExecutor(2)
        self.writers: list[asyncio.StreamWriter] = []
        self.dispatcher = ScriptedDispatcher(answer)
        self._security = security
        self.server = SocketServer(
            TcpNetwork(50), self.executor, SystemClock(), ConnectionLimits(max_connections, per_ip, {}),
            RequestMemory(queued_bytes), max_request_bytes=1_000_000, max_idle_ms=max_idle_ms,
        )  # fmt: skip

    async def __aenter__(self) -> Self:
        await self.server.bind([ListenerBinding("PLAINTEXT", "127.0.0.1", 0, self._security)])
        await self.server.start(self.dispatcher)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop_listening()
        self.server.close_connections()
        for writer in self.writers:
            writer.transport.abort()
        await asyncio.sleep(0.02)
        self.executor.close()

    async def connect(self, context: ssl.SSLContext | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        streams = await asyncio.open_connection("127.0.0.1", self.server.ports["PLAINTEXT"], ssl=context)
        self.writers.append(streams[1])
        return streams


LOOP_FACTORIES: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop]
"""The loop that `run` uses, set for each test."""


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(1), 30) == b""
    except ConnectionResetError:
        return True


def run(scenario: Awaitable[None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scenario, 60)

    with asyncio.Runner(loop_factory=LOOP_FACTORIES[0]) as runner:
        runner.run(bounded())
