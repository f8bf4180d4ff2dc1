"""The seams' real adapters: the only module that asks the operating system for time, chance, threads and sockets."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from protocol.uuids import uuid_to_text

T = TypeVar("T")


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()


class SystemRandom:
    """The operating system's randomness, or a seeded sequence when `seed` is given."""

    def __init__(self, seed: int | None = None) -> None:
        self._random: random.Random = random.SystemRandom() if seed is None else random.Random(seed)  # noqa: S311

    def randrange(self, stop: int) -> int:
        return self._random.randrange(stop)

    def uuid(self) -> uuid.UUID:
        # Kafka's Uuid.randomUuid skips ids whose text begins with '-', which command lines would take for an option.
        while True:
            candidate = uuid.UUID(int=self._random.getrandbits(128), version=4)
            if not uuid_to_text(candidate).startswith("-"):
                return candidate


class ThreadExecutor:
    """Threads, created when first needed, so that an idle broker has one."""

    def __init__(self, max_workers: int) -> None:
        self._pool = ThreadPoolExecutor(max_workers, thread_name_prefix="odradek-io")

    def run(self, function: Callable[..., T], /, *args: object) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    def close(self) -> None:
        self._pool.shutdown(wait=True)


class _TcpListener:
    def __init__(self, server: asyncio.Server) -> None:
        self._server = server

    @property
    def port(self) -> int:
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        self._server.close()


class TcpNetwork:
    """TCP through the running event loop. The accept backlog is Kafka's socket.listen.backlog.size."""

    def __init__(self, backlog: int) -> None:
        self._backlog = backlog

    async def listen(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str | None, port: int
    ) -> _TcpListener:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(protocol_factory, host, port, backlog=self._backlog)
        return _TcpListener(server)
