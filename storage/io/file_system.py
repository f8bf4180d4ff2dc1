"""Storage's view of the disk: the FileSystem contract. `storage.io.os_file_system` implements it.

Storage accesses the disk only through these calls, so that a test (or a whole simulated cluster) can use
`tests.kit.memory_file_system.MemoryFileSystem` instead and lose, tear or refuse any single call.

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
    """Bytes found when opening plus bytes written through this handle: the position of the next append."""
    unsynced: bool
    """Whether the file may hold unsynced data. True for a new handle, because others may have written."""

    def append(self, parts: Sequence[Bytes]) -> None:
        """Append all parts in order, in one system call where the platform supports it.

        On OSError `size` has not moved; bytes beyond it may have reached the file (`truncate(size)` removes them).
        """

    def pread(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position`; fewer only at the end of the file. May wait for the disk."""

    def try_pread(self, position: int, size: int) -> bytes | bytearray | None:
        """As `pread`, but returns None instead of waiting for the disk. Platforms that cannot tell always read."""

    def try_pread_into(self, position: int, buffer: bytearray | memoryview) -> int | None:
        """Fill `buffer` from `position`. Returns the number of bytes, fewer only at the end of the file, or None
        instead of waiting for the disk, as `try_pread`; the buffer may have changed then.
        """

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes (never longer)."""

    def flush(self) -> None:
        """Return once everything appended so far is on stable storage (fsync)."""

    def rename(self, path: str) -> None:
        """Rename the file, replacing an existing one; readers of this handle do not notice."""

    def close(self) -> None:
        """Close the descriptor. The handle opens it again on the next use."""


class WouldWaitError(Exception):
    """The read would block on the disk, which the caller cannot allow."""


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
    """Whether the disk or a quota is full, which leaves the existing data intact."""
    return error.errno in {errno.ENOSPC, errno.EDQUOT}


class Lock(Protocol):
    """An exclusive lock held by this process."""

    def release(self) -> None:
        """Release the lock."""


class FileSystem(Protocol):
    """Files and directories by absolute path. Raises OSError (FileNotFoundError, ...) as the operating system does."""

    def open(self, path: str, *, is_private: bool = False) -> File:
        """Open the file at `path`, created empty if missing. A private one gets mode 0600."""

    def attach(self, path: str, size: int) -> File:
        """A handle on an existing file of known size; it is opened on first use."""

    def create(self, path: str) -> None:
        """Create an empty file if missing."""

    def read_file(self, path: str) -> bytes:
        """The whole content."""

    def write_file(self, path: str, data: bytes) -> None:
        """Replace the content in place. Not atomic: see `storage.directory.checkpoints.write_atomically`."""

    def exists(self, path: str) -> bool:
        """Whether a file or directory has this name."""

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        """Set the modification time of a file to `modified_ms`, wall clock."""

    def modified_ms(self, path: str) -> int:
        """The modification time of a file, wall clock."""

    def list_dir(self, path: str) -> list[FileInfo]:
        """The files and directories in a directory, in any order; links are followed. As in Kafka, broken links, pipes,
        sockets and devices are left out.
        """

    def make_dir(self, path: str) -> None:
        """Create one directory. Raises FileExistsError."""

    def make_dirs(self, path: str) -> None:
        """Create a directory with mode 0700, and its missing parents."""

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory; a file replaces an existing file."""

    def remove(self, path: str) -> None:
        """Remove a file."""

    def remove_tree(self, path: str) -> None:
        """Remove a directory and everything in it. For links only the link is removed; if the directory itself is a
        link, its target is emptied.
        """

    def sync_file(self, path: str) -> None:
        """Fsync a file by name."""

    def sync_dir(self, path: str) -> None:
        """Fsync a directory: names created, renamed and removed in it survive a power cut."""

    def start_sync(self) -> None:
        """Ask the operating system to write out everything. It guarantees nothing, but makes many later fsyncs
        cheap.
        """

    def disk_space(self, path: str) -> tuple[int, int]:
        """(total bytes, bytes usable by this process) of the disk that holds `path`."""

    def lock(self, path: str) -> Lock:
        """Lock the file at `path` (created if missing). Raises BlockingIOError when another process holds it, or this
        one under another name.
        """


class DiskTask(Protocol):
    """A task for the disk. The owner of the logs creates it; any thread calls `run` once; then the owner calls
    `complete`.

    `run` changes nothing that the owner or another thread reads, and keeps its error for `complete`.
    """

    def run(self) -> None:
        """Do the part that waits for the disk."""

    def complete(self) -> None:
        """Hand the result to the owner of the logs. Raises ApiError KAFKA_STORAGE_ERROR where the task says so."""


_WINDOW_S = 1.0
"""The longest idle time whose unused bytes may be used later."""
_SHORTEST_SLEEP_S = 1e-6
"""The clock may not resolve a shorter wait, which then might never end."""
LONGEST_SLEEP_S = 0.3
"""A new rate takes effect within this time, even during a sleep."""


class RateLimiter:
    """How far a stream of bytes is ahead of a rate, for callers that do their own waiting.

    `bytes_per_second` may be changed at any time, on any thread; at 0 nothing may pass.
    """

    def __init__(self, monotonic_s: Callable[[], float], bytes_per_second: float = math.inf) -> None:
        self.bytes_per_second = bytes_per_second
        self._monotonic_s = monotonic_s
        self._began_s = monotonic_s()
        self._seen = 0

    def note(self, size: int) -> None:
        """Count bytes that were transferred."""
        self._seen += size

    def wait_s(self) -> float:
        """Seconds to wait before the next bytes, at most `LONGEST_SLEEP_S`; 0 for no wait."""
        elapsed_s = self._monotonic_s() - self._began_s
        rate = self.bytes_per_second
        ahead_s = self._seen / rate - elapsed_s if rate > 0 else math.inf
        if ahead_s >= _SHORTEST_SLEEP_S:
            return min(ahead_s, LONGEST_SLEEP_S)
        if elapsed_s > _WINDOW_S:
            self._began_s += elapsed_s
            self._seen = 0
        return 0.0


class Throttler(RateLimiter):
    """A throttle that sleeps when bytes come too fast. `monotonic_s` and `sleep` are the clock's."""

    def __init__(
        self, monotonic_s: Callable[[], float], sleep: Callable[[float], None], bytes_per_second: float = math.inf
    ) -> None:
        super().__init__(monotonic_s, bytes_per_second)
        self._sleep = sleep

    def __call__(self, size: int) -> None:
        """Count `size` bytes and sleep until the rate allows them."""
        self.note(size)
        while wait_s := self.wait_s():
            self._sleep(wait_s)
