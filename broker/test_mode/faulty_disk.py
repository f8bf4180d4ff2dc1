"""The disk of a broker under test, which can be full, slow, or fail to write its cache out.

A separate process compacts logs, on the disk as it is.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Sequence
from typing import Final

from broker.test_mode.api_description import Given, boolean, integer, nullable, operation, optional, struct
from broker.test_mode.snapshots import LinkedFile, LinkedFileSystem
from storage.io.file_system import Bytes

_FAULTS: Final = struct(
    {
        "full": boolean("Every write fails."),
        "delay_ms": integer("How long each read from the disk and each fsync takes in addition.", minimum=0),
        "failing_fsyncs": nullable(integer("How many of the next fsyncs fail; null means all.", minimum=0)),
    }
)


class DiskFaults:
    """The faults of a disk. Threads of the broker read them."""

    def __init__(self) -> None:
        self.is_full = False
        self.delay_s = 0.0
        """How long a read and an fsync take in addition."""
        self.failing_fsyncs: int | None = 0
        """How many of the next fsyncs fail; None is all of them."""

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

    @operation("GET", "disk", "The faults of the disk.", answer=_FAULTS)
    async def _describe(self, _given: Given) -> object:
        return {
            "full": self.is_full,
            "delay_ms": round(self.delay_s * 1000),
            "failing_fsyncs": self.failing_fsyncs,
        }

    @operation(
        "POST",
        "disk",
        "Change the faults of the disk. Those that are not named stay as they are.",
        body=optional(_FAULTS["properties"]),
        answer=_FAULTS,
        example={"delay_ms": 5},
    )
    async def _change(self, given: Given) -> object:
        self.is_full = given.get("full", self.is_full)
        self.delay_s = given.get("delay_ms", self.delay_s * 1000) / 1000
        self.failing_fsyncs = given.get("failing_fsyncs", self.failing_fsyncs)
        return await self._describe(given)


class FaultyFile(LinkedFile):
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


class FaultyFileSystem(LinkedFileSystem):
    """The operating system's file system with faults of the disk."""

    def __init__(self, faults: DiskFaults, *, has_links: bool) -> None:
        """See `LinkedFileSystem`."""
        super().__init__(has_links=has_links)
        self.faults = faults

    def _new_file(self, path: str, size: int) -> FaultyFile:
        return FaultyFile(self, path, size)

    def write_file(self, path: str, data: bytes) -> None:
        self.faults.before_write(path)
        super().write_file(path, data)

    def sync_file(self, path: str) -> None:
        self.faults.before_fsync(path)
        super().sync_file(path)
