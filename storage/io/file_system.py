"""The disk as storage sees it: the FileSystem contract. `storage.io.os_file_system` has the real one.

Everything storage does to a disk goes through these few calls, so that a test (or a whole simulated cluster) can
put `tests.kit.memory_file_system.MemoryFileSystem` in their place and lose, tear or refuse any single one of them.

Threads: other threads may read a File (`pread`, `try_pread`, `try_pread_into`) and flush it while its owner appends to
it. Every other call on one File belongs to the thread that owns the log.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, TypeVar

from protocol.value import Value

T = TypeVar("T")

Bytes: TypeAlias = bytes | bytearray | memoryview


class FileInfo(Value):
    """One entry of a directory. `size` in bytes (0 for a directory), `modified_ms` wall clock."""

    name: str
    size: int
    modified_ms: int
    is_dir: bool


class File(Protocol):
    """A file that grows at its end. Raises OSError as the operating system does."""

    path: str
    size: int
    """Bytes written through this handle and found at opening: the position of the next append."""
    unsynced: bool
    """Whether the file may hold something that was not fsynced. True for a new handle, as others may have written."""

    def append(self, parts: Sequence[Bytes]) -> None:
        """Write all parts at the end, in order, in one system call where the platform has it.

        On OSError `size` has not moved; bytes beyond it may have reached the file (`truncate(size)` removes them).
        """

    def pread(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position`; fewer only at the end of the file. May wait for the disk."""

    def try_pread(self, position: int, size: int) -> bytes | bytearray | None:
        """As `pread`, but None instead of waiting for the disk. Reads in any case where the platform cannot tell."""

    def try_pread_into(self, position: int, buffer: bytearray | memoryview) -> int | None:
        """Fill `buffer` from `position`; how many bytes that were, fewer only at the end of the file. None instead of
        waiting for the disk, as with `try_pread`; the buffer may have changed then.
        """

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes (never longer)."""

    def flush(self) -> None:
        """Return once everything appended so far is on stable storage (fsync)."""

    def rename(self, path: str) -> None:
        """Give the file another name, replacing what has it; readers of this handle do not notice."""

    def close(self) -> None:
        """Close the descriptor. The handle opens it again on the next use."""


class WouldWaitError(Exception):
    """The disk would have to be waited for, and the caller must not."""


def reader_of(file: File, *, may_wait: bool) -> Callable[[int, int], bytes | bytearray]:
    """`file.pread`, or one that raises WouldWaitError rather than wait for the disk."""
    if may_wait:
        return file.pread

    def read(position: int, size: int) -> bytes | bytearray:
        data = file.try_pread(position, size)
        if data is None:
            raise WouldWaitError
        return data

    return read


def is_disk_full(error: OSError) -> bool:
    """Whether the disk refused to take more, which leaves what it holds intact."""
    return error.errno in {errno.ENOSPC, errno.EDQUOT}


class Lock(Protocol):
    """An exclusive lock held by this process."""

    def release(self) -> None:
        """Give the lock up."""


class FileSystem(Protocol):
    """Files and directories by absolute path. Raises OSError (FileNotFoundError, ...) as the operating system does."""

    def open(self, path: str, *, is_private: bool = False) -> File:
        """The file at `path`, created empty when missing. A private one is created for its owner alone (mode 0600)."""

    def attach(self, path: str, size: int) -> File:
        """A handle on an existing file of known size; nothing is opened before its first use."""

    def create(self, path: str) -> None:
        """Make an empty file if there is none."""

    def read_file(self, path: str) -> bytes:
        """The whole content."""

    def write_file(self, path: str, data: bytes) -> None:
        """Replace the content in place. Not atomic: see `storage.directory.checkpoints.write_atomically`."""

    def exists(self, path: str) -> bool:
        """Whether a file or directory has this name."""

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        """Pretend that the content of a file last changed at `modified_ms`, by the wall clock."""

    def modified_ms(self, path: str) -> int:
        """When the content of a file last changed, by the wall clock."""

    def list_dir(self, path: str) -> list[FileInfo]:
        """The files and directories in a directory, in no order, those behind links too. As in Kafka, a link without a
        target is left out, and so are pipes, sockets and devices.
        """

    def make_dir(self, path: str) -> None:
        """Create one directory. Raises FileExistsError."""

    def make_dirs(self, path: str) -> None:
        """Create a directory, for its owner alone (mode 0700), and its parents where missing."""

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory; a file replaces the file that has the name."""

    def remove(self, path: str) -> None:
        """Remove a file."""

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all in it. Of links only the link is removed, except that of the directory itself:
        what it leads to is emptied.
        """

    def sync_file(self, path: str) -> None:
        """Fsync a file by name."""

    def sync_dir(self, path: str) -> None:
        """Fsync a directory: what was created, renamed and removed in it survives a power cut afterwards."""

    def start_sync(self) -> None:
        """Ask the operating system to write out everything. Proves nothing, but makes many later fsyncs cheap."""

    def disk_space(self, path: str) -> tuple[int, int]:
        """(total bytes, bytes usable by this process) of the disk that holds `path`."""

    def lock(self, path: str) -> Lock:
        """Lock the file at `path` (created if missing). Raises BlockingIOError when it is taken, by another process or
        under another name.
        """


class DiskTask(Protocol):
    """Made by the owner of the logs; `run` on any thread, once; then `complete` by the owner.

    `run` changes nothing that the owner or another thread looks at, and keeps its error for `complete`.
    """

    def run(self) -> None:
        """Do what waits for the disk."""

    def complete(self) -> None:
        """Hand the result to the owner of the logs. Raises ApiError KAFKA_STORAGE_ERROR where the task says so."""


_WINDOW_S = 1.0
"""For how long bytes that were not used may be made up for."""
_SHORTEST_SLEEP_S = 1e-6
"""Less than that no clock can show: waiting for it might never end."""
LONGEST_SLEEP_S = 0.3
"""A new rate counts after this time at the latest, also during a sleep."""


class RateLimiter:
    """How far a stream of bytes is ahead of a rate, for whoever waits in a way of its own.

    `bytes_per_second` may be changed at any time, on any thread; at 0 nothing may pass.
    """

    def __init__(self, monotonic_s: Callable[[], float], bytes_per_second: float = math.inf) -> None:
        self.bytes_per_second = bytes_per_second
        self._monotonic_s = monotonic_s
        self._began_s = monotonic_s()
        self._seen = 0

    def note(self, size: int) -> None:
        """Count bytes that have passed."""
        self._seen += size

    def wait_s(self) -> float:
        """How long to wait before more may pass: 0 for not at all, a sleep of `LONGEST_SLEEP_S` at most."""
        elapsed_s = self._monotonic_s() - self._began_s
        rate = self.bytes_per_second
        ahead_s = self._seen / rate - elapsed_s if rate > 0 else math.inf
        if ahead_s >= _SHORTEST_SLEEP_S:
            return min(ahead_s, LONGEST_SLEEP_S)
        if elapsed_s > _WINDOW_S:
            self._began_s += elapsed_s
            self._seen = 0
        return 0.0


class Throttle(RateLimiter):
    """Called with each number of bytes; sleeps when they came too fast. `monotonic_s` and `sleep` are the clock's."""

    def __init__(
        self, monotonic_s: Callable[[], float], sleep: Callable[[float], None], bytes_per_second: float = math.inf
    ) -> None:
        super().__init__(monotonic_s, bytes_per_second)
        self._sleep = sleep

    def __call__(self, size: int) -> None:
        """Note `size` bytes; returns when that many may have passed."""
        self.note(size)
        while wait_s := self.wait_s():
            self._sleep(wait_s)
