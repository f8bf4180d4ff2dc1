"""The logs of a cluster's processes on standard output, as far as they are and as they grow."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

_POLL_S = 0.2


class NamedLog(NamedTuple):
    """A log file, and what its lines begin with when several are shown."""

    name: str
    path: Path


class _Tail:
    """Reads the lines of one file, of which the last may be unfinished yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self._rest = b""

    def new_lines(self) -> list[str]:
        """The lines that were finished since the last call; none while there is no file."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                data = file.read()
        except FileNotFoundError:
            return []
        self._position += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode("utf-8", "replace") for line in lines]


async def show_logs(logs: Sequence[NamedLog], *, lines: int, follow: bool, tell: Callable[[str], None]) -> None:
    """Tell the last `lines` of each log; with `follow` also what is added, until the task is cancelled."""
    tails = [(f"{log.name} | " if len(logs) > 1 else "", _Tail(log.path)) for log in logs]
    for prefix, tail in tails:
        for line in deque(tail.new_lines(), lines):
            tell(prefix + line)
    while follow:
        await asyncio.sleep(_POLL_S)
        for prefix, tail in tails:
            for line in tail.new_lines():
                tell(prefix + line)
