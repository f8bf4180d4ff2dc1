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
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        loop.add_reader(descriptor, readable.set)
        is_watched = True
    except PermissionError:
        is_watched = False  # a file, from which reading never waits long
    rest = b""
    try:
        while True:
            if before_waiting is not None:
                before_waiting()
            if is_watched:
                await readable.wait()
                readable.clear()
            chunk = os.read(descriptor, _CHUNK_BYTES)
            if not chunk:
                break
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line.removesuffix(b"\r")
        if rest:
            yield rest
    finally:
        if is_watched:
            loop.remove_reader(descriptor)
