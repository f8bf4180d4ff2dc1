"""A proxy to the broker that can be cut: every connection through it ends at once, in the middle of its data."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

CHUNK_BYTES = 4096


class Proxy:
    """Forwards `port` to the broker at `target`. Clients stay on it when the broker advertises it."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._open: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        """End every connection."""
        for task in list(self._open):
            task.cancel()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection until either side closes it or it is cut."""
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        there: asyncio.StreamWriter | None = None
        try:
            back, there = await asyncio.open_connection(*self._target)
            await asyncio.gather(self._copy(reader, there), self._copy(back, writer))
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(task)
            for each in (writer, there):
                if each is not None:
                    each.transport.abort()

    @staticmethod
    async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError

    async def close(self) -> None:
        """Cut, and wait until all connections have ended."""
        tasks = list(self._open)
        self.cut()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def proxy(port: int, target: str) -> AsyncIterator[Proxy]:
    """A proxy that listens on `port`."""
    way = Proxy(target)
    server = await asyncio.start_server(way.handle, "127.0.0.1", port)
    try:
        yield way
    finally:
        server.close()
        await way.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):
                await server.wait_closed()
