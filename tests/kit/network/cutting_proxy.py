"""A TCP proxy in the test's event loop that loses connections at the worst moments."""

from __future__ import annotations

import asyncio
import contextlib

_PING_BYTES = 12
"""A ZooKeeper client's ping: length, xid and type."""


class CuttingProxy:
    """Forwards to a port of loopback until `cut` is called."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._writers: dict[asyncio.StreamWriter, None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.lets_in = True
        """Whether new connections are forwarded; otherwise they are closed."""
        self.connections = 0
        """How many connections were forwarded and sent something other than the command srvr."""
        self._cut_at_request: str | None = None

    async def start(self) -> int:
        """Start listening; returns the port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    def cut(self) -> None:
        """Reset all connections."""
        for writer in list(self._writers):
            writer.transport.abort()

    def cut_before_next_request(self) -> None:
        """Lose the next request, and the connection with it."""
        self._cut_at_request = "before"

    def cut_after_next_request(self) -> None:
        """Let the next request through, and lose its answer and the connection."""
        self._cut_at_request = "after"

    async def close(self) -> None:
        """Stop listening, and cut all connections."""
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks[task] = None
        self._writers[writer] = None
        try:
            if self.lets_in:
                await self._forward(reader, writer)
        except OSError:
            return
        finally:
            self._writers.pop(writer)
            writer.transport.abort()
            if task is not None:
                self._tasks.pop(task)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        self._writers[up_writer] = None
        down = asyncio.ensure_future(self._relay(up_reader, writer))
        try:
            await self._relay_requests(reader, up_writer, down)
        finally:
            down.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await down
            self._writers.pop(up_writer)
            up_writer.transport.abort()

    async def _relay_requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: asyncio.Task[None]
    ) -> None:
        is_first = True
        while data := await reader.read(1 << 16):
            self.connections += is_first and data != b"srvr"
            is_first = False
            cut = self._cut_at_request if len(data) > _PING_BYTES else None
            if cut is not None:
                self._cut_at_request = None
                if cut == "after":
                    answers.cancel()
                    writer.write(data)
                    await writer.drain()
                    # Wait for the answer: a closed connection could overtake the request.
                    await asyncio.sleep(0.2)
                return
            writer.write(data)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()  # deliver what the server sent before its close
