"""A broker with scripted answers, over a real socket."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from client.broker_connection import BrokerConnection, connect
from client.environment import LoopNetwork
from protocol.api_keys import ApiKey
from protocol.messages import REQUEST_TYPES
from protocol.messages.api_versions import ApiVersionsResponse
from protocol.messages.headers import RequestHeader
from protocol.wire.frames import ReceiveBuffer
from protocol.wire.schema import Request, Response

LENGTH = struct.Struct(">i")
Answer = Callable[["Peer", RequestHeader, Request | None], Awaitable[None]]


class Peer:
    """One connection, from the broker's side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def reply(self, correlation_id: int, response: Response, version: int) -> None:
        """Answer."""
        header = LENGTH.pack(correlation_id) + b"\0" * response.api_key.response_header_version(version)
        self.send(header + response.to_bytes(version))

    def send(self, frame: bytes) -> None:
        """Send bytes with their length in front."""
        self.writer.write(LENGTH.pack(len(frame)) + frame)


async def offer_versions(peer: Peer, header: RequestHeader, request: Request | None) -> None:
    """Answer ApiVersions as a broker that supports Metadata v1 to v12, and FindCoordinator."""
    del request
    versions = ApiVersionsResponse.ApiVersion
    offered = [
        versions(api_key=3, min_version=1, max_version=12),
        versions(api_key=10, min_version=0, max_version=4),
        versions(api_key=18, min_version=0, max_version=4),
    ]
    response = ApiVersionsResponse(error_code=0, api_keys=offered)
    peer.reply(header.correlation_id, response, header.request_api_version)


async def _serve(peer: Peer, answers: dict[ApiKey, Answer]) -> None:
    while True:
        (size,) = LENGTH.unpack(await peer.reader.readexactly(LENGTH.size))
        frame = memoryview(await peer.reader.readexactly(size))
        key, version = struct.unpack_from(">hh", frame)
        api_key = ApiKey(key)
        header, end = RequestHeader.decode_prefix(frame, api_key.request_header_version(version))
        request_type = REQUEST_TYPES.get(api_key)
        request = None
        if request_type is not None and version <= request_type.max_version:
            request = request_type.decode(frame[end:], version)
        await answers[api_key](peer, header, request)


@asynccontextmanager
async def broker(answers: dict[ApiKey, Answer], context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Run a broker with one answer for each API; yields its port. ApiVersions is answered unless it is in `answers`. It
    uses TLS with a `context`.
    """
    everything = {ApiKey.API_VERSIONS: offer_versions, **answers}
    handlers: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.add(task)
        try:
            await _serve(Peer(reader, writer), everything)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            writer.close()
        finally:
            handlers.discard(task)

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(handlers):
            task.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)
        await server.wait_closed()


@asynccontextmanager
async def connected(answers: dict[ApiKey, Answer], request_timeout_ms: int = 60_000) -> AsyncIterator[BrokerConnection]:
    """A connection to a scripted broker."""
    async with broker(answers) as port:
        connection = await connect(
            LoopNetwork(),
            "127.0.0.1",
            port,
            client_id="test",
            request_timeout_ms=request_timeout_ms,
            setup_timeout_ms=60_000,
            receive_buffer=ReceiveBuffer(),
        )
        try:
            yield connection
        finally:
            connection.close()
