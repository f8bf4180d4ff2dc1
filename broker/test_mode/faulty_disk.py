"""The disk of a broker under test, which can be full, slow, or fail to write its cache out.

| request | answer |
|---|---|
| `GET /v1/disk`, `POST /v1/disk` | the disk's faults; sets them: `full`, `delay_ms`, `failing_fsyncs` (null: all) |

A separate process compacts logs, on the disk as it is.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus

from broker.test_mode.http_connection import HttpError, HttpRequest
from storage.io.file_system import Bytes
from storage.io.os_file_system import OsFile, OsFileSystem


class DiskFaults:
    """The faults of a disk. Threads of the broker read them."""

    def __init__(self) -> None:
        self.is_full = False
        self.delay_s = 0.0
        """How long a read and an fsync take in addition."""
        self.failing_fsyncs: int | None = 0
        """How many of the next fsyncs fail; None is all of them."""
        self.handlers: Mapping[tuple[str, str], Callable[[HttpRequest], Awaitable[object]]] = {
            ("GET", "disk"): self._describe,
            ("POST", "disk"): self._change,
        }

    def before_write(self, path: str) -> None:
        """Raise OSError if the disk is full."""
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device", path)

    def before_read(self) -> None:
        """Wait as long as the disk does."""
        if self.delay_s:
            time.sleep(self.delay_s)

    def before_fsync(self, path: str) -> None:
        """Wait as long as the disk does. Raises OSError if the fsync fails."""
        self.before_read()
        if self.failing_fsyncs is None or self.failing_fsyncs > 0:
            if self.failing_fsyncs is not None:
                self.failing_fsyncs -= 1
            raise OSError(errno.EIO, "Input/output error", path)

    async def _describe(self, _request: HttpRequest) -> object:
        return {
            "full": self.is_full,
            "delay_ms": round(self.delay_s * 1000),
            "failing_fsyncs": self.failing_fsyncs,
        }

    async def _change(self, request: HttpRequest) -> object:
        """Fields that are not given stay as they are."""
        body = request.body
        full, fsyncs = body.get("full", self.is_full), body.get("failing_fsyncs", self.failing_fsyncs)
        delay_ms = body.get("delay_ms", self.delay_s * 1000)
        if not isinstance(full, bool):
            raise HttpError(HTTPStatus.BAD_REQUEST, f"full is not true or false: {full!r}")
        if fsyncs is not None and (isinstance(fsyncs, bool) or not isinstance(fsyncs, int) or fsyncs < 0):
            raise HttpError(HTTPStatus.BAD_REQUEST, f"failing_fsyncs is not null or a number from 0 on: {fsyncs!r}")
        if isinstance(delay_ms, bool) or not isinstance(delay_ms, int | float) or delay_ms < 0:
            raise HttpError(HTTPStatus.BAD_REQUEST, f"delay_ms is not a number from 0 on: {delay_ms!r}")
        self.is_full, self.failing_fsyncs, self.delay_s = full, fsyncs, delay_ms / 1000
        return await self._describe(request)


class FaultyFile(OsFile):
    """A file on a disk with faults."""

    __slots__ = ()

    _files: FaultyFileSystem

    def append(self, parts: Sequence[Bytes]) -> None:
        self._files.faults.before_write(self.path)
        super().append(parts)

    def pread(self, position: int, size: int) -> bytes:
        self._files.faults.before_read()
        return super().pread(position, size)

    def try_pread_into(self, position: int, buffer: bytearray | memoryview) -> int | None:
        return None if self._files.faults.delay_s else super().try_pread_into(position, buffer)

    def flush(self) -> None:
        self._files.faults.before_fsync(self.path)
        super().flush()


class FaultyFileSystem(OsFileSystem):
    """The operating system's file system with faults of the disk."""

    file_type = FaultyFile

    def __init__(self, faults: DiskFaults) -> None:
        super().__init__()
        self.faults = faults

    def write_file(self, path: str, data: bytes) -> None:
        self.faults.before_write(path)
        super().write_file(path, data)

    def sync_file(self, path: str) -> None:
        self.faults.before_fsync(path)
        super().sync_file(path)
