"""One entry of `log.dirs`: whether it still works, and what is waiting to be removed from it.

A directory goes offline with the first write or fsync that fails, and stays so until the broker is started again:
after a failed fsync the kernel may have dropped the pages and would call the next one a success.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from protocol.errors import ApiError, ErrorCode
from storage.file_system import FileSystem

if TYPE_CHECKING:
    from storage.disk_reserve import DiskReserve


class Closable(Protocol):
    """What holds descriptors, a segment for example."""

    def close(self) -> None:
        """Let go of them."""


@dataclass(slots=True)
class DeferredDeletion:
    """Files (or one tree) already renamed out of the way, to be removed `delay_ms` after they were first seen as
    such.
    """

    paths: tuple[str, ...]
    is_tree: bool
    delay_ms: int
    readers: Sequence[Closable] = ()
    """Closed when the files go: as long as one of their descriptors is open, the disk has no more room than before."""
    due_ms: int | None = None


NO_LIMIT = 2**63 - 1
"""Headroom of a directory that keeps no reserve."""


class LogDirectory:
    """A log directory. `failure` is None while it works; afterwards it says what failed."""

    __slots__ = (
        "_on_corruption",
        "_on_failure",
        "corruptions",
        "deferred_deletions",
        "failure",
        "headroom_bytes",
        "is_reserve_reached",
        "log_count",
        "path",
        "reserve",
        "total_bytes",
        "usable_bytes",
        "written_checkpoints",
    )

    def __init__(
        self,
        path: str,
        on_failure: Callable[[str, str], None],
        on_corruption: Callable[[str], None] = lambda _message: None,
    ) -> None:
        """`on_failure` is called once with path and reason when the directory goes offline, `on_corruption` on any
        thread with one line for each damage that is found.
        """
        self.path = path
        self.failure: str | None = None
        self.deferred_deletions: list[DeferredDeletion] = []
        self.log_count = 0
        """Logs and future logs here: a new log goes to where the fewest are."""
        self.headroom_bytes = NO_LIMIT
        """What clients may append before somebody has to look (`storage.disk_reserve`); every append is counted."""
        self.is_reserve_reached = False
        self.reserve: DiskReserve | None = None
        self.total_bytes = self.usable_bytes = -1
        """Of the disk when it was last asked; -1 before."""
        self.written_checkpoints: dict[str, int] = {}
        """Hash of what each checkpoint file holds since this process wrote it, so that an idle one writes nothing."""
        self.corruptions: dict[tuple[str, int], str] = {}
        """What was found to be damaged, by file and byte position."""
        self._on_failure = on_failure
        self._on_corruption = on_corruption

    def report_corruption(self, path: str, position: int, message: str) -> None:
        """`message` tells what is wrong with the file at `path`; each position of it is told once. Any thread may."""
        if self.corruptions.setdefault((path, position), message) is message:
            self._on_corruption(message)

    def admit(self, size: int) -> None:
        """A client wants to append more than `headroom_bytes`. Raises ApiError KAFKA_STORAGE_ERROR when the disk has
        not that much to spare.
        """
        if self.reserve is not None:
            self.reserve.admit(size)

    def fail(self, error: OSError, doing: str) -> ApiError:
        """Take the directory offline because of `error`; returns what to raise."""
        self.take_offline(f"{doing}: {error}")
        return self.offline_error()

    def take_offline(self, reason: str) -> None:
        """Nothing of this directory is used any more; the first reason counts."""
        if self.failure is None:
            self.failure = reason
            self._on_failure(self.path, reason)

    def defer_tree(self, path: str, delay_ms: int) -> None:
        """Have a directory, already renamed out of the way, removed after `delay_ms`."""
        self.deferred_deletions.append(DeferredDeletion((path,), is_tree=True, delay_ms=delay_ms))

    def take_expired(self, now_ms: int) -> list[DeferredDeletion]:
        """The deletions whose time has come; each is handed out once.

        `now_ms` counts from anywhere, but always from there: a clock that can be set back would keep the files.
        """
        expired: list[DeferredDeletion] = []
        waiting: list[DeferredDeletion] = []
        for deletion in self.deferred_deletions:
            if deletion.due_ms is None:
                deletion.due_ms = now_ms + deletion.delay_ms
            (waiting if deletion.due_ms > now_ms else expired).append(deletion)
        self.deferred_deletions = waiting
        return expired

    def offline_error(self) -> ApiError:
        """What every access to a log of an offline directory is answered with."""
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"The log directory {self.path} is offline ({self.failure})")


class DirectorySyncTask:
    """The fsync of a log directory itself. `run` may be called on any thread, `complete` belongs to the owner."""

    __slots__ = ("_directory", "_error", "_file_system")

    def __init__(self, file_system: FileSystem, directory: LogDirectory) -> None:
        self._file_system = file_system
        self._directory = directory
        self._error: OSError | None = None

    def run(self) -> None:
        """Make what was created, renamed and removed durable; an error is kept for `complete`."""
        try:
            self._file_system.sync_dir(self._directory.path)
        except OSError as error:
            self._error = error

    def complete(self) -> None:
        """Take the directory offline if the disk refused."""
        if self._error is not None:
            self._directory.fail(self._error, f"Error while flushing {self._directory.path}")


class DeletionTask:
    """One deferred deletion whose time has come. `run` may be called on any thread, `complete` belongs to the owner."""

    __slots__ = ("_deletion", "_directory", "_error", "_file_system")

    def __init__(self, file_system: FileSystem, directory: LogDirectory, deletion: DeferredDeletion) -> None:
        self._file_system = file_system
        self._directory = directory
        self._deletion = deletion
        self._error: OSError | None = None

    def run(self) -> None:
        """Remove the files; an error is kept for `complete`."""
        remove = self._file_system.remove_tree if self._deletion.is_tree else self._file_system.remove
        for path in self._deletion.paths:
            try:
                remove(path)
            except FileNotFoundError:
                continue  # gone with its directory: nothing is wrong with the disk
            except OSError as error:
                self._error = error
                return

    def complete(self) -> None:
        """Give the room back; take the directory offline if the disk refused."""
        for reader in self._deletion.readers:
            reader.close()
        if self._error is not None:
            self._directory.fail(self._error, f"Error while removing {', '.join(self._deletion.paths)}")
