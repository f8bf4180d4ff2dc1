"""Standard input by lines, without a thread that would keep the tool from ending while it waits for the next."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable

_CHUNK_BYTES = 65_536


async def read_lines(before_waiting: Callable[[], None] | None = None) -> AsyncIterator[bytes]:
    """The lines of standard input without their ends, to its end; `before_waiting` is called before each wait."""
    descriptor = sys.stdin.fileno()
    rest = b""
    while True:
        if before_waiting is not None:
            before_waiting()
        chunk = await _read(descriptor)
        if not chunk:
            break
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")
    if rest:
        yield rest


async def _read(descriptor: int) -> bytes:
    """Read what is available, at least one byte; empty at the end of the input."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        # Read here, where the selector has just seen something: a moment later reading could block.
        loop.remove_reader(descriptor)
        if not arrived.done():
            arrived.set_result(os.read(descriptor, _CHUNK_BYTES))

    try:
        loop.add_reader(descriptor, read)
    except PermissionError:
        return os.read(descriptor, _CHUNK_BYTES)  # a file, from which reading never waits long
    try:
        return await arrived
    finally:
        loop.remove_reader(descriptor)
