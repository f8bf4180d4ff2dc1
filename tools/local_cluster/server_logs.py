"""Prints the logs of a cluster's processes, and follows them as they grow."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

_POLL_S = 0.2


class NamedLog(NamedTuple):
    """A log file, and the prefix of its lines when several are shown."""

    name: str
    path: Path


class _Tail:
    """Reads the complete lines of one file. After a rotation it finishes the old file, then reads the new one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._rest = b""

    def new_lines(self) -> list[str]:
        """The lines completed since the last call; empty while the file does not exist."""
        data = self._rest
        if self._file is not None:
            data += self._file.read()
            if self._is_rotated(self._file):
                data += self._file.read()
                self.close()
        if self._file is None:
            with contextlib.suppress(FileNotFoundError):
                self._file = self._path.open("rb")
                data += self._file.read()
        *lines, self._rest = data.split(b"\n")
        return [line.decode("utf-8", "replace") for line in lines]

    def _is_rotated(self, file: BinaryIO) -> bool:
        try:
            return not os.path.samestat(os.fstat(file.fileno()), self._path.stat())
        except FileNotFoundError:
            return False  # between the two renames

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


async def show_logs(logs: Sequence[NamedLog], *, lines: int, follow: bool, tell: Callable[[str], None]) -> None:
    """Pass the last `lines` of each log to `tell`; with `follow`, also new lines until the task is cancelled."""
    with contextlib.ExitStack() as stack:
        tails = []
        for log in logs:
            tail = _Tail(log.path)
            stack.callback(tail.close)
            tails.append((f"{log.name} | " if len(logs) > 1 else "", tail))
        for prefix, tail in tails:
            for line in deque(tail.new_lines(), lines):
                tell(prefix + line)
        while follow:
            await asyncio.sleep(_POLL_S)
            for prefix, tail in tails:
                for line in tail.new_lines():
                    tell(prefix + line)
